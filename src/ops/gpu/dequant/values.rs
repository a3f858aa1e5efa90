//! The words a step loads, and the values in them.
use cubecl::prelude::*;

use super::super::layout::Layout;
use super::super::math::{F4, byte_floats, f4, f16, small_floats, u4};
use super::scales::Head;
use crate::gguf::GgmlType;

/// Words of one step: up to three loads, and the shift that picks a part's bits in the shared ones.
#[derive(CubeType, Clone, Copy)]
pub struct Words {
    a: u32,
    b: u32,
    c: u32,
    d: u32,
}

#[cube]
fn words(a: u32, b: u32, c: u32) -> Words {
    Words { a, b, c, d: 0u32 }
}

/// Loads the words of step `step` of a part; `base` is the first word of its block.
#[cube]
pub fn part_words(w: &[u32], base: usize, part: u32, step: u32, #[comptime] l: Layout) -> Words {
    let ty = comptime!(l.ty);
    let s = step as usize;
    if comptime!(ty == GgmlType::F32) {
        let at = base + s * 4;
        Words { a: w[at], b: w[at + 1], c: w[at + 2], d: w[at + 3] }
    } else if comptime!(matches!(ty, GgmlType::F16 | GgmlType::BF16)) {
        let at = base + s * 2;
        words(w[at], w[at + 1], 0u32)
    } else if comptime!(matches!(ty, GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::IQ4_NL | GgmlType::Q8_0)) {
        words(w[base + 1 + s], 0u32, 0u32)
    } else if comptime!(matches!(ty, GgmlType::Q5_0 | GgmlType::Q5_1)) {
        words(w[base + 2 + s], step, 0u32)
    } else if comptime!(ty == GgmlType::IQ4_XS) {
        words(w[base + 2 + (part * 4u32) as usize + s], 0u32, 0u32)
    } else if comptime!(ty == GgmlType::Q4_K) {
        words(w[base + 4 + (part * 8u32) as usize + s], 0u32, 0u32)
    } else if comptime!(ty == GgmlType::Q5_K) {
        words(w[base + 12 + (part * 8u32) as usize + s], w[base + 4 + s] >> (part * 2u32), 0u32)
    } else {
        words_16(w, base, part, step, l)
    }
}

/// Types with a scale for every 16 values: `part` is (half of 128, half of 16).
#[cube]
fn words_16(w: &[u32], base: usize, part: u32, step: u32, #[comptime] l: Layout) -> Words {
    let ty = comptime!(l.ty);
    let chunk = (part >> 1u32) as usize;
    let s = ((part & 1u32) * 4u32 + step) as usize;
    if comptime!(ty == GgmlType::Q2_K) {
        words(w[base + 4 + chunk * 8 + s], 0u32, 0u32)
    } else if comptime!(ty == GgmlType::Q3_K) {
        words(w[base + 8 + chunk * 8 + s], w[base + s] >> ((part >> 1u32) * 4u32), 0u32)
    } else {
        let at = base + chunk * 16 + s;
        words(w[at], w[at + 8], w[base + 32 + chunk * 8 + s])
    }
}

/// Four consecutive values of a plane. Where the layout says `scale_after` they still lack the part's factor.
#[cube]
pub fn quad(v: &Words, head: &Head, #[comptime] plane: u32, #[comptime] l: Layout) -> F4 {
    let ty = comptime!(l.ty);
    if comptime!(ty == GgmlType::F32) {
        f4(f32::reinterpret(v.a), f32::reinterpret(v.b), f32::reinterpret(v.c), f32::reinterpret(v.d))
    } else if comptime!(ty == GgmlType::F16) {
        f4(f16(v.a & 0xffffu32), f16(v.a >> 16u32), f16(v.b & 0xffffu32), f16(v.b >> 16u32))
    } else if comptime!(ty == GgmlType::BF16) {
        f4(
            f32::reinterpret(v.a << 16u32),
            f32::reinterpret(v.a & 0xffff_0000u32),
            f32::reinterpret(v.b << 16u32),
            f32::reinterpret(v.b & 0xffff_0000u32),
        )
    } else if comptime!(ty == GgmlType::Q8_0) {
        byte_floats(v.a ^ 0x8080_8080u32, 128u32)
    } else if comptime!(ty == GgmlType::Q4_0) {
        byte_floats((v.a >> comptime!(plane * 4)) & 0x0f0f_0f0fu32, 8u32)
    } else if comptime!(matches!(ty, GgmlType::IQ4_NL | GgmlType::IQ4_XS)) {
        codebook((v.a >> comptime!(plane * 4)) & 0x0f0f_0f0fu32)
    } else if comptime!(ty == GgmlType::Q5_0) {
        fifth_bit(v, head.bits, plane, 16u32)
    } else {
        scaled_quad(v, head, plane, l)
    }
}

