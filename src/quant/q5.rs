//! Q5_0 and Q5_1: Q4_0 and Q4_1 with a fifth bit for each value in a 32-bit mask.
use bytemuck::{Pod, Zeroable};

use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * (q - 16)`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Bit `i` of this little-endian mask is the highest bit of value `i`.
    pub qh: [u8; 4],
    /// Value `i` in the low nibble of byte `i`, value `i + 16` in the high one.
    pub qs: [u8; 16],
}
assert_block!(BlockQ5_0, 32);

/// `d * q + m`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16.
    pub m: [u8; 2],
    /// As in [`BlockQ5_0`].
    pub qh: [u8; 4],
    /// As in [`BlockQ5_0`].
    pub qs: [u8; 16],
}
assert_block!(BlockQ5_1, 32);

/// Byte `i`'s two values, each 0 to 31.
#[inline]
fn pair(qh: u32, qs: &[u8; 16], i: usize) -> (u8, u8) {
    let low = (qh >> i & 1) as u8;
    let high = (qh >> (i + 16) & 1) as u8;
    (qs[i] & 15 | low << 4, qs[i] >> 4 | high << 4)
}

impl QuantBlock<32> for BlockQ5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;

    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        let qh = u32::from_le_bytes(self.qh);
        for i in 0..16 {
            let (low, high) = pair(qh, &self.qs, i);
            out[i] = (i32::from(low) - 16) as f32 * d;
            out[i + 16] = (i32::from(high) - 16) as f32 * d;
        }
    }
}

impl QuantBlock<32> for BlockQ5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;

    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        let qh = u32::from_le_bytes(self.qh);
        for i in 0..16 {
            let (low, high) = pair(qh, &self.qs, i);
            out[i] = f32::from(low) * d + m;
            out[i + 16] = f32::from(high) * d + m;
        }
    }
}
