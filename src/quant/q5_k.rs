//! Q5_K: Q4_K with a fifth bit for each value.
use bytemuck::{Pod, Zeroable};

use super::scales::k4_scales_mins;
use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * scale * q - dmin * min`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minima, f16.
    pub dmin: [u8; 2],
    /// See [`k4_scales_mins`].
    pub scales: [u8; 12],
    /// Bit `v / 32` of byte `v % 32` is the highest bit of value `v`.
    pub qh: [u8; 32],
    /// The low four bits as in Q4_K: each 64 values have 32 bytes, the first 32 in the low nibbles.
    pub qs: [u8; 128],
}
assert_block!(BlockQ5K, 256);

impl QuantBlock<256> for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;

    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let (scales, mins) = k4_scales_mins(&self.scales);
        for (g, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[g]);
            let min = dmin * f32::from(mins[g]);
            let first = g / 2 * 32;
            for ((value, low), high) in group.iter_mut().zip(&self.qs[first..first + 32]).zip(&self.qh) {
                let q = low >> (g % 2 * 4) & 15 | (high >> g & 1) << 4;
                *value = scale * f32::from(q) - min;
            }
        }
    }
}
