//! The end of a forward: penalties and bias on logits, the best candidates of each vocabulary chunk, the greedy fold.
//!
//! What leaves the device is small: one record a row when greedy, `num_chunks * CHUNK_WORDS` words a row otherwise.

/// Logits in one chunk.
pub const CHUNK: usize = 256;
/// Best entries kept a chunk.
pub const CHUNK_BEST: usize = 8;
/// Words of one chunk's record: max, sum of exp(l - max), max at temperature, sum at temperature, then (token, logit) pairs.
pub const CHUNK_WORDS: usize = 4 + 2 * CHUNK_BEST;
/// Words of one entry of `adjust_logits`: row, token, factor bits, addend bits.
pub const ENTRY_WORDS: usize = 4;

/// Entries of `adjust_logits`: `l = (l > 0 ? l / factor : l * factor) + addend`. No (row, token) twice.
#[derive(Debug, Clone, Copy)]
pub struct AdjustProblem {
    /// Entries in the tensor.
    pub num_entries: usize,
    /// V.
    pub vocab: usize,
}

/// Scalar reference of `adjust_logits`.
pub fn adjust_reference(logits: &mut [f32], entries: &[u32], p: &AdjustProblem) {
    for e in entries.chunks_exact(ENTRY_WORDS).take(p.num_entries) {
        let l = &mut logits[e[0] as usize * p.vocab + e[1] as usize];
        let (factor, addend) = (f32::from_bits(e[2]), f32::from_bits(e[3]));
        *l = (if *l > 0.0 { *l / factor } else { *l * factor }) + addend;
    }
}

/// Sizes of `candidates` and `greedy`.
#[derive(Debug, Clone, Copy)]
pub struct CandidatesProblem {
    /// R.
    pub rows: usize,
    /// V.
    pub vocab: usize,
}

impl CandidatesProblem {
    /// Chunks a row; the last may be short.
    pub fn num_chunks(&self) -> usize {
        self.vocab.div_ceil(CHUNK)
    }
}

/// Scalar reference of `candidates`. `temperatures` is `[R]`, 0 meaning 1. Entries are ordered by logit descending, then
/// token ascending; missing ones are (u32::MAX, -inf). A NaN in a chunk makes its sums NaN;
/// a chunk that is masked throughout (-inf) has sums of 0.
pub fn candidates_reference(logits: &[f32], temperatures: &[f32], p: &CandidatesProblem) -> Vec<u32> {
    let mut out = Vec::with_capacity(p.rows * p.num_chunks() * CHUNK_WORDS);
    for r in 0..p.rows {
        let row = &logits[r * p.vocab..(r + 1) * p.vocab];
        let temperature = if temperatures[r] > 0.0 { temperatures[r] } else { 1.0 };
        for (c, chunk) in row.chunks(CHUNK).enumerate() {
            let max = chunk.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
            let sum: f32 = chunk.iter().map(|&l| (l - base).exp()).sum();
            let (max_t, sum_t): (f32, f32) =
                (max / temperature, chunk.iter().map(|&l| ((l - base) / temperature).exp()).sum());
            out.extend([max.to_bits(), sum.to_bits(), max_t.to_bits(), sum_t.to_bits()]);
            let mut order: Vec<usize> = (0..chunk.len()).collect();
            order.sort_by(|&a, &b| chunk[b].total_cmp(&chunk[a]).then(a.cmp(&b)));
            for i in 0..CHUNK_BEST {
                let (token, logit) =
                    order.get(i).map_or((u32::MAX, f32::NEG_INFINITY), |&i| ((c * CHUNK + i) as u32, chunk[i]));
                out.extend([token, logit.to_bits()]);
            }
        }
    }
    out
}

/// Scalar reference of `greedy`: (token, its logit, max, sum of exp(l - max)) a row; ties go to the lowest token.
pub fn greedy_reference(candidates: &[u32], p: &CandidatesProblem) -> Vec<u32> {
    let row_words = p.num_chunks() * CHUNK_WORDS;
    let mut out = Vec::with_capacity(p.rows * 4);
    for row in candidates.chunks_exact(row_words).take(p.rows) {
        let (mut token, mut best) = (u32::MAX, f32::NEG_INFINITY);
        for chunk in row.chunks_exact(CHUNK_WORDS) {
            let logit = f32::from_bits(chunk[5]);
            if logit > best {
                (token, best) = (chunk[4], logit);
            }
        }
        let sum: f32 = row
            .chunks_exact(CHUNK_WORDS)
            .map(|chunk| f32::from_bits(chunk[1]) * (f32::from_bits(chunk[0]) - best).exp())
            .sum();
        out.extend([token, best.to_bits(), best.to_bits(), sum.to_bits()]);
    }
    out
}
