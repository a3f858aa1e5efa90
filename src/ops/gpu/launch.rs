//! What every launch needs: buffer arguments, fresh outputs, grids within WebGPU's limits.
//!
//! A kernel that changes a tensor gets its buffer once, as `&mut`. All kernels are launched unchecked: each guards its
//! own indices against the problem's sizes.
use burn::backend::DType;
use burn::backend::wgpu::CubeTensor;
use burn::tensor::Shape;
use cubecl::prelude::*;

use crate::ops::counters::count_dispatch;

/// WebGPU's default limit on workgroups in one dimension.
const MAX_GROUPS: u32 = 65_535;

/// A grid of at least `groups` workgroups; kernels use `ABSOLUTE_POS` or `CUBE_POS` and check it.
pub(super) fn grid(groups: usize) -> CubeCount {
    count_dispatch();
    let groups = groups as u32;
    if groups <= MAX_GROUPS {
        CubeCount::Static(groups, 1, 1)
    } else {
        let y = groups.div_ceil(MAX_GROUPS);
        CubeCount::Static(groups.div_ceil(y), y, 1)
    }
}

/// A grid of `x` by `y` workgroups.
pub(super) fn grid_2d(x: usize, y: usize) -> CubeCount {
    count_dispatch();
    CubeCount::Static(x as u32, y as u32, 1)
}

/// Values (or words) in a tensor.
pub(super) fn len(t: &CubeTensor) -> usize {
    t.meta.shape().num_elements()
}

/// The whole tensor as a buffer of `T` elements, each `vector` values wide.
#[allow(unsafe_code, reason = "CubeCL takes a buffer's length on trust")]
pub(super) fn buffer(t: &CubeTensor, vector: usize) -> BufferArg {
    // SAFETY: the length is the tensor's own, in whole vectors, and op tensors are contiguous.
    unsafe { BufferArg::from_raw_parts(t.handle.clone(), len(t) / vector) }
}

/// An uninitialized flat tensor on `like`'s device.
pub(super) fn empty(like: &CubeTensor, len: usize, dtype: DType) -> CubeTensor {
    let handle = like.client.empty(len * 4);
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), Shape::new([len]), handle, dtype)
}

/// Launches a kernel without CubeCL's bounds checks.
macro_rules! launch {
    ($kernel:path, $($arg:expr),* $(,)?) => {{
        // SAFETY: the kernel compares its indices with the problem's sizes, and the tensors have those sizes: the op's
        // contract, which model code keeps and the self-test at load exercises.
        #[allow(unsafe_code, reason = "CubeCL's launch without bounds checks in every kernel")]
        unsafe {
            use $kernel as kernel; kernel::launch_unchecked($($arg),*)
        }
    }};
}
pub(super) use launch;
