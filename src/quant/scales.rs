//! The packed group scales of the 256-value blocks, decoded. Shared by the scalar code and the CPU kernels.

/// Scales and minima (0 to 63) of the 8 groups of 32 in Q4_K and Q5_K.
///
/// Bytes 0..4 hold scales 0..4 in their low 6 bits, bytes 4..8 minima 0..4; bytes 8..12 hold the low nibbles of scales
/// and minima 4..8, whose upper two bits are the upper two of bytes 0..8.
#[inline]
pub fn k4_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        mins[j] = packed[j + 4] & 63;
        scales[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        mins[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// Scales (-32 to 31) of the 16 groups of 16 in Q3_K.
///
/// Byte `i` of 0..8 holds the low nibbles of scales `i` and `i + 8`; bits `2j` and `2j + 1` of byte `8 + i % 4` are the
/// upper two bits of scale `4j + i % 4`.
#[inline]
pub fn q3_k_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Scales (-32 to 31) of the 8 groups of 32 in IQ4_XS, from their low nibbles and upper bit pairs.
#[inline]
pub fn iq4_xs_scales(scales_l: &[u8; 4], scales_h: u16) -> [i8; 8] {
    std::array::from_fn(|i| {
        let low = scales_l[i / 2] >> (4 * (i % 2)) & 15;
        let high = (scales_h >> (2 * i) & 3) as u8;
        (low | high << 4) as i8 - 32
    })
}
