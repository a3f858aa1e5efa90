//! Formats with blocks of 256 values and scales that are quantized themselves: Q2_K to Q6_K and IQ4_XS.
use super::small::levels;
use super::{Codes, byte, byte_factor, bytes16, half, half_to_f32, nibble, nibble_factor, pow2_inverse, signed_byte, word};
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
fn place_of_columns(unit: usize, vector: usize, lane: usize) -> usize {
    128 * (unit / 2) + 32 * (vector / 4) + 16 * (unit % 2) + 4 * lane + vector % 4
}

/// Number within the block of group `group` of a unit of columns.
#[inline(always)]
fn column_group(unit: usize, group: usize) -> usize {
    8 * (unit / 2) + 2 * group + unit % 2
}

/// The 6-bit scale and minimum of group `j` of Q4_K and Q5_K.
#[inline(always)]
fn scale_and_minimum(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

/// Scales and offsets of Q4_K and Q5_K.
#[inline(always)]
fn scales_of_32<const BYTES: usize>(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
    let groups = scales.as_chunks_mut::<8>().0.iter_mut().zip(offsets.as_chunks_mut::<8>().0);
    for (block, (scales, offsets)) in blocks.chunks_exact(BYTES).zip(groups) {
        let (d, m) = (half_to_f32(half(block, 0)), half_to_f32(half(block, 2)));
        let Some(packed) = block[4..].first_chunk::<12>() else { return };
        for j in 0..8 {
            let (scale, minimum) = scale_and_minimum(packed, j);
            scales[j] = d * f32::from(scale);
            offsets[j] = -(m * f32::from(minimum));
        }
    }
}

impl Codes for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const VECTORS: usize = 16;
    const GROUP: usize = 8;
    const OFFSET: bool = true;
    type Unit = [I32x4; 2];

    #[inline(always)]
    fn unit(block: &[u8], unit: usize) -> [I32x4; 2] {
        [bytes16(block, 16 + 32 * unit), bytes16(block, 32 + 32 * unit)]
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 2], i: usize) -> F32x4 {
        nibble(unit[i % 8 / 4], 2 * (i % 4) + i / 8)
    }
    fn place(unit: usize, vector: usize, lane: usize) -> (usize, f32) {
        let (group, byte) = (vector / 8, vector % 4);
        (64 * unit + 32 * group + 16 * (vector % 8 / 4) + 4 * lane + byte, nibble_factor(2 * byte + group))
    }
    #[inline(always)]
    fn scales(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
        scales_of_32::<144>(blocks, scales, offsets);
    }
}

impl Codes for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const VECTORS: usize = 16;
    const GROUP: usize = 8;
    const OFFSET: bool = true;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8], unit: usize) -> [I32x4; 4] {
        let (low, one) = (I32x4::splat(0x0f0f_0f0f), I32x4::splat(0x0101_0101));
        std::array::from_fn(|i| {
            let q = bytes16(block, 48 + 32 * unit + 16 * (i % 2));
            let fifth = bytes16(block, 16 + 16 * (i % 2)).shr((2 * unit + i / 2) as u32).and(one).shl(4);
            (if i < 2 { q } else { q.shr(4) }).and(low).or(fifth)
        })
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], i: usize) -> F32x4 {
        byte(unit[i / 4], i % 4)
    }
    fn place(unit: usize, vector: usize, lane: usize) -> (usize, f32) {
        (64 * unit + 16 * (vector / 4) + 4 * lane + vector % 4, byte_factor(vector % 4))
    }
    #[inline(always)]
    fn scales(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
        scales_of_32::<176>(blocks, scales, offsets);
    }
}

impl Codes for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    const VECTORS: usize = 16;
    const GROUP: usize = 4;
    const OFFSET: bool = true;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8], unit: usize) -> [I32x4; 4] {
        let (half, side) = (unit / 2, unit % 2);
        let (a, b) = (bytes16(block, 64 * half + 16 * side), bytes16(block, 64 * half + 32 + 16 * side));
        let high = bytes16(block, 128 + 32 * half + 16 * side);
        let (low, two) = (I32x4::splat(0x0f0f_0f0f), I32x4::splat(0x3030_3030));
        [
            a.and(low).or(high.shl(4).and(two)),
            b.and(low).or(high.shl(2).and(two)),
            a.shr(4).and(low).or(high.and(two)),
            b.shr(4).and(low).or(high.shr(2).and(two)),
        ]
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], i: usize) -> F32x4 {
        byte(unit[i / 4], i % 4)
    }
    fn place(unit: usize, vector: usize, lane: usize) -> (usize, f32) {
        (place_of_columns(unit, vector, lane), byte_factor(vector % 4))
    }
    #[inline(always)]
    fn scales(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
        let groups = scales.as_chunks_mut::<16>().0.iter_mut().zip(offsets.as_chunks_mut::<16>().0);
        for (block, (scales, offsets)) in blocks.chunks_exact(210).zip(groups) {
            let d = half_to_f32(half(block, 208));
            let Some(packed) = block[192..].first_chunk::<16>() else { return };
            for i in 0..16 {
                let scale = d * f32::from(packed[column_group(i / 4, i % 4)] as i8);
                scales[i] = scale;
                offsets[i] = scale * -32.0;
            }
        }
    }
}

