//! Norm, rope and cache writes, and the ops that only move data.
use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::*;
use crate::ops::FiresideOps;
use crate::ops::norm::{NormProblem, rms_norm_reference};
use crate::ops::place::{CopyBlocksProblem, PlaceProblem, copy_blocks_reference, place_reference};
use crate::ops::rope_kv::{RopeKvProblem, rope_kv_reference};

#[test]
fn norm_follows_the_reference() {
    let Some(device) = device() else { return };
    let mut random = Random(31);
    for (rows, width, gather) in [(1, 576, None), (5, 7, None), (3, 1000, Some(2)), (33, 64, None), (1, 1, Some(0))] {
        let (x, weight) = (random.floats(40 * width), random.floats(width));
        let meta: Vec<u32> = (0..8).map(|i| (i * 7 + 3) % 40).collect();
        let p = NormProblem { rows, width, eps: 1e-5, gather };
        let want = rms_norm_reference(&x, &weight, &meta, &p);
        let (x, weight, meta) = (floats(&x, &device), floats(&weight, &device), words(&meta, &device));
        let out = Dispatch::rms_norm(x.into_dispatch(), weight.into_dispatch(), meta.into_dispatch(), p);
        assert_close(&read(Tensor::<1>::from_dispatch(out)), &want, &[2.0], &format!("{p:?}"));
    }
}

#[test]
fn norm_of_a_row_ignores_its_neighbours() {
    let Some(device) = device() else { return };
    let (width, x) = (577, Random(32).floats(4 * 577));
    let run = |x: &[f32]| {
        let (x, w, meta) = (floats(x, &device), floats(&vec![1.5; width], &device), words(&[0], &device));
        let p = NormProblem { rows: x.dims()[0] / width, width, eps: 1e-6, gather: None };
        let out = Dispatch::rms_norm(x.into_dispatch(), w.into_dispatch(), meta.into_dispatch(), p);
        read(Tensor::<1>::from_dispatch(out))
    };
    let together = run(&x);
    let alone: Vec<f32> = x.chunks(width).flat_map(run).collect();
    assert_eq!(bits(&together), bits(&alone));
}

#[test]
fn rope_rotates_and_fills_the_cache() {
    let Some(device) = device() else { return };
    let mut random = Random(33);
    for (h, kv_heads, d, rope_dim, block_size) in
        [(9, 3, 64, 64, 16), (2, 1, 10, 6, 3), (1, 1, 7, 4, 16), (4, 4, 16, 0, 8)]
    {
        for interleaved in [false, true] {
            let (tokens, blocks) = (7, 6);
            let p = RopeKvProblem {
                tokens,
                num_heads: h,
                num_kv_heads: kv_heads,
                head_dim: d,
                rope_dim,
                interleaved,
                block_size,
                slots_offset: 2,
            };
            let mut qkv = random.floats(tokens * (h + 2 * kv_heads) * d);
            let mut kv = random.floats(blocks * 2 * block_size * kv_heads * d);
            // An empty tensor can't be bound: rope without rotating dimensions passes one value.
            let rope = random.floats((tokens * rope_dim).max(1));
            let meta: Vec<u32> = [5, 5].into_iter().chain((0..tokens as u32).map(|t| (t * 5 + 2) % 17)).collect();
            let (gq, gk) = (floats(&qkv, &device).into_dispatch(), floats(&kv, &device).into_dispatch());
            let (gr, gm) = (floats(&rope, &device).into_dispatch(), words(&meta, &device).into_dispatch());
            let (gq, gk) = Dispatch::rope_kv(gq, gk, gr, gm, p);
            rope_kv_reference(&mut qkv, &mut kv, &rope, &meta, &p);
            assert_close(&read(Tensor::<1>::from_dispatch(gk)), &kv, &[1.0], &format!("cache {p:?}"));
            let got = read(Tensor::<1>::from_dispatch(gq));
            assert_close(&got, &qkv, &[1.0], &format!("qkv {p:?}"));
        }
    }
}

#[test]
fn place_writes_only_its_bytes() {
    let Some(device) = device() else { return };
    let mut random = Random(34);
    for (dst_words, src_words, offset_bytes, len_bytes) in
        [(10, 4, 8, 16), (10, 4, 0, 13), (3, 1, 8, 1), (70_000, 66_000, 4000, 264_000), (5, 5, 4, 0)]
    {
        let dst: Vec<u32> = (0..dst_words).map(|_| random.next()).collect();
        let src: Vec<u32> = (0..src_words).map(|_| random.next()).collect();
        let p = PlaceProblem { offset_bytes, len_bytes };
        let mut want: Vec<u8> = dst.iter().flat_map(|w| w.to_le_bytes()).collect();
        let bytes: Vec<u8> = src.iter().flat_map(|w| w.to_le_bytes()).collect();
        place_reference(&mut want, &bytes, &p);
        let out = Dispatch::place(words(&dst, &device).into_dispatch(), words(&src, &device).into_dispatch(), p);
        let got: Vec<u8> =
            read_words(Tensor::<1, Int>::from_dispatch(out)).iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(got == want, "{p:?}");
    }
}

#[test]
fn more_than_one_dimension_of_workgroups() {
    let Some(device) = device() else { return };
    let len = 65_536 * 256 + 300;
    let src: Vec<u32> = (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761)).collect();
    let p = PlaceProblem { offset_bytes: 4, len_bytes: (len - 1) * 4 };
    let out = Dispatch::place(words(&vec![7; len], &device).into_dispatch(), words(&src, &device).into_dispatch(), p);
    let got = read_words(Tensor::<1, Int>::from_dispatch(out));
    assert!(got[0] == 7 && got[1..] == src[..len - 1]);
}

#[test]
fn blocks_are_copied_in_place() {
    let Some(device) = device() else { return };
    let block_values = 2 * 16 * 3 * 8;
    let mut kv = Random(35).floats(9 * block_values);
    let meta = [0, 3, 7, 3, 1, 5, 0];
    let p = CopyBlocksProblem { num_pairs: 3, pairs_offset: 1, block_values };
    let out = Dispatch::copy_blocks(floats(&kv, &device).into_dispatch(), words(&meta, &device).into_dispatch(), p);
    copy_blocks_reference(&mut kv, &meta, &p);
    assert_eq!(read(Tensor::<1>::from_dispatch(out)), kv);
}
