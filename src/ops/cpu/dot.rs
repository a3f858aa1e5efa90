//! Dot products of weight rows with activation rows. Every path adds in one order, so that bits depend on neither the
//! number of rows nor the path: per group `p = w0 x0 + w1 x1 + ...` in four lanes and `acc += scale * p`, beside it
//! `rest += offset * (sum of the group's x)`; at the end the lanes of `acc`, then `rest`.
#![allow(clippy::needless_range_loop, reason = "fixed-size lanes: indices keep three arrays in step and unroll whole")]
use super::codes::{Codes, Tables};
use super::prepare::{Prepared, TILE};
use super::simd::F32x4;
use std::array::from_fn;

/// Four activations, or unpacked codes, of each of a group's vectors.
type Group<const G: usize> = [[f32; 4]; G];

/// Weight rows in the file's bytes.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Blocks, row after row.
    pub bytes: &'a [u8],
    /// Rows.
    pub n: usize,
    /// Values a row.
    pub k: usize,
    /// Bytes a row.
    pub row_bytes: usize,
}

impl Rows<'_> {
    /// The blocks of row `n`. Rows that end within a block (unquantized types) are copied to `padded` first.
    #[inline(always)]
    fn blocks<'a, const B: usize>(&'a self, n: usize, padded: &'a mut Vec<[u8; B]>) -> &'a [[u8; B]] {
        let bytes = &self.bytes[n * self.row_bytes..][..self.row_bytes];
        let (blocks, rest) = bytes.as_chunks::<B>();
        if rest.is_empty() {
            return blocks;
        }
        padded.resize(blocks.len() + 1, [0; B]);
        padded.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        padded
    }
}

/// Every weight row times every activation row, as `sink(weight row, activation row, value)`.
pub fn products<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(
    w: Rows,
    x: &Prepared,
    sink: &mut dyn FnMut(usize, usize, f32),
) {
    if x.rows() == 1 { one::<C, B, G, P>(w, x, sink) } else { many::<C, B, G, P>(w, x, sink) }
}

/// Adds a group's partial sum.
#[inline(always)]
fn fold<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(
    acc: F32x4,
    partial: F32x4,
    scale: f32,
) -> F32x4 {
    if C::SCALED { acc.add(partial.mul(F32x4::splat(scale))) } else { acc.add(partial) }
}

/// One activation row: codes are used as they are unpacked, which costs less than keeping them.
fn one<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(
    w: Rows,
    x: &Prepared,
    sink: &mut dyn FnMut(usize, usize, f32),
) {
    let vectors = x.vectors(0).as_chunks::<G>().0.as_chunks::<P>().0;
    let sums = x.sums(0).as_chunks::<P>().0;
    let mut padded = Vec::new();
    for n in 0..w.n {
        sink(n, 0, dot::<C, B, G, P>(w.blocks(n, &mut padded), vectors, sums, Tables::get()));
    }
}

/// One weight row with one activation row, whose group sums are in lane 0.
#[inline(always)]
fn dot<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(
    blocks: &[[u8; B]],
    vectors: &[[Group<G>; P]],
    sums: &[[[f32; TILE]; P]],
    tables: &Tables,
) -> f32 {
    let mut acc = F32x4::splat(0.0);
    let mut rest = 0.0;
    // One loop over units, not one a block: compilers unroll that and run out of registers.
    for (at, (vectors, sums)) in vectors.iter().zip(sums).enumerate() {
        let (block, u) = (&blocks[at / C::UNITS], at % C::UNITS);
        let unit = C::unit(block, u, tables);
        for g in 0..P {
            let mut partial = C::vector(&unit, g, 0, tables).mul(F32x4::load(&vectors[g][0]));
            for i in 1..G {
                partial = partial.add(C::vector(&unit, g, i, tables).mul(F32x4::load(&vectors[g][i])));
            }
            let [scale, offset] = C::factors(block, u, g, tables);
            acc = fold::<C, B, G, P>(acc, partial, scale);
            if C::OFFSET {
                rest += offset * sums[g][0];
            }
        }
    }
    acc.sum() + rest
}

/// Weight rows unpacked together.
const ROWS: usize = 2;

/// A weight row as code vectors, scales and offsets, all in the order of groups.
struct Unpacked<const G: usize> {
    codes: Vec<Group<G>>,
    factors: Vec<[f32; 2]>,
}

