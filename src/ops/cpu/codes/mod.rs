//! Quantized rows as vectors of unscaled codes, and the scales and offsets that go with them. One type a block format.
//!
//! A code vector is what one or two integer operations leave of the file's bytes, so lanes hold the block's values in an
//! order of their own and times a power of two; `place` says which and how much, and activations are permuted and
//! divided to match once a call (`prepare`). Powers of two change no bit of a product.
use super::simd::{F32x4, I32x4};
use crate::quant;
use std::array::from_fn;
use std::sync::OnceLock;

pub mod k_quants;
pub mod plain;
pub mod small;
#[cfg(test)]
mod tests;

/// A block format of `B` bytes. It is unpacked in units of `P` groups; a group is `G` vectors of four values and has one
/// scale and one offset: value `(unit, group, vector, lane)` is `(code * factor) * scale[group] + offset[group]`.
pub trait Codes<const B: usize, const G: usize, const P: usize> {
    /// Units of a block.
    const UNITS: usize = 1;
    /// Whether there are scales; without them codes are the values.
    const SCALED: bool = true;
    /// Whether there are offsets.
    const OFFSET: bool;
    /// What is in registers between the load and the vectors.
    type Unit: Copy;

    /// Values of a block.
    const BLOCK: usize = 4 * G * P * Self::UNITS;

    /// Loads a unit, below `UNITS`, of a block.
    fn unit(block: &[u8; B], unit: usize, tables: &Tables) -> Self::Unit;
    /// Vector `i < G` of group `g < P` of a unit.
    fn vector(unit: &Self::Unit, g: usize, i: usize, tables: &Tables) -> F32x4;
    /// Index within the block, and factor, of a lane of a vector.
    fn place(unit: usize, g: usize, i: usize, lane: usize) -> (usize, f32);
    /// Scale and offset of a group.
    fn factors(block: &[u8; B], unit: usize, g: usize, tables: &Tables) -> [f32; 2];
}

/// `2^-n`, exactly.
pub(super) fn pow2_inverse(n: usize) -> f32 {
    f32::from_bits((127 - n as u32) << 23)
}

/// The 16 bytes at `at`; zeros past the end, where no block has any.
#[inline(always)]
fn bytes16(block: &[u8], at: usize) -> I32x4 {
    match block.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        Some(bytes) => I32x4::load(bytes),
        None => I32x4::splat(0),
    }
}

/// The little-endian u32 at `at`.
#[inline(always)]
fn word(block: &[u8], at: usize) -> u32 {
    block.get(at..).and_then(|rest| rest.first_chunk::<4>()).map_or(0, |&bytes| u32::from_le_bytes(bytes))
}

/// The little-endian u16 at `at`.
#[inline(always)]
fn half(block: &[u8], at: usize) -> u32 {
    block.get(at..).and_then(|rest| rest.first_chunk::<2>()).map_or(0, |&bytes| u32::from(u16::from_le_bytes(bytes)))
}

/// What unpacking reads beside the blocks: constants that must come from memory once, before a loop. (V8 builds a vector
/// constant anew, in three instructions, wherever it is used.)
pub struct Tables {
    /// Every half-precision number as a float. A load in a loop that has load slots to spare is cheaper than the
    /// conversion's float operations, and weights use few of the table's lines.
    halves: Box<[f32; 1 << 16]>,
    /// `0xf << 4 n`.
    nibbles: [I32x4; 7],
    /// `0xff << 8 b`.
    bytes: [I32x4; 4],
    /// `3 << 2 n`.
    pairs: [I32x4; 15],
    /// `0x0f` in every byte.
    low: I32x4,
    /// 1, 2, .. 128 in the bytes, twice.
    bits: I32x4,
    /// The levels of IQ4_NL.
    levels: I32x4,
    /// Sign and magnitude of a half that was shifted right by 3 from a float's upper half.
    half_bits: I32x4,
    /// 2^112, which corrects the exponent of such a half.
    half_exponent: F32x4,
    /// The magnitude bits of a half in a float's upper half, what the largest finite one is there, and a float's exponent.
    half_magnitude: I32x4,
    half_largest: I32x4,
    exponent: I32x4,
}

