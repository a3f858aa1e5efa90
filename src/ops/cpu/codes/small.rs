//! Formats with blocks of 32 values and half-precision scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and IQ4_NL.
use super::{Codes, byte, byte_factor, bytes16, half, halves, nibble, nibble_factor, pow2_inverse, signed_byte, word};
use crate::ops::cpu::simd::{F32x4, I32x4};

/// 4 bits around 8.
pub struct Q4_0;
/// 4 bits and a minimum.
pub struct Q4_1;
/// 5 bits around 16.
pub struct Q5_0;
/// 5 bits and a minimum.
pub struct Q5_1;
/// 8 bits, signed.
pub struct Q8_0;
/// 4 bits through a table.
pub struct Iq4Nl;

/// Scales (the half at the start of each block), and offsets that are a multiple of them.
#[inline(always)]
fn scales_around<const BYTES: usize>(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32], around: f32) {
    for (i, four) in scales.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let d = halves(I32x4::new(std::array::from_fn(|j| (half(blocks, (4 * i + j) * BYTES) << 16) as i32)));
        d.store(four);
        if let Some(offsets) = offsets.as_chunks_mut::<4>().0.get_mut(i) {
            d.mul(F32x4::splat(-around)).store(offsets);
        }
    }
}

/// Scales and minima: the two halves at the start of each block.
#[inline(always)]
fn scales_and_minima<const BYTES: usize>(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
    let fours = scales.as_chunks_mut::<4>().0.iter_mut().zip(offsets.as_chunks_mut::<4>().0);
    for (i, (scales, offsets)) in fours.enumerate() {
        let both = I32x4::new(std::array::from_fn(|j| word(blocks, (4 * i + j) * BYTES) as i32));
        halves(both.shl(16)).store(scales);
        halves(both).store(offsets);
    }
}

/// Index and factor when 16 bytes hold values 0..16 in their low nibbles and 16..32 in the high ones.
fn place_of_nibbles(vector: usize, lane: usize) -> (usize, f32) {
    (16 * (vector % 2) + 4 * lane + vector / 2, nibble_factor(vector))
}

/// Index and factor when two vectors hold values 0..16 and 16..32, one a byte.
fn place_of_bytes(vector: usize, lane: usize) -> (usize, f32) {
    (16 * (vector / 4) + 4 * lane + vector % 4, byte_factor(vector % 4))
}

/// Low and high nibbles of 16 bytes, with a fifth bit from a 32-bit mask.
#[inline(always)]
fn five_bits(q: I32x4, high: u32) -> [I32x4; 2] {
    let masks = I32x4::splat(high as i32);
    let bits = I32x4::new([0x0804_0201, 0x8040_2010_u32 as i32, 0x0804_0201, 0x8040_2010_u32 as i32]);
    let low = I32x4::splat(0x0f0f_0f0f);
    let fifth = |index: [i32; 4]| masks.swizzle(I32x4::new(index)).and(bits).eq_bytes(bits).and(I32x4::splat(0x1010_1010));
    [
        q.and(low).or(fifth([0, 0, 0x0101_0101, 0x0101_0101])),
        q.shr(4).and(low).or(fifth([0x0202_0202, 0x0202_0202, 0x0303_0303, 0x0303_0303])),
    ]
}

macro_rules! format32 {
    ($name:ident, bytes $bytes:literal, offset $offset:literal, unit $unit:ty = $load:expr, $vector:expr, $place:expr, $scales:expr) => {
        impl Codes for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            const VECTORS: usize = 8;
            const GROUP: usize = 8;
            const OFFSET: bool = $offset;
            type Unit = $unit;

            #[inline(always)]
            fn unit(block: &[u8], _: usize) -> $unit {
                $load(block)
            }
            #[inline(always)]
            fn vector(unit: &$unit, i: usize) -> F32x4 {
                $vector(unit, i)
            }
            fn place(_: usize, vector: usize, lane: usize) -> (usize, f32) {
                $place(vector, lane)
            }
            #[inline(always)]
            fn scales(blocks: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
                $scales(blocks, scales, offsets);
            }
        }
    };
}

#[inline(always)]
fn nibble_of(q: &I32x4, i: usize) -> F32x4 {
    nibble(*q, i)
}

#[inline(always)]
fn byte_of(q: &[I32x4; 2], i: usize) -> F32x4 {
    byte(q[i / 4], i % 4)
}

#[inline(always)]
fn signed_byte_of(q: &[I32x4; 2], i: usize) -> F32x4 {
    signed_byte(q[i / 4], i % 4)
}

fn place_of_signed_bytes(vector: usize, lane: usize) -> (usize, f32) {
    (place_of_bytes(vector, lane).0, pow2_inverse(24))
}

/// The non-uniform levels of IQ4_NL and IQ4_XS, as bytes.
#[inline(always)]
pub(super) fn levels(q: I32x4) -> [I32x4; 2] {
    let table = I32x4::load(&[129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113]);
    let low = I32x4::splat(0x0f0f_0f0f);
    [table.swizzle(q.and(low)), table.swizzle(q.shr(4).and(low))]
}

format32!(Q4_0, bytes 18, offset true, unit I32x4 = |b| bytes16(b, 2), nibble_of, place_of_nibbles,
    |b, s, o| scales_around::<18>(b, s, o, 8.0));
format32!(Q4_1, bytes 20, offset true, unit I32x4 = |b| bytes16(b, 4), nibble_of, place_of_nibbles, scales_and_minima::<20>);
format32!(Q5_0, bytes 22, offset true, unit [I32x4; 2] = |b| five_bits(bytes16(b, 6), word(b, 2)), byte_of, place_of_bytes,
    |b, s, o| scales_around::<22>(b, s, o, 16.0));
format32!(Q5_1, bytes 24, offset true, unit [I32x4; 2] = |b| five_bits(bytes16(b, 8), word(b, 4)), byte_of, place_of_bytes,
    scales_and_minima::<24>);
format32!(Q8_0, bytes 34, offset false, unit [I32x4; 2] = |b| [bytes16(b, 2), bytes16(b, 18)], signed_byte_of, place_of_signed_bytes,
    |b, s, o| scales_around::<34>(b, s, o, 0.0));
format32!(Iq4Nl, bytes 18, offset false, unit [I32x4; 2] = |b| levels(bytes16(b, 2)), signed_byte_of, place_of_signed_bytes,
    |b, s, o| scales_around::<18>(b, s, o, 0.0));
