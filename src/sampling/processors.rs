//! The processor chain, in the one order that every path follows:
//!
//! 1. repetition penalty (tokens of prompt and output), then presence and frequency penalties (tokens of the output)
//! 2. `logit_bias`
//! 3. grammar mask: what is not allowed becomes -inf
//! 4. temperature
//! 5. top_k, 6. typical_p, 7. top_p, 8. min_p, each over what the one before it kept, renormalized
//!
//! 1 and 2 are one [`Adjustment`] a token, which a device can apply as well; [`adjust`] applies them and 3 to a row. 4 is
//! `rank::weight`. [`keep`] is 5 to 8. Drawing from what is kept is left to `sample.rs`.
use crate::ids::TokenId;
use crate::{Error, Result};

use super::candidates::{bad_row, non_finite};
use super::counts::TokenCounts;
use super::mask::TokenMask;
use super::params::SamplingParams;
use super::rank::{Entry, Rank, Ranked};

/// What penalties and bias do to one token's logit: `l = (l > 0 ? l / factor : l * factor) + addend`, in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjustment {
    /// Whose logit.
    pub token: TokenId,
    /// The repetition penalty, or 1.
    pub factor: f32,
    /// Bias less presence and frequency penalties, rounded once.
    pub addend: f32,
}

impl Adjustment {
    fn apply(&self, l: f32) -> f32 {
        (if l > 0.0 { l / self.factor } else { l * self.factor }) + self.addend
    }
}

/// The adjustments of one row, ascending by token, each token once; those that would change nothing are left out.
pub fn adjustments(params: &SamplingParams, counts: &TokenCounts) -> Vec<Adjustment> {
    let mut out = Vec::new();
    let mut bias = params.logit_bias.iter().copied().peekable();
    let biased = |(token, bias): (TokenId, f32)| Adjustment { token, factor: 1.0, addend: bias };
    if params.counts_tokens() {
        for (token, count) in counts.iter() {
            while let Some(entry) = bias.next_if(|&(t, _)| t < token) {
                out.push(biased(entry));
            }
            let own = bias.next_if(|&(t, _)| t == token).map_or(0.0, |(_, b)| f64::from(b));
            let presence = if count > 0 { params.presence_penalty } else { 0.0 };
            let addend = (own - presence - params.frequency_penalty * f64::from(count)) as f32;
            out.push(Adjustment { token, factor: params.repetition_penalty, addend });
        }
    }
    out.extend(bias.map(biased));
    out.retain(|a| a.factor != 1.0 || a.addend != 0.0);
    out
}

/// Steps 1 to 3 on a row, in place. The row must be finite; one that an adjustment makes infinite is refused.
pub(super) fn adjust(row: &mut [f32], adjustments: &[Adjustment], mask: Option<&TokenMask>) -> Result<()> {
    for adjustment in adjustments {
        let token = adjustment.token;
        let outside = || -> Error { bad_row("an adjusted token is outside the row").with("token", token.0) };
        let l = row.get_mut(token.0 as usize).ok_or_else(outside)?;
        *l = adjustment.apply(*l);
        if !l.is_finite() {
            return Err(non_finite(token));
        }
    }
    if let Some(mask) = mask {
        if mask.vocab() != row.len() {
            return Err(bad_row("the mask has the wrong size").with("expected", row.len()).with("got", mask.vocab()));
        }
        for (l, token) in row.iter_mut().zip(0..) {
            if !mask.allows(TokenId(token)) {
                *l = f32::NEG_INFINITY;
            }
        }
    }
    Ok(())
}

/// How far a device's sums may be from the true ones, relatively. f32 sums of a few hundred terms and WGSL's loose `exp`
/// stay a hundred times closer.
const SUM_SLACK: f64 = 1e-3;
/// Covers the rounding of a few hundred thousand f64 additions.
const ROUNDING_SLACK: f64 = 1e-9;

/// Bounds of the weight that the truncations keep: equal when the view shows all that matters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mass {
    pub low: f64,
    pub high: f64,
}

impl Mass {
    fn exactly(x: f64) -> Self {
        Self { low: x, high: x }
    }
}

/// What steps 5 to 8 keep: always the best ones of `ranked`, weighing `mass` together.
pub(super) struct Kept {
    pub ranked: Ranked,
    pub mass: Mass,
}

