//! Q3_K: 256 values of 3 bits in 16 groups of 16, each with a 6-bit scale.
use bytemuck::{Pod, Zeroable};

use super::scales::q3_k_scales;
use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * scale * (q - 4)`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit `v / 32` of byte `v % 32` is the highest bit of value `v`.
    pub hmask: [u8; 32],
    /// The low two bits, as in Q2_K: each half of the block has 32 bytes; value `32 s + l` of it is pair `s` of byte `l`.
    pub qs: [u8; 64],
    /// See [`q3_k_scales`].
    pub scales: [u8; 12],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}
assert_block!(BlockQ3K, 256);

impl QuantBlock<256> for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;

    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let scales = q3_k_scales(&self.scales);
        for (g, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[g]);
            let column = g % 2 * 16;
            let first = g / 8 * 32 + column;
            let shift = g % 8 / 2 * 2;
            let lows = &self.qs[first..first + 16];
            let highs = &self.hmask[column..column + 16];
            for ((value, low), high) in group.iter_mut().zip(lows).zip(highs) {
                let q = low >> shift & 3 | (high >> (g / 2) & 1) << 2;
                *value = scale * (i32::from(q) - 4) as f32;
            }
        }
    }
}
