//! Quantized matrix products: which kernel a problem gets, and its launch.
//!
//! Canonical order: a weight row is summed part by part (a part's quads in order, then its scale), each part added to
//! its lane's sum, lanes added in order. Neither the number of activation rows nor the tile matters.
mod parts;
mod rows;
mod singles;
mod workgroup;

use burn::backend::DType;
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use super::layout::Layout;
use crate::ops::matmul::{Activation, GateUpProblem, MatmulProblem, Variant};

/// What happens to the sums of a weight row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Finish {
    /// Written to `out`, perhaps added to what is there.
    Store,
    /// Two weight rows, gate and up, become one value.
    Gate(Activation),
}

/// A product as the kernels see it.
struct Product {
    layout: Layout,
    tokens: usize,
    k: usize,
    n: usize,
    out_stride: usize,
    out_col: usize,
    accumulate: bool,
    has_bias: bool,
    finish: Finish,
    variant: Variant,
}

/// `matmul` of the extension.
pub(super) fn matmul(x: CubeTensor, w: CubeTensor, out: CubeTensor, bias: CubeTensor, p: &MatmulProblem) -> CubeTensor {
    let product = Product {
        layout: Layout::of(p.ty),
        tokens: p.tokens,
        k: p.k,
        n: p.n,
        out_stride: p.out_stride,
        out_col: p.out_col,
        accumulate: p.accumulate,
        has_bias: p.has_bias,
        finish: Finish::Store,
        variant: p.variant,
    };
    product.launch(&x, &w, &out, if p.has_bias { &bias } else { &x });
    out
}

/// `gate_up` of the extension.
pub(super) fn gate_up(x: CubeTensor, w: CubeTensor, p: &GateUpProblem) -> CubeTensor {
    let out = launch::empty(&x, p.tokens * p.f, DType::F32);
    let product = Product {
        layout: Layout::of(p.ty),
        tokens: p.tokens,
        k: p.k,
        n: p.f,
        out_stride: p.f,
        out_col: 0,
        accumulate: false,
        has_bias: false,
        finish: Finish::Gate(p.activation),
        variant: p.variant,
    };
    product.launch(&x, &w, &out, &x);
    out
}

impl Product {
    fn launch(&self, x: &CubeTensor, w: &CubeTensor, out: &CubeTensor, bias: &CubeTensor) {
        if self.tokens == 0 || self.n == 0 {
            return;
        }
        let (l, rows) = (self.layout, self.variant.rows(self.tokens));
        let tiles = self.tokens.div_ceil(rows);
        let matrices = if self.finish == Finish::Store { 1 } else { 2 };
        crate::ops::counters::count_weight_bytes(tiles * matrices * self.n * l.row_words(self.k) * 4);
        let client = &out.client;
        let vector = if l.fits(self.k) { 4 } else { 1 };
        #[cfg(all(test, not(target_family = "wasm")))]
        let seen = crate::ops::gpu::planted::seen(self.variant, self.k);
        #[cfg(not(all(test, not(target_family = "wasm"))))]
        let seen = self.k;
        let (x, w, bias) = (launch::buffer(x, vector), launch::buffer(w, 1), launch::buffer(bias, 1));
        let to = launch::buffer(out, 1);
        let sizes = rows::SizesLaunch::new(
            self.tokens as u32,
            self.n as u32,
            (self.k / vector) as u32,
            l.row_parts(seen) as u32,
            l.row_words(self.k) as u32,
            self.out_stride as u32,
            self.out_col as u32,
            u32::from(self.accumulate),
            u32::from(self.has_bias),
        );
        let rows = rows as u32;
        if !l.fits(self.k) {
            let (grid, dim) = (launch::grid_2d(self.n.div_ceil(64), tiles), CubeDim::new_1d(64));
            launch!(singles::singles, client, grid, dim, x, w, to, bias, sizes, rows, l, self.finish);
        } else if self.variant.is_serial() {
            let invocations = if matrices == 1 { self.n.div_ceil(rows::PER as usize) } else { self.n };
            let (grid, dim) = (launch::grid_2d(invocations.div_ceil(64), tiles), CubeDim::new_1d(64));
            launch!(rows::rows, client, grid, dim, x, w, to, bias, sizes, rows, l, self.finish);
        } else {
            let groups = self.n.div_ceil(workgroup::ROWS as usize);
            let (grid, dim) = (launch::grid_2d(groups, tiles), CubeDim::new_2d(workgroup::LANES, workgroup::ROWS));
            launch!(workgroup::workgroup, client, grid, dim, x, w, to, bias, sizes, rows, l, self.finish);
        }
    }
}
