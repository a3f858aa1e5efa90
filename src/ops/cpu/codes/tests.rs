//! Codes, scales and offsets of every format against the reference dequantization.
use super::{Codes, halves, k_quants, plain, small};
use crate::gguf::GgmlType;
use crate::ops::cpu::simd::I32x4;
use crate::ops::cpu::testing::{Random, check};
use crate::quant;

/// Every value of a row as code, factor, scale and offset say it is.
fn decode<C: Codes>(row: &[u8]) -> Vec<f32> {
    let blocks = row.len() / C::BYTES;
    let mut scales = vec![1.0; (blocks * C::GROUPS).next_multiple_of(4)];
    let mut offsets = vec![0.0; scales.len()];
    C::scales(row, &mut scales, &mut offsets);
    let mut out = vec![f32::NAN; blocks * C::BLOCK];
    for (b, block) in row.chunks_exact(C::BYTES).enumerate() {
        for u in 0..C::UNITS {
            let unit = C::unit(block, u);
            for i in 0..C::VECTORS {
                let group = b * C::GROUPS + u * (C::VECTORS / C::GROUP) + i / C::GROUP;
                for (lane, code) in C::vector(&unit, i).lanes().into_iter().enumerate() {
                    let (at, factor) = C::place(u, i, lane);
                    out[b * C::BLOCK + at] = code * factor * scales[group] + if C::OFFSET { offsets[group] } else { 0.0 };
                }
            }
        }
    }
    out
}

fn compare<C: Codes>(ty: GgmlType, tolerance: f32) {
    let blocks = 7;
    let k = blocks * C::BLOCK;
    let row = Random::new(ty as u64 + 1).weights(ty, 1, k);
    assert_eq!(row.len(), blocks * C::BYTES, "{ty}");
    let mut want = vec![0.0; k];
    quant::dequantize(ty, &row, &mut want).expect("a runnable type");
    let largest = want.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
    for (i, (got, want)) in decode::<C>(&row).into_iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * largest, "{ty} value {i}: {got}, expected {want}");
    }
}

check!(fn every_format_decodes_to_the_reference_values() {
    compare::<plain::F32>(GgmlType::F32, 0.0);
    compare::<plain::F16>(GgmlType::F16, 0.0);
    compare::<plain::Bf16>(GgmlType::BF16, 0.0);
    compare::<small::Q4_1>(GgmlType::Q4_1, 0.0);
    compare::<small::Q5_1>(GgmlType::Q5_1, 0.0);
    compare::<small::Q8_0>(GgmlType::Q8_0, 0.0);
    compare::<small::Iq4Nl>(GgmlType::IQ4_NL, 0.0);
    // Offsets are separate terms here, part of the code in the reference: one rounding apart.
    compare::<small::Q4_0>(GgmlType::Q4_0, 3e-7);
    compare::<small::Q5_0>(GgmlType::Q5_0, 3e-7);
    compare::<k_quants::Q2K>(GgmlType::Q2_K, 3e-7);
    compare::<k_quants::Q3K>(GgmlType::Q3_K, 3e-7);
    compare::<k_quants::Q4K>(GgmlType::Q4_K, 3e-7);
    compare::<k_quants::Q5K>(GgmlType::Q5_K, 3e-7);
    compare::<k_quants::Q6K>(GgmlType::Q6_K, 3e-7);
    compare::<k_quants::Iq4Xs>(GgmlType::IQ4_XS, 3e-7);
});

check!(fn every_half_is_exact() {
    for bits in 0..=u16::MAX {
        // The lower half is another number's and must not matter.
        let got = halves(I32x4::splat((i32::from(bits as i16) << 16) | 0x5a5a)).lanes()[2];
        let want = quant::f16_to_f32(bits.to_le_bytes());
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#06x}: {got}, expected {want}");
    }
});