impl<const G: usize> Unpacked<G> {
    #[inline(always)]
    fn read<C: Codes<B, G, P>, const B: usize, const P: usize>(&mut self, blocks: &[[u8; B]], tables: &Tables) {
        let codes = self.codes.as_chunks_mut::<P>().0;
        let factors = self.factors.as_chunks_mut::<P>().0;
        for (at, (codes, factors)) in codes.iter_mut().zip(factors).enumerate() {
            let (block, u) = (&blocks[at / C::UNITS], at % C::UNITS);
            let unit = C::unit(block, u, tables);
            for g in 0..P {
                for i in 0..G {
                    C::vector(&unit, g, i, tables).store(&mut codes[g][i]);
                }
                factors[g] = C::factors(block, u, g, tables);
            }
        }
    }
}

/// Several activation rows: weight rows are unpacked once, then meet tiles of activation rows.
fn many<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(
    w: Rows,
    x: &Prepared,
    sink: &mut dyn FnMut(usize, usize, f32),
) {
    let groups = x.vectors(0).len() / G;
    let mut rows: [Unpacked<G>; ROWS] =
        from_fn(|_| Unpacked { codes: vec![[[0.0; 4]; G]; groups], factors: vec![[0.0; 2]; groups] });
    let mut padded = Vec::new();
    for n in (0..w.n).step_by(ROWS) {
        for (r, row) in rows.iter_mut().enumerate() {
            // An odd last row is paired with itself.
            row.read::<C, B, P>(w.blocks((n + r).min(w.n - 1), &mut padded), Tables::get());
        }
        let mut put = |r: usize, t: usize, value: f32| {
            if n + r < w.n {
                sink(n + r, t, value);
            }
        };
        for t in (0..x.rows()).step_by(TILE) {
            match x.rows() - t {
                1 => tile::<C, B, G, P, 1>(&rows, x, t, &mut put),
                2 => tile::<C, B, G, P, 2>(&rows, x, t, &mut put),
                3 => tile::<C, B, G, P, 3>(&rows, x, t, &mut put),
                _ => tile::<C, B, G, P, TILE>(&rows, x, t, &mut put),
            }
        }
    }
}

/// `T` activation rows from `first` with `ROWS` unpacked weight rows.
#[inline(always)]
fn tile<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize, const T: usize>(
    rows: &[Unpacked<G>; ROWS],
    x: &Prepared,
    first: usize,
    put: &mut impl FnMut(usize, usize, f32),
) {
    let groups = rows[0].codes.len();
    let vectors: [&[Group<G>]; T] = from_fn(|t| &x.vectors(first + t).as_chunks::<G>().0[..groups]);
    let codes: [&[Group<G>]; ROWS] = from_fn(|r| &rows[r].codes[..groups]);
    let factors: [&[[f32; 2]]; ROWS] = from_fn(|r| &rows[r].factors[..groups]);
    let sums = if C::OFFSET { &x.sums(first / TILE)[..groups] } else { &[] };
    let mut acc = [[F32x4::splat(0.0); T]; ROWS];
    let mut rest = [F32x4::splat(0.0); ROWS];
    let vectors_a_group = x.group().min(G);
    for at in 0..groups {
        let codes: [&[[f32; 4]]; ROWS] = from_fn(|r| &codes[r][at][..vectors_a_group]);
        let vectors: [&[[f32; 4]]; T] = from_fn(|t| &vectors[t][at][..vectors_a_group]);
        let first: [F32x4; ROWS] = from_fn(|r| F32x4::load(&codes[r][0]));
        let mut partial: [[F32x4; T]; ROWS] = from_fn(|r| from_fn(|t| first[r].mul(F32x4::load(&vectors[t][0]))));
        for i in 1..vectors_a_group {
            let w: [F32x4; ROWS] = from_fn(|r| F32x4::load(&codes[r][i]));
            for t in 0..T {
                let x = F32x4::load(&vectors[t][i]);
                for r in 0..ROWS {
                    partial[r][t] = partial[r][t].add(w[r].mul(x));
                }
            }
        }
        for r in 0..ROWS {
            let [scale, offset] = factors[r][at];
            for t in 0..T {
                acc[r][t] = fold::<C, B, G, P>(acc[r][t], partial[r][t], scale);
            }
            if C::OFFSET {
                rest[r] = rest[r].add(F32x4::splat(offset).mul(F32x4::load(&sums[at])));
            }
        }
    }
    for r in 0..ROWS {
        let rest = rest[r].lanes();
        for t in 0..T {
            put(r, first + t, acc[r][t].sum() + rest[t]);
        }
    }
}
