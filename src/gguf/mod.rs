//! GGUF files: bounded reader, metadata, tensor table, extents. Hostile input ends here; tensor data is not read here.

/// Element types of ggml tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgmlType { F32 }
impl GgmlType {
    /// Values in a block.
    pub fn block_elems(self) -> usize { 1 }
    /// Bytes of a block.
    pub fn block_bytes(self) -> usize { 4 }
}
