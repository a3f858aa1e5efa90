//! Golden vectors, packing and hostile bytes for every type.
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const RUNNABLE: usize = 15;

fn runnable() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|ty| ty.is_runnable())
}

fn golden_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/quant")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

struct Vector {
    ty: GgmlType,
    kind: String,
    cols: usize,
    raw: Vec<u8>,
    expected: Vec<f32>,
}

/// The golden vectors of runnable types.
fn vectors() -> Vec<Vector> {
    let dir = golden_dir();
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("index.json")).unwrap()).unwrap();
    let read = |name: &serde_json::Value| std::fs::read(dir.join(name.as_str().unwrap())).unwrap();
    let vectors = index["vectors"].as_array().unwrap().iter().map(|v| Vector {
        ty: GgmlType::from_u32(v["ggml_type"].as_u64().unwrap() as u32).unwrap(),
        kind: v["kind"].as_str().unwrap().to_owned(),
        cols: v["cols"].as_u64().unwrap() as usize,
        raw: read(&v["raw"]),
        expected: floats(&read(&v["expected_f32"])),
    });
    vectors.filter(|v| v.ty.is_runnable()).collect()
}

#[test]
fn golden_vectors_are_bit_exact() {
    let vectors = vectors();
    let mut seen: Vec<_> = vectors.iter().map(|v| v.ty).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), RUNNABLE, "every runnable type has a vector");
    for Vector { ty, kind, raw, expected, .. } in vectors {
        let mut got = vec![0.0f32; expected.len()];
        dequantize(ty, &raw, &mut got).unwrap();
        for (i, (got, want)) in got.iter().zip(&expected).enumerate() {
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{ty} {kind} value {i}: {got} ({:08x}), expected {want}", got.to_bits());
        }
    }
}

#[test]
fn golden_vectors_pack_without_loss() {
    for Vector { ty, kind, cols, raw, .. } in vectors() {
        let (mut words, mut back) = (Vec::new(), Vec::new());
        gpu::pack_rows(ty, cols, &raw, &mut words).unwrap();
        assert_eq!(words.len(), raw.len() / row_bytes(ty, cols) * gpu::row_words(ty, cols).unwrap());
        gpu::unpack_rows(ty, cols, &words, &mut back).unwrap();
        assert_eq!(back, raw, "{ty} {kind}");
    }
}

#[test]
fn packed_sizes_are_the_ones_kernels_count_on() {
    use GgmlType::*;
    let expected = [
        (F32, Some(1)),
        (F16, None),
        (BF16, None),
        (Q4_0, Some(5)),
        (Q4_1, Some(5)),
        (Q5_0, Some(6)),
        (Q5_1, Some(6)),
        (Q8_0, Some(9)),
        (Q2_K, Some(21)),
        (Q3_K, Some(28)),
        (Q4_K, Some(36)),
        (Q5_K, Some(44)),
        (Q6_K, Some(53)),
        (IQ4_NL, Some(5)),
        (IQ4_XS, Some(34)),
    ];
    assert_eq!(expected.len(), RUNNABLE);
    for (ty, words) in expected {
        assert_eq!(gpu::words_per_block(ty), words, "{ty}");
    }
    assert_eq!(gpu::row_words(F16, 7).unwrap(), 4);
    assert_eq!(gpu::row_words(BF16, 8).unwrap(), 4);
    assert_eq!(gpu::row_words(Q8_0, 576).unwrap(), 162);
    assert_eq!(gpu::row_words(Q6_K, 512).unwrap(), 106);
}

/// The words of one block whose bytes are 1, 2, 3, ...
fn packed_counting(ty: GgmlType, k: usize, rows: usize) -> Vec<u32> {
    let bytes: Vec<u8> = (1..=row_bytes(ty, k) * rows).map(|b| b as u8).collect();
    let mut words = Vec::new();
    gpu::pack_rows(ty, k, &bytes, &mut words).unwrap();
    words
}

