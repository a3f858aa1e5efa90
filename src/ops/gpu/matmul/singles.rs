//! Float weights with rows that are no multiple of 32 values: one value at a time, one invocation a weight row.
use cubecl::prelude::*;

use super::super::dequant::single;
use super::super::layout::Layout;
use super::Finish;
use super::parts::{row_starts, zeros};
use super::rows::{Sizes, gated, store};

#[cube]
fn sum_row(
    x: &[f32],
    w: &[u32],
    row: u32,
    s: &Sizes,
    x_rows: &Sequence<u32>,
    #[comptime] rows: u32,
    #[comptime] l: Layout,
) -> Sequence<RuntimeCell<f32>> {
    let sums = zeros(rows);
    for i in 0..s.x_stride {
        let value = single(w, row as usize, i as usize, comptime!(l.ty));
        #[unroll]
        for t in 0..rows {
            let cell = sums.index(t as usize);
            cell.store(cell.read() + value * x[(*x_rows.index(t as usize) + i) as usize]);
        }
    }
    sums
}

#[cube(launch_unchecked)]
pub fn singles(
    x: &[f32],
    w: &[u32],
    out: &mut [f32],
    bias: &[f32],
    s: Sizes,
    #[comptime] rows: u32,
    #[comptime] l: Layout,
    #[comptime] finish: Finish,
) {
    let n = ABSOLUTE_POS_X;
    let first = CUBE_POS_Y * rows;
    if n < s.n {
        let x_rows = row_starts(first, s.tokens, s.x_stride, rows);
        let sums = sum_row(x, w, n * s.row_words, &s, &x_rows, rows, l);
        if comptime!(finish == Finish::Store) {
            #[unroll]
            for t in 0..rows {
                store(out, bias, &s, first + t, n, sums.index(t as usize).read());
            }
        } else {
            let ups = sum_row(x, w, (s.n + n) * s.row_words, &s, &x_rows, rows, l);
            #[unroll]
            for t in 0..rows {
                let gate = sums.index(t as usize).read();
                store(out, bias, &s, first + t, n, gated(gate, ups.index(t as usize).read(), finish));
            }
        }
    }
}
