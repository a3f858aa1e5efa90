//! Products: every type, odd shapes, and the same bits for any number of activation rows.
use super::close;
use crate::gguf::GgmlType;
use crate::ops::cpu::matmul::{gate_up, gated, matmul};
use crate::ops::cpu::testing::{Random, bits, check, runnable};
use crate::ops::matmul::*;
use crate::quant;

fn problem(ty: GgmlType, tokens: usize, k: usize, n: usize) -> MatmulProblem {
    let variant = Variant::Serial;
    MatmulProblem { ty, tokens, k, n, out_stride: n, out_col: 0, accumulate: false, has_bias: false, variant }
}

/// Widths that the type allows, among those of small and real models.
fn widths(ty: GgmlType) -> Vec<usize> {
    let block = ty.block_elems();
    let mut widths: Vec<usize> = [576, 1536, 2048].into_iter().filter(|k| k % block == 0).collect();
    widths.extend([block, 3 * block]);
    if block == 1 {
        widths.extend([5, 33, 100]);
    }
    widths
}

check!(
    fn matmul_follows_the_reference_for_every_type() {
        let mut random = Random::new(1);
        for ty in runnable() {
            for k in widths(ty) {
                for (tokens, n) in [(1, 5), (3, 4), (9, 7)] {
                    let p = problem(ty, tokens, k, n);
                    let (x, w) = (random.activations(tokens * k), random.weights(ty, n, k));
                    let (mut got, mut want) = (vec![f32::NAN; tokens * n], vec![0.0; tokens * n]);
                    matmul(&x, &w, &mut got, &[], &p);
                    matmul_reference(&x, &w, &mut want, &[], &p).expect("a runnable type");
                    close(&got, &want, 2e-5, &format!("{ty} T {tokens} K {k} N {n}"));
                }
            }
        }
    }
);

check!(
    fn matmul_places_accumulates_and_adds_bias() {
        let mut random = Random::new(2);
        let (tokens, k, n) = (6, 96, 5);
        for (accumulate, has_bias) in [(false, true), (true, false), (true, true)] {
            let p = MatmulProblem {
                out_stride: 11,
                out_col: 3,
                accumulate,
                has_bias,
                ..problem(GgmlType::Q4_1, tokens, k, n)
            };
            let (x, w, bias) =
                (random.activations(tokens * k), random.weights(GgmlType::Q4_1, n, k), random.activations(n));
            let before = random.activations(tokens * 11);
            let (mut got, mut want) = (before.clone(), before.clone());
            matmul(&x, &w, &mut got, &bias, &p);
            matmul_reference(&x, &w, &mut want, &bias, &p).expect("a runnable type");
            close(&got, &want, 2e-5, &format!("accumulate {accumulate} bias {has_bias}"));
            for (i, (got, before)) in got.iter().zip(before).enumerate() {
                if !(3..8).contains(&(i % 11)) {
                    assert_eq!(*got, before, "column {} is not this matmul's", i % 11);
                }
            }
        }
    }
);

/// Bits of row 0 alone, for `compare` runs.
fn alone(x: &[f32], w: &[u8], p: &MatmulProblem) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks_exact(p.k) {
        let mut row = vec![0.0; p.n];
        matmul(x, w, &mut row, &[], &MatmulProblem { tokens: 1, ..*p });
        out.extend(row);
    }
    out
}

check!(
    fn bits_do_not_depend_on_the_number_of_rows() {
        let mut random = Random::new(3);
        for ty in runnable() {
            for k in [576, 1536, 2048].into_iter().filter(|k| k % ty.block_elems() == 0) {
                let n = 5;
                let (x, w) = (random.activations(70 * k), random.weights(ty, n, k));
                let want = bits(&alone(&x, &w, &problem(ty, 1, k, n)));
                for tokens in (1..=33).chain([63, 64, 65, 70]) {
                    let p = problem(ty, tokens, k, n);
                    let mut got = vec![0.0; tokens * n];
                    matmul(&x[..tokens * k], &w, &mut got, &[], &p);
                    assert_eq!(bits(&got), want[..tokens * n], "{ty} T {tokens} K {k}");
                }
            }
        }
    }
);

check!(
    fn bits_do_not_depend_on_the_weight_rows_beside() {
        let mut random = Random::new(4);
        for ty in runnable() {
            let (k, n) = (512, 6);
            let (x, w) = (random.activations(5 * k), random.weights(ty, n, k));
            let mut whole = vec![0.0; 5 * n];
            matmul(&x, &w, &mut whole, &[], &problem(ty, 5, k, n));
            let row_bytes = quant::row_bytes(ty, k);
            for row in 0..n {
                let mut one = vec![0.0; 5];
                matmul(&x, &w[row * row_bytes..][..row_bytes], &mut one, &[], &problem(ty, 5, k, 1));
                let column: Vec<f32> = whole.iter().copied().skip(row).step_by(n).collect();
                assert_eq!(bits(&one), bits(&column), "{ty} row {row}");
            }
        }
    }
);

