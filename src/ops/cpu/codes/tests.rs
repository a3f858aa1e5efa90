//! Codes, scales and offsets of every format against the reference dequantization.
use super::{Codes, Tables, k_quants, plain, small};
use crate::gguf::GgmlType;
use crate::ops::cpu::simd::I32x4;
use crate::ops::cpu::testing::{Random, check};
use crate::quant;

/// Every value of a row as code, factor, scale and offset say it is.
fn decode<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(row: &[u8]) -> Vec<f32> {
    let (blocks, rest) = row.as_chunks::<B>();
    assert!(rest.is_empty());
    let mut out = vec![f32::NAN; blocks.len() * C::BLOCK];
    let places = (0..C::UNITS).flat_map(|u| (0..P).flat_map(move |g| (0..G).map(move |i| (u, g, i))));
    for (b, block) in blocks.iter().enumerate() {
        for (u, g, i) in places.clone() {
            let [scale, offset] = C::factors(block, u, g, Tables::get());
            assert!(C::OFFSET || offset == 0.0);
            for (lane, code) in
                C::vector(&C::unit(block, u, Tables::get()), g, i, Tables::get()).lanes().into_iter().enumerate()
            {
                let (at, factor) = C::place(u, g, i, lane);
                out[b * C::BLOCK + at] = code * factor * scale + offset;
            }
        }
    }
    out
}

fn compare<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(ty: GgmlType, tolerance: f32) {
    let k = 7 * C::BLOCK;
    let row = Random::new(ty as u64 + 1).weights(ty, 1, k);
    let mut want = vec![0.0; k];
    quant::dequantize(ty, &row, &mut want).expect("a runnable type");
    let largest = want.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
    for (i, (got, want)) in decode::<C, B, G, P>(&row).into_iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * largest, "{ty} value {i}: {got}, expected {want}");
    }
}

check!(
    fn every_format_decodes_to_the_reference_values() {
        compare::<plain::F32, _, _, _>(GgmlType::F32, 0.0);
        compare::<plain::F16, _, _, _>(GgmlType::F16, 0.0);
        compare::<plain::Bf16, _, _, _>(GgmlType::BF16, 0.0);
        compare::<small::Q4_1, _, _, _>(GgmlType::Q4_1, 0.0);
        compare::<small::Q5_1, _, _, _>(GgmlType::Q5_1, 0.0);
        compare::<small::Q8_0, _, _, _>(GgmlType::Q8_0, 0.0);
        compare::<small::Iq4Nl, _, _, _>(GgmlType::IQ4_NL, 0.0);
        // Offsets are separate terms here, part of the code in the reference: one rounding apart.
        compare::<small::Q4_0, _, _, _>(GgmlType::Q4_0, 3e-7);
        compare::<small::Q5_0, _, _, _>(GgmlType::Q5_0, 3e-7);
        compare::<k_quants::Q2K, _, _, _>(GgmlType::Q2_K, 3e-7);
        compare::<k_quants::Q3K, _, _, _>(GgmlType::Q3_K, 3e-7);
        compare::<k_quants::Q4K, _, _, _>(GgmlType::Q4_K, 3e-7);
        compare::<k_quants::Q5K, _, _, _>(GgmlType::Q5_K, 3e-7);
        compare::<k_quants::Q6K, _, _, _>(GgmlType::Q6_K, 3e-7);
        compare::<k_quants::Iq4Xs, _, _, _>(GgmlType::IQ4_XS, 3e-7);
    }
);

check!(
    fn every_half_is_exact() {
        for bits in 0..=u16::MAX {
            // The lower half is another number's and must not matter.
            let got = Tables::get().halves(I32x4::splat((i32::from(bits as i16) << 16) | 0x5a5a)).lanes()[2];
            let want = quant::f16_to_f32(bits.to_le_bytes());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#06x}: {got}, expected {want}"
            );
            let got = Tables::get().half(&bits.to_le_bytes(), 0);
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#06x}: {got}, expected {want}"
            );
        }
    }
);
