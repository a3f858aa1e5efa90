//! Packing of the file's blocks into `u32` words for GPU buffers, without loss.
//!
//! The rule: a block's bytes in file order, little-endian, padded with zeros to whole words. In Q4_0, Q5_0, Q8_0 and
//! IQ4_NL, whose first field is a lone f16, that f16 takes a word of its own (the low 16 bits), so that the rest is
//! aligned. F16 and BF16 lie two a word, low half first, each row padded to whole words.
use super::{row_bytes, unsupported};
use crate::gguf::GgmlType;
use crate::{Error, Result};

/// Words of one packed block (F32: of one value). `None` for F16 and BF16, whose blocks are half a word, and for types
/// that are not runnable.
pub const fn words_per_block(ty: GgmlType) -> Option<usize> {
    match layout(ty) {
        Some(Layout::Plain) => Some(ty.block_bytes().div_ceil(4)),
        Some(Layout::WideScale) => Some(1 + (ty.block_bytes() - 2) / 4),
        Some(Layout::Pairs) | None => None,
    }
}

/// Words of one packed row of `k` values.
///
/// # Errors
/// `quant.unsupported_type` for types that are not runnable, `quant.length_mismatch` when `k` is not whole blocks.
pub fn row_words(ty: GgmlType, k: usize) -> Result<usize> {
    let block = ty.block_elems();
    if !k.is_multiple_of(block) {
        let message = format!("A row of {k} values is not whole {ty} blocks of {block} values.");
        let error = Error::new("quant.length_mismatch", message).with("type", ty.name());
        return Err(error.with("block_elems", block).with("values", k));
    }
    match (layout(ty), words_per_block(ty)) {
        (None, _) => Err(unsupported(ty)),
        (Some(_), Some(words)) => Ok((k / block).saturating_mul(words)),
        (Some(_), None) => Ok(k.div_ceil(2)),
    }
}

/// Appends the packed form of whole rows of `k` values to `out`.
///
/// # Errors
/// As [`row_words`]; `quant.length_mismatch` when `bytes` are not whole rows. `out` is then unchanged.
pub fn pack_rows(ty: GgmlType, k: usize, bytes: &[u8], out: &mut Vec<u32>) -> Result<()> {
    let layout = layout(ty).ok_or_else(|| unsupported(ty))?;
    let words = row_words(ty, k)?;
    let row_bytes = row_bytes(ty, k);
    let rows = whole_rows(ty, k, bytes.len(), row_bytes)?;
    out.reserve(rows.saturating_mul(words));
    match layout {
        Layout::Plain => bytes.chunks_exact(ty.block_bytes()).for_each(|block| push_words(block, out)),
        Layout::Pairs => bytes.chunks_exact(row_bytes.max(1)).for_each(|row| push_words(row, out)),
        Layout::WideScale => {
            for block in bytes.chunks_exact(ty.block_bytes()) {
                let (scale, rest) = block.split_at(2);
                push_words(scale, out);
                push_words(rest, out);
            }
        }
    }
    Ok(())
}

/// Appends the file's bytes of whole packed rows to `out`: the inverse of [`pack_rows`].
///
/// # Errors
/// As [`row_words`]; `quant.length_mismatch` when `words` are not whole rows. `out` is then unchanged.
pub fn unpack_rows(ty: GgmlType, k: usize, words: &[u32], out: &mut Vec<u8>) -> Result<()> {
    let layout = layout(ty).ok_or_else(|| unsupported(ty))?;
    let row_words = row_words(ty, k)?;
    let rows = whole_rows(ty, k, words.len(), row_words)?;
    out.reserve(rows.saturating_mul(row_bytes(ty, k)));
    let (chunk_words, chunk_bytes) = match words_per_block(ty) {
        Some(words) => (words, ty.block_bytes()),
        None => (row_words.max(1), row_bytes(ty, k)),
    };
    for chunk in words.chunks_exact(chunk_words) {
        let mut bytes = chunk.iter().flat_map(|word| word.to_le_bytes());
        if let Layout::WideScale = layout {
            out.extend(bytes.by_ref().take(4).take(2));
            out.extend(bytes.skip(2));
        } else {
            out.extend(bytes.take(chunk_bytes));
        }
    }
    Ok(())
}

/// How a block becomes words.
enum Layout {
    /// As it is, zeros at the end.
    Plain,
    /// Its leading f16 takes a word.
    WideScale,
    /// Two values a word.
    Pairs,
}

const fn layout(ty: GgmlType) -> Option<Layout> {
    match ty {
        GgmlType::F16 | GgmlType::BF16 => Some(Layout::Pairs),
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::IQ4_NL => Some(Layout::WideScale),
        _ if ty.is_runnable() => Some(Layout::Plain),
        _ => None,
    }
}

/// Appends `bytes` as little-endian words, zeros at the end.
#[inline]
fn push_words(bytes: &[u8], out: &mut Vec<u32>) {
    let (whole, rest) = bytes.as_chunks::<4>();
    out.extend(whole.iter().map(|&word| u32::from_le_bytes(word)));
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        out.push(u32::from_le_bytes(last));
    }
}

fn whole_rows(ty: GgmlType, k: usize, got: usize, row: usize) -> Result<usize> {
    if row > 0 && got.is_multiple_of(row) || got == 0 {
        return Ok(got.checked_div(row).unwrap_or(0));
    }
    let message = format!("A length of {got} is not whole {ty} rows of {k} values, {row} each.");
    let error = Error::new("quant.length_mismatch", message).with("type", ty.name());
    Err(error.with("values", k).with("row", row).with("got", got))
}
