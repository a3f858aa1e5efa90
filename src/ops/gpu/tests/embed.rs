//! `embed`, and through it the dequantization of every type.
use std::path::Path;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::*;
use crate::ops::FiresideOps;
use crate::ops::embed::{EmbedProblem, embed_reference};

/// Dequantizes all rows of `bytes` on the GPU.
fn dequantize(ty: GgmlType, rows: usize, k: usize, bytes: &[u8], device: &Backend) -> Vec<f32> {
    let ids: Vec<u32> = (0..rows as u32).collect();
    let p = EmbedProblem { ty, tokens: rows, width: k, row_start: 0, rows, ids_offset: 0, scale: 1.0 };
    run(&packed(ty, k, bytes), &ids, vec![0.0; rows * k], p, device)
}

fn run(table: &[u32], meta: &[u32], out: Vec<f32>, p: EmbedProblem, device: &Backend) -> Vec<f32> {
    let (table, meta) = (words(table, device).into_dispatch(), words(meta, device).into_dispatch());
    read(Tensor::<1>::from_dispatch(Dispatch::embed(table, meta, floats(&out, device).into_dispatch(), p)))
}

/// Distance in representable values, for finite normals; `None` where either is a subnormal or not finite.
fn ulps(a: f32, b: f32) -> Option<u32> {
    let key = |v: f32| if v.to_bits() >> 31 == 1 { -((v.to_bits() & 0x7fff_ffff) as i64) } else { v.to_bits() as i64 };
    let usable = |v: f32| v == 0.0 || v.is_normal();
    (usable(a) && usable(b)).then(|| (key(a) - key(b)).unsigned_abs() as u32)
}

fn compare(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let ok = match ulps(g, w) {
            Some(distance) => distance <= 1,
            None if w.is_nan() => g.is_nan(),
            None if w.is_infinite() => g == w,
            // Subnormals may flush.
            None => (g - w).abs() <= f32::MIN_POSITIVE,
        };
        assert!(ok, "{what}: value {i} is {g:e}, not {w:e}");
    }
}

#[test]
fn goldens_are_within_one_ulp() {
    let Some(device) = device() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/quant");
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let mut seen = 0;
    for vector in index["vectors"].as_array().unwrap() {
        let name = vector["type"].as_str().unwrap();
        let Some(&ty) = TYPES.iter().find(|ty| format!("{ty:?}") == name) else { continue };
        let (rows, k) = (vector["rows"].as_u64().unwrap() as usize, vector["cols"].as_u64().unwrap() as usize);
        let raw = std::fs::read(folder.join(vector["raw"].as_str().unwrap())).unwrap();
        let mut want = vec![0.0; rows * k];
        quant::dequantize(ty, &raw, &mut want).unwrap();
        compare(&dequantize(ty, rows, k, &raw, &device), &want, &format!("{name} {}", vector["kind"]));
        seen += 1;
    }
    assert!(seen >= 30, "only {seen} golden vectors");
}

#[test]
fn every_type_on_random_blocks() {
    let Some(device) = device() else { return };
    let mut random = Random(1);
    for ty in TYPES {
        for k in [256, 768] {
            let (rows, bytes) = (5, weights(ty, 5, k, &mut random));
            let mut want = vec![0.0; rows * k];
            quant::dequantize(ty, &bytes, &mut want).unwrap();
            compare(&dequantize(ty, rows, k, &bytes, &device), &want, &format!("{ty:?} {k}"));
        }
    }
}

#[test]
fn every_half_is_exact() {
    let Some(device) = device() else { return };
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for ty in [GgmlType::F16, GgmlType::BF16] {
        let mut want = vec![0.0; 65_536];
        quant::dequantize(ty, &bytes, &mut want).unwrap();
        // Rows of 64 take the quad kernel, rows of 1 the single one.
        for k in [64, 1] {
            let (table, rows) = if k == 1 {
                (bytes.chunks(2).map(|v| u32::from(u16::from_le_bytes([v[0], v[1]]))).collect(), 65_536)
            } else {
                (packed(ty, k, &bytes), 65_536 / k)
            };
            let ids: Vec<u32> = (0..rows as u32).collect();
            let p = EmbedProblem { ty, tokens: rows, width: k, row_start: 0, rows, ids_offset: 0, scale: 1.0 };
            compare(&run(&table, &ids, vec![0.0; 65_536], p, &device), &want, &format!("{ty:?} {k}"));
        }
    }
}

#[test]
fn parts_of_a_table_fill_their_rows() {
    let Some(device) = device() else { return };
    let mut random = Random(2);
    for (ty, k) in [(GgmlType::Q8_0, 96), (GgmlType::Q6_K, 512), (GgmlType::F16, 7), (GgmlType::F32, 33)] {
        let bytes = weights(ty, 6, k, &mut random);
        let meta: Vec<u32> = vec![9, 9, 9, 12, 3, 10, 15, 11, 9];
        let p = EmbedProblem { ty, tokens: 6, width: k, row_start: 10, rows: 6, ids_offset: 3, scale: 2.5 };
        let before = random.floats(6 * k);
        let mut want = before.clone();
        embed_reference(&bytes, &meta, &mut want, &p).unwrap();
        compare(&run(&packed(ty, k, &bytes), &meta, before, p, &device), &want, &format!("{ty:?} {k}"));
    }
}
