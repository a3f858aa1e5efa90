//! CPU kernels of the ops, over burn-flex tensors: SIMD128 in wasm, the same arithmetic in scalar code natively.
