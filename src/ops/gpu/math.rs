//! Small device functions that several kernels share: half floats by integer steps, bytes to floats, activations.
//!
//! WebGPU's defaults have no f16, and its `exp` and `tanh` are only defined where they don't overflow.
use cubecl::prelude::*;

use crate::ops::matmul::Activation;

/// Four values in a register.
pub type F4 = Vector<f32, Const<4>>;
/// Four words in a register.
pub type U4 = Vector<u32, Const<4>>;

/// A finite stand-in for minus infinity, which WGSL has no literal for.
pub const LOWEST: f32 = -3.0e38;

/// The f16 in the low half of `bits` as f32: exact, subnormals, infinities and NaN included.
#[cube]
pub fn f16(bits: u32) -> f32 {
    let sign = (bits & 0x8000u32) << 16u32;
    let exponent = bits & 0x7c00u32;
    let shifted = (bits & 0x7fffu32) << 13u32;
    // 2^-14 * (1 + m / 1024) - 2^-14: no f32 subnormal on the way, devices may flush them.
    let small = f32::reinterpret(shifted + (113u32 << 23u32)) - f32::reinterpret(113u32 << 23u32);
    let rebias = select(exponent == 0x7c00u32, 224u32 << 23u32, 112u32 << 23u32);
    let magnitude = select(exponent == 0u32, u32::reinterpret(small), shifted + rebias);
    f32::reinterpret(magnitude | sign)
}

/// The two f16 of a word, low half first.
#[cube]
pub fn f16_pair(word: u32) -> (f32, f32) {
    (f16(word & 0xffffu32), f16(word >> 16u32))
}

/// A vector of four values.
#[cube]
pub fn f4(a: f32, b: f32, c: f32, d: f32) -> F4 {
    let mut v = F4::empty();
    v.insert(0usize, a);
    v.insert(1usize, b);
    v.insert(2usize, c);
    v.insert(3usize, d);
    v
}

/// A vector of four words.
#[cube]
pub fn u4(a: u32, b: u32, c: u32, d: u32) -> U4 {
    let mut v = U4::empty();
    v.insert(0usize, a);
    v.insert(1usize, b);
    v.insert(2usize, c);
    v.insert(3usize, d);
    v
}

/// The four bytes of a word, lowest first.
#[cube]
pub fn bytes(word: u32) -> U4 {
    (U4::new(word) >> u4(0u32, 8u32, 16u32, 24u32)) & U4::new(0xffu32)
}

/// Bytes as floats, less `bias`. Exact: the byte is put into the mantissa of 2^23, which costs less than a conversion.
#[cube]
pub fn small_floats(v: U4, #[comptime] bias: u32) -> F4 {
    let offset = comptime!(8_388_608.0 + bias as f32);
    F4::reinterpret(v | U4::new(0x4b00_0000u32)) - F4::new(offset)
}

/// The four bytes of a word as floats, less `bias`.
#[cube]
pub fn byte_floats(word: u32, #[comptime] bias: u32) -> F4 {
    small_floats(bytes(word), bias)
}

/// `tanh` that saturates instead of overflowing.
#[cube]
pub fn tanh_safe(x: f32) -> f32 {
    clamp(x, -15.0f32, 15.0f32).tanh()
}

/// `exp` for arguments up to 0; deeply negative ones give 0.
#[cube]
pub fn exp_nonpositive(x: f32) -> f32 {
    max(x, -100.0f32).exp()
}

/// The gate's activation.
#[cube]
pub fn activate(x: f32, #[comptime] activation: Activation) -> f32 {
    if comptime!(activation == Activation::Silu) {
        // Beyond 80 the sigmoid is 0 or 1 to f32 and exp would overflow.
        x / (1.0f32 + clamp(-x, -80.0f32, 80.0f32).exp())
    } else {
        let inner = 0.797_884_6f32 * (x + 0.044_715f32 * x * x * x);
        0.5f32 * x * (1.0f32 + tanh_safe(inner))
    }
}

/// Whether a value is NaN, from its bits: comparisons may assume there is none.
#[cube]
pub fn is_nan_bits(bits: u32) -> bool {
    (bits & 0x7fff_ffffu32) > 0x7f80_0000u32
}
