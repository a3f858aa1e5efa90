//! What the tests of the kernels share: a macro that makes a test native and wasm alike, and reproducible data.
use crate::gguf::GgmlType;
use crate::quant;

/// `check!(fn name() { .. });` is a test of `cargo test` and of `wasm-pack test --node`.
macro_rules! check {
    ($(#[$attribute:meta])* fn $name:ident() $body:block) => {
        $(#[$attribute])*
        #[cfg_attr(not(target_family = "wasm"), test)]
        #[cfg_attr(target_family = "wasm", wasm_bindgen_test::wasm_bindgen_test)]
        fn $name() $body
    };
}
pub(crate) use check;

/// A small generator (xorshift), good enough to fill problems.
pub struct Random(u64);

impl Random {
    /// The same stream for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 1.0
    }

    /// Values in [-1, 1), one in 37 ten times as large, as activations have them.
    pub fn activations(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit() * if self.below(37) == 0 { 10.0 } else { 1.0 }).collect()
    }

    /// Weight rows in the file's form: random bits, with every value finite and moderate.
    pub fn weights(&mut self, ty: GgmlType, rows: usize, k: usize) -> Vec<u8> {
        let (elems, size) = (ty.block_elems(), ty.block_bytes());
        let mut bytes = Vec::new();
        let mut values = vec![0.0; elems];
        for _ in 0..rows * k / elems {
            loop {
                let block: Vec<u8> = (0..size).map(|_| self.bits() as u8).collect();
                quant::dequantize(ty, &block, &mut values).expect("a whole block");
                if values.iter().all(|v: &f32| v.abs() < 100.0) {
                    bytes.extend(block);
                    break;
                }
            }
        }
        bytes
    }
}

/// Types that have kernels.
pub fn runnable() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|ty| ty.is_runnable())
}

/// Bits of floats, for comparisons that NaN and signed zeros take part in.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// FNV-1a of the bits: what native and wasm builds must agree on.
pub fn digest(values: &[f32]) -> u64 {
    values
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, v| (hash ^ u64::from(v.to_bits())).wrapping_mul(0x0000_0100_0000_01b3))
}
