//! Penalties, the best candidates of each vocabulary chunk, and the greedy fold.
//!
//! Order and NaN are decided on bits: a float's total order as unsigned integers, which no compiler may assume away.
use burn::backend::DType;
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::launch::{self, launch};
use super::math::{LOWEST, exp_nonpositive, is_nan_bits};
use crate::ops::logits::{AdjustProblem, CHUNK, CHUNK_BEST, CHUNK_WORDS, CandidatesProblem, ENTRY_WORDS};

const BEST: u32 = CHUNK_BEST as u32;
const RECORD: u32 = CHUNK_WORDS as u32;
const NAN_BITS: u32 = 0x7fc0_0000;
const NEGATIVE_INFINITY_BITS: u32 = 0xff80_0000;

#[cube(launch_unchecked)]
fn adjust_entries(logits: &mut [f32], entries: &[u32], num: u32, vocab: u32) {
    let i = ABSOLUTE_POS as u32;
    if i < num {
        let e = (i * comptime!(ENTRY_WORDS as u32)) as usize;
        let at = (entries[e] * vocab + entries[e + 1]) as usize;
        let (factor, addend) = (f32::reinterpret(entries[e + 2]), f32::reinterpret(entries[e + 3]));
        let l = logits[at];
        logits[at] = select(l > 0.0f32, l / factor, l * factor) + addend;
    }
}

/// Bits of a float as an unsigned integer in the same (total) order.
#[cube]
fn order(bits: u32) -> u32 {
    select(bits >> 31u32 == 1u32, !bits, bits | 0x8000_0000u32)
}

/// The bits that `order` came from.
#[cube]
fn unorder(key: u32) -> u32 {
    select(key >> 31u32 == 1u32, key & 0x7fff_ffffu32, !key)
}

/// One invocation a chunk.
#[cube(launch_unchecked)]
fn chunk_candidates(logits: &[f32], temperatures: &[f32], out: &mut [u32], rows: u32, vocab: u32, chunks: u32) {
    let i = ABSOLUTE_POS as u32;
    let (r, c) = (i / chunks, i % chunks);
    if r < rows {
        let first = c * comptime!(CHUNK as u32);
        let len = min(vocab - first, comptime!(CHUNK as u32));
        let from = r * vocab + first;
        // A key of 0 would be a negative NaN with all bits set; as an empty place it gives way to everything.
        let mut keys = Array::<u32>::new(BEST as usize);
        let mut tokens = Array::<u32>::new(BEST as usize);
        #[unroll]
        for b in 0..BEST {
            keys[b as usize] = 0u32;
            tokens[b as usize] = 0xffff_ffffu32;
        }
        let mut peak = LOWEST.runtime();
        let mut bad = 0u32;
        let mut seen = 0u32;
        for j in 0..len {
            let value = logits[(from + j) as usize];
            let bits = u32::reinterpret(value);
            let infinite = (bits & 0x7fff_ffffu32) >= 0x7f80_0000u32;
            if infinite {
                // Minus infinity is a masked token; anything else spoils the sums.
                if bits != NEGATIVE_INFINITY_BITS {
                    bad = 1u32;
                }
            } else {
                peak = max(peak, value);
                seen = 1u32;
            }
            let mut key = order(bits);
            if key > keys[comptime!(BEST as usize - 1)] {
                let mut token = first + j;
                // The first place that is lower takes it, and all that follow move on by one, equal ones too: lower tokens
                // came first and stay first.
                let mut moving = 0u32;
                #[unroll]
                for b in 0..BEST {
                    let b = b as usize;
                    if moving == 1u32 || key > keys[b] {
                        moving = 1u32;
                        let (old_key, old_token) = (keys[b], tokens[b]);
                        keys[b] = key;
                        tokens[b] = token;
                        key = old_key;
                        token = old_token;
                    }
                }
            }
        }
        let given = temperatures[r as usize];
        let temperature = select(given > 0.0f32, given, 1.0f32);
        let mut sum = 0.0f32;
        let mut sum_t = 0.0f32;
        for j in 0..len {
            let value = logits[(from + j) as usize];
            if (u32::reinterpret(value) & 0x7fff_ffffu32) < 0x7f80_0000u32 {
                sum += exp_nonpositive(value - peak);
                sum_t += exp_nonpositive((value - peak) / temperature);
            }
        }
        let at = i * RECORD;
        let peak_bits = select(seen == 1u32, u32::reinterpret(peak), NEGATIVE_INFINITY_BITS);
        let peak_t_bits = select(seen == 1u32, u32::reinterpret(peak / temperature), NEGATIVE_INFINITY_BITS);
        out[at as usize] = peak_bits;
        out[(at + 1u32) as usize] = select(bad == 1u32, NAN_BITS, u32::reinterpret(sum));
        out[(at + 2u32) as usize] = peak_t_bits;
        out[(at + 3u32) as usize] = select(bad == 1u32, NAN_BITS, u32::reinterpret(sum_t));
        #[unroll]
        for b in 0..BEST {
            let to = at + comptime!(4 + 2 * b);
            let empty = tokens[b as usize] == 0xffff_ffffu32;
            out[to as usize] = tokens[b as usize];
            out[(to + 1u32) as usize] = select(empty, NEGATIVE_INFINITY_BITS, unorder(keys[b as usize]));
        }
    }
}

