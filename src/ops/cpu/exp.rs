//! Exponentials and the activations built on them, four lanes at a time, with the same bits on every target.
use super::simd::{F32x4, I32x4};
use crate::ops::matmul::Activation;

/// e^x within 2 ulp; overflows to infinity, underflows gradually to zero; NaN stays NaN.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the constants as they are published")]
pub fn exp(x: F32x4) -> F32x4 {
    // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few enough bits that its product with n is exact.
    const LN2_HIGH: f32 = 0.693_359_375;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.max(F32x4::splat(-104.0)).min(F32x4::splat(89.0));
    let shifted = x.mul(F32x4::splat(std::f32::consts::LOG2_E)).add(F32x4::splat(ROUND));
    let n = shifted.sub(F32x4::splat(ROUND));
    let r = x.sub(n.mul(F32x4::splat(LN2_HIGH))).sub(n.mul(F32x4::splat(LN2_LOW)));
    // e^r = 1 + r + r^2 p(r), p by Cephes' minimax coefficients.
    let mut p = F32x4::splat(1.987_569_2e-4);
    for c in [1.398_199_95e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul(r).add(F32x4::splat(c));
    }
    let y = p.mul(r.mul(r)).add(r).add(F32x4::splat(1.0));
    // 2^n as a product of two, so that neither leaves the normal range where the result does.
    let n = shifted.bits().add(I32x4::splat((ROUND.to_bits() as i32).wrapping_neg()));
    let half = n.sar(1);
    let rest = n.add(half.xor(I32x4::splat(-1))).add(I32x4::splat(1));
    y.mul(power(half)).mul(power(rest))
}

/// 2^n for n in the normal range.
#[inline(always)]
fn power(n: I32x4) -> F32x4 {
    n.add(I32x4::splat(127)).shl(23).as_f32()
}

/// One exponential, with the bits that [`exp`] gives.
pub fn exp_one(x: f32) -> f32 {
    exp(F32x4::splat(x)).lanes()[0]
}

/// tanh through [`exp`]; the error is absolute, around 1e-7.
#[inline(always)]
pub fn tanh(x: F32x4) -> F32x4 {
    let e = exp(x.add(x));
    F32x4::splat(1.0).sub(F32x4::splat(2.0).div(e.add(F32x4::splat(1.0))))
}

/// `x / (1 + e^-z)`. Negative infinity in `x` would give infinity over infinity: it is clamped to the least float.
#[inline(always)]
fn logistic(x: F32x4, z: F32x4) -> F32x4 {
    let e = exp(F32x4::splat(0.0).sub(z));
    x.max(F32x4::splat(f32::MIN)).div(e.add(F32x4::splat(1.0)))
}

/// The activation of each lane.
#[inline(always)]
pub fn activate(activation: Activation, x: F32x4) -> F32x4 {
    match activation {
        Activation::Silu => logistic(x, x),
        Activation::GeluTanh => {
            // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), without the cancellation.
            let square = x.mul(x).mul(F32x4::splat(0.044_715)).add(F32x4::splat(1.0));
            logistic(x, x.mul(square).mul(F32x4::splat(2.0 * 0.797_884_6)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::testing::check;

    fn ulps(got: f32, want: f64) -> f64 {
        let nearest = want as f32;
        let ulp = f64::from(nearest.next_up()) - f64::from(nearest);
        (f64::from(got) - want).abs() / ulp
    }

    check!(
        fn exp_is_within_two_ulp() {
            let mut x = -87.3_f32;
            while x < 88.7 {
                assert!(ulps(exp_one(x), f64::from(x).exp()) <= 2.0, "exp({x}) = {}", exp_one(x));
                x += 0.000_73;
            }
            for x in [-103.0_f32, -95.0, -90.0, -88.0, 1e-30, -1e-30, f32::MIN_POSITIVE] {
                assert!(ulps(exp_one(x), f64::from(x).exp()) <= 2.0, "exp({x}) = {}", exp_one(x));
            }
        }
    );

    check!(
        fn exp_at_the_edges() {
            assert_eq!(exp_one(0.0), 1.0);
            assert_eq!(exp_one(-0.0), 1.0);
            assert_eq!(exp_one(f32::INFINITY), f32::INFINITY);
            assert_eq!(exp_one(f32::MAX), f32::INFINITY);
            assert_eq!(exp_one(88.73), f32::INFINITY);
            assert_eq!(exp_one(f32::NEG_INFINITY), 0.0);
            assert_eq!(exp_one(f32::MIN), 0.0);
            assert_eq!(exp_one(-103.98), 0.0);
            assert!(exp_one(f32::NAN).is_nan());
        }
    );

    check!(
        fn activations_follow_the_reference_and_survive_extremes() {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let one = |x: f32| activate(activation, F32x4::splat(x)).lanes()[0];
                let mut x = -30.0_f32;
                while x < 30.0 {
                    let want = activation.reference(f64::from(x));
                    // The argument of the exponential reaches tens, and its rounding is the result's.
                    assert!((f64::from(one(x)) - want).abs() <= 4e-6 * want.abs().max(1e-3), "{activation:?}({x})");
                    x += 0.003_7;
                }
                for x in [f32::NEG_INFINITY, f32::MIN, -1e30, -1e10, -1000.0, -120.0] {
                    assert_eq!(one(x), 0.0, "{activation:?}({x})");
                }
                for x in [1000.0, 1e10, 1e30, f32::MAX, f32::INFINITY] {
                    assert_eq!(one(x), x, "{activation:?}({x})");
                }
                assert_eq!(one(0.0), 0.0);
                assert!(one(f32::NAN).is_nan());
            }
        }
    );

    check!(
        fn tanh_is_absolutely_close() {
            for i in -4000..4000 {
                let x = i as f32 * 0.01;
                let got = tanh(F32x4::splat(x)).lanes()[0];
                assert!((f64::from(got) - f64::from(x).tanh()).abs() < 2e-7, "tanh({x}) = {got}");
            }
            assert_eq!(tanh(F32x4::splat(f32::INFINITY)).lanes()[0], 1.0);
            assert_eq!(tanh(F32x4::splat(f32::NEG_INFINITY)).lanes()[0], -1.0);
        }
    );
}
