//! Dot products of weight rows with activation rows. Every path adds in one order, so that bits depend on neither the
//! number of rows nor the path: per group `p = w0 x0 + w1 x1 + ...` in four lanes, `acc += scale * p`; then the
//! offsets times the group sums, four groups at a time, in an accumulator of their own; then the lanes.
use super::codes::Codes;
use super::prepare::{Prepared, RowShape};
use super::simd::F32x4;
use std::array::from_fn;

/// Scales and offsets of one weight row.
#[derive(Clone)]
struct Scales {
    scales: Vec<[f32; 4]>,
    offsets: Vec<[f32; 4]>,
}

impl Scales {
    fn new<C: Codes>(shape: &RowShape) -> Self {
        let scales = vec![[0.0; 4]; if C::SCALED { shape.group_vectors } else { 0 }];
        let offsets = vec![[0.0; 4]; if C::OFFSET { shape.group_vectors } else { 0 }];
        Self { scales, offsets }
    }

    #[inline(always)]
    fn read<C: Codes>(&mut self, row: &[u8]) {
        if C::SCALED {
            C::scales(row, self.scales.as_flattened_mut(), self.offsets.as_flattened_mut());
        }
    }
}

/// Adds a group's partial sum.
#[inline(always)]
fn fold<C: Codes>(acc: F32x4, partial: F32x4, scale: f32) -> F32x4 {
    if C::SCALED { acc.add(partial.mul(F32x4::splat(scale))) } else { acc.add(partial) }
}

/// The last step of every path.
#[inline(always)]
fn finish(acc: F32x4, offsets: &[[f32; 4]], sums: &[[f32; 4]]) -> f32 {
    let terms = offsets.iter().zip(sums).map(|(offset, sum)| F32x4::load(offset).mul(F32x4::load(sum)));
    acc.add(terms.fold(F32x4::splat(0.0), F32x4::add)).sum()
}

/// One activation row with `R` weight rows, codes unpacked in passing.
#[inline(always)]
fn one_token<C: Codes, const R: usize>(rows: [&[u8]; R], scales: &[Scales; R], x: &[[f32; 4]]) -> [F32x4; R] {
    let mut acc = [F32x4::splat(0.0); R];
    let scale: [&[f32]; R] = from_fn(|r| scales[r].scales.as_flattened());
    for (b, x) in x.chunks_exact(C::BLOCK / 4).enumerate() {
        let blocks: [&[u8]; R] = from_fn(|r| &rows[r][b * C::BYTES..][..C::BYTES]);
        for (u, x) in x.chunks_exact(C::VECTORS).enumerate() {
            let units: [C::Unit; R] = from_fn(|r| C::unit(blocks[r], u));
            for (g, x) in x.chunks_exact(C::GROUP).enumerate() {
                let first = F32x4::load(&x[0]);
                let mut partial: [F32x4; R] = from_fn(|r| C::vector(&units[r], g * C::GROUP).mul(first));
                for j in 1..C::GROUP {
                    let x = F32x4::load(&x[j]);
                    for r in 0..R {
                        partial[r] = partial[r].add(C::vector(&units[r], g * C::GROUP + j).mul(x));
                    }
                }
                for r in 0..R {
                    let at = (b * C::UNITS + u) * (C::VECTORS / C::GROUP) + g;
                    acc[r] = fold::<C>(acc[r], partial[r], if C::SCALED { scale[r][at] } else { 1.0 });
                }
            }
        }
    }
    acc
}

/// Unpacks a weight row into code vectors.
#[inline(always)]
fn unpack<C: Codes>(row: &[u8], codes: &mut [[f32; 4]]) {
    for (block, codes) in row.chunks_exact(C::BYTES).zip(codes.chunks_exact_mut(C::BLOCK / 4)) {
        for (u, codes) in codes.chunks_exact_mut(C::VECTORS).enumerate() {
            let unit = C::unit(block, u);
            for i in 0..C::VECTORS {
                C::vector(&unit, i).store(&mut codes[i]);
            }
        }
    }
}