#[test]
fn packing_follows_the_layout_rule() {
    let q4_0 = packed_counting(GgmlType::Q4_0, 64, 1);
    assert_eq!(&q4_0[..2], &[0x0000_0201, 0x0605_0403]);
    assert_eq!((q4_0[4], q4_0[5]), (0x1211_100f, 0x0000_1413));
    let q4_1 = packed_counting(GgmlType::Q4_1, 32, 1);
    assert_eq!((q4_1[0], q4_1[4]), (0x0403_0201, 0x1413_1211));
    let q6_k = packed_counting(GgmlType::Q6_K, 256, 1);
    assert_eq!((q6_k[0], q6_k[52]), (0x0403_0201, 0x0000_d2d1));
    let q3_k = packed_counting(GgmlType::Q3_K, 512, 1);
    assert_eq!((q3_k[27], q3_k[28]), (0x0000_6e6d, 0x7271_706f));
    let f16 = packed_counting(GgmlType::F16, 3, 2);
    assert_eq!(f16, [0x0403_0201, 0x0000_0605, 0x0a09_0807, 0x0000_0c0b]);
}

#[test]
fn lengths_and_types_are_checked() {
    for ty in runnable() {
        let k = ty.block_elems() * 4;
        let bytes = vec![0; row_bytes(ty, k)];
        let mut out = vec![0.0; k];
        dequantize(ty, &bytes, &mut out).unwrap();
        for (bytes, len) in [(&bytes[1..], k), (&bytes[..], k - 1), (&bytes[..], 0), (&[][..], k)] {
            assert_eq!(dequantize(ty, bytes, &mut out[..len]).unwrap_err().code, "quant.length_mismatch", "{ty}");
        }
        let mut words = vec![7];
        assert_eq!(gpu::pack_rows(ty, k, &bytes[1..], &mut words).unwrap_err().code, "quant.length_mismatch");
        assert_eq!(words, [7], "a refused call leaves the buffer alone");
        gpu::pack_rows(ty, k, &[], &mut words).unwrap();
        assert_eq!(words, [7]);
        if ty.block_elems() > 1 {
            assert_eq!(gpu::row_words(ty, k + 1).unwrap_err().code, "quant.length_mismatch");
        }
        assert_eq!(gpu::unpack_rows(ty, k, &[0], &mut Vec::new()).unwrap_err().code, "quant.length_mismatch");
        assert_eq!(gpu::pack_rows(ty, 0, &[0; 4], &mut words).unwrap_err().code, "quant.length_mismatch");
    }
    for &ty in GgmlType::ALL.iter().filter(|ty| !ty.is_runnable()) {
        let k = ty.block_elems();
        let bytes = vec![0; ty.block_bytes()];
        assert_eq!(dequantize(ty, &bytes, &mut vec![0.0; k]).unwrap_err().code, "quant.unsupported_type");
        assert_eq!(gpu::row_words(ty, k).unwrap_err().code, "quant.unsupported_type");
        assert_eq!(gpu::pack_rows(ty, k, &bytes, &mut Vec::new()).unwrap_err().code, "quant.unsupported_type");
        assert_eq!(gpu::words_per_block(ty), None);
    }
}

#[test]
fn group_scales_reach_their_whole_range() {
    assert_eq!(scales::k4_scales_mins(&[0xff; 12]), ([63; 8], [63; 8]));
    assert_eq!(scales::q3_k_scales(&[0xff; 12]), [31; 16]);
    assert_eq!(scales::q3_k_scales(&[0; 12]), [-32; 16]);
    assert_eq!(scales::iq4_xs_scales(&[0xff; 4], 0xffff), [31; 8]);
    // One bit pair at a time lands in the scale it belongs to.
    for i in 0..8 {
        let got = scales::iq4_xs_scales(&[0; 4], 3 << (2 * i));
        assert_eq!(got, std::array::from_fn(|j| if j == i { 16 } else { -32 }));
    }
}

proptest! {
    #[test]
    fn any_bytes_dequantize_and_pack(index in 0..RUNNABLE, blocks in 1usize..4, rows in 1usize..4, seed: u64) {
        let ty = runnable().nth(index).unwrap();
        let k = ty.block_elems() * blocks;
        let mut state = seed;
        let bytes: Vec<u8> = (0..row_bytes(ty, k) * rows).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        }).collect();
        let mut out = vec![0.0; k * rows];
        dequantize(ty, &bytes, &mut out).unwrap();
        let (mut words, mut back) = (Vec::new(), Vec::new());
        gpu::pack_rows(ty, k, &bytes, &mut words).unwrap();
        prop_assert_eq!(words.len(), gpu::row_words(ty, k).unwrap() * rows);
        gpu::unpack_rows(ty, k, &words, &mut back).unwrap();
        prop_assert_eq!(back, bytes);
    }
}
