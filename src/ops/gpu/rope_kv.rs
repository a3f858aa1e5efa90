//! Rotary positions and the write of k and v into the paged cache: one invocation a pair of dimensions of a head.
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use crate::ops::rope_kv::RopeKvProblem;

/// Sizes given to the kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    tokens: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    /// Pairs that rotate.
    half: u32,
    /// Pairs in all; the last may lack its second dimension.
    pairs: u32,
    block_size: u32,
    slots: u32,
}

/// Index into the cache of (slot, k or v, kv head, 0).
#[cube]
fn cache_index(s: &Sizes, slot: u32, is_v: u32, head: u32) -> u32 {
    let (block, offset) = (slot / s.block_size, slot % s.block_size);
    (((block * 2u32 + is_v) * s.block_size + offset) * s.num_kv_heads + head) * s.head_dim
}

#[cube(launch_unchecked)]
fn rope_kv_pairs(qkv: &mut [f32], kv: &mut [f32], rope: &[f32], meta: &[u32], s: Sizes, #[comptime] interleaved: bool) {
    let i = ABSOLUTE_POS as u32;
    let heads = s.num_heads + 2u32 * s.num_kv_heads;
    let (pair, head, t) = (i % s.pairs, i / s.pairs % heads, i / s.pairs / heads);
    if t < s.tokens {
        let rotates = pair < s.half;
        // Dimensions past the rotating ones are taken two by two.
        let beside = pair * 2u32;
        let a = if comptime!(interleaved) { beside } else { select(rotates, pair, beside) };
        let b = if comptime!(interleaved) { beside + 1u32 } else { select(rotates, pair + s.half, beside + 1u32) };
        let from = (t * heads + head) * s.head_dim;
        let both = b < s.head_dim;
        let mut va = qkv[(from + a) as usize];
        let mut vb = 0.0f32;
        if both {
            vb = qkv[(from + b) as usize];
        }
        if rotates && head < s.num_heads + s.num_kv_heads {
            let at = ((t * s.half + pair) * 2u32) as usize;
            let (cos, sin) = (rope[at], rope[at + 1]);
            let turned = va * cos - vb * sin;
            vb = va * sin + vb * cos;
            va = turned;
            qkv[(from + a) as usize] = va;
            qkv[(from + b) as usize] = vb;
        }
        if head >= s.num_heads {
            let kv_head = head - s.num_heads;
            let is_v = select(kv_head >= s.num_kv_heads, 1u32, 0u32);
            let slot = meta[(s.slots + t) as usize];
            let to = cache_index(&s, slot, is_v, kv_head - is_v * s.num_kv_heads);
            kv[(to + a) as usize] = va;
            if both {
                kv[(to + b) as usize] = vb;
            }
        }
    }
}

pub(super) fn rope_kv(
    qkv: CubeTensor,
    kv: CubeTensor,
    rope: CubeTensor,
    meta: CubeTensor,
    p: &RopeKvProblem,
) -> (CubeTensor, CubeTensor) {
    let pairs = p.rope_dim / 2 + (p.head_dim - p.rope_dim).div_ceil(2);
    let len = p.tokens * (p.num_heads + 2 * p.num_kv_heads) * pairs;
    if len > 0 {
        let (grid, dim) = (launch::grid(len.div_ceil(64)), CubeDim::new_1d(64));
        let (to, cache) = (launch::buffer(&qkv, 1), launch::buffer(&kv, 1));
        let (rope, meta) = (launch::buffer(&rope, 1), launch::buffer(&meta, 1));
        let sizes = SizesLaunch::new(
            p.tokens as u32,
            p.num_heads as u32,
            p.num_kv_heads as u32,
            p.head_dim as u32,
            (p.rope_dim / 2) as u32,
            pairs as u32,
            p.block_size as u32,
            p.slots_offset as u32,
        );
        launch!(rope_kv_pairs, &qkv.client, grid, dim, to, cache, rope, meta, sizes, p.interleaved);
    }
    (qkv, kv)
}
