//! CPU kernels of the ops, over burn-flex tensors: SIMD128 in wasm, the same arithmetic by `wide` natively.
//!
//! Weights are the file's own bytes in a tensor of u32 words. Kernels are functions on slices; this file fits them to
//! tensors. Sizes and indices are the caller's promise (model code made them from a checked plan).
use std::borrow::Cow;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::TensorData;

use super::FiresideOps;
use super::attention::AttentionProblem;
use super::counters::count_weight_bytes;
use super::embed::EmbedProblem;
use super::logits::{AdjustProblem, CHUNK_WORDS, CandidatesProblem};
use super::matmul::{GateUpProblem, GatedProblem, MatmulProblem};
use super::norm::NormProblem;
use super::place::{CopyBlocksProblem, PlaceProblem};
use super::rope_kv::RopeKvProblem;
use crate::quant;

mod attention;
mod codes;
mod dot;
mod exp;
mod logits;
mod matmul;
mod norm;
mod place;
mod prepare;
mod rope_kv;
mod simd;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

/// The values of a tensor, copied only when it is a strided view.
fn read<E: burn::tensor::Element + bytemuck::Pod>(tensor: &FlexTensor) -> Cow<'_, [E]> {
    match tensor.as_slice::<E>() {
        Some(values) => Cow::Borrowed(values),
        None => Cow::Owned(tensor.to_contiguous().storage::<E>().to_vec()),
    }
}

/// The values of a flat tensor, to be changed. A tensor that is shared is copied first, as burn promises its owners;
/// model code hands over the only reference.
fn change<E: burn::tensor::Element + bytemuck::Pod>(tensor: &mut FlexTensor) -> &mut [E] {
    if !tensor.is_contiguous() || tensor.layout().start_offset() != 0 {
        *tensor = tensor.to_contiguous();
    }
    tensor.storage_mut::<E>()
}

/// A new tensor.
fn tensor<E: burn::tensor::Element, const D: usize>(values: Vec<E>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

impl FiresideOps for Flex {
    fn place(mut dst: IntTensor<Self>, src: IntTensor<Self>, p: PlaceProblem) -> IntTensor<Self> {
        let src = read::<u32>(&src);
        place::place(bytemuck::cast_slice_mut(change::<u32>(&mut dst)), bytemuck::cast_slice(&src), &p);
        dst
    }

    fn copy_blocks(mut kv: FloatTensor<Self>, meta: IntTensor<Self>, p: CopyBlocksProblem) -> FloatTensor<Self> {
        place::copy_blocks(change(&mut kv), &read(&meta), &p);
        kv
    }

    fn embed(
        table: IntTensor<Self>,
        meta: IntTensor<Self>,
        mut out: FloatTensor<Self>,
        p: EmbedProblem,
    ) -> FloatTensor<Self> {
        let table = read::<u32>(&table);
        let done = place::embed(bytemuck::cast_slice(&table), &read(&meta), change(&mut out), &p);
        debug_assert!(done.is_ok(), "the loader let in a table of type {}", p.ty);
        out
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        meta: IntTensor<Self>,
        p: NormProblem,
    ) -> FloatTensor<Self> {
        let out = norm::rms_norm(&read(&x), &read(&weight), &read(&meta), &p);
        tensor(out, [p.rows * p.width])
    }

    fn matmul(
        x: FloatTensor<Self>,
        w: IntTensor<Self>,
        mut out: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        p: MatmulProblem,
    ) -> FloatTensor<Self> {
        let w = read::<u32>(&w);
        count_weight_bytes(p.n * quant::row_bytes(p.ty, p.k));
        matmul::matmul(&read(&x), bytemuck::cast_slice(&w), change(&mut out), &read(&bias), &p);
        out
    }

    fn gate_up(x: FloatTensor<Self>, w: IntTensor<Self>, p: GateUpProblem) -> FloatTensor<Self> {
        let w = read::<u32>(&w);
        count_weight_bytes(2 * p.f * quant::row_bytes(p.ty, p.k));
        tensor(matmul::gate_up(&read(&x), bytemuck::cast_slice(&w), &p), [p.tokens * p.f])
    }

    fn gated(x: FloatTensor<Self>, p: GatedProblem) -> FloatTensor<Self> {
        tensor(matmul::gated(&read(&x), &p), [p.tokens * p.f])
    }

    fn rope_kv(
        mut qkv: FloatTensor<Self>,
        mut kv: FloatTensor<Self>,
        rope: FloatTensor<Self>,
        meta: IntTensor<Self>,
        p: RopeKvProblem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        rope_kv::rope_kv(change(&mut qkv), change(&mut kv), &read(&rope), &read(&meta), &p);
        (qkv, kv)
    }

    fn attention(
        qkv: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        meta: IntTensor<Self>,
        p: AttentionProblem,
    ) -> FloatTensor<Self> {
        let out = attention::attention(&read(&qkv), &read(&kv), &read(&meta), &p);
        tensor(out, [p.tokens * p.num_heads * p.head_dim])
    }

    fn adjust_logits(mut logits: FloatTensor<Self>, entries: IntTensor<Self>, p: AdjustProblem) -> FloatTensor<Self> {
        logits::adjust(change(&mut logits), &read(&entries), &p);
        logits
    }

    fn candidates(logits: FloatTensor<Self>, temperatures: FloatTensor<Self>, p: CandidatesProblem) -> IntTensor<Self> {
        let out = logits::candidates(&read(&logits), &read(&temperatures), &p);
        tensor(out, [p.rows * p.num_chunks() * CHUNK_WORDS])
    }

    fn greedy(candidates: IntTensor<Self>, p: CandidatesProblem) -> IntTensor<Self> {
        tensor(logits::greedy(&read(&candidates), &p), [p.rows * 4])
    }
}
