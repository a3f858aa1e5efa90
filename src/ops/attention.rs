//! Paged attention through block tables: each token attends to positions `0..=position` of its own sequence.
//!
//! Canonical order: positions in segments of [`SEGMENT`] absolute positions, each reduced by itself (max, then exp and
//! sum in ascending order), segments folded in ascending order. The order does not depend on chunking or batch.
use super::matmul::Variant;
use super::rope_kv::kv_index;

/// Absolute positions in one canonical segment.
pub const SEGMENT: usize = 64;

/// Sizes of one `attention`. q is the first `H * D` columns of a `qkv` row (see `rope_kv`).
#[derive(Debug, Clone, Copy)]
pub struct AttentionProblem {
    /// T.
    pub tokens: usize,
    /// H.
    pub num_heads: usize,
    /// KV; divides H.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// B.
    pub block_size: usize,
    /// Usually 1 / sqrt(D).
    pub scale: f32,
    /// Sliding window: only the last `window` positions, itself included; 0 is none.
    pub window: usize,
    /// `softcap * tanh(score / softcap)` on scores; 0 is none.
    pub softcap: f32,
    /// First position in `meta`.
    pub positions_offset: usize,
    /// First sequence row in `meta`.
    pub seqs_offset: usize,
    /// First table word in `meta`.
    pub tables_offset: usize,
    /// Words a table row.
    pub table_stride: usize,
    /// Kernel family.
    pub variant: Variant,
}

/// Scalar reference of `attention` (f64, plain softmax).
pub fn attention_reference(qkv: &[f32], kv: &[f32], meta: &[u32], p: &AttentionProblem) -> Vec<f32> {
    let (d, group) = (p.head_dim, p.num_heads / p.num_kv_heads);
    let width = (p.num_heads + 2 * p.num_kv_heads) * d;
    let mut out = vec![0.0; p.tokens * p.num_heads * d];
    for t in 0..p.tokens {
        let position = meta[p.positions_offset + t] as usize;
        let table = p.tables_offset + meta[p.seqs_offset + t] as usize * p.table_stride;
        let first = if p.window == 0 { 0 } else { (position + 1).saturating_sub(p.window) };
        for h in 0..p.num_heads {
            let q = &qkv[t * width + h * d..][..d];
            let at = |position: usize, is_v: bool| {
                let slot = meta[table + position / p.block_size] as usize * p.block_size + position % p.block_size;
                &kv[kv_index(slot, is_v, h / group, p.block_size, p.num_kv_heads, d)..][..d]
            };
            let scores: Vec<f64> = (first..=position)
                .map(|j| {
                    let dot: f64 = q.iter().zip(at(j, false)).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    let score = dot * f64::from(p.scale);
                    let cap = f64::from(p.softcap);
                    if cap > 0.0 { cap * (score / cap).tanh() } else { score }
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            for (i, out) in out[(t * p.num_heads + h) * d..][..d].iter_mut().enumerate() {
                let mixed: f64 =
                    scores.iter().zip(first..).map(|(s, j)| (s - max).exp() / sum * f64::from(at(j, true)[i])).sum();
                *out = mixed as f32;
            }
        }
    }
    out
}
