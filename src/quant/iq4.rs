//! IQ4_NL and IQ4_XS: 4-bit indices into a fixed table, in blocks of 32 with a scale, or of 256 with 8 group scales.
use bytemuck::{Pod, Zeroable};

use super::scales::iq4_xs_scales;
use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// What the indices of both types stand for.
pub const IQ4_CODEBOOK: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `d * codebook[q]`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Value `i` in the low nibble of byte `i`, value `i + 16` in the high one.
    pub qs: [u8; 16],
}
assert_block!(BlockIq4Nl, 32);

/// `d * scale * codebook[q]`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Upper bits of the group scales, see [`iq4_xs_scales`]; a little-endian u16.
    pub scales_h: [u8; 2],
    /// Low nibbles of the group scales.
    pub scales_l: [u8; 4],
    /// Each group of 32 values has 16 bytes, ordered as in [`BlockIq4Nl`].
    pub qs: [u8; 128],
}
assert_block!(BlockIq4Xs, 256);

fn look_up(scale: f32, qs: &[u8; 16], out: &mut [f32; 32]) {
    let (low, high) = out.split_at_mut(16);
    for ((&q, low), high) in qs.iter().zip(low).zip(high) {
        *low = scale * f32::from(IQ4_CODEBOOK[usize::from(q & 15)]);
        *high = scale * f32::from(IQ4_CODEBOOK[usize::from(q >> 4)]);
    }
}

impl QuantBlock<32> for BlockIq4Nl {
    const TYPE: GgmlType = GgmlType::IQ4_NL;

    fn dequantize(&self, out: &mut [f32; 32]) {
        look_up(f16_to_f32(self.d), &self.qs, out);
    }
}

impl QuantBlock<256> for BlockIq4Xs {
    const TYPE: GgmlType = GgmlType::IQ4_XS;

    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f16_to_f32(self.d);
        let scales = iq4_xs_scales(&self.scales_l, u16::from_le_bytes(self.scales_h));
        let groups = out.as_chunks_mut::<32>().0.iter_mut();
        for ((group, qs), scale) in groups.zip(self.qs.as_chunks::<16>().0).zip(scales) {
            look_up(d * f32::from(scale), qs, group);
        }
    }
}
