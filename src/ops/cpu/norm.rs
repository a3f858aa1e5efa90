//! RMS norm with sums in a fixed order of lanes.
use super::simd::F32x4;
use crate::ops::norm::NormProblem;

/// Accumulators of the sum of squares.
const CHAINS: usize = 4;

/// Sum of squares: vector `i` goes to accumulator `i % CHAINS`.
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut acc = [F32x4::splat(0.0); CHAINS];
    for chunk in x.chunks(4 * CHAINS) {
        for (acc, four) in acc.iter_mut().zip(chunk.chunks(4)) {
            let v = F32x4::load_partial(four);
            *acc = acc.add(v.mul(v));
        }
    }
    acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum()
}

/// `rms_norm` of the trait on slices.
pub fn rms_norm(x: &[f32], weight: &[f32], meta: &[u32], p: &NormProblem) -> Vec<f32> {
    let mut out = vec![0.0; p.rows * p.width];
    for (r, out) in out.chunks_exact_mut(p.width.max(1)).enumerate() {
        let row = p.gather.map_or(r, |at| meta[at + r] as usize);
        let x = &x[row * p.width..][..p.width];
        let scale = 1.0 / (sum_of_squares(x) / p.width as f32 + p.eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(&weight[..p.width]) {
            *out = x * scale * weight;
        }
    }
    out
}
