//! The tokens of a row from best to worst, sorted only as far as somebody looks, and only as far as they are known.
use std::cmp::Ordering;

use super::candidates::CandidateRow;

/// A token and its processed logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub token: u32,
    pub logit: f32,
}

/// Logit descending, then token ascending. -0 and 0 are one logit, as they are for every device.
pub(super) fn best_first(a: &Entry, b: &Entry) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// `exp((logit - max) / temperature)`: where the temperature is applied. -inf weighs 0.
pub(super) fn weight(logit: f32, max: f32, temperature: f32) -> f64 {
    libm::exp((f64::from(logit) - f64::from(max)) / f64::from(temperature))
}

/// What stands at a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rank {
    Token(Entry, f64),
    /// No (allowed) token is left.
    End,
    /// The view is truncated: some token stands here that it cannot name.
    Unknown,
}

/// A row's ranking. Logits are not NaN.
pub(super) struct Ranked {
    entries: Vec<Entry>,
    /// Entries before this are in their final order.
    sorted: usize,
    /// Entries before this stand in the whole row's order.
    proven: usize,
    /// No token from `proven` on has a larger logit; `None` when the view is complete.
    frontier: Option<f32>,
    max: f32,
    temperature: f32,
    /// Of the first entries, as far as asked for.
    weights: Vec<f64>,
}

impl Ranked {
    /// Of a whole row, whose largest logit is `max`. `temperature` must not be 0.
    pub fn of_row(row: &[f32], max: f32, temperature: f32) -> Self {
        let entries: Vec<Entry> = row.iter().zip(0..).map(|(&logit, token)| Entry { token, logit }).collect();
        Self { sorted: 0, proven: entries.len(), entries, frontier: None, max, temperature, weights: Vec::new() }
    }

    /// Of a row's records. A token that a chunk left out ranks after the last one it kept, so the order is proven down to
    /// the best of those last ones.
    pub fn of_candidates(row: &CandidateRow, temperature: f32) -> Self {
        let mut entries: Vec<Entry> = (0..row.chunks.len()).flat_map(|c| row.known(c).best).copied().collect();
        entries.sort_unstable_by(best_first);
        let frontier = (0..row.chunks.len()).filter_map(|c| row.known(c).frontier).min_by(best_first);
        let proven = frontier.map_or(entries.len(), |f| entries.partition_point(|e| best_first(e, &f).is_le()));
        let frontier = frontier.map(|f| f.logit);
        Self { sorted: entries.len(), proven, entries, frontier, max: row.max, temperature, weights: Vec::new() }
    }

    /// Of tokens chosen from `other`, in its order.
    pub fn of_chosen(other: &Self, mut entries: Vec<Entry>) -> Self {
        entries.sort_unstable_by(best_first);
        let len = entries.len();
        Self { entries, sorted: len, proven: len, frontier: None, weights: Vec::new(), ..*other }
    }

    /// What stands at rank `i` (0 is the best).
    pub fn at(&mut self, i: usize) -> Rank {
        if i >= self.proven {
            return if self.frontier.is_none() { Rank::End } else { Rank::Unknown };
        }
        while i >= self.sorted {
            self.sort_more();
        }
        let entry = self.entries[i];
        if entry.logit == f32::NEG_INFINITY {
            return Rank::End;
        }
        while self.weights.len() <= i {
            self.weights.push(weight(self.entries[self.weights.len()].logit, self.max, self.temperature));
        }
        Rank::Token(entry, self.weights[i])
    }

    /// No token of unknown rank weighs more than this.
    pub fn frontier_weight(&self) -> f64 {
        self.frontier.map_or(0.0, |logit| weight(logit, self.max, self.temperature))
    }

    // Growing fourfold keeps the work linear in the row while the looked-at part is small.
    fn sort_more(&mut self) {
        let tail = &mut self.entries[self.sorted..];
        let count = (self.sorted * 3).max(64).min(tail.len());
        if count < tail.len() {
            tail.select_nth_unstable_by(count, best_first);
        }
        tail[..count].sort_unstable_by(best_first);
        self.sorted += count;
    }
}
