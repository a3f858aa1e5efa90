//! Q2_K: 256 values of 2 bits in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
use bytemuck::{Pod, Zeroable};

use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * scale * q - dmin * min`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// Of group `g`: the scale in the low nibble, the minimum in the high one.
    pub scales: [u8; 16],
    /// Each half of the block has 32 bytes; value `32 s + l` of it is bit pair `s` of byte `l`.
    pub qs: [u8; 64],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minima, f16.
    pub dmin: [u8; 2],
}
assert_block!(BlockQ2K, 256);

impl QuantBlock<256> for BlockQ2K {
    const TYPE: GgmlType = GgmlType::Q2_K;

    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        for (g, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[g] & 15);
            let min = dmin * f32::from(self.scales[g] >> 4);
            let first = g / 8 * 32 + g % 2 * 16;
            let shift = g % 8 / 2 * 2;
            for (value, q) in group.iter_mut().zip(&self.qs[first..first + 16]) {
                *value = scale * f32::from(q >> shift & 3) - min;
            }
        }
    }
}
