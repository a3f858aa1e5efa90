//! ggml block formats: layout, scalar dequantization (the reference of every kernel) and packing into GPU words.
use crate::Result;
use crate::gguf::GgmlType;

/// Bytes of one row of `k` values in the file's layout; `k` is a multiple of the type's block.
pub fn row_bytes(ty: GgmlType, k: usize) -> usize {
    k / ty.block_elems() * ty.block_bytes()
}

/// Dequantizes whole blocks exactly as ggml does. `bytes` and `out` describe the same number of values.
pub fn dequantize(_ty: GgmlType, _bytes: &[u8], _out: &mut [f32]) -> Result<()> {
    todo!()
}
