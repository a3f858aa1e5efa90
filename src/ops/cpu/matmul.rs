//! `matmul`, `gate_up` and `gated`: the format picked, activations prepared in pieces, results put where they belong.
use super::codes::{Codes, k_quants, plain, small};
use super::dot::{Rows, products};
use super::exp::activate;
use super::prepare::Prepared;
use super::simd::F32x4;
use crate::gguf::GgmlType;
use crate::ops::matmul::{Activation, GateUpProblem, GatedProblem, MatmulProblem};
use crate::quant;

/// Activation rows prepared at a time: what keeps them in the second-level cache. Bits do not depend on it.
const PIECE: usize = 64;

/// `f` with the format's type, or the second form when there is no kernel for it.
macro_rules! with_format {
    ($ty:expr, $f:ident($($arg:expr),*), $otherwise:expr) => {
        match $ty {
            GgmlType::F32 => $f::<plain::F32, _, _, _>($($arg),*),
            GgmlType::F16 => $f::<plain::F16, _, _, _>($($arg),*),
            GgmlType::BF16 => $f::<plain::Bf16, _, _, _>($($arg),*),
            GgmlType::Q4_0 => $f::<small::Q4_0, _, _, _>($($arg),*),
            GgmlType::Q4_1 => $f::<small::Q4_1, _, _, _>($($arg),*),
            GgmlType::Q5_0 => $f::<small::Q5_0, _, _, _>($($arg),*),
            GgmlType::Q5_1 => $f::<small::Q5_1, _, _, _>($($arg),*),
            GgmlType::Q8_0 => $f::<small::Q8_0, _, _, _>($($arg),*),
            GgmlType::IQ4_NL => $f::<small::Iq4Nl, _, _, _>($($arg),*),
            GgmlType::Q2_K => $f::<k_quants::Q2K, _, _, _>($($arg),*),
            GgmlType::Q3_K => $f::<k_quants::Q3K, _, _, _>($($arg),*),
            GgmlType::Q4_K => $f::<k_quants::Q4K, _, _, _>($($arg),*),
            GgmlType::Q5_K => $f::<k_quants::Q5K, _, _, _>($($arg),*),
            GgmlType::Q6_K => $f::<k_quants::Q6K, _, _, _>($($arg),*),
            GgmlType::IQ4_XS => $f::<k_quants::Iq4Xs, _, _, _>($($arg),*),
            _ => $otherwise,
        }
    };
}

/// Products of whole rows; `sink(weight row, activation row, value)`. Types without a kernel give nothing: the loader
/// refuses them before any weight arrives.
fn rows_times_rows<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(
    x: &[f32],
    w: Rows,
    sink: &mut dyn FnMut(usize, usize, f32),
) {
    for (piece, x) in x.chunks(PIECE * w.k.max(1)).enumerate() {
        let prepared = Prepared::new::<C, B, G, P>(x, w.k);
        products::<C, B, G, P>(w, &prepared, &mut |n, t, value| sink(n, piece * PIECE + t, value));
    }
}

/// `matmul` of the trait on slices; `w` is the file's bytes.
pub fn matmul(x: &[f32], w: &[u8], out: &mut [f32], bias: &[f32], p: &MatmulProblem) {
    let rows = Rows { bytes: w, n: p.n, k: p.k, row_bytes: quant::row_bytes(p.ty, p.k) };
    let x = &x[..p.tokens * p.k];
    let mut put = |n: usize, t: usize, value: f32| {
        let value = if p.has_bias { value + bias[n] } else { value };
        let out = &mut out[t * p.out_stride + p.out_col + n];
        *out = if p.accumulate { *out + value } else { value };
    };
    with_format!(p.ty, rows_times_rows(x, rows, &mut put), ())
}

/// `gate_up` of the trait on slices: `[T, F]`.
pub fn gate_up(x: &[f32], w: &[u8], p: &GateUpProblem) -> Vec<f32> {
    let width = 2 * p.f;
    let rows = Rows { bytes: w, n: width, k: p.k, row_bytes: quant::row_bytes(p.ty, p.k) };
    let mut out = vec![0.0; p.tokens * p.f];
    let mut both = vec![0.0; p.tokens.min(PIECE) * width];
    let pieces = x[..p.tokens * p.k].chunks(PIECE * p.k.max(1)).zip(out.chunks_mut(PIECE * p.f.max(1)));
    for (x, out) in pieces {
        let mut put = |n: usize, t: usize, value: f32| both[t * width + n] = value;
        with_format!(p.ty, rows_times_rows(x, rows, &mut put), ());
        gate(&both, out, p.f, p.activation);
    }
    out
}

/// `gated` of the trait on slices: `[T, 2F]` -> `[T, F]`.
pub fn gated(x: &[f32], p: &GatedProblem) -> Vec<f32> {
    let mut out = vec![0.0; p.tokens * p.f];
    gate(x, &mut out, p.f, p.activation);
    out
}

/// `act(x[t, f]) * x[t, F + f]` for the rows of `out`.
fn gate(x: &[f32], out: &mut [f32], f: usize, activation: Activation) {
    for (row, out) in x.chunks_exact(2 * f.max(1)).zip(out.chunks_exact_mut(f.max(1))) {
        let (gate, up) = row.split_at(f);
        for ((gate, up), out) in gate.chunks(4).zip(up.chunks(4)).zip(out.chunks_mut(4)) {
            activate(activation, F32x4::load_partial(gate)).mul(F32x4::load_partial(up)).store_partial(out);
        }
    }
}
