//! Every op on the native GPU (a software Vulkan driver will do) against its scalar reference.
//!
//! Pick a driver with VK_ICD_FILENAMES. Without an adapter the tests say so and pass; FIRESIDE_REQUIRE_GPU=1 makes that a
//! failure.
mod attention;
mod bench;
mod embed;
mod logits;
mod matmul;
mod small;

use burn::tensor::{Int, Tensor};

use crate::backend::Backend;
use crate::gguf::GgmlType;
use crate::quant;

/// Types that run.
pub const TYPES: [GgmlType; 15] = {
    use GgmlType::*;
    [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS]
};

/// The device, or None (said aloud) where there is none.
pub fn device() -> Option<Backend> {
    match pollster::block_on(Backend::webgpu()) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert!(std::env::var_os("FIRESIDE_REQUIRE_GPU").is_none(), "FIRESIDE_REQUIRE_GPU is set, but {error}");
            eprintln!("SKIPPED: the GPU kernels are not tested: {error}");
            None
        }
    }
}

pub fn floats(values: &[f32], device: &Backend) -> Tensor<1> {
    device.floats(values.to_vec())
}

pub fn words(values: &[u32], device: &Backend) -> Tensor<1, Int> {
    device.words(values.to_vec())
}

pub fn read<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    t.into_data().try_to_vec::<f32>().unwrap()
}

pub fn read_words<const D: usize>(t: Tensor<D, Int>) -> Vec<u32> {
    t.into_data().try_to_vec::<u32>().unwrap()
}

/// A small deterministic generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// In [-1, 1).
    pub fn float(&mut self) -> f32 {
        self.next() as f32 / 2_147_483_648.0 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Where a block's f16 scales lie, in bytes.
fn scale_bytes(ty: GgmlType) -> &'static [usize] {
    use GgmlType::*;
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        _ => &[],
    }
}

/// `rows` rows of `k` values in the file's layout: random bits, with scales (or float values) of moderate size.
pub fn weights(ty: GgmlType, rows: usize, k: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rows * quant::row_bytes(ty, k)).map(|_| random.next() as u8).collect();
    match ty {
        GgmlType::F32 => bytes.chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&random.float().to_le_bytes())),
        // The top exponent bits off: |v| < 1.
        GgmlType::F16 => bytes.chunks_exact_mut(2).for_each(|v| v[1] = (v[1] & 0x83) | 0x38),
        GgmlType::BF16 => bytes.chunks_exact_mut(2).for_each(|v| v[1] = (v[1] & 0x80) | 0x3e),
        _ => bytes.chunks_exact_mut(ty.block_bytes()).for_each(|block| {
            scale_bytes(ty).iter().for_each(|&at| block[at + 1] = (block[at + 1] & 0x83) | 0x18);
        }),
    }
    bytes
}

pub fn packed(ty: GgmlType, k: usize, bytes: &[u8]) -> Vec<u32> {
    let mut words = Vec::new();
    quant::gpu::pack_rows(ty, k, bytes, &mut words).unwrap();
    words
}

/// Asserts closeness relative to the size of what was added.
pub fn assert_close(got: &[f32], want: &[f32], size: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let limit = 4e-6 * size.get(i).copied().unwrap_or(size[0]) + 1e-6;
        assert!((g - w).abs() <= limit, "{what}: at {i} got {g}, want {w} +- {limit}");
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
