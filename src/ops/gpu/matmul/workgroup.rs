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

/// Sums this lane's share of `per` weight rows into `shared`, at `[weight matrix][t][weight row][lane]`.
#[cube]
fn lane_sums(
    x: &[Vector<f32, Const<4>>],
    w: &[u32],
    w_rows: &Sequence<u32>,
    s: &Sizes,
    x_rows: &Sequence<u32>,
    shared: &mut Shared<[f32]>,
    #[comptime] rows: u32,
    #[comptime] per: u32,
    #[comptime] l: Layout,
) {
    let sums = zeros(comptime!(per * rows));
    let mut part = UNIT_POS_X;
    while part < s.row_parts {
        add_part(x, w, w_rows, part, x_rows, &sums, rows, per, l);
        part += LANES;
    }
    #[unroll]
    for cell in 0..comptime!(per * rows) {
        shared[(comptime!(cell * LANES * ROWS) + UNIT_POS) as usize] = sums.index(cell as usize).read();
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
    let mut w_rows = Sequence::<u32>::new();
    w_rows.push(n * s.row_words);
    if comptime!(matrices == 2) {
        w_rows.push((s.n + n) * s.row_words);
    }
    lane_sums(x, w, &w_rows, &s, &x_rows, &mut shared, rows, matrices, l);
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
