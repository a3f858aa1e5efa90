//! Workgroup variant: a few weight rows a workgroup, lanes over the parts of a row, lane sums added in order.
use cubecl::prelude::*;

use super::super::layout::Layout;
use super::Finish;
use super::parts::{add_part, row_starts, zeros};
use super::rows::{Sizes, gated, store};

/// Lanes over the parts of one weight row.
pub const LANES: u32 = 16;
/// Weight rows of one workgroup.
pub const ROWS: u32 = 4;

/// Sums one weight row's share of this lane into `shared`, at `[t][weight row][lane]`.
#[cube]
fn lane_sums(
    x: &[Vector<f32, Const<4>>],
    w: &[u32],
    row: u32,
    s: &Sizes,
    x_rows: &Sequence<u32>,
    shared: &mut Shared<[f32]>,
    #[comptime] at: u32,
    #[comptime] rows: u32,
    #[comptime] l: Layout,
) {
    let sums = zeros(rows);
    let mut part = UNIT_POS_X;
    while part < s.row_parts {
        add_part(x, w, row, part, x_rows, &sums, rows, l);
        part += LANES;
    }
    #[unroll]
    for t in 0..rows {
        shared[(comptime!((at + t) * LANES * ROWS) + UNIT_POS) as usize] = sums.index(t as usize).read();
    }
}

/// The sum of all lanes of weight row `r` at row `t` of `shared`.
#[cube]
fn fold_lanes(shared: &Shared<[f32]>, t: u32, r: u32) -> f32 {
    let first = (t * ROWS + r) * LANES;
    let mut sum = shared[first as usize];
    for lane in 1..LANES {
        sum += shared[(first + lane) as usize];
    }
    sum
}

#[cube(launch_unchecked)]
pub fn workgroup(
    x: &[Vector<f32, Const<4>>],
    w: &[u32],
    out: &mut [f32],
    bias: &[f32],
    s: Sizes,
    #[comptime] rows: u32,
    #[comptime] l: Layout,
    #[comptime] finish: Finish,
) {
    let matrices = comptime!(if finish == Finish::Store { 1u32 } else { 2u32 });
    let mut shared = Shared::<[f32]>::new_slice(comptime!((matrices * rows * LANES * ROWS) as usize));
    let first = CUBE_POS_Y * rows;
    // Rows past the last repeat it; they aren't stored.
    let n = min(CUBE_POS_X * ROWS + UNIT_POS_Y, s.n - 1u32);
    let x_rows = row_starts(first, s.tokens, s.x_stride, rows);
    lane_sums(x, w, n * s.row_words, &s, &x_rows, &mut shared, 0u32, rows, l);
    if comptime!(finish != Finish::Store) {
        lane_sums(x, w, (s.n + n) * s.row_words, &s, &x_rows, &mut shared, rows, rows, l);
    }
    sync_cube();
    // Invocation i stores weight row i % ROWS of activation row i / ROWS.
    let (t, r) = (UNIT_POS / ROWS, UNIT_POS % ROWS);
    let n = CUBE_POS_X * ROWS + r;
    if t < rows && n < s.n {
        let sum = fold_lanes(&shared, t, r);
        if comptime!(finish == Finish::Store) {
            store(out, bias, &s, first + t, n, sum);
        } else {
            store(out, bias, &s, first + t, n, gated(sum, fold_lanes(&shared, t + rows, r), finish));
        }
    }
}
