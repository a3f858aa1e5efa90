//! Formats with blocks of 32 values and half-precision scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and IQ4_NL.
use super::{Codes, Tables, byte_factor, bytes16, nibble_factor, pow2_inverse, word};
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
fn five_bits(q: I32x4, high: u32, tables: &Tables) -> [I32x4; 2] {
    let masks = I32x4::splat(high as i32);
    let fifth = |index: [i32; 4]| {
        let bit = masks.swizzle(I32x4::new(index)).and(tables.bits).eq_bytes(tables.bits);
        bit.and(I32x4::splat(0x1010_1010))
    };
    [
        q.and(tables.low).or(fifth([0, 0, 0x0101_0101, 0x0101_0101])),
        q.shr(4).and(tables.low).or(fifth([0x0202_0202, 0x0202_0202, 0x0303_0303, 0x0303_0303])),
    ]
}

/// The levels that 16 bytes name, as signed bytes.
#[inline(always)]
pub(super) fn levels(q: I32x4, tables: &Tables) -> [I32x4; 2] {
    [tables.levels.swizzle(q.and(tables.low)), tables.levels.swizzle(q.shr(4).and(tables.low))]
}

fn place_of_signed_bytes(vector: usize, lane: usize) -> (usize, f32) {
    (place_of_bytes(vector, lane).0, pow2_inverse(24))
}

/// A scale alone.
#[inline(always)]
fn scale(block: &[u8], tables: &Tables) -> [f32; 2] {
    [tables.half(block, 0), 0.0]
}

/// A scale and a minimum.
#[inline(always)]
fn scale_and_minimum(block: &[u8], tables: &Tables) -> [f32; 2] {
    [tables.half(block, 0), tables.half(block, 2)]
}

/// A scale of codes around `MIDDLE`.
#[inline(always)]
fn scale_around<const MIDDLE: i8>(block: &[u8], tables: &Tables) -> [f32; 2] {
    let scale = tables.half(block, 0);
    [scale, scale * -f32::from(MIDDLE)]
}

/// A format: the unit and how its bytes become one, its vectors, their places, scale and offset.
macro_rules! format32 {
    ($name:ident: $bytes:literal, offset $offset:literal, $unit:ty, $load:expr, $vector:expr, $place:expr, $factors:expr) => {
        impl Codes<$bytes, 8, 1> for $name {
            const OFFSET: bool = $offset;
            type Unit = $unit;

            #[inline(always)]
            fn unit(block: &[u8; $bytes], _: usize, tables: &Tables) -> $unit {
                let load: fn(&[u8; $bytes], &Tables) -> $unit = $load;
                load(block, tables)
            }
            #[inline(always)]
            fn vector(unit: &$unit, _: usize, i: usize, tables: &Tables) -> F32x4 {
                let vector: fn(&$unit, usize, &Tables) -> F32x4 = $vector;
                vector(unit, i, tables)
            }
            fn place(_: usize, _: usize, i: usize, lane: usize) -> (usize, f32) {
                $place(i, lane)
            }
            #[inline(always)]
            fn factors(block: &[u8; $bytes], _: usize, _: usize, tables: &Tables) -> [f32; 2] {
                $factors(block, tables)
            }
        }
    };
}

format32!(Q4_0: 18, offset true, I32x4, |b, _| bytes16(b, 2), |q, i, t| t.nibble(*q, i), place_of_nibbles, scale_around::<8>);
format32!(Q4_1: 20, offset true, I32x4, |b, _| bytes16(b, 4), |q, i, t| t.nibble(*q, i), place_of_nibbles, scale_and_minimum);
format32!(Q5_0: 22, offset true, [I32x4; 2], |b, t| five_bits(bytes16(b, 6), word(b, 2), t),
    |q, i, t| t.byte(q[i / 4], i % 4), place_of_bytes, scale_around::<16>);
format32!(Q5_1: 24, offset true, [I32x4; 2], |b, t| five_bits(bytes16(b, 8), word(b, 4), t),
    |q, i, t| t.byte(q[i / 4], i % 4), place_of_bytes, scale_and_minimum);
format32!(Q8_0: 34, offset false, [I32x4; 2], |b, _| [bytes16(b, 2), bytes16(b, 18)],
    |q, i, t| t.signed_byte(q[i / 4], i % 4), place_of_signed_bytes, scale);
format32!(Iq4Nl: 18, offset false, [I32x4; 2], |b, t| levels(bytes16(b, 2), t),
    |q, i, t| t.signed_byte(q[i / 4], i % 4), place_of_signed_bytes, scale);
