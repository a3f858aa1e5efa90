//! Rotary positions (Su et al. 2021) on q and k, and the write of k and v into the paged cache, in one pass.
//!
//! A layer's cache is `[num_blocks][2: k, v][block_size][num_kv_heads][head_dim]` f32.

/// Sizes of one `rope_kv`. A row of `qkv` is `[q: H * D][k: KV * D][v: KV * D]`.
#[derive(Debug, Clone, Copy)]
pub struct RopeKvProblem {
    /// T.
    pub tokens: usize,
    /// H.
    pub num_heads: usize,
    /// KV.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Dimensions that rotate (even, at most D); the rest pass through.
    pub rope_dim: usize,
    /// Pairs are (2i, 2i + 1) when true, (i, i + rope_dim / 2) otherwise.
    pub interleaved: bool,
    /// B.
    pub block_size: usize,
    /// First slot in `meta`.
    pub slots_offset: usize,
}

/// Index into a layer's cache of (slot, is_v, kv head, 0).
pub fn kv_index(
    slot: usize,
    is_v: bool,
    head: usize,
    block_size: usize,
    num_kv_heads: usize,
    head_dim: usize,
) -> usize {
    let (block, offset) = (slot / block_size, slot % block_size);
    (((block * 2 + usize::from(is_v)) * block_size + offset) * num_kv_heads + head) * head_dim
}

/// Scalar reference of `rope_kv`. `rope` is `[T][rope_dim / 2][cos, sin]`, made on the host in f64.
pub fn rope_kv_reference(qkv: &mut [f32], kv: &mut [f32], rope: &[f32], meta: &[u32], p: &RopeKvProblem) {
    let (d, half) = (p.head_dim, p.rope_dim / 2);
    let width = (p.num_heads + 2 * p.num_kv_heads) * d;
    for t in 0..p.tokens {
        let row = &mut qkv[t * width..(t + 1) * width];
        for head in row[..(p.num_heads + p.num_kv_heads) * d].chunks_exact_mut(d) {
            for i in 0..half {
                let (a, b) = if p.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let (cos, sin) = (rope[(t * half + i) * 2], rope[(t * half + i) * 2 + 1]);
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
        let slot = meta[p.slots_offset + t] as usize;
        let (k, v) = row[p.num_heads * d..].split_at(p.num_kv_heads * d);
        for (is_v, source) in [(false, k), (true, v)] {
            let at = kv_index(slot, is_v, 0, p.block_size, p.num_kv_heads, d);
            kv[at..at + source.len()].copy_from_slice(source);
        }
    }
}
