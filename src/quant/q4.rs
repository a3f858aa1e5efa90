//! Q4_0 and Q4_1: 32 values of 4 bits. The low nibbles are the first half of the block, the high nibbles the second.
use bytemuck::{Pod, Zeroable};

use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * (q - 8)`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Value `i` in the low nibble of byte `i`, value `i + 16` in the high one.
    pub qs: [u8; 16],
}
assert_block!(BlockQ4_0, 32);

/// `d * q + m`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16.
    pub m: [u8; 2],
    /// As in [`BlockQ4_0`].
    pub qs: [u8; 16],
}
assert_block!(BlockQ4_1, 32);

impl QuantBlock<32> for BlockQ4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;

    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        let (low, high) = out.split_at_mut(16);
        for ((q, low), high) in self.qs.iter().zip(low).zip(high) {
            *low = (i32::from(q & 15) - 8) as f32 * d;
            *high = (i32::from(q >> 4) - 8) as f32 * d;
        }
    }
}

impl QuantBlock<32> for BlockQ4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;

    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        let (low, high) = out.split_at_mut(16);
        for ((q, low), high) in self.qs.iter().zip(low).zip(high) {
            *low = f32::from(q & 15) * d + m;
            *high = f32::from(q >> 4) * d + m;
        }
    }
}