check!(
    fn bits_are_those_of_every_target() {
        // A digest of results that native and wasm builds must agree on.
        let mut random = Random::new(5);
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        for ty in runnable() {
            let p = problem(ty, 5, 512, 9);
            let (x, w) = (random.activations(5 * 512), random.weights(ty, 9, 512));
            let mut out = vec![0.0; 45];
            matmul(&x, &w, &mut out, &[], &p);
            for bits in bits(&out) {
                digest = (digest ^ u64::from(bits)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        assert_eq!(digest, 0x0d47_e572_020f_b1d7, "digest {digest:#018x}");
    }
);

check!(
    fn gate_up_and_gated_follow_their_references() {
        let mut random = Random::new(6);
        for ty in [GgmlType::Q4_1, GgmlType::Q6_K, GgmlType::F16] {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                for (tokens, f) in [(1, 7), (5, 6), (67, 9)] {
                    let (k, variant) = (256, Variant::Serial);
                    let p = GateUpProblem { ty, tokens, k, f, activation, variant };
                    let x: Vec<f32> = random.activations(tokens * k).iter().map(|v| v * 0.02).collect();
                    let w = random.weights(ty, 2 * f, k);
                    let got = gate_up(&x, &w, &p);
                    let want = gate_up_reference(&x, &w, &p).expect("a runnable type");
                    close(&got, &want, 3e-5, &format!("{ty} T {tokens} F {f}"));
                    let mut alone = Vec::new();
                    for x in x.chunks_exact(k) {
                        alone.extend(gate_up(x, &w, &GateUpProblem { tokens: 1, ..p }));
                    }
                    assert_eq!(bits(&got), bits(&alone), "{ty} T {tokens} F {f}");
                }
                let both: Vec<f32> = random.activations(3 * 26).iter().map(|v| v * 4.0).collect();
                let p = GatedProblem { tokens: 3, f: 13, activation };
                close(&gated(&both, &p), &gated_reference(&both, &p), 1e-6, "gated");
            }
        }
    }
);

check!(
    fn what_is_not_finite_stays_so() {
        let (k, n) = (64, 3);
        let w = Random::new(7).weights(GgmlType::Q4_1, n, k);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for tokens in [1, 6] {
                let mut x = vec![0.25; tokens * k];
                x[k / 2] = bad;
                let mut out = vec![0.0; tokens * n];
                matmul(&x, &w, &mut out, &[], &problem(GgmlType::Q4_1, tokens, k, n));
                assert!(out[..n].iter().all(|v| !v.is_finite()), "{bad} with {tokens} rows: {out:?}");
                assert!(out[n..].iter().all(|v| v.is_finite()), "{bad} must stay in its row");
            }
        }
    }
);

check!(
    fn matmul_agrees_with_the_goldens() {
        // Weight bytes and products made by gguf-py and numpy (tests/goldens/README.md).
        macro_rules! golden {
        ($($ty:ident $kind:literal),* $(,)?) => { [$((GgmlType::$ty, include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"), "/tests/goldens/quant/", stringify!($ty), ".", $kind, ".bin")).as_slice(), $kind)),*] };
    }
        let index: serde_json::Value =
            serde_json::from_str(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/quant/index.json")))
                .expect("index");
        let x = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/quant/x512.f32"));
        let x: Vec<f32> = x.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let cases = golden![
            F32 "gauss", F16 "gauss", BF16 "gauss", Q4_0 "gauss", Q4_1 "gauss", Q5_0 "gauss", Q5_1 "gauss", Q8_0 "gauss", Q2_K "gauss",
            Q3_K "gauss", Q4_K "gauss", Q5_K "gauss", Q6_K "gauss", IQ4_NL "gauss", IQ4_XS "gauss", F32 "heavy", F16 "heavy",
            BF16 "heavy", Q4_0 "heavy", Q4_1 "heavy", Q5_0 "heavy", Q5_1 "heavy", Q8_0 "heavy", Q2_K "heavy", Q3_K "heavy",
            Q4_K "heavy", Q5_K "heavy", Q6_K "heavy", IQ4_NL "heavy", IQ4_XS "heavy",
        ];
        for (ty, w, kind) in cases {
            let vectors = index["vectors"].as_array().expect("vectors");
            let entry = vectors.iter().find(|v| v["type"] == ty.name() && v["kind"] == kind).expect("an entry");
            let want: Vec<f32> =
                entry["matvec_y_f64"].as_array().expect("y").iter().map(|v| v.as_f64().expect("f64") as f32).collect();
            let mut got = vec![0.0; want.len()];
            matmul(&x, w, &mut got, &[], &problem(ty, 1, 512, want.len()));
            close(&got, &want, 1e-5, &format!("{ty} {kind}"));
        }
    }
);
