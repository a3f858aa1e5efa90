//! The ggml element types: number in a file, name, block geometry, and whether this project runs them.
use crate::{Error, Result};

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $elems:literal x $bytes:literal, $runnable:literal;)*) => {
        /// Element types of ggml tensors, by the names ggml gives them.
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum GgmlType { $($(#[$doc])* $variant = $number,)* }

        impl GgmlType {
            /// Every known type, in the order of their numbers.
            pub const ALL: &[GgmlType] = &[$(GgmlType::$variant,)*];

            /// The type with this number in a GGUF file, if it is known.
            pub const fn from_u32(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// ggml's name, e.g. `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }

            /// Values in a block.
            pub const fn block_elems(self) -> usize {
                match self { $(Self::$variant => $elems,)* }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }

            /// Whether tensors of this type can be dequantized and run here; the others are known by name and size only.
            pub const fn is_runnable(self) -> bool {
                match self { $(Self::$variant => $runnable,)* }
            }
        }
    };
}

ggml_types! {
    /// IEEE single precision.
    F32 = 0, 1 x 4, true;
    /// IEEE half precision.
    F16 = 1, 1 x 2, true;
    /// Scale and 4 bits, symmetric.
    Q4_0 = 2, 32 x 18, true;
    /// Scale, minimum and 4 bits.
    Q4_1 = 3, 32 x 20, true;
    /// Scale and 5 bits, symmetric.
    Q5_0 = 6, 32 x 22, true;
    /// Scale, minimum and 5 bits.
    Q5_1 = 7, 32 x 24, true;
    /// Scale and 8 bits.
    Q8_0 = 8, 32 x 34, true;
    /// Activations only: scale, sum and 8 bits.
    Q8_1 = 9, 32 x 36, false;
    /// 2 bits in groups of 16 with 4-bit scales and minima.
    Q2_K = 10, 256 x 84, true;
    /// 3 bits in groups of 16 with 6-bit scales.
    Q3_K = 11, 256 x 110, true;
    /// 4 bits in groups of 32 with 6-bit scales and minima.
    Q4_K = 12, 256 x 144, true;
    /// 5 bits in groups of 32 with 6-bit scales and minima.
    Q5_K = 13, 256 x 176, true;
    /// 6 bits in groups of 16 with 8-bit scales.
    Q6_K = 14, 256 x 210, true;
    /// Activations only: 8 bits with sums of groups.
    Q8_K = 15, 256 x 292, false;
    /// 2.06 bits, lattice codebook.
    IQ2_XXS = 16, 256 x 66, false;
    /// 2.31 bits, lattice codebook.
    IQ2_XS = 17, 256 x 74, false;
    /// 3.06 bits, lattice codebook.
    IQ3_XXS = 18, 256 x 98, false;
    /// 1.56 bits, lattice codebook.
    IQ1_S = 19, 256 x 50, false;
    /// Scale and 4-bit indices into a fixed table.
    IQ4_NL = 20, 32 x 18, true;
    /// 3.44 bits, lattice codebook.
    IQ3_S = 21, 256 x 110, false;
    /// 2.5 bits, lattice codebook.
    IQ2_S = 22, 256 x 82, false;
    /// 4-bit indices into a fixed table, groups of 32 with 6-bit scales.
    IQ4_XS = 23, 256 x 136, true;
    /// Signed byte.
    I8 = 24, 1 x 1, false;
    /// Signed 16 bits.
    I16 = 25, 1 x 2, false;
    /// Signed 32 bits.
    I32 = 26, 1 x 4, false;
    /// Signed 64 bits.
    I64 = 27, 1 x 8, false;
    /// IEEE double precision.
    F64 = 28, 1 x 8, false;
    /// 1.75 bits, lattice codebook.
    IQ1_M = 29, 256 x 56, false;
    /// The upper half of a single.
    BF16 = 30, 1 x 2, true;
    /// Ternary, 1.69 bits.
    TQ1_0 = 34, 256 x 54, false;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, 256 x 66, false;
    /// OCP microscaling 4-bit floats.
    MXFP4 = 39, 32 x 17, false;
    /// 4-bit floats in groups of 16 with 8-bit float scales.
    NVFP4 = 40, 64 x 36, false;
    /// Scale and sign bits.
    Q1_0 = 41, 128 x 18, false;
    /// Scale and 2 bits.
    Q2_0 = 42, 64 x 18, false;
}

impl GgmlType {
    /// Bytes of `elems` values, which must be whole blocks; `None` when they are not, or on overflow.
    pub fn checked_bytes(self, elems: u64) -> Option<u64> {
        let block = self.block_elems() as u64;
        if !elems.is_multiple_of(block) {
            return None;
        }
        (elems / block).checked_mul(self.block_bytes() as u64)
    }

    pub(super) fn from_file(number: u32, tensor: &str) -> Result<Self> {
        Self::from_u32(number).ok_or_else(|| {
            // Numbers ggml has given up; such files can only be made again.
            let hint = match number {
                4 | 5 | 31..=33 | 36..=38 => "; ggml has withdrawn this type, so convert the model again",
                _ => "",
            };
            Error::new(
                "gguf.unknown_tensor_type",
                format!("Tensor '{tensor}' has the unknown ggml type number {number}{hint}."),
            )
            .with("tensor", tensor)
            .with("got", number)
        })
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_sizes_agree_with_the_golden_index() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/quant/index.json");
        let index: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let vectors = index["vectors"].as_array().unwrap();
        assert!(vectors.len() >= 70);
        for v in vectors {
            let ty = GgmlType::from_u32(v["ggml_type"].as_u64().unwrap() as u32).unwrap();
            assert_eq!(ty.name(), v["type"].as_str().unwrap());
            assert_eq!(ty.block_elems() as u64, v["block_elems"].as_u64().unwrap(), "{ty}");
            assert_eq!(ty.block_bytes() as u64, v["block_bytes"].as_u64().unwrap(), "{ty}");
        }
    }

    #[test]
    fn numbers_round_trip_and_gaps_are_unknown() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_u32(ty as u32), Some(ty));
        }
        for number in [4, 5, 31, 33, 36, 38, 43, 250, u32::MAX] {
            assert_eq!(GgmlType::from_u32(number), None);
            assert_eq!(GgmlType::from_file(number, "t").unwrap_err().code, "gguf.unknown_tensor_type");
        }
        assert_eq!(GgmlType::ALL.iter().filter(|t| t.is_runnable()).count(), 15);
    }

    #[test]
    fn bytes_need_whole_blocks_and_fit() {
        assert_eq!(GgmlType::Q4_K.checked_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.checked_bytes(100), None);
        assert_eq!(GgmlType::F64.checked_bytes(u64::MAX), None);
    }
}
