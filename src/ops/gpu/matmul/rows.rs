//! Serial variant: one invocation sums two weight rows (or a gate and an up row) for up to eight activation rows.
use cubecl::prelude::*;

use super::super::layout::Layout;
use super::super::math::activate;
use super::Finish;
use super::parts::{add_part, row_starts, zeros};

/// Sizes of a product, given to the kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Sizes {
    /// Activation rows.
    pub tokens: u32,
    /// Weight rows (of gate alone).
    pub n: u32,
    /// Width of x, in the kernel's elements.
    pub x_stride: u32,
    /// Parts of a weight row.
    pub row_parts: u32,
    /// Words of a weight row.
    pub row_words: u32,
    /// Width of out.
    pub out_stride: u32,
    /// First column written.
    pub out_col: u32,
    /// Whether to add to out.
    pub accumulate: u32,
    /// Whether to add bias.
    pub has_bias: u32,
}

/// Writes one sum.
#[cube]
pub fn store(out: &mut [f32], bias: &[f32], s: &Sizes, t: u32, n: u32, sum: f32) {
    if t < s.tokens {
        let at = (t * s.out_stride + s.out_col + n) as usize;
        let mut value = sum;
        if s.has_bias != 0u32 {
            value += bias[n as usize];
        }
        if s.accumulate != 0u32 {
            value += out[at];
        }
        out[at] = value;
    }
}

/// Weight rows of one invocation: a gate row and its up row, or two rows; they share the loads of x.
pub const PER: u32 = 2;

#[cube(launch_unchecked)]
pub fn rows(
    x: &[Vector<f32, Const<4>>],
    w: &[u32],
    out: &mut [f32],
    bias: &[f32],
    s: Sizes,
    #[comptime] rows: u32,
    #[comptime] l: Layout,
    #[comptime] finish: Finish,
) {
    let first = CUBE_POS_Y * rows;
    let stores = comptime!(finish == Finish::Store);
    let n = if stores { ABSOLUTE_POS_X * PER } else { ABSOLUTE_POS_X };
    if n < s.n {
        let x_rows = row_starts(first, s.tokens, s.x_stride, rows);
        let mut w_rows = Sequence::<u32>::new();
        w_rows.push(n * s.row_words);
        // An odd row count repeats the last row, whose second sum isn't stored.
        let second = if stores { min(n + 1u32, s.n - 1u32) } else { s.n + n };
        w_rows.push(second * s.row_words);
        let sums = zeros(comptime!(PER * rows));
        for part in 0..s.row_parts {
            add_part(x, w, &w_rows, part, &x_rows, &sums, rows, PER, l);
        }
        #[unroll]
        for t in 0..rows {
            let a = sums.index(t as usize).read();
            let b = sums.index(comptime!((rows + t) as usize)).read();
            if stores {
                store(out, bias, &s, first + t, n, a);
                if n + 1u32 < s.n {
                    store(out, bias, &s, first + t, n + 1u32, b);
                }
            } else {
                store(out, bias, &s, first + t, n, gated(a, b, finish));
            }
        }
    }
}

/// Gate and up as one value.
#[cube]
pub fn gated(gate: f32, up: f32, #[comptime] finish: Finish) -> f32 {
    let activation = comptime!(match finish {
        Finish::Gate(activation) => activation,
        Finish::Store => unreachable!("only gates are gated"),
    });
    activate(gate, activation) * up
}