/// Steps 5 to 8. `whole` gives the weight of all tokens and is asked only when it matters. `None`: the view shows too little.
pub(super) fn keep(mut ranked: Ranked, params: &SamplingParams, whole: &dyn Fn() -> f64) -> Option<Kept> {
    let limit = params.top_k.map_or(usize::MAX, |k| k as usize);
    if params.typical_p < 1.0 {
        let mut typical = keep_typical(&mut ranked, limit, params.typical_p)?;
        let total = Walk { limit: usize::MAX, floor: 0.0, target: f64::INFINITY }.mass(&mut typical, whole);
        let mass = keep_likely(&mut typical, usize::MAX, params, &|| total.low);
        return Some(Kept { ranked: typical, mass });
    }
    let mass = keep_likely(&mut ranked, limit, params, whole);
    Some(Kept { ranked, mass })
}

/// Top-p and min-p over the best `limit`. Both keep a prefix of the ranking, so the shorter one is what both keep.
fn keep_likely(ranked: &mut Ranked, limit: usize, params: &SamplingParams, whole: &dyn Fn() -> f64) -> Mass {
    let floor = match ranked.at(0) {
        Rank::Token(_, best) => params.min_p * best,
        _ => 0.0,
    };
    if params.top_p >= 1.0 {
        return Walk { limit, floor, target: f64::INFINITY }.mass(ranked, whole);
    }
    let total = if limit == usize::MAX {
        Mass::exactly(whole())
    } else {
        Walk { limit, floor: 0.0, target: f64::INFINITY }.mass(ranked, whole)
    };
    let mut up_to = |total: f64| Walk { limit, floor, target: params.top_p * total }.mass(ranked, whole);
    let low = up_to(total.low);
    if total.low == total.high { low } else { Mass { low: low.low, high: up_to(total.high).high } }
}

/// A walk down the ranking that ends after `limit` tokens, before a token lighter than `floor` (never the first), or after
/// the token with which the weight reaches `target`.
struct Walk {
    limit: usize,
    floor: f64,
    target: f64,
}

impl Walk {
    /// The weight of the tokens passed.
    fn mass(&self, ranked: &mut Ranked, whole: &dyn Fn() -> f64) -> Mass {
        let mut sum = 0.0;
        for i in 0..self.limit {
            match ranked.at(i) {
                Rank::End => break,
                Rank::Unknown => return self.bounds(ranked, i, sum, whole()),
                Rank::Token(_, w) if i > 0 && w < self.floor => break,
                Rank::Token(_, w) => sum += w,
            }
            if sum >= self.target {
                break;
            }
        }
        Mass::exactly(sum)
    }

    /// What the weight can be when the walk is at `sum` after `i` tokens and cannot see on: at least what it has (all but
    /// the sums' error of the target, where nothing else can end it), at most what its ends and the rest of the row allow.
    fn bounds(&self, ranked: &Ranked, i: usize, sum: f64, whole: f64) -> Mass {
        let next = ranked.frontier_weight();
        let only_target = self.target.is_finite() && self.floor == 0.0 && self.limit == usize::MAX;
        let low = if only_target { sum.max(self.target * (1.0 - SUM_SLACK)) } else { sum };
        let by_limit = sum + (self.limit - i) as f64 * next;
        let by_target = self.target + next;
        let by_whole = whole * (1.0 + SUM_SLACK);
        let high = by_limit.min(by_target).min(by_whole) * (1.0 + ROUNDING_SLACK);
        Mass { low, high: high.max(low) }
    }
}

/// Locally typical sampling (Meister, Pimentel, Wiher and Cotterell, 2023) over the best `limit`: keeps the tokens whose
/// surprisal is nearest the entropy, the better one first where equally near, until they weigh `share` of all.
fn keep_typical(ranked: &mut Ranked, limit: usize, share: f64) -> Option<Ranked> {
    let mut tokens: Vec<(Entry, f64)> = Vec::new();
    for i in 0..limit {
        match ranked.at(i) {
            Rank::Token(entry, w) => tokens.push((entry, w)),
            Rank::End => break,
            Rank::Unknown => return None,
        }
    }
    let total: f64 = tokens.iter().map(|t| t.1).sum();
    let log_total = libm::log(total);
    // A weight that underflows to 0 has no finite surprisal here, and no entropy is near 700 nats: it goes last.
    let surprisal = |w: f64| log_total - libm::log(w);
    let entropy: f64 = tokens.iter().filter(|t| t.1 > 0.0).map(|t| t.1 / total * surprisal(t.1)).sum();
    let distance = |w: f64| (surprisal(w) - entropy).abs();
    let mut order: Vec<(Entry, f64, f64)> = tokens.iter().map(|&(e, w)| (e, w, distance(w))).collect();
    order.sort_by(|a, b| a.2.total_cmp(&b.2));
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for (entry, w, _) in order {
        kept.push(entry);
        sum += w;
        if sum >= share * total {
            break;
        }
    }
    Some(Ranked::of_chosen(ranked, kept))
}
