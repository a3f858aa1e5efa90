//! Serial variant: one invocation sums one weight row (or a gate and an up row) for up to eight activation rows.
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
    let n = ABSOLUTE_POS_X;
    let first = CUBE_POS_Y * rows;
    if n < s.n {
        let x_rows = row_starts(first, s.tokens, s.x_stride, rows);
        let sums = zeros(rows);
        for part in 0..s.row_parts {
            add_part(x, w, n * s.row_words, part, &x_rows, &sums, rows, l);
        }
        if comptime!(finish == Finish::Store) {
            #[unroll]
            for t in 0..rows {
                store(out, bias, &s, first + t, n, sums.index(t as usize).read());
            }
        } else {
            let ups = zeros(rows);
            for part in 0..s.row_parts {
                add_part(x, w, (s.n + n) * s.row_words, part, &x_rows, &ups, rows, l);
            }
            #[unroll]
            for t in 0..rows {
                let gate = sums.index(t as usize).read();
                store(out, bias, &s, first + t, n, gated(gate, ups.index(t as usize).read(), finish));
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
