//! Norm, rotation and everything that only moves.
use super::close;
use crate::gguf::GgmlType;
use crate::ops::cpu::testing::{Random, bits, check, runnable};
use crate::ops::cpu::{norm, place, rope_kv};
use crate::ops::embed::{EmbedProblem, embed_reference};
use crate::ops::norm::{NormProblem, rms_norm_reference};
use crate::ops::place::*;
use crate::ops::rope_kv::{RopeKvProblem, rope_kv_reference};

check!(
    fn norm_follows_the_reference() {
        let mut random = Random::new(1);
        for width in [1, 3, 4, 15, 16, 17, 64, 576, 2048] {
            let (x, weight) = (random.activations(5 * width), random.activations(width));
            let meta = [9, 9, 4, 0, 4];
            for (rows, gather) in [(5, None), (3, Some(2))] {
                let p = NormProblem { rows, width, eps: 1e-5, gather };
                let got = norm::rms_norm(&x, &weight, &meta, &p);
                close(
                    &got,
                    &rms_norm_reference(&x, &weight, &meta, &p),
                    1e-6,
                    &format!("width {width} gather {gather:?}"),
                );
                let alone = norm::rms_norm(&x, &weight, &[4], &NormProblem { rows: 1, gather: Some(0), ..p });
                if gather.is_some() {
                    assert_eq!(bits(&got[..width]), bits(&alone));
                }
            }
        }
        // Zeros are kept zeros by eps.
        let p = NormProblem { rows: 1, width: 4, eps: 1e-6, gather: None };
        assert_eq!(norm::rms_norm(&[0.0; 4], &[1.0; 4], &[], &p), [0.0; 4]);
    }
);

check!(
    fn rope_kv_is_the_reference_bit_for_bit() {
        let mut random = Random::new(2);
        for (heads, kv_heads, dim, rope_dim) in [(9, 3, 64, 64), (2, 1, 6, 4), (4, 4, 16, 16), (1, 1, 2, 2)] {
            for interleaved in [false, true] {
                let (tokens, block_size, blocks) = (5, 4, 3);
                let p = RopeKvProblem {
                    tokens,
                    num_heads: heads,
                    num_kv_heads: kv_heads,
                    head_dim: dim,
                    rope_dim,
                    interleaved,
                    block_size,
                    slots_offset: 2,
                };
                let mut qkv = random.activations(tokens * (heads + 2 * kv_heads) * dim);
                let mut kv = random.activations(blocks * 2 * block_size * kv_heads * dim);
                let rope = random.activations(tokens * rope_dim);
                let meta = [99, 99, 11, 0, 5, 4, 7];
                let (mut want_qkv, mut want_kv) = (qkv.clone(), kv.clone());
                rope_kv::rope_kv(&mut qkv, &mut kv, &rope, &meta, &p);
                rope_kv_reference(&mut want_qkv, &mut want_kv, &rope, &meta, &p);
                assert_eq!(bits(&qkv), bits(&want_qkv), "q, interleaved {interleaved}");
                assert_eq!(bits(&kv), bits(&want_kv), "kv, interleaved {interleaved}");
            }
        }
    }
);

check!(
    fn embed_is_the_reference_bit_for_bit() {
        let mut random = Random::new(3);
        for ty in runnable() {
            let (width, rows) = (512, 4);
            let table = random.weights(ty, rows, width);
            let meta = [77, 12, 10, 13, 9, 14, 10];
            for scale in [1.0, 25.3] {
                let p = EmbedProblem { ty, tokens: 6, width, row_start: 10, rows, ids_offset: 1, scale };
                let before = random.activations(6 * width);
                let (mut got, mut want) = (before.clone(), before.clone());
                place::embed(&table, &meta, &mut got, &p).expect("a runnable type");
                embed_reference(&table, &meta, &mut want, &p).expect("a runnable type");
                assert_eq!(bits(&got), bits(&want), "{ty}");
                assert_eq!(
                    got[3 * width..5 * width],
                    before[3 * width..5 * width],
                    "ids of other parts are left alone"
                );
            }
        }
        let p = EmbedProblem {
            ty: GgmlType::IQ1_S,
            tokens: 1,
            width: 256,
            row_start: 0,
            rows: 1,
            ids_offset: 0,
            scale: 1.0,
        };
        assert!(place::embed(&[0; 50], &[0], &mut [0.0; 256], &p).is_err());
    }
);

check!(
    fn bytes_and_blocks_are_moved() {
        let mut random = Random::new(4);
        let src: Vec<u8> = (0..40).map(|_| random.bits() as u8).collect();
        for (offset_bytes, len_bytes) in [(0, 40), (3, 17), (60, 0), (24, 40)] {
            let (mut got, mut want) = ([7; 64], [7; 64]);
            let p = PlaceProblem { offset_bytes, len_bytes };
            place::place(&mut got, &src, &p);
            place_reference(&mut want, &src, &p);
            assert_eq!(got, want);
        }
        let mut kv = random.activations(5 * 6);
        let mut want = kv.clone();
        let meta = [9, 0, 3, 2, 4];
        let p = CopyBlocksProblem { num_pairs: 2, pairs_offset: 1, block_values: 6 };
        place::copy_blocks(&mut kv, &meta, &p);
        copy_blocks_reference(&mut want, &meta, &p);
        assert_eq!(kv, want);
        assert_eq!(kv[18..24], kv[0..6]);
    }
);
