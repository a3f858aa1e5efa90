//! Paged attention in canonical segments: each segment's maximum, exponentials and weighted values by themselves, then
//! folded into the running ones in ascending order. Positions outside of a token's reach take part with weight zero,
//! so bits do not depend on chunking, batch or block size.
use super::exp::{exp, exp_one, tanh};
use super::simd::F32x4;
use crate::ops::attention::{AttentionProblem, SEGMENT};
use crate::ops::rope_kv::kv_index;
use std::array::from_fn;
use std::ops::Range;

/// Values of one head mixed so far, with the maximum and the sum that they are relative to.
struct Running {
    max: f32,
    sum: f32,
    mixed: Vec<[f32; 4]>,
}

/// One segment of one sequence's cache: where K and V of each position start, for KV head 0.
struct Segment {
    k: [usize; SEGMENT],
    v: [usize; SEGMENT],
}

/// `attention` of the trait on slices.
pub fn attention(qkv: &[f32], kv: &[f32], meta: &[u32], p: &AttentionProblem) -> Vec<f32> {
    let d = p.head_dim;
    let width = (p.num_heads + 2 * p.num_kv_heads) * d;
    let mut out = vec![0.0; p.tokens * p.num_heads * d];
    let mut running: Vec<Running> = Vec::new();
    running.resize_with(p.num_heads, || Running { max: 0.0, sum: 0.0, mixed: vec![[0.0; 4]; d.div_ceil(4)] });
    let mut fresh = vec![[0.0; 4]; d.div_ceil(4)];
    for (t, out) in out.chunks_exact_mut((p.num_heads * d).max(1)).enumerate() {
        let end = meta[p.positions_offset + t] as usize + 1;
        let start = if p.window == 0 { 0 } else { end.saturating_sub(p.window) };
        let table = &meta[p.tables_offset + meta[p.seqs_offset + t] as usize * p.table_stride..][..p.table_stride];
        let q = &qkv[t * width..][..p.num_heads * d];
        let first = start / SEGMENT;
        for s in first..end.div_ceil(SEGMENT) {
            let base = s * SEGMENT;
            let reach = start.saturating_sub(base)..(end - base).min(SEGMENT);
            let segment = Segment::find(table, base, &reach, p);
            for (h, (q, running)) in q.chunks_exact(d).zip(&mut running).enumerate() {
                let head = h / (p.num_heads / p.num_kv_heads) * d;
                let mut weights = scores(q, kv, head, &segment, &reach, p);
                let (max, sum) = soften(&mut weights, &reach);
                mix(&weights, kv, head, &segment, &reach, d, &mut fresh);
                running.fold(max, sum, &fresh, s == first);
            }
        }
        for (running, out) in running.iter().zip(out.chunks_exact_mut(d)) {
            for (value, mixed) in out.iter_mut().zip(running.mixed.as_flattened()) {
                *value = mixed / running.sum;
            }
        }
    }
    out
}

impl Segment {
    fn find(table: &[u32], base: usize, reach: &Range<usize>, p: &AttentionProblem) -> Self {
        let mut found = Self { k: [0; SEGMENT], v: [0; SEGMENT] };
        for i in reach.clone() {
            let position = base + i;
            let slot = table[position / p.block_size] as usize * p.block_size + position % p.block_size;
            found.k[i] = kv_index(slot, false, 0, p.block_size, p.num_kv_heads, p.head_dim);
            found.v[i] = kv_index(slot, true, 0, p.block_size, p.num_kv_heads, p.head_dim);
        }
        found
    }
}

/// Scaled and capped scores of the positions in reach; the others are negative infinity.
fn scores(
    q: &[f32],
    kv: &[f32],
    head: usize,
    segment: &Segment,
    reach: &Range<usize>,
    p: &AttentionProblem,
) -> [f32; SEGMENT] {
    let mut scores = [f32::NEG_INFINITY; SEGMENT];
    let key = |i: usize| &kv[segment.k[i] + head..][..q.len()];
    let mut at = reach.start;
    while at + 4 <= reach.end {
        let four = dots(q, [key(at), key(at + 1), key(at + 2), key(at + 3)]);
        F32x4::sums(four).mul(F32x4::splat(p.scale)).store_partial(&mut scores[at..at + 4]);
        at += 4;
    }
    for (i, score) in scores.iter_mut().enumerate().take(reach.end).skip(at) {
        *score = dots(q, [key(i)])[0].sum() * p.scale;
    }
    if p.softcap > 0.0 {
        let cap = F32x4::splat(p.softcap);
        for four in scores.as_chunks_mut::<4>().0 {
            tanh(F32x4::load(four).div(cap)).mul(cap).store(four);
        }
        scores[..reach.start].fill(f32::NEG_INFINITY);
        scores[reach.end..].fill(f32::NEG_INFINITY);
    }
    scores
}

