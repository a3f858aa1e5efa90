//! The vectors of `simd` as plain arrays: those of wasm without simd128, and the reference of the others in tests.
use std::array::from_fn;

/// Four f32 lanes.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub struct F32x4([f32; 4]);

/// Four 32-bit lanes, also seen as sixteen bytes: byte `4 * l + b` is byte `b`, from the lowest, of lane `l`.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub struct I32x4([i32; 4]);

macro_rules! lanewise {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $f:expr;)*) => {
        $($(#[$doc])* #[inline(always)] #[must_use]
        pub fn $name(self, $($arg: $ty),*) -> Self { Self(from_fn(|i| $f(self.0[i], $($arg.0[i]),*))) })*
    };
}

impl F32x4 {
    /// All lanes alike.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    /// Four values.
    #[inline(always)]
    pub fn load(from: &[f32; 4]) -> Self {
        Self(*from)
    }

    /// Writes four values.
    #[inline(always)]
    pub fn store(self, to: &mut [f32; 4]) {
        *to = self.0;
    }

    /// The lanes as an array.
    #[inline(always)]
    pub fn lanes(self) -> [f32; 4] {
        self.0
    }

    /// The sums of the lanes of four vectors, each in the order of [`F32x4::sum`].
    #[inline(always)]
    pub fn sums(vectors: [Self; 4]) -> Self {
        Self(vectors.map(|Self([a, b, c, d])| (a + b) + (c + d)))
    }

    lanewise! {
        /// Sum of each lane.
        add(other: Self) = |a: f32, b: f32| a + b;
        /// Difference of each lane.
        sub(other: Self) = |a: f32, b: f32| a - b;
        /// Product of each lane.
        mul(other: Self) = |a: f32, b: f32| a * b;
        /// Quotient of each lane.
        div(other: Self) = |a: f32, b: f32| a / b;
        /// `if self < other { other } else { self }`: a NaN in `self` stays.
        max(other: Self) = |a: f32, b: f32| if a < b { b } else { a };
        /// `if other < self { other } else { self }`: a NaN in `self` stays.
        min(other: Self) = |a: f32, b: f32| if b < a { b } else { a };
    }

    /// The bits of the lanes.
    #[inline(always)]
    #[must_use]
    pub fn bits(self) -> I32x4 {
        I32x4(self.0.map(|v| v.to_bits() as i32))
    }
}

impl I32x4 {
    /// All lanes alike.
    #[inline(always)]
    pub fn splat(value: i32) -> Self {
        Self([value; 4])
    }

    /// Sixteen bytes.
    #[inline(always)]
    pub fn load(from: &[u8; 16]) -> Self {
        let word = |i: usize| i32::from_le_bytes([from[i], from[i + 1], from[i + 2], from[i + 3]]);
        Self([word(0), word(4), word(8), word(12)])
    }

    /// Bytes of `self` chosen by the bytes of `index`, each below 16.
    #[inline(always)]
    #[must_use]
    pub fn swizzle(self, index: Self) -> Self {
        let table: [[u8; 4]; 4] = self.0.map(i32::to_le_bytes);
        Self(index.0.map(|word| {
            i32::from_le_bytes(word.to_le_bytes().map(|i| table[usize::from(i / 4) & 3][usize::from(i) & 3]))
        }))
    }

    lanewise! {
        /// Bitwise and.
        and(other: Self) = |a: i32, b: i32| a & b;
        /// Bitwise or.
        or(other: Self) = |a: i32, b: i32| a | b;
        /// Bitwise exclusive or.
        xor(other: Self) = |a: i32, b: i32| a ^ b;
        /// Wrapping sum.
        add(other: Self) = |a: i32, b: i32| a.wrapping_add(b);
        /// All ones where `self > other`, signed.
        gt(other: Self) = |a: i32, b: i32| -i32::from(a > b);
        /// All ones where the bytes are equal, bytewise.
        eq_bytes(other: Self) = |a: i32, b: i32| {
            let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
            i32::from_le_bytes(from_fn(|i| if a[i] == b[i] { 0xff } else { 0 }))
        };
    }

    /// Left shift by less than 32.
    #[inline(always)]
    #[must_use]
    pub fn shl(self, by: u32) -> Self {
        Self(self.0.map(|v| v << by))
    }

    /// Right shift by less than 32, zeros coming in.
    #[inline(always)]
    #[must_use]
    pub fn shr(self, by: u32) -> Self {
        Self(self.0.map(|v| ((v as u32) >> by) as i32))
    }

    /// Right shift by less than 32, signs coming in.
    #[inline(always)]
    #[must_use]
    pub fn sar(self, by: u32) -> Self {
        Self(self.0.map(|v| v >> by))
    }

    /// Signed lanes as the nearest floats.
    #[inline(always)]
    #[must_use]
    pub fn to_f32(self) -> F32x4 {
        F32x4(self.0.map(|v| v as f32))
    }

    /// The lanes as the bits of floats.
    #[inline(always)]
    #[must_use]
    pub fn as_f32(self) -> F32x4 {
        F32x4(self.0.map(|v| f32::from_bits(v as u32)))
    }
}
