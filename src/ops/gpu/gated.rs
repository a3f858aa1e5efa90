//! `act(gate) * up` where both halves were computed before: one invocation a value.
use burn::backend::DType;
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use super::math::activate;
use crate::ops::matmul::{Activation, GatedProblem};

#[cube(launch_unchecked)]
fn gated_values(x: &[f32], out: &mut [f32], len: u32, f: u32, #[comptime] activation: Activation) {
    let i = ABSOLUTE_POS as u32;
    if i < len {
        let gate = i / f * 2u32 * f + i % f;
        out[i as usize] = activate(x[gate as usize], activation) * x[(gate + f) as usize];
    }
}

pub(super) fn gated(x: CubeTensor, p: &GatedProblem) -> CubeTensor {
    let out = launch::empty(&x, p.tokens * p.f, DType::F32);
    let len = p.tokens * p.f;
    if len > 0 {
        let (grid, dim) = (launch::grid(len.div_ceil(64)), CubeDim::new_1d(64));
        let (x, to) = (launch::buffer(&x, 1), launch::buffer(&out, 1));
        launch!(gated_values, &out.client, grid, dim, x, to, len as u32, p.f as u32, p.activation);
    }
    out
}