/// Types whose values need a scale a plane, and perhaps a min.
#[cube]
fn scaled_quad(v: &Words, head: &Head, #[comptime] plane: u32, #[comptime] l: Layout) -> F4 {
    let ty = comptime!(l.ty);
    let p = comptime!(plane as usize);
    let scale = F4::new(head.scale.extract(p));
    let min = F4::new(head.min.extract(p));
    if comptime!(matches!(ty, GgmlType::Q4_1 | GgmlType::Q4_K)) {
        byte_floats((v.a >> comptime!(plane * 4)) & 0x0f0f_0f0fu32, 0u32) * scale - min
    } else if comptime!(ty == GgmlType::Q5_1) {
        fifth_bit(v, head.bits, plane, 0u32) * scale - min
    } else if comptime!(ty == GgmlType::Q5_K) {
        let high = ((v.b >> plane) & 0x0101_0101u32) << 4u32;
        byte_floats(((v.a >> comptime!(plane * 4)) & 0x0f0f_0f0fu32) | high, 0u32) * scale - min
    } else if comptime!(ty == GgmlType::Q2_K) {
        byte_floats((v.a >> comptime!(plane * 2)) & 0x0303_0303u32, 0u32) * scale - min
    } else if comptime!(ty == GgmlType::Q3_K) {
        let high = ((v.b >> plane) & 0x0101_0101u32) << 2u32;
        byte_floats(((v.a >> comptime!(plane * 2)) & 0x0303_0303u32) | high, 4u32) * scale
    } else {
        let low = if comptime!(plane.is_multiple_of(2)) { v.a } else { v.b };
        let high = ((v.c >> comptime!(plane * 2)) & 0x0303_0303u32) << 4u32;
        byte_floats(((low >> comptime!(plane / 2 * 4)) & 0x0f0f_0f0fu32) | high, 32u32) * scale
    }
}

/// Nibbles with their fifth bits, which lie together in one word (Q5_0, Q5_1).
#[cube]
fn fifth_bit(v: &Words, bits: u32, #[comptime] plane: u32, #[comptime] bias: u32) -> F4 {
    let nibbles = (v.a >> comptime!(plane * 4)) & 0x0f0f_0f0fu32;
    let b = bits >> (v.b * 4u32 + comptime!(plane * 16));
    let high = (b & 1u32) << 4u32 | (b & 2u32) << 11u32 | (b & 4u32) << 18u32 | (b & 8u32) << 25u32;
    byte_floats(nibbles | high, bias)
}

/// The IQ4 codebook for four nibbles.
#[cube]
fn codebook(nibbles: u32) -> F4 {
    small_floats(
        u4(
            codebook_byte(nibbles & 0xfu32),
            codebook_byte((nibbles >> 8u32) & 0xfu32),
            codebook_byte((nibbles >> 16u32) & 0xfu32),
            codebook_byte(nibbles >> 24u32),
        ),
        128u32,
    )
}

/// Entry `i` plus 128: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113.
#[cube]
fn codebook_byte(i: u32) -> u32 {
    let low = select(i < 4u32, 0x3f2d_1801u32, 0x766a_5d4fu32);
    let high = select(i < 12u32, 0xa699_8d81u32, 0xf1d9_c5b5u32);
    (select(i < 8u32, low, high) >> ((i & 3u32) * 8u32)) & 0xffu32
}

/// One value of a float type, for rows that can't be read in quads; `row` is the row's first word.
#[cube]
pub fn single(w: &[u32], row: usize, i: usize, #[comptime] ty: GgmlType) -> f32 {
    if comptime!(ty == GgmlType::F32) {
        f32::reinterpret(w[row + i])
    } else {
        let half = (w[row + i / 2] >> ((i as u32 & 1u32) * 16u32)) & 0xffffu32;
        if comptime!(ty == GgmlType::F16) { f16(half) } else { f32::reinterpret(half << 16u32) }
    }
}
