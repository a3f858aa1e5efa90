//! Products: every type against the reference, and equal bits whatever the number of rows.
use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::*;
use crate::ops::FiresideOps;
use crate::ops::matmul::{
    Activation, GateUpProblem, GatedProblem, MatmulProblem, Variant, gate_up_reference, gated_reference,
    matmul_reference,
};

const VARIANTS: [Variant; 2] = [Variant::Serial, Variant::Workgroup];

fn problem(ty: GgmlType, tokens: usize, k: usize, n: usize, variant: Variant) -> MatmulProblem {
    MatmulProblem { ty, tokens, k, n, out_stride: n, out_col: 0, accumulate: false, has_bias: false, variant }
}

/// x, w and out on the device, so that one upload of weights serves several products.
fn product(
    x: &[f32],
    w: &Tensor<1, Int>,
    out: &[f32],
    bias: Option<&[f32]>,
    p: MatmulProblem,
    device: &Backend,
) -> Vec<f32> {
    let x = floats(x, device);
    let bias = bias.map_or_else(|| x.clone(), |bias| floats(bias, device));
    let out = floats(out, device).into_dispatch();
    read(Tensor::<1>::from_dispatch(Dispatch::matmul(
        x.into_dispatch(),
        w.clone().into_dispatch(),
        out,
        bias.into_dispatch(),
        p,
    )))
}

/// What the terms of each output add up to without signs.
fn sizes(x: &[f32], bytes: &[u8], p: &MatmulProblem) -> Vec<f32> {
    let mut w = vec![0.0; p.n * p.k];
    quant::dequantize(p.ty, bytes, &mut w).unwrap();
    let mut out = vec![1.0; p.tokens * p.out_stride];
    for (t, x) in x.chunks_exact(p.k).enumerate() {
        for (n, w) in w.chunks_exact(p.k).enumerate() {
            out[t * p.out_stride + p.out_col + n] += x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum::<f32>();
        }
    }
    out
}

#[test]
fn every_type_follows_the_reference() {
    let Some(device) = device() else { return };
    let mut random = Random(3);
    for ty in TYPES {
        let ks: &[usize] = if ty.block_elems() == 256 { &[256, 768] } else { &[32, 576] };
        for &k in ks {
            for (tokens, n) in [(1, 65), (3, 7), (8, 64), (11, 33)] {
                let (x, bytes) = (random.floats(tokens * k), weights(ty, n, k, &mut random));
                let w = words(&packed(ty, k, &bytes), &device);
                for variant in VARIANTS {
                    let p = problem(ty, tokens, k, n, variant);
                    let mut want = vec![0.0; tokens * n];
                    matmul_reference(&x, &bytes, &mut want, &[], &p).unwrap();
                    let got = product(&x, &w, &vec![0.0; tokens * n], None, p, &device);
                    assert_close(&got, &want, &sizes(&x, &bytes, &p), &format!("{p:?}"));
                }
            }
        }
    }
}

#[test]
fn float_rows_of_any_length() {
    let Some(device) = device() else { return };
    let mut random = Random(4);
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        for (tokens, k, n) in [(1, 1, 3), (5, 7, 9), (2, 33, 70), (9, 100, 5)] {
            let (x, bytes) = (random.floats(tokens * k), weights(ty, n, k, &mut random));
            let w = words(&packed(ty, k, &bytes), &device);
            for variant in VARIANTS {
                let p = problem(ty, tokens, k, n, variant);
                let mut want = vec![0.0; tokens * n];
                matmul_reference(&x, &bytes, &mut want, &[], &p).unwrap();
                let got = product(&x, &w, &vec![0.0; tokens * n], None, p, &device);
                assert_close(&got, &want, &sizes(&x, &bytes, &p), &format!("{p:?}"));
            }
        }
    }
}

#[test]
fn bias_column_and_accumulation() {
    let Some(device) = device() else { return };
    let mut random = Random(5);
    for variant in VARIANTS {
        for (accumulate, has_bias) in [(false, true), (true, false), (true, true)] {
            let (tokens, k, n, out_stride, out_col) = (3, 64, 37, 50, 9);
            let (x, bytes) = (random.floats(tokens * k), weights(GgmlType::Q4_1, n, k, &mut random));
            let (before, bias) = (random.floats(tokens * out_stride), random.floats(n));
            let p =
                MatmulProblem { ty: GgmlType::Q4_1, tokens, k, n, out_stride, out_col, accumulate, has_bias, variant };
            let mut want = before.clone();
            matmul_reference(&x, &bytes, &mut want, &bias, &p).unwrap();
            let w = words(&packed(p.ty, k, &bytes), &device);
            let got = product(&x, &w, &before, has_bias.then_some(&bias[..]), p, &device);
            assert_close(&got, &want, &sizes(&x, &bytes, &p), &format!("{p:?}"));
            for t in 0..tokens {
                assert_eq!(got[t * out_stride..][..out_col], before[t * out_stride..][..out_col], "columns before");
                assert_eq!(got[t * out_stride + 46..][..4], before[t * out_stride + 46..][..4], "columns after");
            }
        }
    }
}

