//! ggml block formats: layout, scalar dequantization (the reference of every kernel) and packing into GPU words.
//!
//! One file a type or family. Every block is a struct of byte arrays, so that a file's bytes can be seen as blocks at any
//! address and on any machine. The order of the float operations is ggml's, because results are compared bit for bit.
mod float;
pub mod gpu;
mod iq4;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q5_k;
mod q6_k;
mod q8_0;
pub mod scales;
#[cfg(test)]
mod tests;

pub use float::{bf16_to_f32, f16_to_f32};
pub use iq4::{BlockIq4Nl, BlockIq4Xs, IQ4_CODEBOOK};
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4::{BlockQ4_0, BlockQ4_1};
pub use q4_k::BlockQ4K;
pub use q5::{BlockQ5_0, BlockQ5_1};
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;

use crate::gguf::GgmlType;
use crate::{Error, Result};

/// One quantization block as it lies in the file: `N` values.
pub trait QuantBlock<const N: usize>: bytemuck::AnyBitPattern {
    /// The type whose block this is.
    const TYPE: GgmlType;

    /// Dequantizes exactly as ggml's scalar code does.
    fn dequantize(&self, out: &mut [f32; N]);
}

/// Asserts at compile time that a block has the size and number of values that [`GgmlType`] says.
macro_rules! assert_block {
    ($block:ty, $elems:literal) => {
        const _: () = {
            let ty = <$block as $crate::quant::QuantBlock<$elems>>::TYPE;
            assert!(size_of::<$block>() == ty.block_bytes());
            assert!(align_of::<$block>() == 1);
            assert!($elems == ty.block_elems());
        };
    };
}
use assert_block;

/// Bytes of one row of `k` values in the file's layout; `k` is a multiple of the type's block.
pub fn row_bytes(ty: GgmlType, k: usize) -> usize {
    (k / ty.block_elems()).saturating_mul(ty.block_bytes())
}

/// The blocks that `bytes` hold, without copying.
///
/// # Errors
/// `quant.length_mismatch` when they are not whole blocks.
pub fn blocks<B: QuantBlock<N>, const N: usize>(bytes: &[u8]) -> Result<&[B]> {
    bytemuck::try_cast_slice(bytes).map_err(|_| partial_block(B::TYPE, bytes.len()))
}

/// Dequantizes whole blocks exactly as ggml does. `bytes` and `out` describe the same number of values.
///
/// # Errors
/// `quant.unsupported_type` for types that are not runnable, `quant.length_mismatch` when the lengths disagree.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if !ty.is_runnable() {
        return Err(unsupported(ty));
    }
    let expected = ty.checked_bytes(out.len() as u64);
    if expected != Some(bytes.len() as u64) {
        let (elems, got) = (out.len(), bytes.len());
        let message = format!("{got} bytes of {ty} do not hold {elems} values.");
        let error = Error::new("quant.length_mismatch", message).with("type", ty.name());
        return Err(error.with("values", elems).with("expected_bytes", expected).with("got_bytes", got));
    }
    match ty {
        GgmlType::F32 => float::dequantize_f32(bytes, out),
        GgmlType::F16 => float::dequantize_f16(bytes, out),
        GgmlType::BF16 => float::dequantize_bf16(bytes, out),
        GgmlType::Q4_0 => each::<BlockQ4_0, 32>(bytes, out)?,
        GgmlType::Q4_1 => each::<BlockQ4_1, 32>(bytes, out)?,
        GgmlType::Q5_0 => each::<BlockQ5_0, 32>(bytes, out)?,
        GgmlType::Q5_1 => each::<BlockQ5_1, 32>(bytes, out)?,
        GgmlType::Q8_0 => each::<BlockQ8_0, 32>(bytes, out)?,
        GgmlType::Q2_K => each::<BlockQ2K, 256>(bytes, out)?,
        GgmlType::Q3_K => each::<BlockQ3K, 256>(bytes, out)?,
        GgmlType::Q4_K => each::<BlockQ4K, 256>(bytes, out)?,
        GgmlType::Q5_K => each::<BlockQ5K, 256>(bytes, out)?,
        GgmlType::Q6_K => each::<BlockQ6K, 256>(bytes, out)?,
        GgmlType::IQ4_NL => each::<BlockIq4Nl, 32>(bytes, out)?,
        GgmlType::IQ4_XS => each::<BlockIq4Xs, 256>(bytes, out)?,
        _ => return Err(unsupported(ty)),
    }
    Ok(())
}

fn each<B: QuantBlock<N>, const N: usize>(bytes: &[u8], out: &mut [f32]) -> Result<()> {
    let (chunks, _) = out.as_chunks_mut::<N>();
    for (block, chunk) in blocks::<B, N>(bytes)?.iter().zip(chunks) {
        block.dequantize(chunk);
    }
    Ok(())
}

fn unsupported(ty: GgmlType) -> Error {
    Error::new("quant.unsupported_type", format!("Tensors of type {ty} cannot be run.")).with("type", ty.name())
}

fn partial_block(ty: GgmlType, got: usize) -> Error {
    let block = ty.block_bytes();
    Error::new("quant.length_mismatch", format!("{got} bytes are not whole {ty} blocks of {block} bytes."))
        .with("type", ty.name())
        .with("block_bytes", block)
        .with("got_bytes", got)
}
