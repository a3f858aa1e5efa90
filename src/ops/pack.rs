//! How weight rows lie on each backend: the file's own bytes on the CPU, blocks padded to words on the GPU. One rule for
//! whoever uploads weights; the layout of a block is the quant room's.
use crate::backend::BackendKind;
use crate::gguf::GgmlType;
use crate::{Result, quant};

/// Bytes of one row of `k` values on a device of this kind.
///
/// # Errors
/// Those of [`quant::gpu::row_words`].
pub fn row_bytes(kind: BackendKind, ty: GgmlType, k: usize) -> Result<usize> {
    match kind {
        BackendKind::Cpu => Ok(quant::row_bytes(ty, k)),
        BackendKind::Webgpu => Ok(4 * quant::gpu::row_words(ty, k)?),
    }
}

/// Whole rows of the file as the words to upload; on the CPU the last word is padded with zeros.
///
/// # Errors
/// Those of [`quant::gpu::pack_rows`].
pub fn rows(kind: BackendKind, ty: GgmlType, k: usize, bytes: &[u8]) -> Result<Vec<u32>> {
    let mut words = Vec::new();
    match kind {
        BackendKind::Webgpu => quant::gpu::pack_rows(ty, k, bytes, &mut words)?,
        BackendKind::Cpu => {
            words.reserve_exact(bytes.len().div_ceil(4));
            let (whole, tail) = bytes.as_chunks::<4>();
            words.extend(whole.iter().map(|&c| u32::from_le_bytes(c)));
            if !tail.is_empty() {
                let mut last = [0; 4];
                last[..tail.len()].copy_from_slice(tail);
                words.push(u32::from_le_bytes(last));
            }
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_words_are_the_files_bytes_and_zeros() {
        let bytes: Vec<u8> = (1..=18).collect();
        let words = rows(BackendKind::Cpu, GgmlType::Q4_0, 32, &bytes).unwrap();
        let mut expected = bytes;
        expected.extend([0, 0]);
        assert_eq!(words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>(), expected);
        assert_eq!(row_bytes(BackendKind::Cpu, GgmlType::Q4_0, 64).unwrap(), 36);
        assert_eq!(row_bytes(BackendKind::Webgpu, GgmlType::Q4_0, 64).unwrap(), 40);
    }
}
