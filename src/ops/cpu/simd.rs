//! Four-lane vectors: `v128` in wasm with simd128, plain arrays elsewhere, with the same bits from both.
//!
//! Only operations that every target rounds alike are here: no fused multiply-add, no estimates, no relaxed SIMD.

#[cfg(not(all(target_family = "wasm", target_feature = "simd128")))]
#[path = "simd_plain.rs"]
mod lanes;
#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
#[path = "simd_wasm.rs"]
mod lanes;

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
