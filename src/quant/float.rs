//! F32, F16 and BF16: plain floats, two or four bytes a value.

/// An IEEE half from its little-endian bytes; exact, subnormals included.
#[inline]
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// A bfloat16 from its little-endian bytes: the upper half of a single.
#[inline]
pub fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

pub(super) fn dequantize_f32(bytes: &[u8], out: &mut [f32]) {
    for (value, &raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(raw);
    }
}

pub(super) fn dequantize_f16(bytes: &[u8], out: &mut [f32]) {
    for (value, &raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = f16_to_f32(raw);
    }
}

pub(super) fn dequantize_bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, &raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = bf16_to_f32(raw);
    }
}
