//! WebGPU kernels of the ops (CubeCL), within the default limits: no f16, no subgroups, at most seven buffers a kernel.
//!
//! Software adapters get kernels without barriers, real GPUs workgroup kernels (`Variant`). No op reads back.
use burn::backend::wgpu::{CubeBackend, CubeTensor};

use super::FiresideOps;
use super::attention::AttentionProblem;
use super::embed::EmbedProblem;
use super::logits::{AdjustProblem, CandidatesProblem};
use super::matmul::{GateUpProblem, GatedProblem, MatmulProblem};
use super::norm::NormProblem;
use super::place::{CopyBlocksProblem, PlaceProblem};
use super::rope_kv::RopeKvProblem;

mod attention;
mod dequant;
mod embed;
mod gated;
mod launch;
mod layout;
mod logits;
mod math;
mod matmul;
mod norm;
mod place;
#[cfg(all(test, not(target_family = "wasm")))]
pub(crate) mod planted;
mod rope_kv;
#[cfg(all(test, not(target_family = "wasm")))]
pub(crate) mod tests;

impl FiresideOps for CubeBackend {
    fn place(dst: CubeTensor, src: CubeTensor, p: PlaceProblem) -> CubeTensor {
        place::place(dst, src, &p)
    }

    fn copy_blocks(kv: CubeTensor, meta: CubeTensor, p: CopyBlocksProblem) -> CubeTensor {
        place::copy_blocks(kv, meta, &p)
    }

    fn embed(table: CubeTensor, meta: CubeTensor, out: CubeTensor, p: EmbedProblem) -> CubeTensor {
        embed::embed(table, meta, out, &p)
    }

    fn rms_norm(x: CubeTensor, weight: CubeTensor, meta: CubeTensor, p: NormProblem) -> CubeTensor {
        norm::rms_norm(x, weight, meta, &p)
    }

    fn matmul(x: CubeTensor, w: CubeTensor, out: CubeTensor, bias: CubeTensor, p: MatmulProblem) -> CubeTensor {
        matmul::matmul(x, w, out, bias, &p)
    }

    fn gate_up(x: CubeTensor, w: CubeTensor, p: GateUpProblem) -> CubeTensor {
        matmul::gate_up(x, w, &p)
    }

    fn gated(x: CubeTensor, p: GatedProblem) -> CubeTensor {
        gated::gated(x, &p)
    }

    fn rope_kv(
        qkv: CubeTensor,
        kv: CubeTensor,
        rope: CubeTensor,
        meta: CubeTensor,
        p: RopeKvProblem,
    ) -> (CubeTensor, CubeTensor) {
        rope_kv::rope_kv(qkv, kv, rope, meta, &p)
    }

    fn attention(qkv: CubeTensor, kv: CubeTensor, meta: CubeTensor, p: AttentionProblem) -> CubeTensor {
        attention::attention(qkv, kv, meta, &p)
    }

    fn adjust_logits(logits: CubeTensor, entries: CubeTensor, p: AdjustProblem) -> CubeTensor {
        logits::adjust_logits(logits, entries, &p)
    }

    fn candidates(logits: CubeTensor, temperatures: CubeTensor, p: CandidatesProblem) -> CubeTensor {
        logits::candidates(logits, temperatures, &p)
    }

    fn greedy(candidates: CubeTensor, p: CandidatesProblem) -> CubeTensor {
        logits::greedy(candidates, &p)
    }
}