impl Codes for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    const VECTORS: usize = 16;
    const GROUP: usize = 4;
    const OFFSET: bool = true;
    type Unit = [I32x4; 4];

    #[inline(always)]
    fn unit(block: &[u8], unit: usize) -> [I32x4; 4] {
        let (half, side) = (unit / 2, unit % 2);
        let q = bytes16(block, 32 + 32 * half + 16 * side);
        let high = bytes16(block, 16 * side).shr(4 * half as u32);
        std::array::from_fn(|j| {
            let third = high.shr(j as u32).and(I32x4::splat(0x0101_0101)).shl(2);
            q.shr(2 * j as u32).and(I32x4::splat(0x0303_0303)).or(third)
        })
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 4], i: usize) -> F32x4 {
        byte(unit[i / 4], i % 4)
    }
    fn place(unit: usize, vector: usize, lane: usize) -> (usize, f32) {
        (place_of_columns(unit, vector, lane), byte_factor(vector % 4))
    }
    #[inline(always)]
    fn scales(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
        let groups = scales.as_chunks_mut::<16>().0.iter_mut().zip(offsets.as_chunks_mut::<16>().0);
        for (block, (scales, offsets)) in blocks.chunks_exact(110).zip(groups) {
            let d = half_to_f32(half(block, 108));
            let Some(packed) = block[96..].first_chunk::<12>() else { return };
            for i in 0..16 {
                let group = column_group(i / 4, i % 4);
                let low = if group < 8 { packed[group] & 15 } else { packed[group - 8] >> 4 };
                let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
                let scale = d * f32::from((low | high << 4) as i8 - 32);
                scales[i] = scale;
                offsets[i] = scale * -4.0;
            }
        }
    }
}

impl Codes for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    const VECTORS: usize = 16;
    const GROUP: usize = 4;
    const OFFSET: bool = true;
    type Unit = I32x4;

    #[inline(always)]
    fn unit(block: &[u8], unit: usize) -> I32x4 {
        bytes16(block, 16 + 32 * (unit / 2) + 16 * (unit % 2))
    }
    #[inline(always)]
    fn vector(unit: &I32x4, i: usize) -> F32x4 {
        if i < 15 { unit.and(I32x4::splat(3 << (2 * (i / 4) + 8 * (i % 4)))).to_f32() } else { unit.shr(30).to_f32() }
    }
    fn place(unit: usize, vector: usize, lane: usize) -> (usize, f32) {
        let factor = if vector < 15 { pow2_inverse(2 * (vector / 4) + 8 * (vector % 4)) } else { 1.0 };
        (place_of_columns(unit, vector, lane), factor)
    }
    #[inline(always)]
    fn scales(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
        let groups = scales.as_chunks_mut::<16>().0.iter_mut().zip(offsets.as_chunks_mut::<16>().0);
        for (block, (scales, offsets)) in blocks.chunks_exact(84).zip(groups) {
            let (d, m) = (half_to_f32(half(block, 80)), half_to_f32(half(block, 82)));
            for i in 0..16 {
                let packed = block[column_group(i / 4, i % 4)];
                scales[i] = d * f32::from(packed & 15);
                offsets[i] = -(m * f32::from(packed >> 4));
            }
        }
    }
}

impl Codes for Iq4Xs {
    const BLOCK: usize = 256;
    const BYTES: usize = 136;
    const VECTORS: usize = 8;
    const GROUP: usize = 8;
    const OFFSET: bool = false;
    type Unit = [I32x4; 2];

    #[inline(always)]
    fn unit(block: &[u8], unit: usize) -> [I32x4; 2] {
        levels(bytes16(block, 8 + 16 * unit))
    }
    #[inline(always)]
    fn vector(unit: &[I32x4; 2], i: usize) -> F32x4 {
        signed_byte(unit[i / 4], i % 4)
    }
    fn place(unit: usize, vector: usize, lane: usize) -> (usize, f32) {
        (32 * unit + 16 * (vector / 4) + 4 * lane + vector % 4, pow2_inverse(24))
    }
    #[inline(always)]
    fn scales(blocks: &[u8], scales: &mut [f32], _: &mut [f32]) {
        for (block, scales) in blocks.chunks_exact(136).zip(scales.as_chunks_mut::<8>().0) {
            let (d, high, low) = (half_to_f32(half(block, 0)), half(block, 2), word(block, 4));
            for (i, scale) in scales.iter_mut().enumerate() {
                let bits = (low >> (4 * i) & 15) | (high >> (2 * i) & 3) << 4;
                *scale = d * (bits as f32 - 32.0);
            }
        }
    }
}