/// Lanes that share a row's chunks in `greedy`.
const LANES: u32 = 32;

/// What the best logits are compared by: their order, with -0 equal to 0 and NaN below all.
#[cube]
fn rank(bits: u32) -> u32 {
    let usual = order(select(bits == 0x8000_0000u32, 0u32, bits));
    select(is_nan_bits(bits), 0u32, usual)
}

/// One workgroup a row; each lane folds every 32nd chunk, then all lanes fold the lanes.
#[cube(launch_unchecked)]
fn greedy_rows(candidates: &[u32], out: &mut [u32], rows: u32, chunks: u32) {
    let mut tokens = Shared::<[u32]>::new_slice(LANES as usize);
    let mut bests = Shared::<[u32]>::new_slice(LANES as usize);
    let mut sums = Shared::<[f32]>::new_slice(LANES as usize);
    let mut spoilt = Shared::<[u32]>::new_slice(LANES as usize);
    let r = min(CUBE_POS as u32, rows - 1u32);
    let from = r * chunks * RECORD;
    let mut token = 0xffff_ffffu32;
    let mut best = NEGATIVE_INFINITY_BITS.runtime();
    let mut c = UNIT_POS_X;
    while c < chunks {
        let at = (from + c * RECORD) as usize;
        let bits = candidates[at + 5];
        if rank(bits) > rank(best) {
            token = candidates[at + 4];
            best = bits;
        }
        c += LANES;
    }
    tokens[UNIT_POS_X as usize] = token;
    bests[UNIT_POS_X as usize] = best;
    sync_cube();
    for lane in 0..LANES {
        let (other, bits) = (tokens[lane as usize], bests[lane as usize]);
        if rank(bits) > rank(best) || (rank(bits) == rank(best) && other < token) {
            token = other;
            best = bits;
        }
    }
    let mut sum = 0.0f32;
    let mut bad = 0u32;
    let mut c = UNIT_POS_X;
    while c < chunks {
        let at = (from + c * RECORD) as usize;
        if is_nan_bits(candidates[at + 1]) {
            bad = 1u32;
        } else if candidates[at] != NEGATIVE_INFINITY_BITS {
            let gap = f32::reinterpret(candidates[at]) - f32::reinterpret(best);
            sum += f32::reinterpret(candidates[at + 1]) * exp_nonpositive(gap);
        }
        c += LANES;
    }
    sums[UNIT_POS_X as usize] = sum;
    spoilt[UNIT_POS_X as usize] = bad;
    sync_cube();
    if UNIT_POS_X == 0 {
        for lane in 1..LANES {
            sum += sums[lane as usize];
            bad |= spoilt[lane as usize];
        }
        let at = (r * 4u32) as usize;
        out[at] = token;
        out[at + 1] = best;
        out[at + 2] = best;
        out[at + 3] = select(bad == 1u32, NAN_BITS, u32::reinterpret(sum));
    }
}

pub(super) fn adjust_logits(logits: CubeTensor, entries: CubeTensor, p: &AdjustProblem) -> CubeTensor {
    if p.num_entries > 0 {
        let (grid, dim) = (launch::grid(p.num_entries.div_ceil(64)), CubeDim::new_1d(64));
        let (to, entries) = (launch::buffer(&logits, 1), launch::buffer(&entries, 1));
        launch!(adjust_entries, &logits.client, grid, dim, to, entries, p.num_entries as u32, p.vocab as u32);
    }
    logits
}

pub(super) fn candidates(logits: CubeTensor, temperatures: CubeTensor, p: &CandidatesProblem) -> CubeTensor {
    let chunks = p.num_chunks();
    let out = launch::empty(&logits, p.rows * chunks * CHUNK_WORDS, DType::U32);
    if p.rows * chunks > 0 {
        let (grid, dim) = (launch::grid((p.rows * chunks).div_ceil(32)), CubeDim::new_1d(32));
        let (from, temperatures) = (launch::buffer(&logits, 1), launch::buffer(&temperatures, 1));
        let (to, rows, vocab) = (launch::buffer(&out, 1), p.rows as u32, p.vocab as u32);
        launch!(chunk_candidates, &out.client, grid, dim, from, temperatures, to, rows, vocab, chunks as u32);
    }
    out
}

pub(super) fn greedy(candidates: CubeTensor, p: &CandidatesProblem) -> CubeTensor {
    let out = launch::empty(&candidates, p.rows * 4, DType::U32);
    if p.rows > 0 {
        let (grid, dim) = (launch::grid(p.rows), CubeDim::new_1d(LANES));
        let (from, to) = (launch::buffer(&candidates, 1), launch::buffer(&out, 1));
        launch!(greedy_rows, &out.client, grid, dim, from, to, p.rows as u32, p.num_chunks() as u32);
    }
    out
}