impl Tables {
    /// The tables, made when they are first asked for.
    pub fn get() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(|| {
            let halves: Box<[f32]> = (0..=u16::MAX).map(|bits| quant::f16_to_f32(bits.to_le_bytes())).collect();
            let levels = quant::IQ4_CODEBOOK.map(|level| level as u8);
            Self {
                // The range has as many values as the array.
                halves: halves.try_into().unwrap_or_else(|_| Box::new([0.0; 1 << 16])),
                nibbles: from_fn(|n| I32x4::splat(0xf << (4 * n))),
                bytes: from_fn(|b| I32x4::splat(0xff << (8 * b))),
                pairs: from_fn(|n| I32x4::splat(3 << (2 * n))),
                low: I32x4::splat(0x0f0f_0f0f),
                bits: I32x4::load(&from_fn(|i| 1 << (i % 8))),
                levels: I32x4::load(&levels),
                half_bits: I32x4::splat(0x8fff_e000_u32 as i32),
                half_exponent: F32x4::splat(f32::from_bits((127 + 112) << 23)),
                half_magnitude: I32x4::splat(0x7fff_0000),
                half_largest: I32x4::splat(0x7bff_ffff),
                exponent: I32x4::splat(0x7f80_0000),
            }
        })
    }

    /// The half at `at` of a block.
    #[inline(always)]
    fn half(&self, block: &[u8], at: usize) -> f32 {
        let bits =
            block.get(at..).and_then(|rest| rest.first_chunk::<2>()).map_or(0, |&bytes| u16::from_le_bytes(bytes));
        self.halves[usize::from(bits)]
    }

    /// Half-precision numbers in the upper halves of the lanes, as floats; lower halves are ignored.
    #[inline(always)]
    fn halves(&self, q: I32x4) -> F32x4 {
        // Sign and magnitude moved to where a float has them, then the exponent's bias corrected by a product, which is
        // exact for subnormal halves too. Infinities and NaN come out too small: they get their exponent afterwards.
        let moved = q.sar(3).and(self.half_bits).as_f32().mul(self.half_exponent);
        let special = q.and(self.half_magnitude).gt(self.half_largest).and(self.exponent);
        moved.bits().or(special).as_f32()
    }

    /// Nibble `n` (0..8, from the lowest) of each lane as `nibble * 16^n`, the eighth as it is.
    #[inline(always)]
    fn nibble(&self, q: I32x4, n: usize) -> F32x4 {
        if n < 7 { q.and(self.nibbles[n]).to_f32() } else { q.shr(28).to_f32() }
    }

    /// Byte `b` of each lane, unsigned, as `byte * 256^b`, the fourth as it is.
    #[inline(always)]
    fn byte(&self, q: I32x4, b: usize) -> F32x4 {
        if b < 3 { q.and(self.bytes[b]).to_f32() } else { q.shr(24).to_f32() }
    }

    /// Byte `b` of each lane, signed, times 2^24.
    #[inline(always)]
    fn signed_byte(&self, q: I32x4, b: usize) -> F32x4 {
        let top = self.bytes[3];
        match b {
            0 => q.shl(24).to_f32(),
            1 => q.shl(16).and(top).to_f32(),
            2 => q.shl(8).and(top).to_f32(),
            _ => q.and(top).to_f32(),
        }
    }
}

/// Factor that goes with [`Tables::nibble`].
fn nibble_factor(n: usize) -> f32 {
    if n < 7 { pow2_inverse(4 * n) } else { 1.0 }
}

/// Factor that goes with [`Tables::byte`].
fn byte_factor(b: usize) -> f32 {
    if b < 3 { pow2_inverse(8 * b) } else { 1.0 }
}
