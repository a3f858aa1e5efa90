//! Moving bytes on the device: weights into their final buffer, KV blocks onto fresh blocks.

/// Where `place` writes.
#[derive(Debug, Clone, Copy)]
pub struct PlaceProblem {
    /// First byte of `dst` that is written. On the GPU a multiple of 4.
    pub offset_bytes: usize,
    /// Bytes taken from the start of `src`.
    pub len_bytes: usize,
}

/// Scalar reference of `place`.
pub fn place_reference(dst: &mut [u8], src: &[u8], p: &PlaceProblem) {
    dst[p.offset_bytes..p.offset_bytes + p.len_bytes].copy_from_slice(&src[..p.len_bytes]);
}

/// Block copies of one layer.
#[derive(Debug, Clone, Copy)]
pub struct CopyBlocksProblem {
    /// `(from, to)` pairs in `meta`, starting at `pairs_offset`. No `to` is another pair's `from`.
    pub num_pairs: usize,
    /// First word of the pairs.
    pub pairs_offset: usize,
    /// f32 values of one block in one layer: `2 * block_size * num_kv_heads * head_dim`.
    pub block_values: usize,
}

/// Scalar reference of `copy_blocks`.
pub fn copy_blocks_reference(kv: &mut [f32], meta: &[u32], p: &CopyBlocksProblem) {
    for pair in meta[p.pairs_offset..p.pairs_offset + 2 * p.num_pairs].chunks_exact(2) {
        let (from, to) = (pair[0] as usize * p.block_values, pair[1] as usize * p.block_values);
        kv.copy_within(from..from + p.block_values, to);
    }
}
