//! The inner loop that all quantized products share: one part of a weight row against several activation rows.
use cubecl::prelude::*;

use super::super::dequant::{part_head, part_words, quad};
use super::super::layout::{Layout, part_quad};

/// Adds one part's products to `sums`, one cell an activation row. `row` is the weight row's first word, `part` counts
/// within the row, and `x_rows` holds where each activation row starts, in quads.
#[cube]
pub fn add_part(
    x: &[Vector<f32, Const<4>>],
    w: &[u32],
    row: u32,
    part: u32,
    x_rows: &Sequence<u32>,
    sums: &Sequence<RuntimeCell<f32>>,
    #[comptime] rows: u32,
    #[comptime] l: Layout,
) {
    let block = part / comptime!(l.parts);
    let inner = part % comptime!(l.parts);
    let base = (row + block * comptime!(l.block_words)) as usize;
    let first = block * comptime!(l.block_values / 4) + part_quad(inner, l);
    let head = part_head(w, base, inner, l);
    let mut partial = Sequence::<RuntimeCell<f32>>::new();
    #[unroll]
    for _ in 0..rows {
        partial.push(RuntimeCell::<f32>::new(0.0f32));
    }
    for step in 0..comptime!(l.steps) {
        let words = part_words(w, base, inner, step, l);
        #[unroll]
        for plane in 0..comptime!(l.planes) {
            let values = quad(&words, &head, plane, l);
            let at = first + comptime!(plane * l.plane_quads) + step;
            #[unroll]
            for t in 0..rows {
                let xs = x[(*x_rows.index(t as usize) + at) as usize];
                let cell = partial.index(t as usize);
                cell.store(cell.read() + values.dot(xs));
            }
        }
    }
    #[unroll]
    for t in 0..rows {
        let cell = sums.index(t as usize);
        let sum = partial.index(t as usize).read();
        if comptime!(l.scale_after()) {
            cell.store(cell.read() + sum * head.after);
        } else {
            cell.store(cell.read() + sum);
        }
    }
}

/// Cells at zero, one an activation row.
#[cube]
pub fn zeros(#[comptime] rows: u32) -> Sequence<RuntimeCell<f32>> {
    let mut sums = Sequence::<RuntimeCell<f32>>::new();
    #[unroll]
    for _ in 0..rows {
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
