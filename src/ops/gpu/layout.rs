//! How the weights of each type lie in u32 words, as the kernels see it: blocks, parts of a block, planes of a word.
//!
//! A **part** is the piece of a block that shares its scales. It is read in `steps`; each step loads a few words that hold
//! `planes` quads (four consecutive values each). Quad `(part, plane, step)` starts at value
//! `4 * (part_quads(part) + plane * plane_quads + step)` of its block. Float types of any row length use single values.
use cubecl::prelude::*;

use crate::gguf::GgmlType;

/// Comptime facts of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The type.
    pub ty: GgmlType,
    /// Values in a block (float types are read 32 at a time).
    pub block_values: u32,
    /// Words of a block.
    pub block_words: u32,
    /// Parts of a block.
    pub parts: u32,
    /// Loads a part.
    pub steps: u32,
    /// Quads a load.
    pub planes: u32,
    /// Quads between planes.
    pub plane_quads: u32,
}

impl Layout {
    /// The layout of a type.
    pub fn of(ty: GgmlType) -> Self {
        use GgmlType::*;
        let (block_values, block_words, parts, steps, planes, plane_quads) = match ty {
            F32 => (32, 32, 1, 8, 1, 8),
            F16 | BF16 => (32, 16, 1, 8, 1, 8),
            Q4_0 | Q4_1 | IQ4_NL => (32, 5, 1, 4, 2, 4),
            Q5_0 | Q5_1 => (32, 6, 1, 4, 2, 4),
            Q8_0 => (32, 9, 1, 8, 1, 8),
            Q2_K => (256, 21, 4, 4, 4, 8),
            Q3_K => (256, 28, 4, 4, 4, 8),
            Q4_K => (256, 36, 4, 8, 2, 8),
            Q5_K => (256, 44, 4, 8, 2, 8),
            Q6_K => (256, 53, 4, 4, 4, 8),
            IQ4_XS => (256, 34, 8, 4, 2, 4),
            #[allow(unreachable_patterns)]
            _ => unreachable!("the loader refuses {ty:?}"),
        };
        Self { ty, block_values, block_words, parts, steps, planes, plane_quads }
    }

    /// Whether rows of `k` values can be read in quads.
    pub fn fits(&self, k: usize) -> bool {
        k.is_multiple_of(self.block_values as usize)
    }

    /// Words of a row of `k` values.
    pub fn row_words(&self, k: usize) -> usize {
        match self.ty {
            GgmlType::F32 => k,
            GgmlType::F16 | GgmlType::BF16 => k.div_ceil(2),
            _ => k / self.block_values as usize * self.block_words as usize,
        }
    }

    /// Whether quads still lack the part's scale, which is applied once to a part's sum.
    pub fn scale_after(&self) -> bool {
        use GgmlType::*;
        matches!(self.ty, Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS)
    }

    /// Parts of a row of `k` values.
    pub fn row_parts(&self, k: usize) -> usize {
        k / self.block_values as usize * self.parts as usize
    }
}

/// First quad of a part within its block.
#[cube]
pub fn part_quad(part: u32, #[comptime] l: Layout) -> u32 {
    if comptime!(l.parts == 1) {
        0u32.runtime()
    } else if comptime!(l.planes == 4) {
        // Halves of 16 within chunks of 128.
        (part >> 1u32) * 32u32 + (part & 1u32) * 4u32
    } else {
        part * comptime!(l.steps * l.planes)
    }
}
