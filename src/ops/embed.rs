//! Token embeddings: rows of a quantized table, dequantized.
use crate::gguf::GgmlType;
use crate::quant;

/// Sizes of one `embed` over one part of the table.
#[derive(Debug, Clone, Copy)]
pub struct EmbedProblem {
    /// Type of the table.
    pub ty: GgmlType,
    /// T.
    pub tokens: usize,
    /// E, a multiple of the type's block.
    pub width: usize,
    /// First vocabulary row of this part.
    pub row_start: usize,
    /// Rows in this part.
    pub rows: usize,
    /// First id in `meta`.
    pub ids_offset: usize,
    /// Factor on every value (1 for llama).
    pub scale: f32,
}

/// Scalar reference of `embed`; `table` is the file's bytes.
pub fn embed_reference(table: &[u8], meta: &[u32], out: &mut [f32], p: &EmbedProblem) -> crate::Result<()> {
    let row_bytes = quant::row_bytes(p.ty, p.width);
    for t in 0..p.tokens {
        let id = meta[p.ids_offset + t] as usize;
        if let Some(row) = id.checked_sub(p.row_start).filter(|&row| row < p.rows) {
            let out = &mut out[t * p.width..(t + 1) * p.width];
            quant::dequantize(p.ty, &table[row * row_bytes..(row + 1) * row_bytes], out)?;
            out.iter_mut().for_each(|v| *v *= p.scale);
        }
    }
    Ok(())
}
