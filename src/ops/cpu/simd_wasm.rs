//! The vectors of `simd` as wasm's `v128`.
#![allow(
    unsafe_code,
    reason = "`v128_load` and `v128_store` on references to 16 bytes: always in bounds, of any alignment"
)]
use core::arch::wasm32::*;

/// Four f32 lanes.
#[derive(Clone, Copy)]
pub struct F32x4(v128);

/// Four 32-bit lanes, also seen as sixteen bytes: byte `4 * l + b` is byte `b`, from the lowest, of lane `l`.
#[derive(Clone, Copy)]
pub struct I32x4(v128);

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $f:expr;)*) => {
        $($(#[$doc])* #[inline(always)] #[must_use]
        pub fn $name(self, other: Self) -> Self { Self($f(self.0, other.0)) })*
    };
}

impl F32x4 {
    /// All lanes alike.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self(f32x4_splat(value))
    }

    /// Four values.
    #[inline(always)]
    pub fn load(from: &[f32; 4]) -> Self {
        // SAFETY: a reference to 16 bytes is readable for 16 bytes, and the load needs no alignment.
        Self(unsafe { v128_load(from.as_ptr().cast()) })
    }

    /// Writes four values.
    #[inline(always)]
    pub fn store(self, to: &mut [f32; 4]) {
        // SAFETY: a unique reference to 16 bytes is writable for 16 bytes, and the store needs no alignment.
        unsafe { v128_store(to.as_mut_ptr().cast(), self.0) }
    }

    /// The lanes as an array.
    #[inline(always)]
    pub fn lanes(self) -> [f32; 4] {
        let v = self.0;
        [f32x4_extract_lane::<0>(v), f32x4_extract_lane::<1>(v), f32x4_extract_lane::<2>(v), f32x4_extract_lane::<3>(v)]
    }

    /// The sums of the lanes of four vectors, each in the order of [`F32x4::sum`].
    #[inline(always)]
    pub fn sums([a, b, c, d]: [Self; 4]) -> Self {
        let (ab, cd) = (i32x4_shuffle::<0, 4, 1, 5>(a.0, b.0), i32x4_shuffle::<0, 4, 1, 5>(c.0, d.0));
        let (ab_high, cd_high) = (i32x4_shuffle::<2, 6, 3, 7>(a.0, b.0), i32x4_shuffle::<2, 6, 3, 7>(c.0, d.0));
        let low = f32x4_add(i32x4_shuffle::<0, 1, 4, 5>(ab, cd), i32x4_shuffle::<2, 3, 6, 7>(ab, cd));
        let high =
            f32x4_add(i32x4_shuffle::<0, 1, 4, 5>(ab_high, cd_high), i32x4_shuffle::<2, 3, 6, 7>(ab_high, cd_high));
        Self(f32x4_add(low, high))
    }

    binary! {
        /// Sum of each lane.
        add = f32x4_add;
        /// Difference of each lane.
        sub = f32x4_sub;
        /// Product of each lane.
        mul = f32x4_mul;
        /// Quotient of each lane.
        div = f32x4_div;
        /// `if self < other { other } else { self }`: a NaN in `self` stays.
        max = f32x4_pmax;
        /// `if other < self { other } else { self }`: a NaN in `self` stays.
        min = f32x4_pmin;
    }

    /// The bits of the lanes.
    #[inline(always)]
    #[must_use]
    pub fn bits(self) -> I32x4 {
        I32x4(self.0)
    }
}

impl I32x4 {
    /// All lanes alike.
    #[inline(always)]
    pub fn splat(value: i32) -> Self {
        Self(i32x4_splat(value))
    }

    /// Sixteen bytes.
    #[inline(always)]
    pub fn load(from: &[u8; 16]) -> Self {
        // SAFETY: a reference to 16 bytes is readable for 16 bytes, and the load needs no alignment.
        Self(unsafe { v128_load(from.as_ptr().cast()) })
    }

    binary! {
        /// Bytes of `self` chosen by the bytes of `other`, each below 16.
        swizzle = i8x16_swizzle;
        /// Bitwise and.
        and = v128_and;
        /// Bitwise or.
        or = v128_or;
        /// Bitwise exclusive or.
        xor = v128_xor;
        /// Wrapping sum.
        add = i32x4_add;
        /// All ones where `self > other`, signed.
        gt = i32x4_gt;
        /// All ones where the bytes are equal, bytewise.
        eq_bytes = i8x16_eq;
    }

    /// Left shift by less than 32.
    #[inline(always)]
    #[must_use]
    pub fn shl(self, by: u32) -> Self {
        Self(i32x4_shl(self.0, by))
    }

    /// Right shift by less than 32, zeros coming in.
    #[inline(always)]
    #[must_use]
    pub fn shr(self, by: u32) -> Self {
        Self(u32x4_shr(self.0, by))
    }

    /// Right shift by less than 32, signs coming in.
    #[inline(always)]
    #[must_use]
    pub fn sar(self, by: u32) -> Self {
        Self(i32x4_shr(self.0, by))
    }

    /// Signed lanes as the nearest floats.
    #[inline(always)]
    #[must_use]
    pub fn to_f32(self) -> F32x4 {
        F32x4(f32x4_convert_i32x4(self.0))
    }

    /// The lanes as the bits of floats.
    #[inline(always)]
    #[must_use]
    pub fn as_f32(self) -> F32x4 {
        F32x4(self.0)
    }
}
