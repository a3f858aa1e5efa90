//! Formats with blocks of 256 values and scales that are quantized themselves: Q2_K to Q6_K and IQ4_XS.
use super::small::levels;
use super::{Codes, Tables, byte_factor, bytes16, half, nibble_factor, pow2_inverse, word};
use crate::ops::cpu::simd::{F32x4, I32x4};

/// 2 bits in groups of 16.
pub struct Q2K;
/// 3 bits in groups of 16.
pub struct Q3K;
/// 4 bits in groups of 32.
pub struct Q4K;
/// 5 bits in groups of 32.
pub struct Q5K;
/// 6 bits in groups of 16.
pub struct Q6K;
/// 4 bits through a table, in groups of 32.
pub struct Iq4Xs;

/// Index when a unit is 16 columns of a half block: 4 groups of 16 values, 32 apart.
fn place_of_columns(unit: usize, g: usize, i: usize, lane: usize) -> usize {
    128 * (unit / 2) + 32 * g + 16 * (unit % 2) + 4 * lane + i
}

/// Number within the block of group `group` of a unit of columns.
#[inline(always)]
fn column_group(unit: usize, group: usize) -> usize {
    8 * (unit / 2) + 2 * group + unit % 2
}

/// Scale and offset of group `j` of Q4_K and Q5_K, from the 6-bit ones.
#[inline(always)]
fn factors_of_32(block: &[u8], j: usize, tables: &Tables) -> [f32; 2] {
    let Some(packed) = block.get(4..).and_then(|rest| rest.first_chunk::<12>()) else { return [0.0; 2] };
    let (scale, minimum) = if j < 4 {
        (packed[j & 3] & 63, packed[4 + (j & 3)] & 63)
    } else {
        let (low, i) = (packed[8 + (j & 3)], j & 3);
        (low & 15 | packed[i] >> 6 << 4, low >> 4 | packed[4 + i] >> 6 << 4)
    };
    [tables.half(block, 0) * f32::from(scale), -(tables.half(block, 2) * f32::from(minimum))]
}

impl Codes<144, 8, 2> for Q4K {
    const UNITS: usize = 4;
    const OFFSET: bool = true;
    type Unit = [I32x4; 2];

    #[inline(always)]
    fn unit(block: &[u8; 144], unit: usize, _: &Tables) -> [I32x4; 2] {
        [bytes16(block, 16 + 32 * unit), bytes16(block, 32 + 32 * unit)]
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 2], g: usize, i: usize, tables: &Tables) -> F32x4 {
        tables.nibble(unit[i / 4], 2 * (i % 4) + g)
    }
    fn place(unit: usize, g: usize, i: usize, lane: usize) -> (usize, f32) {
        (64 * unit + 32 * g + 16 * (i / 4) + 4 * lane + i % 4, nibble_factor(2 * (i % 4) + g))
    }
    #[inline(always)]
    fn factors(block: &[u8; 144], unit: usize, g: usize, tables: &Tables) -> [f32; 2] {
        factors_of_32(block, 2 * unit + g, tables)
    }
}

impl Codes<176, 8, 2> for Q5K {
    const UNITS: usize = 4;
    const OFFSET: bool = true;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8; 176], unit: usize, tables: &Tables) -> [I32x4; 4] {
        let (low, one) = (tables.low, I32x4::splat(0x0101_0101));
        std::array::from_fn(|i| {
            let q = bytes16(block, 48 + 32 * unit + 16 * (i % 2));
            let fifth = bytes16(block, 16 + 16 * (i % 2)).shr((2 * unit + i / 2) as u32).and(one).shl(4);
            (if i < 2 { q } else { q.shr(4) }).and(low).or(fifth)
        })
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], g: usize, i: usize, tables: &Tables) -> F32x4 {
        tables.byte(unit[2 * g + i / 4], i % 4)
    }
    fn place(unit: usize, g: usize, i: usize, lane: usize) -> (usize, f32) {
        (64 * unit + 32 * g + 16 * (i / 4) + 4 * lane + i % 4, byte_factor(i % 4))
    }
    #[inline(always)]
    fn factors(block: &[u8; 176], unit: usize, g: usize, tables: &Tables) -> [f32; 2] {
        factors_of_32(block, 2 * unit + g, tables)
    }
}

