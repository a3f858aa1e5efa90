//! Unquantized rows: F32, F16 and BF16 in groups of 32 values without scales.
use super::{Codes, Tables, bytes16};
use crate::ops::cpu::simd::{F32x4, I32x4};

/// Single precision.
pub struct F32;
/// Half precision.
pub struct F16;
/// The upper half of single precision.
pub struct Bf16;

impl Codes<128, 8, 1> for F32 {
    const SCALED: bool = false;
    const OFFSET: bool = false;
    type Unit = [I32x4; 8];

    #[inline(always)]
    fn unit(block: &[u8; 128], _: usize, _: &Tables) -> [I32x4; 8] {
        std::array::from_fn(|i| bytes16(block, 16 * i))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 8], _: usize, i: usize, _: &Tables) -> F32x4 {
        unit[i].as_f32()
    }
    fn place(_: usize, _: usize, vector: usize, lane: usize) -> (usize, f32) {
        (4 * vector + lane, 1.0)
    }
    fn factors(_: &[u8; 128], _: usize, _: usize, _: &Tables) -> [f32; 2] {
        [1.0, 0.0]
    }
}

/// Index of a lane when each 32-bit lane holds two neighbours.
fn place_of_pairs(vector: usize, lane: usize) -> (usize, f32) {
    (8 * (vector / 2) + 2 * lane + vector % 2, 1.0)
}

impl Codes<64, 8, 1> for F16 {
    const SCALED: bool = false;
    const OFFSET: bool = false;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8; 64], _: usize, _: &Tables) -> [I32x4; 4] {
        std::array::from_fn(|i| bytes16(block, 16 * i))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], _: usize, i: usize, tables: &Tables) -> F32x4 {
        let pair = unit[i / 2];
        tables.halves(if i.is_multiple_of(2) { pair.shl(16) } else { pair })
    }
    fn place(_: usize, _: usize, vector: usize, lane: usize) -> (usize, f32) {
        place_of_pairs(vector, lane)
    }
    fn factors(_: &[u8; 64], _: usize, _: usize, _: &Tables) -> [f32; 2] {
        [1.0, 0.0]
    }
}

impl Codes<64, 8, 1> for Bf16 {
    const SCALED: bool = false;
    const OFFSET: bool = false;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8; 64], _: usize, _: &Tables) -> [I32x4; 4] {
        std::array::from_fn(|i| bytes16(block, 16 * i))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], _: usize, i: usize, _: &Tables) -> F32x4 {
        let pair = unit[i / 2];
        (if i.is_multiple_of(2) { pair.shl(16) } else { pair.shr(16).shl(16) }).as_f32()
    }
    fn place(_: usize, _: usize, vector: usize, lane: usize) -> (usize, f32) {
        place_of_pairs(vector, lane)
    }
    fn factors(_: &[u8; 64], _: usize, _: usize, _: &Tables) -> [f32; 2] {
        [1.0, 0.0]
    }
}
