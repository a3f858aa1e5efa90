//! Q8_0: 32 signed bytes and a scale.
use bytemuck::{Pod, Zeroable};

use super::{QuantBlock, assert_block, f16_to_f32};
use crate::gguf::GgmlType;

/// `d * q`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// The values in order.
    pub qs: [i8; 32],
}
assert_block!(BlockQ8_0, 32);

impl QuantBlock<32> for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;

    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = f16_to_f32(self.d);
        for (value, &q) in out.iter_mut().zip(&self.qs) {
            *value = f32::from(q) * d;
        }
    }
}
