//! Paged attention: sizes and addresses that both variants share, and the launch.
//!
//! Canonical order: segments of 64 absolute positions, each with its own maximum, sum and mix, folded in ascending order.
mod serial;
mod workgroup;

use burn::backend::DType;
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use super::math::tanh_safe;
use crate::ops::attention::AttentionProblem;

/// Positions in a segment, as the kernels need it.
const SEGMENT: u32 = crate::ops::attention::SEGMENT as u32;

/// Sizes given to the kernels; lengths of heads are in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Sizes {
    tokens: u32,
    num_heads: u32,
    num_kv_heads: u32,
    block_size: u32,
    scale: f32,
    window: u32,
    softcap: f32,
    positions: u32,
    seqs: u32,
    tables: u32,
    table_stride: u32,
}

/// First position that a token at `position` sees.
#[cube]
fn first_seen(s: &Sizes, position: u32) -> u32 {
    // A window of 0 is none.
    let seen = select(s.window == 0u32, position + 1u32, min(s.window, position + 1u32));
    position + 1u32 - seen
}

/// Index into the cache of k at (position, kv head), in vectors; v lies `block_size * num_kv_heads * dv` further.
#[cube]
fn k_index(meta: &[u32], s: &Sizes, table: u32, position: u32, kv_head: u32, #[comptime] dv: u32) -> u32 {
    let block = meta[(table + position / s.block_size) as usize];
    ((block * 2u32 * s.block_size + position % s.block_size) * s.num_kv_heads + kv_head) * dv
}

/// Scales and caps a score.
#[cube]
fn finish_score(dot: f32, s: &Sizes) -> f32 {
    let score = dot * s.scale;
    let mut capped = score;
    if s.softcap > 0.0f32 {
        capped = s.softcap * tanh_safe(score / s.softcap);
    }
    capped
}

pub(super) fn attention(qkv: CubeTensor, kv: CubeTensor, meta: CubeTensor, p: &AttentionProblem) -> CubeTensor {
    let out = launch::empty(&qkv, p.tokens * p.num_heads * p.head_dim, DType::F32);
    let len = p.tokens * p.num_heads;
    if len == 0 {
        return out;
    }
    let vector = [4, 2, 1].into_iter().find(|&v| p.head_dim.is_multiple_of(v)).unwrap_or(1);
    let dv = (p.head_dim / vector) as u32;
    let (q, cache, to) = (launch::buffer(&qkv, vector), launch::buffer(&kv, vector), launch::buffer(&out, vector));
    let meta = launch::buffer(&meta, 1);
    let sizes = SizesLaunch::new(
        p.tokens as u32,
        p.num_heads as u32,
        p.num_kv_heads as u32,
        p.block_size as u32,
        p.scale,
        p.window as u32,
        p.softcap,
        p.positions_offset as u32,
        p.seqs_offset as u32,
        p.tables_offset as u32,
        p.table_stride as u32,
    );
    if p.variant.is_serial() {
        let (grid, dim) = (launch::grid(len.div_ceil(serial::LANES as usize)), CubeDim::new_1d(serial::LANES));
        launch!(serial::serial, &out.client, grid, dim, vector, q, cache, meta, to, sizes, dv);
    } else {
        let (grid, dim) = (launch::grid(len), CubeDim::new_1d(SEGMENT));
        launch!(workgroup::workgroup, &out.client, grid, dim, vector, q, cache, meta, to, sizes, dv);
    }
    out
}