#[test]
fn rows_have_equal_bits_whatever_their_number() {
    let Some(device) = device() else { return };
    let mut random = Random(6);
    let cases = [
        (GgmlType::Q4_1, 576),
        (GgmlType::Q8_0, 1536),
        (GgmlType::F16, 2048),
        (GgmlType::Q4_K, 1536),
        (GgmlType::Q6_K, 2048),
    ];
    for (ty, k) in cases {
        let (n, x) = (21, random.floats(33 * k));
        let w = words(&packed(ty, k, &weights(ty, n, k, &mut random)), &device);
        for variant in VARIANTS {
            let alone: Vec<f32> = x
                .chunks_exact(k)
                .flat_map(|x| product(x, &w, &vec![0.0; n], None, problem(ty, 1, k, n, variant), &device))
                .collect();
            for tokens in 1..=33 {
                let p = problem(ty, tokens, k, n, variant);
                let got = product(&x[..tokens * k], &w, &vec![0.0; tokens * n], None, p, &device);
                assert_eq!(bits(&got), bits(&alone[..tokens * n]), "{p:?}");
            }
            let one_by_one = problem(ty, 5, k, n, variant.row_by_row().unwrap());
            let got = product(&x[..5 * k], &w, &vec![0.0; 5 * n], None, one_by_one, &device);
            assert_eq!(bits(&got), bits(&alone[..5 * n]), "{one_by_one:?}");
        }
    }
}

#[test]
fn gate_and_up_are_one_op() {
    let Some(device) = device() else { return };
    let mut random = Random(7);
    for (ty, k) in [(GgmlType::Q4_1, 576), (GgmlType::Q5_K, 256), (GgmlType::F16, 30)] {
        for variant in VARIANTS {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let f = 35;
                let bytes = weights(ty, 2 * f, k, &mut random);
                let w = words(&packed(ty, k, &bytes), &device);
                let x = random.floats(9 * k);
                let run = |tokens: usize, x: &[f32]| {
                    let p = GateUpProblem { ty, tokens, k, f, activation, variant };
                    let x = floats(x, &device).into_dispatch();
                    read(Tensor::<1>::from_dispatch(Dispatch::gate_up(x, w.clone().into_dispatch(), p)))
                };
                let p = GateUpProblem { ty, tokens: 9, k, f, activation, variant };
                let want = gate_up_reference(&x, &bytes, &p).unwrap();
                let got = run(9, &x);
                let size: Vec<f32> = want.iter().map(|w| 20.0 * w.abs() + 20.0).collect();
                assert_close(&got, &want, &size, &format!("{p:?}"));
                let alone: Vec<f32> = x.chunks_exact(k).flat_map(|x| run(1, x)).collect();
                assert_eq!(bits(&got), bits(&alone), "{p:?}");
            }
        }
    }
}

#[test]
fn gated_survives_large_values() {
    let Some(device) = device() else { return };
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let gates = [0.0, 1.0, -1.0, 3.5, -30.0, 90.0, -90.0, 1e4, -1e4, 1e15];
        let x: Vec<f32> = gates.iter().flat_map(|&g| [g, -g, 2.0, 0.5]).collect();
        let p = GatedProblem { tokens: gates.len(), f: 2, activation };
        let got = read(Tensor::<1>::from_dispatch(Dispatch::gated(floats(&x, &device).into_dispatch(), p)));
        let want = gated_reference(&x, &p);
        let size: Vec<f32> = want.iter().map(|w| w.abs()).collect();
        assert_close(&got, &want, &size, &format!("{activation:?}"));
    }
}

#[test]
fn dispatches_and_weight_bytes_are_counted() {
    let Some(device) = device() else { return };
    let mut random = Random(8);
    let (k, n) = (64, 10);
    let w = words(&packed(GgmlType::Q8_0, k, &weights(GgmlType::Q8_0, n, k, &mut random)), &device);
    let row = 2 * 9 * 4;
    for (tokens, tiles) in [(1, 1), (4, 1), (8, 1), (9, 2), (17, 3)] {
        let x = random.floats(tokens * k);
        crate::ops::counters::take_counters();
        product(&x, &w, &vec![0.0; tokens * n], None, problem(GgmlType::Q8_0, tokens, k, n, Variant::Serial), &device);
        let counted = crate::ops::counters::take_counters();
        assert_eq!(counted.dispatches, 1);
        assert_eq!(counted.weight_bytes, tiles * n as u64 * row);
    }
}
