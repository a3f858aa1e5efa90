//! The ops on burn tensors: what model code calls. Each is one dispatch on WebGPU.
