//! Bytes and rows that only move: weights into their buffer, KV blocks onto others, rows of the embedding table.
use crate::Result;
use crate::ops::embed::EmbedProblem;
use crate::ops::place::{CopyBlocksProblem, PlaceProblem};
use crate::quant;

/// `place` of the trait on bytes.
pub fn place(dst: &mut [u8], src: &[u8], p: &PlaceProblem) {
    dst[p.offset_bytes..][..p.len_bytes].copy_from_slice(&src[..p.len_bytes]);
}

/// `copy_blocks` of the trait on slices.
pub fn copy_blocks(kv: &mut [f32], meta: &[u32], p: &CopyBlocksProblem) {
    for &[from, to] in meta[p.pairs_offset..][..2 * p.num_pairs].as_chunks::<2>().0 {
        let (from, to) = (from as usize * p.block_values, to as usize * p.block_values);
        kv.copy_within(from..from + p.block_values, to);
    }
}

/// `embed` of the trait on slices: exactly the reference dequantization, since a step reads few rows.
///
/// # Errors
/// Those of [`quant::dequantize`], for types that no loader lets in.
pub fn embed(table: &[u8], meta: &[u32], out: &mut [f32], p: &EmbedProblem) -> Result<()> {
    let row_bytes = quant::row_bytes(p.ty, p.width);
    for (&id, out) in meta[p.ids_offset..][..p.tokens].iter().zip(out.chunks_exact_mut(p.width.max(1))) {
        let Some(row) = (id as usize).checked_sub(p.row_start).filter(|&row| row < p.rows) else { continue };
        quant::dequantize(p.ty, &table[row * row_bytes..][..row_bytes], out)?;
        if p.scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= p.scale);
        }
    }
    Ok(())
}
