//! Unquantized rows: F32, F16 and BF16 in groups of 32 values without scales.
use super::{Codes, bytes16, halves};
use crate::ops::cpu::simd::{F32x4, I32x4};

/// Single precision.
pub struct F32;
/// Half precision.
pub struct F16;
/// The upper half of single precision.
pub struct Bf16;

impl Codes for F32 {
    const BLOCK: usize = 32;
    const BYTES: usize = 128;
    const VECTORS: usize = 8;
    const GROUP: usize = 8;
    const SCALED: bool = false;
    const OFFSET: bool = false;
    type Unit = [I32x4; 8];

    #[inline(always)]
    fn unit(block: &[u8], _: usize) -> [I32x4; 8] {
        std::array::from_fn(|i| bytes16(block, 16 * i))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 8], i: usize) -> F32x4 {
        unit[i].as_f32()
    }
    fn place(_: usize, vector: usize, lane: usize) -> (usize, f32) {
        (4 * vector + lane, 1.0)
    }
    fn scales(_: &[u8], _: &mut [f32], _: &mut [f32]) {}
}

/// Index of a lane when each 32-bit lane holds two neighbours.
fn place_of_pairs(vector: usize, lane: usize) -> (usize, f32) {
    (8 * (vector / 2) + 2 * lane + vector % 2, 1.0)
}

impl Codes for F16 {
    const BLOCK: usize = 32;
    const BYTES: usize = 64;
    const VECTORS: usize = 8;
    const GROUP: usize = 8;
    const SCALED: bool = false;
    const OFFSET: bool = false;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8], _: usize) -> [I32x4; 4] {
        std::array::from_fn(|i| bytes16(block, 16 * i))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], i: usize) -> F32x4 {
        let pair = unit[i / 2];
        halves(if i % 2 == 0 { pair.shl(16) } else { pair })
    }
    fn place(_: usize, vector: usize, lane: usize) -> (usize, f32) {
        place_of_pairs(vector, lane)
    }
    fn scales(_: &[u8], _: &mut [f32], _: &mut [f32]) {}
}

impl Codes for Bf16 {
    const BLOCK: usize = 32;
    const BYTES: usize = 64;
    const VECTORS: usize = 8;
    const GROUP: usize = 8;
    const SCALED: bool = false;
    const OFFSET: bool = false;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8], _: usize) -> [I32x4; 4] {
        std::array::from_fn(|i| bytes16(block, 16 * i))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], i: usize) -> F32x4 {
        let pair = unit[i / 2];
        if i % 2 == 0 { pair.shl(16).as_f32() } else { pair.and(I32x4::splat(0xffff_0000_u32 as i32)).as_f32() }
    }
    fn place(_: usize, vector: usize, lane: usize) -> (usize, f32) {
        place_of_pairs(vector, lane)
    }
    fn scales(_: &[u8], _: &mut [f32], _: &mut [f32]) {}
}
