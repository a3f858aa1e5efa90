//! Log-probabilities: the natural-log softmax of unmodified logits, accumulated in f64. Which tokens are reported is the
//! caller's.
use crate::ids::TokenId;
use crate::{Error, Result};

use super::candidates::{CandidateRow, bad_row, non_finite};
use super::rank::{Rank, Ranked};

/// A token with its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural log.
    pub logprob: f64,
}

/// The log of a softmax's denominator, kept apart as a maximum and what is above it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormalizer {
    max: f64,
    log_sum: f64,
}

impl LogNormalizer {
    /// Of a whole row. NaN or infinity in it is `model.non_finite`.
    pub fn of_row(row: &[f32]) -> Result<Self> {
        let max = f64::from(finite_max(row)?);
        let sum: f64 = row.iter().map(|&l| libm::exp(f64::from(l) - max)).sum();
        Ok(Self { max, log_sum: libm::log(sum) })
    }

    /// From the maximum and the sum of exp(l - maximum).
    pub(super) fn of_parts(max: f32, sum: f64) -> Self {
        Self { max: f64::from(max), log_sum: libm::log(sum) }
    }

    /// From a row's records.
    pub(super) fn of_candidates(row: &CandidateRow) -> Self {
        let max = f64::from(row.max);
        let sum = row.chunks.iter().map(|c| f64::from(c.sum) * libm::exp(f64::from(c.max) - max)).sum();
        Self::of_parts(row.max, sum)
    }

    /// The log-probability of a token with this logit.
    pub fn logprob(&self, logit: f32) -> f64 {
        (f64::from(logit) - self.max) - self.log_sum
    }
}

/// The log-probability of `token` in a row of logits.
pub fn logprob_of(row: &[f32], token: TokenId) -> Result<f64> {
    let outside =
        || -> Error { bad_row("the token is outside the row").with("token", token.0).with("expected", row.len()) };
    let logit = *row.get(token.0 as usize).ok_or_else(outside)?;
    Ok(LogNormalizer::of_row(row)?.logprob(logit))
}

/// The `n` likeliest tokens of a row, best first, the lowest token first where equal.
pub fn top_logprobs(row: &[f32], n: usize) -> Result<Vec<TokenLogprob>> {
    let normalizer = LogNormalizer::of_row(row)?;
    let mut ranked = Ranked::of_row(row, finite_max(row)?, 1.0);
    // A finite whole row has no unknown ranks.
    Ok(top_of(&mut ranked, &normalizer, n).unwrap_or_default())
}

/// The first `n` of a ranking; `None` when it is not known that far.
pub(super) fn top_of(ranked: &mut Ranked, normalizer: &LogNormalizer, n: usize) -> Option<Vec<TokenLogprob>> {
    let mut top = Vec::new();
    for i in 0..n {
        match ranked.at(i) {
            Rank::Token(e, _) => {
                top.push(TokenLogprob { token: TokenId(e.token), logprob: normalizer.logprob(e.logit) })
            }
            Rank::End => break,
            Rank::Unknown => return None,
        }
    }
    Some(top)
}

/// The largest logit of a row without NaN or infinity.
pub(super) fn finite_max(row: &[f32]) -> Result<f32> {
    if let Some(i) = row.iter().position(|l| !l.is_finite()) {
        return Err(non_finite(TokenId(i as u32)));
    }
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if row.is_empty() { Err(bad_row("the row is empty")) } else { Ok(max) }
}
