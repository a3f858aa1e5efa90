//! Formats with blocks of 32 values and half-precision scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and IQ4_NL.
use super::{Codes, Halves, byte, byte_factor, bytes16, nibble, nibble_factor, pow2_inverse, signed_byte, word};
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
    let fifth =
        |index: [i32; 4]| masks.swizzle(I32x4::new(index)).and(bits).eq_bytes(bits).and(I32x4::splat(0x1010_1010));
    [
        q.and(low).or(fifth([0, 0, 0x0101_0101, 0x0101_0101])),
        q.shr(4).and(low).or(fifth([0x0202_0202, 0x0202_0202, 0x0303_0303, 0x0303_0303])),
    ]
}

macro_rules! format32 {
    ($name:ident, bytes $bytes:literal, offset $offset:literal, unit $unit:ty = $load:expr, $vector:expr, $place:expr, $factors:expr) => {
        impl Codes<$bytes, 8, 1> for $name {
            const OFFSET: bool = $offset;
            type Unit = $unit;

            #[inline(always)]
            fn unit(block: &[u8; $bytes], _: usize) -> $unit {
                $load(block)
            }
            #[inline(always)]
            fn vector(unit: &$unit, _: usize, i: usize) -> F32x4 {
                $vector(unit, i)
            }
            fn place(_: usize, _: usize, i: usize, lane: usize) -> (usize, f32) {
                $place(i, lane)
            }
            #[inline(always)]
            fn factors(block: &[u8; $bytes], _: usize, _: usize, halves: &Halves) -> [f32; 2] {
                $factors(block, halves)
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

/// A scale alone.
#[inline(always)]
fn scale(block: &[u8], halves: &Halves) -> [f32; 2] {
    [halves.read(block, 0), 0.0]
}

/// A scale and a minimum.
#[inline(always)]
fn scale_and_minimum(block: &[u8], halves: &Halves) -> [f32; 2] {
    [halves.read(block, 0), halves.read(block, 2)]
}

/// A scale of codes around `MIDDLE`.
#[inline(always)]
fn scale_around<const MIDDLE: i8>(block: &[u8], halves: &Halves) -> [f32; 2] {
    let scale = halves.read(block, 0);
    [scale, scale * -f32::from(MIDDLE)]
}

format32!(Q4_0, bytes 18, offset true, unit I32x4 = |b: &[u8; _]| bytes16(b, 2), nibble_of, place_of_nibbles, scale_around::<8>);
format32!(Q4_1, bytes 20, offset true, unit I32x4 = |b: &[u8; _]| bytes16(b, 4), nibble_of, place_of_nibbles, scale_and_minimum);
format32!(Q5_0, bytes 22, offset true, unit [I32x4; 2] = |b: &[u8; _]| five_bits(bytes16(b, 6), word(b, 2)), byte_of, place_of_bytes,
    scale_around::<16>);
format32!(Q5_1, bytes 24, offset true, unit [I32x4; 2] = |b: &[u8; _]| five_bits(bytes16(b, 8), word(b, 4)), byte_of, place_of_bytes,
    scale_and_minimum);
format32!(Q8_0, bytes 34, offset false, unit [I32x4; 2] = |b: &[u8; _]| [bytes16(b, 2), bytes16(b, 18)], signed_byte_of, place_of_signed_bytes,
    scale);
format32!(Iq4Nl, bytes 18, offset false, unit [I32x4; 2] = |b: &[u8; _]| levels(bytes16(b, 2)), signed_byte_of, place_of_signed_bytes, scale);
