//! The ops on burn tensors: what model code calls. Each is one dispatch on WebGPU.
use burn::backend::Dispatch;

use super::FiresideOps;
use super::attention::AttentionProblem;
use super::embed::EmbedProblem;
use super::logits::{AdjustProblem, CandidatesProblem};
use super::matmul::{GateUpProblem, GatedProblem, MatmulProblem};
use super::norm::NormProblem;
use super::place::{CopyBlocksProblem, PlaceProblem};
use super::rope_kv::RopeKvProblem;
use crate::backend::{Floats, Words};

/// See [`FiresideOps::place`].
pub fn place(dst: Words, src: Words, p: PlaceProblem) -> Words {
    Words::from_dispatch(Dispatch::place(dst.into_dispatch(), src.into_dispatch(), p))
}

/// See [`FiresideOps::copy_blocks`].
pub fn copy_blocks(kv: Floats, meta: &Words, p: CopyBlocksProblem) -> Floats {
    Floats::from_dispatch(Dispatch::copy_blocks(kv.into_dispatch(), meta.clone().into_dispatch(), p))
}

/// See [`FiresideOps::embed`].
pub fn embed(table: &Words, meta: &Words, out: Floats, p: EmbedProblem) -> Floats {
    let (table, meta) = (table.clone().into_dispatch(), meta.clone().into_dispatch());
    Floats::from_dispatch(Dispatch::embed(table, meta, out.into_dispatch(), p))
}

/// See [`FiresideOps::rms_norm`].
pub fn rms_norm(x: &Floats, weight: &Floats, meta: &Words, p: NormProblem) -> Floats {
    let (x, weight) = (x.clone().into_dispatch(), weight.clone().into_dispatch());
    Floats::from_dispatch(Dispatch::rms_norm(x, weight, meta.clone().into_dispatch(), p))
}

/// See [`FiresideOps::matmul`].
pub fn matmul(x: &Floats, w: &Words, out: Floats, bias: Option<&Floats>, p: MatmulProblem) -> Floats {
    let bias = bias.unwrap_or(x).clone().into_dispatch();
    let (x, w) = (x.clone().into_dispatch(), w.clone().into_dispatch());
    Floats::from_dispatch(Dispatch::matmul(x, w, out.into_dispatch(), bias, p))
}

/// See [`FiresideOps::gate_up`].
pub fn gate_up(x: &Floats, w: &Words, p: GateUpProblem) -> Floats {
    Floats::from_dispatch(Dispatch::gate_up(x.clone().into_dispatch(), w.clone().into_dispatch(), p))
}

/// See [`FiresideOps::gated`].
pub fn gated(x: &Floats, p: GatedProblem) -> Floats {
    Floats::from_dispatch(Dispatch::gated(x.clone().into_dispatch(), p))
}

/// See [`FiresideOps::rope_kv`].
pub fn rope_kv(qkv: Floats, kv: Floats, rope: &Floats, meta: &Words, p: RopeKvProblem) -> (Floats, Floats) {
    let (rope, meta) = (rope.clone().into_dispatch(), meta.clone().into_dispatch());
    let (qkv, kv) = Dispatch::rope_kv(qkv.into_dispatch(), kv.into_dispatch(), rope, meta, p);
    (Floats::from_dispatch(qkv), Floats::from_dispatch(kv))
}

/// See [`FiresideOps::attention`].
pub fn attention(qkv: &Floats, kv: &Floats, meta: &Words, p: AttentionProblem) -> Floats {
    let (qkv, kv) = (qkv.clone().into_dispatch(), kv.clone().into_dispatch());
    Floats::from_dispatch(Dispatch::attention(qkv, kv, meta.clone().into_dispatch(), p))
}

/// See [`FiresideOps::adjust_logits`].
pub fn adjust_logits(logits: Floats, entries: &Words, p: AdjustProblem) -> Floats {
    Floats::from_dispatch(Dispatch::adjust_logits(logits.into_dispatch(), entries.clone().into_dispatch(), p))
}

/// See [`FiresideOps::candidates`].
pub fn candidates(logits: &Floats, temperatures: &Floats, p: CandidatesProblem) -> Words {
    let (logits, temperatures) = (logits.clone().into_dispatch(), temperatures.clone().into_dispatch());
    Words::from_dispatch(Dispatch::candidates(logits, temperatures, p))
}

/// See [`FiresideOps::greedy`].
pub fn greedy(candidates: &Words, p: CandidatesProblem) -> Words {
    Words::from_dispatch(Dispatch::greedy(candidates.clone().into_dispatch(), p))
}
