//! WebGPU kernels of the ops (CubeCL).
