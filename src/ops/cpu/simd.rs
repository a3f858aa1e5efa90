//! Four-lane vectors: `v128` in wasm with simd128, those of `wide` natively, plain arrays elsewhere, with the same bits from all.
//!
//! Only operations that every target rounds alike are here: no fused multiply-add, no estimates, no relaxed SIMD.

#[cfg(all(target_family = "wasm", not(target_feature = "simd128")))]
#[path = "simd_plain.rs"]
mod lanes;
#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
#[path = "simd_wasm.rs"]
mod lanes;
#[cfg(not(target_family = "wasm"))]
#[path = "simd_wide.rs"]
mod lanes;
/// The reference of the others.
#[cfg(test)]
#[path = "simd_plain.rs"]
mod plain;

pub use lanes::{F32x4, I32x4};

impl F32x4 {
    /// Up to four values, the missing ones zero.
    #[inline(always)]
    pub fn load_partial(from: &[f32]) -> Self {
        let mut lanes = [0.0; 4];
        for (lane, &value) in lanes.iter_mut().zip(from) {
            *lane = value;
        }
        Self::load(&lanes)
    }

    /// Writes the first lanes, as many as `to` holds.
    #[inline(always)]
    pub fn store_partial(self, to: &mut [f32]) {
        for (value, lane) in to.iter_mut().zip(self.lanes()) {
            *value = lane;
        }
    }

    /// Sum of the lanes, always in the same order.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        let [a, b, c, d] = self.lanes();
        (a + b) + (c + d)
    }

    /// Greatest lane, by [`F32x4::max`].
    #[inline(always)]
    pub fn max_lane(self) -> f32 {
        let [a, b, c, d] = self.lanes();
        let max = |a: f32, b: f32| if a < b { b } else { a };
        max(max(a, b), max(c, d))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::testing::check;

    /// Edges of every operation, as the bits of floats and as integers.
    const WORDS: [u32; 20] = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x3f80_0001,
        0x4b80_0001,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_0001,
        0x0102_0304,
        0xf0e0_d0c0,
        0x00ff_00ff,
        0xdead_beef,
    ];

    /// The words from `from` on, so that each meets each in some lane.
    fn words(from: usize, step: usize) -> [u32; 4] {
        std::array::from_fn(|lane| WORDS[(from + lane * step) % WORDS.len()])
    }

    /// Bits, but all NaN alike: which of two a sum keeps is nobody's promise.
    fn bits(lanes: [f32; 4]) -> [u32; 4] {
        lanes.map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() })
    }

    /// One operation on this target's vectors and on plain ones.
    macro_rules! alike {
        ($a:ident, $b:ident: $($name:ident),*) => {$(
            let (got, want) = ($a.0.$name($b.0), $a.1.$name($b.1));
            assert_eq!(bits(got.lanes()), bits(want.lanes()), "{} of {:?} and {:?}", stringify!($name), $a.1.lanes(), $b.1.lanes());
        )*};
    }

    /// The same of integers, which are seen as the bits of floats.
    macro_rules! alike_ints {
        ($a:ident: $($name:ident($b:expr, $c:expr)),*) => {$({
            let (got, want) = ($a.0.$name($b).as_f32().lanes(), $a.1.$name($c).as_f32().lanes());
            assert_eq!(got.map(f32::to_bits), want.map(f32::to_bits), "{} of {:?}", stringify!($name), $a.1.as_f32().lanes());
        })*};
    }

    check!(
        fn vectors_give_the_bits_of_plain_arrays() {
            for (i, j) in (0..WORDS.len()).flat_map(|i| (0..WORDS.len()).map(move |j| (i, j))) {
                let (a, b) = (words(i, 1).map(f32::from_bits), words(j, 3).map(f32::from_bits));
                let (a, b) = ((F32x4::load(&a), plain::F32x4::load(&a)), (F32x4::load(&b), plain::F32x4::load(&b)));
                alike!(a, b: add, sub, mul, div, max, min);
                // Four different vectors, or a wrong order of them would not show.
                let four = ([a.0, b.0, a.0.sub(b.0), b.0.max(a.0)], [a.1, b.1, a.1.sub(b.1), b.1.max(a.1)]);
                let sums = (F32x4::sums(four.0), plain::F32x4::sums(four.1));
                assert_eq!(bits(sums.0.lanes()), bits(sums.1.lanes()));

                let (a, b) = ((a.0.bits(), a.1.bits()), (b.0.bits(), b.1.bits()));
                alike_ints!(a: and(b.0, b.1), or(b.0, b.1), xor(b.0, b.1), add(b.0, b.1), gt(b.0, b.1), eq_bytes(b.0, b.1));
                let low = (b.0.and(I32x4::splat(0x0f0f_0f0f)), b.1.and(plain::I32x4::splat(0x0f0f_0f0f)));
                alike_ints!(a: swizzle(low.0, low.1));
            }
        }
    );

    check!(
        fn shifts_and_conversions_give_the_bits_of_plain_arrays() {
            for (i, word) in WORDS.into_iter().enumerate() {
                let bytes: [u8; 16] = bytemuck::cast(words(i, 1));
                let a = (I32x4::load(&bytes), plain::I32x4::load(&bytes));
                for by in 0..32 {
                    alike_ints!(a: shl(by, by), shr(by, by), sar(by, by));
                }
                assert_eq!(a.0.to_f32().lanes(), a.1.to_f32().lanes());
                let (mut got, mut want) = ([0.0; 4], [0.0; 4]);
                F32x4::splat(f32::from_bits(word)).store(&mut got);
                plain::F32x4::splat(f32::from_bits(word)).store(&mut want);
                assert_eq!(got.map(f32::to_bits), want.map(f32::to_bits));
            }
        }
    );
}
