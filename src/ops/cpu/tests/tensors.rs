//! The ops as the backend's: through tensors, changing in place what nobody else holds.
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::TensorData;

use crate::gguf::GgmlType;
use crate::ops::FiresideOps;
use crate::ops::cpu::testing::{Random, check};
use crate::ops::matmul::*;
use crate::ops::place::{CopyBlocksProblem, PlaceProblem};
use crate::ops::rope_kv::RopeKvProblem;

fn floats(values: Vec<f32>) -> FlexTensor {
    let len = values.len();
    FlexTensor::from_data(TensorData::new(values, [len]))
}

fn words(values: Vec<u32>) -> FlexTensor {
    let len = values.len();
    FlexTensor::from_data(TensorData::new(values, [len]))
}

/// Bytes as words, zero-padded, as weights lie on the CPU.
fn packed(bytes: &[u8]) -> FlexTensor {
    words(bytes.chunks(4).map(|c| c.iter().rev().fold(0, |word, &b| word << 8 | u32::from(b))).collect())
}

check!(
    fn unshared_tensors_are_changed_where_they_are() {
        let dst = words(vec![0; 8]);
        let at = dst.bytes().as_ptr();
        let dst = Flex::place(dst, packed(&[1, 2, 3, 4, 5, 6]), PlaceProblem { offset_bytes: 5, len_bytes: 6 });
        assert_eq!(dst.bytes().as_ptr(), at);
        assert_eq!(dst.bytes()[..12], [0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0]);

        let kv = floats(vec![1.0, 2.0, 3.0, 4.0]);
        let at = kv.bytes().as_ptr();
        let kv = Flex::copy_blocks(
            kv,
            words(vec![1, 0]),
            CopyBlocksProblem { num_pairs: 1, pairs_offset: 0, block_values: 2 },
        );
        assert_eq!((kv.bytes().as_ptr(), kv.storage::<f32>()), (at, [3.0, 4.0, 3.0, 4.0].as_slice()));

        let (qkv, kv) = (floats(vec![1.0; 6]), floats(vec![0.0; 4]));
        let at = (qkv.bytes().as_ptr(), kv.bytes().as_ptr());
        let p = RopeKvProblem {
            tokens: 1,
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: 2,
            rope_dim: 2,
            interleaved: true,
            block_size: 1,
            slots_offset: 0,
        };
        let (qkv, kv) = Flex::rope_kv(qkv, kv, floats(vec![0.0, 1.0]), words(vec![0]), p);
        assert_eq!((qkv.bytes().as_ptr(), kv.bytes().as_ptr()), at);
        assert_eq!(kv.storage::<f32>(), [-1.0, 1.0, 1.0, 1.0]);
    }
);

check!(
    fn shared_tensors_keep_their_values() {
        let out = floats(vec![1.0; 3]);
        let kept = out.clone();
        let w = Random::new(1).weights(GgmlType::Q4_1, 3, 32);
        let p = MatmulProblem {
            ty: GgmlType::Q4_1,
            tokens: 1,
            k: 32,
            n: 3,
            out_stride: 3,
            out_col: 0,
            accumulate: true,
            has_bias: false,
            variant: Variant::Serial,
        };
        let x = floats(Random::new(2).activations(32));
        let got = Flex::matmul(x.clone(), packed(&w), out, x, p);
        assert_eq!(kept.storage::<f32>(), [1.0; 3]);
        assert_ne!(got.storage::<f32>(), [1.0; 3]);
    }
);

check!(
    fn matmul_accumulates_in_place_over_padded_words() {
        // Rows of 34 bytes: the last word is half padding.
        let (k, n) = (32, 3);
        let w = Random::new(3).weights(GgmlType::Q8_0, n, k);
        assert_eq!(w.len() % 4, 2);
        let x = Random::new(4).activations(2 * k);
        let p = MatmulProblem {
            ty: GgmlType::Q8_0,
            tokens: 2,
            k,
            n,
            out_stride: 4,
            out_col: 1,
            accumulate: true,
            has_bias: true,
            variant: Variant::Serial,
        };
        let (mut want, bias) = (vec![0.5; 8], vec![1.0, -2.0, 3.0]);
        matmul_reference(&x, &w, &mut want, &bias, &p).expect("a runnable type");
        let out = floats(vec![0.5; 8]);
        let at = out.bytes().as_ptr();
        let got = Flex::matmul(floats(x), packed(&w), out, floats(bias), p);
        assert_eq!(got.bytes().as_ptr(), at);
        super::close(got.storage(), &want, 1e-6, "matmul");
    }
);