/// Products of q with `N` keys, each still in four lanes.
#[inline(always)]
fn dots<const N: usize>(q: &[f32], keys: [&[f32]; N]) -> [F32x4; N] {
    let (q4, q_rest) = q.as_chunks::<4>();
    let keys = keys.map(|key| key.as_chunks::<4>());
    let k4: [&[[f32; 4]]; N] = from_fn(|n| &keys[n].0[..q4.len()]);
    let mut acc = [F32x4::splat(0.0); N];
    for (i, q) in q4.iter().enumerate() {
        let q = F32x4::load(q);
        for n in 0..N {
            acc[n] = acc[n].add(q.mul(F32x4::load(&k4[n][i])));
        }
    }
    if !q_rest.is_empty() {
        let q = F32x4::load_partial(q_rest);
        for n in 0..N {
            acc[n] = acc[n].add(q.mul(F32x4::load_partial(keys[n].1)));
        }
    }
    acc
}

/// Scores become `exp(score - max)`, zero out of reach. Gives the maximum and the sum.
fn soften(scores: &mut [f32; SEGMENT], reach: &Range<usize>) -> (f32, f32) {
    let fours = scores.as_chunks_mut::<4>().0;
    let max = fours.iter().fold(F32x4::splat(f32::NEG_INFINITY), |max, four| F32x4::load(four).max(max)).max_lane();
    let mut sum = F32x4::splat(0.0);
    for four in fours.iter_mut() {
        let weight = exp(F32x4::load(four).sub(F32x4::splat(max)));
        weight.store(four);
    }
    scores[..reach.start].fill(0.0);
    scores[reach.end..].fill(0.0);
    for four in scores.as_chunks::<4>().0 {
        sum = sum.add(F32x4::load(four));
    }
    (max, sum.sum())
}

/// `mixed = sum over positions of weight * v`, in ascending order.
fn mix(
    weights: &[f32; SEGMENT],
    kv: &[f32],
    head: usize,
    segment: &Segment,
    reach: &Range<usize>,
    d: usize,
    mixed: &mut [[f32; 4]],
) {
    const AT_ONCE: usize = 4;
    let places = &segment.v[reach.clone()];
    let weights = &weights[reach.clone()];
    let whole = d / (4 * AT_ONCE) * AT_ONCE;
    let (runs, rest) = mixed.split_at_mut(whole);
    let mut column = head;
    for run in runs.as_chunks_mut::<AT_ONCE>().0 {
        let mut acc = [F32x4::splat(0.0); AT_ONCE];
        for (&weight, &place) in weights.iter().zip(places) {
            let weight = F32x4::splat(weight);
            let v = kv[place + column..][..4 * AT_ONCE].as_chunks::<4>().0;
            for (acc, v) in acc.iter_mut().zip(v) {
                *acc = acc.add(weight.mul(F32x4::load(v)));
            }
        }
        for (acc, mixed) in acc.into_iter().zip(run) {
            acc.store(mixed);
        }
        column += 4 * AT_ONCE;
    }
    for mixed in rest {
        let width = (head + d - column).min(4);
        let mut acc = F32x4::splat(0.0);
        for (&weight, &place) in weights.iter().zip(places) {
            acc = acc.add(F32x4::splat(weight).mul(F32x4::load_partial(&kv[place + column..][..width])));
        }
        acc.store(mixed);
        column += width;
    }
}

impl Running {
    /// Takes the next segment in.
    fn fold(&mut self, max: f32, sum: f32, mixed: &[[f32; 4]], first: bool) {
        if first {
            (self.max, self.sum) = (max, sum);
            self.mixed.copy_from_slice(mixed);
            return;
        }
        let top = if self.max < max { max } else { self.max };
        let (old, new) = (exp_one(self.max - top), exp_one(max - top));
        (self.max, self.sum) = (top, self.sum * old + sum * new);
        let (old, new) = (F32x4::splat(old), F32x4::splat(new));
        for (mine, fresh) in self.mixed.iter_mut().zip(mixed) {
            F32x4::load(mine).mul(old).add(F32x4::load(fresh).mul(new)).store(mine);
        }
    }
}
