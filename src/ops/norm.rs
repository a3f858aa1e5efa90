//! RMS norm (Zhang and Sennrich 2019), with an optional gather of rows: `y = x / sqrt(mean(x^2) + eps) * w`.

/// Sizes of one `rms_norm`.
#[derive(Debug, Clone, Copy)]
pub struct NormProblem {
    /// Rows of the output.
    pub rows: usize,
    /// E.
    pub width: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// When given, output row r is input row `meta[gather + r]`; otherwise row r.
    pub gather: Option<usize>,
}

/// Scalar reference of `rms_norm` (f64 accumulation).
pub fn rms_norm_reference(x: &[f32], weight: &[f32], meta: &[u32], p: &NormProblem) -> Vec<f32> {
    let mut out = Vec::with_capacity(p.rows * p.width);
    for r in 0..p.rows {
        let row = p.gather.map_or(r, |at| meta[at + r] as usize);
        let x = &x[row * p.width..(row + 1) * p.width];
        let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / p.width as f64;
        let scale = 1.0 / (mean + f64::from(p.eps)).sqrt();
        out.extend(x.iter().zip(weight).map(|(&v, &w)| (f64::from(v) * scale * f64::from(w)) as f32));
    }
    out
}
