//! The vectors of `simd` natively, by the crate `wide`: compilers leave plain arrays in a large loop scalar.
use bytemuck::cast;
use wide::{f32x4, i32x4, u8x16, u32x4};

/// Four f32 lanes.
#[derive(Clone, Copy)]
pub struct F32x4(f32x4);

/// Four 32-bit lanes, also seen as sixteen bytes: byte `4 * l + b` is byte `b`, from the lowest, of lane `l`.
#[derive(Clone, Copy)]
pub struct I32x4(i32x4);

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident($a:ident, $b:ident) = $f:expr;)*) => {
        $($(#[$doc])* #[inline(always)] #[must_use]
        pub fn $name(self, other: Self) -> Self {
            let ($a, $b) = (self.0, other.0);
            Self($f)
        })*
    };
}

impl F32x4 {
    /// All lanes alike.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self(f32x4::splat(value))
    }

    /// Four values.
    #[inline(always)]
    pub fn load(from: &[f32; 4]) -> Self {
        Self(cast(*from))
    }

    /// Writes four values.
    #[inline(always)]
    pub fn store(self, to: &mut [f32; 4]) {
        *to = self.lanes();
    }

    /// The lanes as an array.
    #[inline(always)]
    pub fn lanes(self) -> [f32; 4] {
        cast(self.0)
    }

    /// The sums of the lanes of four vectors, each in the order of [`F32x4::sum`].
    #[inline(always)]
    pub fn sums(vectors: [Self; 4]) -> Self {
        let [a, b, c, d] = f32x4::transpose(vectors.map(|v| v.0));
        Self((a + b) + (c + d))
    }

    binary! {
        /// Sum of each lane.
        add(a, b) = a + b;
        /// Difference of each lane.
        sub(a, b) = a - b;
        /// Product of each lane.
        mul(a, b) = a * b;
        /// Quotient of each lane.
        div(a, b) = a / b;
        /// `if self < other { other } else { self }`: a NaN in `self` stays.
        max(a, b) = a.simd_lt(b).bitselect(b, a);
        /// `if other < self { other } else { self }`: a NaN in `self` stays.
        min(a, b) = b.simd_lt(a).bitselect(b, a);
    }

    /// The bits of the lanes.
    #[inline(always)]
    #[must_use]
    pub fn bits(self) -> I32x4 {
        I32x4(cast(self.0))
    }
}

impl I32x4 {
    /// All lanes alike.
    #[inline(always)]
    pub fn splat(value: i32) -> Self {
        Self(i32x4::splat(value))
    }

    /// Sixteen bytes.
    #[inline(always)]
    pub fn load(from: &[u8; 16]) -> Self {
        Self(cast(*from))
    }

    /// Bytes of `self` chosen by the bytes of `index`, each below 16.
    #[inline(always)]
    #[must_use]
    pub fn swizzle(self, index: Self) -> Self {
        Self(cast(cast::<_, u8x16>(self.0).shuffle(cast(index.0))))
    }

    binary! {
        /// Bitwise and.
        and(a, b) = a & b;
        /// Bitwise or.
        or(a, b) = a | b;
        /// Bitwise exclusive or.
        xor(a, b) = a ^ b;
        /// Wrapping sum.
        add(a, b) = a + b;
        /// All ones where `self > other`, signed.
        gt(a, b) = a.simd_gt(b);
        /// All ones where the bytes are equal, bytewise.
        eq_bytes(a, b) = cast(cast::<_, u8x16>(a).simd_eq(cast::<_, u8x16>(b)));
    }

    /// Left shift by less than 32.
    #[inline(always)]
    #[must_use]
    pub fn shl(self, by: u32) -> Self {
        Self(self.0 << by)
    }

    /// Right shift by less than 32, zeros coming in.
    #[inline(always)]
    #[must_use]
    pub fn shr(self, by: u32) -> Self {
        Self(cast(cast::<_, u32x4>(self.0) >> by))
    }

    /// Right shift by less than 32, signs coming in.
    #[inline(always)]
    #[must_use]
    pub fn sar(self, by: u32) -> Self {
        Self(self.0 >> by)
    }

    /// Signed lanes as the nearest floats.
    #[inline(always)]
    #[must_use]
    pub fn to_f32(self) -> F32x4 {
        F32x4(f32x4::from_i32x4(self.0))
    }

    /// The lanes as the bits of floats.
    #[inline(always)]
    #[must_use]
    pub fn as_f32(self) -> F32x4 {
        F32x4(cast(self.0))
    }
}