impl Codes<210, 4, 4> for Q6K {
    const UNITS: usize = 4;
    const OFFSET: bool = true;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8; 210], unit: usize, tables: &Tables) -> [I32x4; 4] {
        let (half, side) = (unit / 2, unit % 2);
        let (a, b) = (bytes16(block, 64 * half + 16 * side), bytes16(block, 64 * half + 32 + 16 * side));
        let high = bytes16(block, 128 + 32 * half + 16 * side);
        let (low, two) = (tables.low, I32x4::splat(0x3030_3030));
        [
            a.and(low).or(high.shl(4).and(two)),
            b.and(low).or(high.shl(2).and(two)),
            a.shr(4).and(low).or(high.and(two)),
            b.shr(4).and(low).or(high.shr(2).and(two)),
        ]
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], g: usize, i: usize, tables: &Tables) -> F32x4 {
        tables.byte(unit[g], i)
    }
    fn place(unit: usize, g: usize, i: usize, lane: usize) -> (usize, f32) {
        (place_of_columns(unit, g, i, lane), byte_factor(i))
    }
    #[inline(always)]
    fn factors(block: &[u8; 210], unit: usize, g: usize, tables: &Tables) -> [f32; 2] {
        let scale = tables.half(block, 208) * f32::from(block[192 + column_group(unit, g)] as i8);
        [scale, scale * -32.0]
    }
}

impl Codes<110, 4, 4> for Q3K {
    const UNITS: usize = 4;
    const OFFSET: bool = true;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8; 110], unit: usize, _: &Tables) -> [I32x4; 4] {
        let (half, side) = (unit / 2, unit % 2);
        let q = bytes16(block, 32 + 32 * half + 16 * side);
        let high = bytes16(block, 16 * side).shr(4 * half as u32);
        std::array::from_fn(|j| {
            let third = high.shr(j as u32).and(I32x4::splat(0x0101_0101)).shl(2);
            q.shr(2 * j as u32).and(I32x4::splat(0x0303_0303)).or(third)
        })
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], g: usize, i: usize, tables: &Tables) -> F32x4 {
        tables.byte(unit[g], i)
    }
    fn place(unit: usize, g: usize, i: usize, lane: usize) -> (usize, f32) {
        (place_of_columns(unit, g, i, lane), byte_factor(i))
    }
    #[inline(always)]
    fn factors(block: &[u8; 110], unit: usize, g: usize, tables: &Tables) -> [f32; 2] {
        let group = column_group(unit, g);
        let low = block[96 + group % 8] >> (group / 8 * 4) & 15;
        let high = block[104 + group % 4] >> (group / 4 * 2) & 3;
        let scale = tables.half(block, 108) * f32::from((low | high << 4) as i8 - 32);
        [scale, scale * -4.0]
    }
}

impl Codes<84, 4, 4> for Q2K {
    const UNITS: usize = 4;
    const OFFSET: bool = true;
    type Unit = I32x4;

    #[inline(always)]
    fn unit(block: &[u8; 84], unit: usize, _: &Tables) -> I32x4 {
        bytes16(block, 16 + 32 * (unit / 2) + 16 * (unit % 2))
    }
    #[inline(always)]
    fn vector(unit: &I32x4, g: usize, i: usize, tables: &Tables) -> F32x4 {
        let bit = 2 * g + 8 * i;
        if bit < 30 { unit.and(tables.pairs[bit / 2]).to_f32() } else { unit.shr(30).to_f32() }
    }
    fn place(unit: usize, g: usize, i: usize, lane: usize) -> (usize, f32) {
        let bit = 2 * g + 8 * i;
        (place_of_columns(unit, g, i, lane), if bit < 30 { pow2_inverse(bit) } else { 1.0 })
    }
    #[inline(always)]
    fn factors(block: &[u8; 84], unit: usize, g: usize, tables: &Tables) -> [f32; 2] {
        let packed = block[column_group(unit, g)];
        [tables.half(block, 80) * f32::from(packed & 15), -(tables.half(block, 82) * f32::from(packed >> 4))]
    }
}

impl Codes<136, 8, 1> for Iq4Xs {
    const UNITS: usize = 8;
    const OFFSET: bool = false;
    type Unit = [I32x4; 2];

    #[inline(always)]
    fn unit(block: &[u8; 136], unit: usize, tables: &Tables) -> [I32x4; 2] {
        levels(bytes16(block, 8 + 16 * unit), tables)
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 2], _: usize, i: usize, tables: &Tables) -> F32x4 {
        tables.signed_byte(unit[i / 4], i % 4)
    }
    fn place(unit: usize, _: usize, i: usize, lane: usize) -> (usize, f32) {
        (32 * unit + 16 * (i / 4) + 4 * lane + i % 4, pow2_inverse(24))
    }
    #[inline(always)]
    fn factors(block: &[u8; 136], unit: usize, _: usize, tables: &Tables) -> [f32; 2] {
        let (high, low) = (half(block, 2), word(block, 4));
        let bits = (low >> (4 * unit) & 15) | (high >> (2 * unit) & 3) << 4;
        [tables.half(block, 0) * (bits as f32 - 32.0), 0.0]
    }
}
