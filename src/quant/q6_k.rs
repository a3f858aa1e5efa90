//! Q6_K: 256 values of 6 bits in 16 groups of 16, each with an 8-bit scale.
use bytemuck::{Pod, Zeroable};

use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * scale * (q - 32)`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Low four bits. Each half of the block has 64 bytes: its values 0..64 in the low nibbles, 64..128 in the high ones.
    pub ql: [u8; 128],
    /// High two bits. Each half has 32 bytes; value `32 s + l` of it is bit pair `s` of byte `l`.
    pub qh: [u8; 64],
    /// Scale of each group.
    pub scales: [i8; 16],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}
assert_block!(BlockQ6K, 256);

impl QuantBlock<256> for BlockQ6K {
    const TYPE: GgmlType = GgmlType::Q6_K;

    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        for (g, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[g]);
            let (half, within) = (g / 8, g % 8);
            let first_low = half * 64 + within % 4 * 16;
            let first_high = half * 32 + within % 2 * 16;
            let lows = &self.ql[first_low..first_low + 16];
            let highs = &self.qh[first_high..first_high + 16];
            for ((value, low), high) in group.iter_mut().zip(lows).zip(highs) {
                let q = low >> (within / 4 * 4) & 15 | (high >> (within / 2 * 2) & 3) << 4;
                *value = scale * (i32::from(q) - 32) as f32;
            }
        }
    }
}
