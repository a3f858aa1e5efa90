//! A fixed stream of numbers and of weights for the self-test's problems: the same on every device.
use crate::gguf::GgmlType;
use crate::{Result, quant};

/// SplitMix64 (Steele et al. 2014).
pub(super) struct Stream(u64);

impl Default for Stream {
    fn default() -> Self {
        Self(0x00F1_2E51_DE00)
    }
}

impl Stream {
    /// Another stream, the same for the same number.
    pub fn fork(&self, number: u64) -> Self {
        Self(self.0 ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Values in [-1, 1).
    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
    }

    /// Any bits.
    pub fn words(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next() >> 32) as u32).collect()
    }

    /// `rows` rows of `k` values of any type: random blocks, drawn again while a value is huge or not finite.
    pub fn weights(&mut self, ty: GgmlType, rows: usize, k: usize) -> Result<Vec<u8>> {
        let (elems, size) = (ty.block_elems(), ty.block_bytes());
        let mut bytes = Vec::with_capacity(rows * quant::row_bytes(ty, k));
        let (mut block, mut values) = (vec![0; size], vec![0.0; elems]);
        for _ in 0..rows * k / elems {
            loop {
                block.iter_mut().for_each(|b| *b = (self.next() >> 56) as u8);
                quant::dequantize(ty, &block, &mut values)?;
                if values.iter().all(|v: &f32| v.is_finite() && v.abs() < 1e3) {
                    break;
                }
            }
            bytes.extend_from_slice(&block);
        }
        Ok(bytes)
    }
}
