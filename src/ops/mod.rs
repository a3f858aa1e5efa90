//! The operations of a forward, as one burn backend extension: WebGPU kernels in `gpu/`, CPU kernels in `cpu/`.
//!
//! Each op has a file with its problem struct (sizes and choices, plain data) and a scalar reference that both
//! implementations are tested against. Model code calls the functions in `call`; it never names a backend.
use burn::backend::Backend;
use burn::backend::backend_extension;
use burn::backend::tensor::{FloatTensor, IntTensor};

pub mod attention;
pub mod call;
pub mod counters;
pub mod embed;
pub mod logits;
pub mod matmul;
pub mod meta;
pub mod norm;
pub mod pack;
pub mod place;
pub mod rope_kv;
pub mod selftest;

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "webgpu")]
pub mod gpu;

use attention::AttentionProblem;
use embed::EmbedProblem;
use logits::{AdjustProblem, CandidatesProblem};
use matmul::{GateUpProblem, GatedProblem, MatmulProblem};
use norm::NormProblem;
use place::{CopyBlocksProblem, PlaceProblem};
use rope_kv::RopeKvProblem;

/// Every op takes and gives flat row-major tensors; `Int` tensors hold u32 words. A tensor that an op changes is
/// passed by value and returned: on the GPU it is the same buffer, on the CPU it is changed in place when unshared.
#[backend_extension(Cube: cfg(feature = "webgpu"), Flex: cfg(feature = "cpu"))]
pub trait FiresideOps: Backend {
    /// Copies `src`'s bytes into `dst` at a byte offset (weights arriving tensor by tensor).
    fn place(dst: IntTensor<Self>, src: IntTensor<Self>, p: PlaceProblem) -> IntTensor<Self>;
    /// Copies whole KV blocks within one layer's cache; pairs lie in `meta`.
    fn copy_blocks(kv: FloatTensor<Self>, meta: IntTensor<Self>, p: CopyBlocksProblem) -> FloatTensor<Self>;
    /// Rows of a quantized table: `[T, K]`, written into `out` where the id is within this part of the table.
    fn embed(
        table: IntTensor<Self>,
        meta: IntTensor<Self>,
        out: FloatTensor<Self>,
        p: EmbedProblem,
    ) -> FloatTensor<Self>;
    /// RMS norm of chosen rows of `x`: `[T, E]` -> `[R, E]`.
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        meta: IntTensor<Self>,
        p: NormProblem,
    ) -> FloatTensor<Self>;
    /// `out[t, col + n] (+)= x[t, :] . w[n, :] (+ bias[n])`; `bias` is read only when `p.has_bias` (pass `x` otherwise).
    fn matmul(
        x: FloatTensor<Self>,
        w: IntTensor<Self>,
        out: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        p: MatmulProblem,
    ) -> FloatTensor<Self>;
    /// `act(x . gate) * (x . up)`: `[T, K]` -> `[T, F]`; `w` holds the F gate rows, then the F up rows.
    fn gate_up(x: FloatTensor<Self>, w: IntTensor<Self>, p: GateUpProblem) -> FloatTensor<Self>;
    /// `act(x[t, f]) * x[t, F + f]`: `[T, 2F]` -> `[T, F]` (when gate and up are of different types).
    fn gated(x: FloatTensor<Self>, p: GatedProblem) -> FloatTensor<Self>;
    /// Rotates q in place and writes rotated k and plain v into the layer's cache. Gives `(qkv, kv)`.
    fn rope_kv(
        qkv: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        rope: FloatTensor<Self>,
        meta: IntTensor<Self>,
        p: RopeKvProblem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// Paged attention: `[T, H * D]`.
    fn attention(
        qkv: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        meta: IntTensor<Self>,
        p: AttentionProblem,
    ) -> FloatTensor<Self>;
    /// Penalties and bias, entry by entry, in place on `[R, V]` logits.
    fn adjust_logits(logits: FloatTensor<Self>, entries: IntTensor<Self>, p: AdjustProblem) -> FloatTensor<Self>;
    /// Per chunk of the vocabulary: best entries and log-sum-exps, as u32 words (`CandidatesProblem` has the layout).
    fn candidates(logits: FloatTensor<Self>, temperatures: FloatTensor<Self>, p: CandidatesProblem) -> IntTensor<Self>;
    /// Folds the chunks of `candidates` into one record a row: `[R, 4]` words (token, logit bits, max bits, sum bits).
    fn greedy(candidates: IntTensor<Self>, p: CandidatesProblem) -> IntTensor<Self>;
}
