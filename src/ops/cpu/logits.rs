//! The end of a forward: adjustments, the best of each chunk of the vocabulary, the greedy fold.
use super::exp::{exp, exp_one};
use super::simd::F32x4;
use crate::ops::logits::{AdjustProblem, CHUNK, CHUNK_BEST, CHUNK_WORDS, CandidatesProblem, ENTRY_WORDS};

/// `adjust_logits` of the trait on slices. Entries outside of the logits are skipped.
pub fn adjust(logits: &mut [f32], entries: &[u32], p: &AdjustProblem) {
    for &[row, token, factor, addend] in entries.as_chunks::<ENTRY_WORDS>().0.iter().take(p.num_entries) {
        if let Some(logit) = logits.get_mut(row as usize * p.vocab + token as usize) {
            let (factor, addend) = (f32::from_bits(factor), f32::from_bits(addend));
            *logit = (if *logit > 0.0 { *logit / factor } else { *logit * factor }) + addend;
        }
    }
}

/// `candidates` of the trait on slices: `[R][chunks][CHUNK_WORDS]`.
pub fn candidates(logits: &[f32], temperatures: &[f32], p: &CandidatesProblem) -> Vec<u32> {
    let mut out = vec![0; p.rows * p.num_chunks() * CHUNK_WORDS];
    let mut records = out.as_chunks_mut::<CHUNK_WORDS>().0.iter_mut();
    for (row, &temperature) in logits.chunks_exact(p.vocab.max(1)).take(p.rows).zip(temperatures) {
        let temperature = if temperature > 0.0 { temperature } else { 1.0 };
        for ((c, chunk), record) in row.chunks(CHUNK).enumerate().zip(&mut records) {
            let max = chunk.iter().fold(f32::NEG_INFINITY, |max, &l| if max < l { l } else { max });
            let sum = sum_of_exps(chunk, max, 1.0);
            let (max_t, sum_t) =
                if temperature == 1.0 { (max, sum) } else { (max / temperature, sum_of_exps(chunk, max, temperature)) };
            let (head, best) = record.split_at_mut(4);
            head.copy_from_slice(&[max, sum, max_t, sum_t].map(f32::to_bits));
            best_of(chunk, (c * CHUNK) as u32, best);
        }
    }
    out
}

/// Sum of `exp((l - max) / temperature)`; NaN when a logit is NaN, 0 when every logit is masked.
fn sum_of_exps(chunk: &[f32], max: f32, temperature: f32) -> f32 {
    let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let (max, temperature) = (F32x4::splat(max), F32x4::splat(temperature));
    let (fours, rest) = chunk.as_chunks::<4>();
    let mut sum = F32x4::splat(0.0);
    for four in fours {
        sum = sum.add(exp(F32x4::load(four).sub(max).div(temperature)));
    }
    if !rest.is_empty() {
        let mut last = [f32::NEG_INFINITY; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum = sum.add(exp(F32x4::load(&last).sub(max).div(temperature)));
    }
    sum.sum()
}

/// An integer that orders as `f32::total_cmp` does.
fn order(logit: f32) -> i32 {
    let bits = logit.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// The best entries of a chunk as (token, logit) words: logits descending, then tokens ascending.
fn best_of(chunk: &[f32], first_token: u32, out: &mut [u32]) {
    // Missing entries lose to everything, the lowest NaN included, because they come last among equals.
    let mut best = [(i32::MIN, u32::MAX, f32::NEG_INFINITY); CHUNK_BEST];
    let mut filled = 0;
    for (token, &logit) in (first_token..).zip(chunk) {
        let key = order(logit);
        if filled == CHUNK_BEST && key <= best[CHUNK_BEST - 1].0 {
            continue;
        }
        // Tokens come in ascending order, so an equal key goes behind.
        let at = best[..filled].iter().position(|entry| entry.0 < key).unwrap_or(filled);
        filled = (filled + 1).min(CHUNK_BEST);
        best.copy_within(at..filled - 1, at + 1);
        best[at] = (key, token, logit);
    }
    for (pair, (_, token, logit)) in out.as_chunks_mut::<2>().0.iter_mut().zip(best) {
        *pair = [token, logit.to_bits()];
    }
}

/// `greedy` of the trait on slices: `[R, 4]` words.
pub fn greedy(candidates: &[u32], p: &CandidatesProblem) -> Vec<u32> {
    let mut out = Vec::with_capacity(p.rows * 4);
    for row in candidates.as_chunks::<CHUNK_WORDS>().0.chunks_exact(p.num_chunks().max(1)).take(p.rows) {
        let (mut token, mut best) = (u32::MAX, f32::NEG_INFINITY);
        for chunk in row {
            let logit = f32::from_bits(chunk[5]);
            if logit > best {
                (token, best) = (chunk[4], logit);
            }
        }
        let terms = row.iter().map(|chunk| f32::from_bits(chunk[1]) * exp_one(f32::from_bits(chunk[0]) - best));
        let sum: f32 = terms.sum();
        out.extend([token, best.to_bits(), best.to_bits(), sum.to_bits()]);
    }
    out
}
