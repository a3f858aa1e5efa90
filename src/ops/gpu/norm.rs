//! RMS norm of chosen rows: one workgroup a row, one barrier, the lanes' sums added in order by every lane.
use burn::backend::DType;
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use crate::ops::norm::NormProblem;

const LANES: u32 = 64;

#[cube(launch_unchecked)]
fn rms_norm_rows(
    x: &[f32],
    weight: &[f32],
    meta: &[u32],
    out: &mut [f32],
    rows: u32,
    width: u32,
    gather: u32,
    eps: f32,
    #[comptime] gathered: bool,
) {
    let mut shared = Shared::<[f32]>::new_slice(LANES as usize);
    let r = min(CUBE_POS as u32, rows - 1u32);
    let row = if comptime!(gathered) { meta[(gather + r) as usize] } else { r };
    let from = row * width;
    let mut squares = 0.0f32;
    let mut i = UNIT_POS_X;
    while i < width {
        let v = x[(from + i) as usize];
        squares += v * v;
        i += LANES;
    }
    shared[UNIT_POS_X as usize] = squares;
    sync_cube();
    let mut sum = 0.0f32;
    for lane in 0..LANES {
        sum += shared[lane as usize];
    }
    let scale = 1.0f32 / (sum / f32::cast_from(width) + eps).sqrt();
    let mut i = UNIT_POS_X;
    while i < width {
        out[(r * width + i) as usize] = x[(from + i) as usize] * scale * weight[i as usize];
        i += LANES;
    }
}

pub(super) fn rms_norm(x: CubeTensor, weight: CubeTensor, meta: CubeTensor, p: &NormProblem) -> CubeTensor {
    let out = launch::empty(&x, p.rows * p.width, DType::F32);
    if p.rows > 0 {
        let (dim, gather) = (CubeDim::new_1d(LANES), p.gather.unwrap_or(0) as u32);
        let (rows, width, gathered) = (p.rows as u32, p.width as u32, p.gather.is_some());
        let (x, weight, meta) = (launch::buffer(&x, 1), launch::buffer(&weight, 1), launch::buffer(&meta, 1));
        let (grid, to) = (launch::grid(p.rows), launch::buffer(&out, 1));
        launch!(rms_norm_rows, &out.client, grid, dim, x, weight, meta, to, rows, width, gather, p.eps, gathered);
    }
    out
}
