//! Moving words: weights into their final buffer, KV blocks onto fresh blocks.
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use crate::ops::place::{CopyBlocksProblem, PlaceProblem};

/// `words` whole words are copied; of the next one the bits of `tail` are.
#[cube(launch_unchecked)]
fn place_words(dst: &mut [u32], src: &[u32], offset: u32, words: u32, tail: u32) {
    let i = ABSOLUTE_POS as u32;
    if i < words {
        dst[(offset + i) as usize] = src[i as usize];
    } else if i == words && tail != 0u32 {
        let at = (offset + i) as usize;
        dst[at] = (src[i as usize] & tail) | (dst[at] & !tail);
    }
}

#[cube(launch_unchecked)]
fn copy_values(kv: &mut [f32], meta: &[u32], pairs: u32, num_pairs: u32, block_values: u32) {
    let i = ABSOLUTE_POS as u32;
    let pair = i / block_values;
    if pair < num_pairs {
        let (at, inside) = ((pairs + 2u32 * pair) as usize, i % block_values);
        let value = kv[(meta[at] * block_values + inside) as usize];
        kv[(meta[at + 1] * block_values + inside) as usize] = value;
    }
}

pub(super) fn place(dst: CubeTensor, src: CubeTensor, p: &PlaceProblem) -> CubeTensor {
    let (words, rest) = (p.len_bytes / 4, p.len_bytes % 4);
    let tail = (1u32 << (8 * rest)) - 1;
    let len = words + usize::from(rest > 0);
    if len > 0 {
        let (grid, dim) = (launch::grid(len.div_ceil(256)), CubeDim::new_1d(256));
        let (to, from) = (launch::buffer(&dst, 1), launch::buffer(&src, 1));
        let offset = (p.offset_bytes / 4) as u32;
        launch!(place_words, &dst.client, grid, dim, to, from, offset, words as u32, tail);
    }
    dst
}

pub(super) fn copy_blocks(kv: CubeTensor, meta: CubeTensor, p: &CopyBlocksProblem) -> CubeTensor {
    let len = p.num_pairs * p.block_values;
    if len > 0 {
        let (grid, dim) = (launch::grid(len.div_ceil(64)), CubeDim::new_1d(64));
        let (to, meta) = (launch::buffer(&kv, 1), launch::buffer(&meta, 1));
        let (pairs, num, values) = (p.pairs_offset as u32, p.num_pairs as u32, p.block_values as u32);
        launch!(copy_values, &kv.client, grid, dim, to, meta, pairs, num, values);
    }
    kv
}
