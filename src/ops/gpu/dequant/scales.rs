//! The scales of one part of a block.
use cubecl::prelude::*;

use super::super::layout::Layout;
use super::super::math::{F4, byte_floats, f16};
use crate::gguf::GgmlType;

/// Scales of a part: value = `scale * q - min` a plane, or `after * q` when the layout says so.
#[derive(CubeType, Clone, Copy)]
pub struct Head {
    /// Factor of each plane.
    pub scale: F4,
    /// What is taken from each plane.
    pub min: F4,
    /// Factor on the whole part's sum.
    pub after: f32,
    /// Fifth bits of Q5_0 and Q5_1.
    pub bits: u32,
}

/// Reads the scales of a part; `base` is the first word of its block.
#[cube]
pub fn part_head(w: &[u32], base: usize, part: u32, #[comptime] l: Layout) -> Head {
    let ty = comptime!(l.ty);
    if comptime!(matches!(ty, GgmlType::Q4_0 | GgmlType::IQ4_NL | GgmlType::Q8_0)) {
        plain(f16(w[base]), 0u32)
    } else if comptime!(ty == GgmlType::Q5_0) {
        plain(f16(w[base]), w[base + 1])
    } else if comptime!(ty == GgmlType::Q4_1) {
        with_min(w[base], 0u32)
    } else if comptime!(ty == GgmlType::Q5_1) {
        with_min(w[base], w[base + 1])
    } else if comptime!(ty == GgmlType::IQ4_XS) {
        let low = (w[base + 1] >> (part * 4u32)) & 0xfu32;
        let high = (w[base] >> (16u32 + part * 2u32)) & 3u32;
        let scale = f32::cast_from(low | (high << 4u32)) - 32.0f32;
        plain(f16(w[base] & 0xffffu32) * scale, 0u32)
    } else if comptime!(matches!(ty, GgmlType::Q4_K | GgmlType::Q5_K)) {
        head_k45(w, base, part)
    } else if comptime!(ty == GgmlType::Q2_K) {
        head_k2(w, base, part)
    } else if comptime!(ty == GgmlType::Q3_K) {
        head_k3(w, base, part)
    } else if comptime!(ty == GgmlType::Q6_K) {
        head_k6(w, base, part)
    } else {
        plain(1.0f32, 0u32)
    }
}

#[cube]
fn plain(after: f32, bits: u32) -> Head {
    Head { scale: F4::new(1.0f32), min: F4::new(0.0f32), after, bits }
}

#[cube]
fn with_min(word: u32, bits: u32) -> Head {
    Head { scale: F4::new(f16(word & 0xffffu32)), min: F4::new(-f16(word >> 16u32)), after: 1.0f32, bits }
}

/// Six-bit scales and mins of two neighbouring sub-blocks of 32 (Q4_K, Q5_K); `part` is the pair.
#[cube]
fn head_k45(w: &[u32], base: usize, part: u32) -> Head {
    let (w1, w2, w3) = (w[base + 1], w[base + 2], w[base + 3]);
    let upper = part >= 2u32;
    let scales = select(upper, (w3 & 0x0f0f_0f0fu32) | ((w1 >> 2u32) & 0x3030_3030u32), w1 & 0x3f3f_3f3fu32);
    let mins = select(upper, ((w3 >> 4u32) & 0x0f0f_0f0fu32) | ((w2 >> 2u32) & 0x3030_3030u32), w2 & 0x3f3f_3f3fu32);
    let shift = (part & 1u32) * 16u32;
    let d = f16(w[base] & 0xffffu32);
    let dmin = f16(w[base] >> 16u32);
    Head {
        scale: byte_floats(scales >> shift, 0u32) * F4::new(d),
        min: byte_floats(mins >> shift, 0u32) * F4::new(dmin),
        after: 1.0f32,
        bits: 0u32,
    }
}

/// The bytes of `lo` and `hi` that belong to one half: planes 0, 1 from `lo`, 2, 3 from `hi`.
#[cube]
fn half_bytes(lo: u32, hi: u32, half: u32) -> u32 {
    let shift = half * 8u32;
    let a = (lo >> shift) & 0x00ff_00ffu32;
    let b = (hi >> shift) & 0x00ff_00ffu32;
    // [a0, a2, b0, b2]
    (a & 0xffu32) | (a >> 8u32) | ((b & 0xffu32) << 16u32) | ((b & 0x00ff_0000u32) << 8u32)
}

#[cube]
fn head_k2(w: &[u32], base: usize, part: u32) -> Head {
    let at = base + (part & 0xfffeu32) as usize;
    let both = half_bytes(w[at], w[at + 1], part & 1u32);
    let d = f16(w[base + 20] & 0xffffu32);
    let dmin = f16(w[base + 20] >> 16u32);
    Head {
        scale: byte_floats(both & 0x0f0f_0f0fu32, 0u32) * F4::new(d),
        min: byte_floats((both >> 4u32) & 0x0f0f_0f0fu32, 0u32) * F4::new(dmin),
        after: 1.0f32,
        bits: 0u32,
    }
}

#[cube]
fn head_k3(w: &[u32], base: usize, part: u32) -> Head {
    let shift = (part >> 1u32) * 4u32;
    let (w0, w1, w2) = (w[base + 24] >> shift, w[base + 25] >> shift, w[base + 26] >> shift);
    let lo = (w0 & 0x0f0f_0f0fu32) | ((w2 & 0x0303_0303u32) << 4u32);
    let hi = (w1 & 0x0f0f_0f0fu32) | (((w2 >> 2u32) & 0x0303_0303u32) << 4u32);
    let d = f16(w[base + 27] & 0xffffu32);
    let scale = byte_floats(half_bytes(lo, hi, part & 1u32), 32u32) * F4::new(d);
    Head { scale, min: F4::new(0.0f32), after: 1.0f32, bits: 0u32 }
}

#[cube]
fn head_k6(w: &[u32], base: usize, part: u32) -> Head {
    let at = base + 48 + (part & 0xfffeu32) as usize;
    let both = half_bytes(w[at], w[at + 1], part & 1u32);
    let d = f16(w[base + 52] & 0xffffu32);
    // Signed bytes: flipping the top bit adds 128.
    let scale = byte_floats(both ^ 0x8080_8080u32, 128u32) * F4::new(d);
    Head { scale, min: F4::new(0.0f32), after: 1.0f32, bits: 0u32 }
}
