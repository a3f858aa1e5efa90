//! The inner loop that all quantized products share: one part of a few weight rows against several activation rows.
use cubecl::prelude::*;

use super::super::dequant::{Head, Words, part_head, part_words, quad};
use super::super::layout::{Layout, part_quad};
use super::super::math::F4;

/// Adds one part's products to `sums`, `rows` cells a weight row. `w_rows` holds the weight rows' first words, `part`
/// counts within a row, and `x_rows` holds where each activation row starts, in quads. Several weight rows share the
/// loads of x, nothing else: each output's order of additions is its own.
#[cube]
pub fn add_part(
    x: &[Vector<f32, Const<4>>],
    w: &[u32],
    w_rows: &Sequence<u32>,
    part: u32,
    x_rows: &Sequence<u32>,
    sums: &Sequence<RuntimeCell<f32>>,
    #[comptime] rows: u32,
    #[comptime] per: u32,
    #[comptime] l: Layout,
) {
    let block = part / comptime!(l.parts);
    let inner = part % comptime!(l.parts);
    let offset = block * comptime!(l.block_words);
    let first = block * comptime!(l.block_values / 4) + part_quad(inner, l);
    let mut heads = Sequence::<Head>::new();
    #[unroll]
    for r in 0..per {
        heads.push(part_head(w, (*w_rows.index(r as usize) + offset) as usize, inner, l));
    }
    let partial = zeros(comptime!(per * rows));
    for step in 0..comptime!(l.steps) {
        let mut words = Sequence::<Words>::new();
        #[unroll]
        for r in 0..per {
            words.push(part_words(w, (*w_rows.index(r as usize) + offset) as usize, inner, step, l));
        }
        #[unroll]
        for plane in 0..comptime!(l.planes) {
            let mut values = Sequence::<F4>::new();
            #[unroll]
            for r in 0..per {
                values.push(quad(words.index(r as usize), heads.index(r as usize), plane, l));
            }
            let at = first + comptime!(plane * l.plane_quads) + step;
            #[unroll]
            for t in 0..rows {
                let xs = x[(*x_rows.index(t as usize) + at) as usize];
                #[unroll]
                for r in 0..per {
                    let cell = partial.index(comptime!((r * rows + t) as usize));
                    cell.store(cell.read() + values.index(r as usize).dot(xs));
                }
            }
        }
    }
    #[unroll]
    for r in 0..per {
        #[unroll]
        for t in 0..rows {
            let cell = sums.index(comptime!((r * rows + t) as usize));
            let sum = partial.index(comptime!((r * rows + t) as usize)).read();
            if comptime!(l.scale_after()) {
                cell.store(cell.read() + sum * heads.index(r as usize).after);
            } else {
                cell.store(cell.read() + sum);
            }
        }
    }
}

/// `cells` cells at zero.
#[cube]
pub fn zeros(#[comptime] cells: u32) -> Sequence<RuntimeCell<f32>> {
    let mut sums = Sequence::<RuntimeCell<f32>>::new();
    #[unroll]
    for _ in 0..cells {
        sums.push(RuntimeCell::<f32>::new(0.0f32));
    }
    sums
}

/// Where activation rows `first..first + rows` start; rows past the last repeat it.
#[cube]
pub fn row_starts(first: u32, tokens: u32, stride: u32, #[comptime] rows: u32) -> Sequence<u32> {
    let mut starts = Sequence::<u32>::new();
    #[unroll]
    for t in 0..rows {
        starts.push(min(first + t, tokens - 1u32) * stride);
    }
    starts
}
