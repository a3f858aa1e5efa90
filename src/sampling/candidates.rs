//! What a device keeps of a row of logits: for each chunk of the vocabulary its sums and its best tokens. Checked here once;
//! deciding with it is `sample.rs`'s.
use crate::ids::TokenId;
use crate::{Error, Result};

use super::rank::{Entry, best_first};

/// How a row is cut into chunks. The values are the candidates op's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// V.
    pub vocab: usize,
    /// Logits in one chunk; the last may be short.
    pub chunk: usize,
    /// Best tokens kept a chunk.
    pub best: usize,
}

impl Layout {
    /// Chunks a row.
    pub fn num_chunks(&self) -> usize {
        self.vocab.div_ceil(self.chunk.max(1))
    }

    /// Words of one chunk's record: max, sum of exp(l - max), max / temperature, sum of exp((l - max) / temperature), then
    /// (token, logit) pairs ordered by logit descending, token ascending, filled up with (`u32::MAX`, -inf).
    pub fn chunk_words(&self) -> usize {
        4 + 2 * self.best
    }

    /// Logits in chunk `c`.
    pub(super) fn chunk_len(&self, c: usize) -> usize {
        self.vocab.saturating_sub(c.saturating_mul(self.chunk)).min(self.chunk)
    }
}

/// One chunk's record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChunkRecord {
    pub max: f32,
    /// Sum of exp(l - max).
    pub sum: f32,
    /// Sum of exp((l - max) / temperature).
    pub sum_at_temperature: f32,
    /// The best tokens, in order.
    pub best: Vec<Entry>,
}

/// The checked records of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateRow {
    pub(super) layout: Layout,
    pub(super) chunks: Vec<ChunkRecord>,
    /// The largest logit.
    pub(super) max: f32,
}

impl CandidateRow {
    /// Reads the words of one row (`num_chunks * chunk_words`). Records that no row could give are `sampling.bad_row`, NaN
    /// and infinities `model.non_finite`; `masked` says that a grammar mask was applied, so that -inf is no error. A single
    /// -inf among a chunk's lesser logits leaves no trace in its record and is not seen.
    pub fn parse(words: &[u32], layout: Layout, masked: bool) -> Result<Self> {
        let expected = layout.num_chunks().saturating_mul(layout.chunk_words());
        if words.len() != expected || layout.vocab == 0 || layout.chunk == 0 || layout.best == 0 {
            return Err(bad_row("the records have the wrong size").with("expected", expected).with("got", words.len()));
        }
        let chunks = words
            .chunks_exact(layout.chunk_words())
            .enumerate()
            .map(|(c, record)| parse_chunk(record, c, &layout, masked))
            .collect::<Result<Vec<_>>>()?;
        let max = chunks.iter().map(|c| c.max).fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return Err(nothing_allowed());
        }
        Ok(Self { layout, chunks, max })
    }
}

/// What a chunk's record shows.
pub(super) struct Known<'a> {
    /// The chunk's best tokens, in order, without a gap.
    pub best: &'a [Entry],
    /// Ranks before or at every token of the chunk that is not shown; `None` when none of any weight is left.
    pub frontier: Option<Entry>,
}

impl CandidateRow {
    /// What chunk `c` shows. Devices differ in whether 0 ranks before -0, here they are equal: a record that ends among
    /// zeros may have left out any of them, so it shows none.
    pub(super) fn known(&self, c: usize) -> Known<'_> {
        let best = self.chunks.get(c).map_or(&[][..], |chunk| &chunk.best);
        match best.last() {
            // What ranks after a masked token is masked too.
            Some(last) if best.len() < self.layout.chunk_len(c) && last.logit > f32::NEG_INFINITY => {
                if last.logit == 0.0 {
                    let first = Entry { token: (c * self.layout.chunk) as u32, logit: 0.0 };
                    Known { best: &best[..best.partition_point(|e| e.logit > 0.0)], frontier: Some(first) }
                } else {
                    Known { best, frontier: Some(*last) }
                }
            }
            _ => Known { best, frontier: None },
        }
    }
}

fn parse_chunk(record: &[u32], c: usize, layout: &Layout, masked: bool) -> Result<ChunkRecord> {
    let [max, sum, _, sum_at_temperature] = [0, 1, 2, 3].map(|i| f32::from_bits(record[i]));
    let num_best = layout.best.min(layout.chunk_len(c));
    let mut best: Vec<Entry> = record[4..]
        .chunks_exact(2)
        .take(num_best)
        .map(|e| Entry { token: e[0], logit: f32::from_bits(e[1]) })
        .collect();
    for entry in &best {
        if entry.logit.is_nan() || entry.logit == f32::INFINITY || entry.logit == f32::NEG_INFINITY && !masked {
            return Err(non_finite(TokenId(entry.token)));
        }
    }
    if masked && max == f32::NEG_INFINITY {
        // No token of the chunk is allowed; its sums are of exp(-inf + inf) and mean nothing.
        return Ok(ChunkRecord { max, sum: 0.0, sum_at_temperature: 0.0, best: Vec::new() });
    }
    if !(max.is_finite() && sum.is_finite() && sum_at_temperature.is_finite()) {
        return Err(non_finite(TokenId((c * layout.chunk) as u32)));
    }
    let (first, len) = (c * layout.chunk, layout.chunk_len(c));
    let inside = best.iter().all(|e| (first..first + len).contains(&(e.token as usize)));
    let ordered = best.windows(2).all(|pair| pair[0].logit >= pair[1].logit);
    best.sort_unstable_by(best_first);
    let distinct = best.windows(2).all(|pair| best_first(&pair[0], &pair[1]).is_lt());
    let headed = best.first().is_some_and(|e| e.logit == max);
    // The largest logit alone contributes exp(0).
    if !(inside && ordered && distinct && headed && sum > 0.5 && sum_at_temperature > 0.5) {
        return Err(bad_row("a chunk's record contradicts itself").with("chunk", c));
    }
    Ok(ChunkRecord { max, sum, sum_at_temperature, best })
}

pub(super) fn bad_row(message: &str) -> Error {
    Error::new("sampling.bad_row", message)
}

pub(super) fn nothing_allowed() -> Error {
    Error::new("sampling.nothing_allowed", "the grammar allows no token here")
}

/// `token` is the first that is not finite, or the first of the chunk that holds it.
pub(super) fn non_finite(token: TokenId) -> Error {
    Error::new("model.non_finite", "the model's logits hold NaN or infinity").with("token", token.0)
}