/// `T` activation rows with `R` unpacked weight rows.
#[inline(always)]
fn tile<C: Codes, const R: usize, const T: usize>(
    codes: [&[[f32; 4]]; R],
    scales: [&[f32]; R],
    x: [&[[f32; 4]]; T],
) -> [[F32x4; T]; R] {
    let mut acc = [[F32x4::splat(0.0); T]; R];
    let groups = codes[0].len() / C::GROUP;
    let x: [&[[f32; 4]]; T] = from_fn(|t| &x[t][..groups * C::GROUP]);
    let codes: [&[[f32; 4]]; R] = from_fn(|r| &codes[r][..groups * C::GROUP]);
    for g in 0..groups {
        let at = g * C::GROUP;
        let mut partial = [[F32x4::splat(0.0); T]; R];
        for j in 0..C::GROUP {
            let w: [F32x4; R] = from_fn(|r| F32x4::load(&codes[r][at + j]));
            for t in 0..T {
                let x = F32x4::load(&x[t][at + j]);
                for r in 0..R {
                    let product = w[r].mul(x);
                    partial[r][t] = if j == 0 { product } else { partial[r][t].add(product) };
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                acc[r][t] = fold::<C>(acc[r][t], partial[r][t], if C::SCALED { scales[r][g] } else { 1.0 });
            }
        }
    }
    acc
}

/// Where results go: `(weight row, activation row, value)`.
pub trait Sink: FnMut(usize, usize, f32) {}
impl<F: FnMut(usize, usize, f32)> Sink for F {}

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

impl<'a> Rows<'a> {
    /// Row `n` in whole blocks; `padded` holds it when the file's row ends within one.
    #[inline(always)]
    fn row<'b>(&self, n: usize, shape: &RowShape, padded: &'b mut [u8]) -> &'b [u8]
    where
        'a: 'b,
    {
        let row = &self.bytes[n * self.row_bytes..][..self.row_bytes];
        if row.len() == shape.bytes {
            return row;
        }
        padded[..row.len()].copy_from_slice(row);
        padded
    }
}

/// Activation rows up to which rows are not unpacked first.
const FEW: usize = 1;

/// Every weight row times every activation row.
pub fn products<C: Codes>(w: Rows, x: &Prepared, sink: impl Sink) {
    if x.rows() <= FEW { few::<C>(w, x, sink) } else { many::<C>(w, x, sink) }
}

fn few<C: Codes>(w: Rows, x: &Prepared, mut sink: impl Sink) {
    const R: usize = 2;
    let shape = RowShape::of::<C>(w.k);
    let mut scales: [Scales; R] = from_fn(|_| Scales::new::<C>(&shape));
    let mut padded: [Vec<u8>; R] = from_fn(|_| vec![0; shape.bytes]);
    for n in (0..w.n).step_by(R) {
        // An odd last row is paired with itself.
        let at: [usize; R] = from_fn(|r| (n + r).min(w.n - 1));
        let mut pads = padded.each_mut();
        let mut index = 0;
        let rows: [&[u8]; R] = pads.each_mut().map(|pad| {
            index += 1;
            w.row(at[index - 1], &shape, pad)
        });
        for r in 0..R {
            scales[r].read::<C>(rows[r]);
        }
        for t in 0..x.rows() {
            let acc = one_token::<C, R>(rows, &scales, x.vectors(t));
            for r in 0..R.min(w.n - n) {
                sink(n + r, t, finish(acc[r], &scales[r].offsets, x.sums(t)));
            }
        }
    }
}

fn many<C: Codes>(w: Rows, x: &Prepared, mut sink: impl Sink) {
    const R: usize = 2;
    const T: usize = 4;
    let shape = RowShape::of::<C>(w.k);
    let mut scales: [Scales; R] = from_fn(|_| Scales::new::<C>(&shape));
    let mut codes: [Vec<[f32; 4]>; R] = from_fn(|_| vec![[0.0; 4]; shape.blocks * C::BLOCK / 4]);
    let mut padded = vec![0; shape.bytes];
    for n in (0..w.n).step_by(R) {
        for r in 0..R {
            let row = w.row((n + r).min(w.n - 1), &shape, &mut padded);
            scales[r].read::<C>(row);
            unpack::<C>(row, &mut codes[r]);
        }
        let codes: [&[[f32; 4]]; R] = from_fn(|r| codes[r].as_slice());
        let factors: [&[f32]; R] = from_fn(|r| scales[r].scales.as_flattened());
        for t in (0..x.rows()).step_by(T) {
            let at: [usize; T] = from_fn(|i| (t + i).min(x.rows() - 1));
            let acc = tile::<C, R, T>(codes, factors, at.map(|t| x.vectors(t)));
            for r in 0..R.min(w.n - n) {
                for i in 0..T.min(x.rows() - t) {
                    sink(n + r, t + i, finish(acc[r][i], &scales[r].offsets, x.sums(t + i)));
                }
            }
        }
    }
}
