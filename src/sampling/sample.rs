//! One token from one row of logits, whole or truncated. Adjusting and truncating are `processors.rs`'s.
//!
//! The draw `u` is uniform in [0, 1). With a truncation on, the kept tokens stand from best to worst and the first whose
//! running weight exceeds `u * mass` is taken. With none, chunks stand in vocabulary order, each weighing what all its tokens
//! weigh, and from best to worst inside: so a device's record of a chunk decides most draws that fall into it.
use crate::Result;
use crate::ids::TokenId;

use super::candidates::{CandidateRow, Layout, bad_row, non_finite, nothing_allowed};
use super::draw::DrawKey;
use super::logprobs::{LogNormalizer, TokenLogprob, finite_max, top_of};
use super::mask::TokenMask;
use super::params::SamplingParams;
use super::processors::{Adjustment, adjust, keep};
use super::rank::{Entry, Rank, Ranked, best_first, weight};

/// All that a row's token depends on besides its logits.
#[derive(Debug, Clone, Copy)]
pub struct SampleInput<'a> {
    /// The request's parameters.
    pub params: &'a SamplingParams,
    /// Of this sequence at this token (`adjustments`).
    pub adjustments: &'a [Adjustment],
    /// The grammar's, if there is one.
    pub mask: Option<&'a TokenMask>,
    /// Of this token.
    pub key: DrawKey,
    /// How rows are cut.
    pub layout: Layout,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its log-probability under the unmodified logits, if the params ask for logprobs.
    pub logprob: Option<f64>,
    /// As many of the likeliest tokens as the params ask for, best first.
    pub top: Vec<TokenLogprob>,
}

/// What a row's records led to.
#[derive(Debug, Clone, PartialEq)]
pub enum CandidateOutcome {
    /// The token that the whole row would give.
    Sampled(Sampled),
    /// The draw fell on a lesser token of this chunk: read that chunk of the row and call [`resume_chunk`].
    NeedChunk(usize),
    /// The records do not decide: read the row that they were made from and call [`resume_row`].
    NeedRow,
}

/// Samples a row of unmodified logits (`[vocab]`): adjusts, truncates, draws. NaN or infinity is `model.non_finite`.
pub fn sample_row(raw: &[f32], input: &SampleInput) -> Result<Sampled> {
    check_len(raw, &input.layout)?;
    let raw_max = finite_max(raw)?;
    let mut adjusted = Vec::new();
    let row = if input.adjustments.is_empty() && input.mask.is_none() {
        raw
    } else {
        adjusted.extend_from_slice(raw);
        adjust(&mut adjusted, input.adjustments, input.mask)?;
        &adjusted
    };
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(nothing_allowed());
    }
    let temperature = input.params.temperature;
    let chunk_masses =
        || row.chunks(input.layout.chunk).map(|c| c.iter().map(|&l| weight(l, max, temperature)).sum()).collect();
    let token = choose_of_row(row, max, input, &chunk_masses)?;
    let Some(num_top) = input.params.logprobs else {
        return Ok(Sampled { token, logprob: None, top: Vec::new() });
    };
    let normalizer = LogNormalizer::of_row(raw)?;
    let mut ranked = Ranked::of_row(if num_top > 0 { raw } else { &[] }, raw_max, 1.0);
    let top = top_of(&mut ranked, &normalizer, num_top as usize).unwrap_or_default();
    let logprob = raw.get(token.0 as usize).map(|&l| normalizer.logprob(l));
    Ok(Sampled { token, logprob, top })
}

/// Samples from the `greedy` record of an adjusted row: token, its logit, the row's maximum, sum of exp(l - maximum).
pub fn sample_greedy(record: [u32; 4], input: &SampleInput) -> Result<Sampled> {
    let [token, ..] = record;
    let [logit, max, sum] = [record[1], record[2], record[3]].map(f32::from_bits);
    if input.mask.is_some() && token == u32::MAX && max == f32::NEG_INFINITY {
        return Err(nothing_allowed());
    }
    // A mask makes empty chunks, whose sums are NaN; without logprobs nobody reads the sum.
    let sum_matters = input.params.logprobs.is_some() || input.mask.is_none();
    if !logit.is_finite() || sum_matters && !sum.is_finite() {
        return Err(non_finite(TokenId(token)));
    }
    if token as usize >= input.layout.vocab || logit != max || sum_matters && sum < 0.5 {
        return Err(bad_row("the greedy record contradicts itself").with("token", token));
    }
    let logprob = match input.params.logprobs {
        None => None,
        Some(_) => {
            refuse_modified(input)?;
            Some(LogNormalizer::of_parts(max, f64::from(sum)).logprob(logit))
        }
    };
    Ok(Sampled { token: TokenId(token), logprob, top: Vec::new() })
}

/// Samples from the records of an adjusted row, made at the params' temperature. Whatever comes out, the token is the one
/// that [`resume_row`] gives for the same records and their row.
pub fn sample_candidates(records: &CandidateRow, input: &SampleInput) -> Result<CandidateOutcome> {
    check_records(records, input)?;
    let Some(report) = Report::of_candidates(records, input)? else {
        return Ok(CandidateOutcome::NeedRow);
    };
    let params = input.params;
    if params.temperature == 0.0 {
        return Ok(report.outcome(match Ranked::of_candidates(records, 1.0).at(0) {
            Rank::Token(entry, _) => Some(entry),
            _ => None,
        }));
    }
    if params.keeps_all() {
        return Ok(match draw_from_all(records, input, None) {
            Some((c, None)) => CandidateOutcome::NeedChunk(c),
            Some((_, Some(entry))) => report.outcome(Some(entry)),
            None => CandidateOutcome::NeedRow,
        });
    }
    let masses = records_masses(records, params.temperature);
    let ranked = Ranked::of_candidates(records, params.temperature);
    let entry = keep(ranked, params, &|| masses.iter().sum()).and_then(|mut kept| {
        let u = input.key.uniform();
        let low = pick(&mut kept.ranked, u * kept.mass.low)?;
        let high = pick(&mut kept.ranked, u * kept.mass.high)?;
        (low == high).then_some(low)
    });
    Ok(report.outcome(entry))
}

/// Goes on after [`CandidateOutcome::NeedChunk`] with the logits of that chunk of the row.
pub fn resume_chunk(records: &CandidateRow, chunk: usize, logits: &[f32], input: &SampleInput) -> Result<Sampled> {
    check_records(records, input)?;
    let len = records.layout.chunk_len(chunk);
    if logits.len() != len || len == 0 {
        return Err(bad_row("the chunk has the wrong size").with("expected", len).with("got", logits.len()));
    }
    refuse_non_finite(logits, chunk * records.layout.chunk, input.mask.is_some())?;
    let report = Report::of_candidates(records, input)?.ok_or_else(|| bad_row("the records need the whole row"))?;
    match draw_from_all(records, input, Some((chunk, logits))) {
        Some((_, Some(entry))) => Ok(report.sampled(entry)),
        _ => Err(bad_row("the draw is not in this chunk").with("chunk", chunk)),
    }
}

/// Goes on after [`CandidateOutcome::NeedRow`] with the row that the records were made from. The records' sums stay the ones
/// that count, so that truncated and whole view agree to the bit.
pub fn resume_row(records: &CandidateRow, row: &[f32], input: &SampleInput) -> Result<Sampled> {
    check_records(records, input)?;
    check_len(row, &records.layout)?;
    refuse_non_finite(row, 0, input.mask.is_some())?;
    let token = choose_of_row(row, records.max, input, &|| records_masses(records, input.params.temperature))?;
    let Some(num_top) = input.params.logprobs else {
        return Ok(Sampled { token, logprob: None, top: Vec::new() });
    };
    refuse_modified(input)?;
    let normalizer = LogNormalizer::of_candidates(records);
    let top = top_of(&mut Ranked::of_row(row, records.max, 1.0), &normalizer, num_top as usize).unwrap_or_default();
    Ok(Sampled { token, logprob: row.get(token.0 as usize).map(|&l| normalizer.logprob(l)), top })
}

/// The choice over a whole processed row: `max` is its largest logit.
fn choose_of_row(row: &[f32], max: f32, input: &SampleInput, chunk_masses: &dyn Fn() -> Vec<f64>) -> Result<TokenId> {
    let params = input.params;
    if params.temperature == 0.0 {
        let best = row.iter().position(|&l| l == max).ok_or_else(|| bad_row("the row and its records differ"))?;
        return Ok(TokenId(best as u32));
    }
    let u = input.key.uniform();
    let entry = if params.keeps_all() {
        find_chunk(&chunk_masses(), u).and_then(|(c, rest)| {
            let first = c * input.layout.chunk;
            let chunk = row.get(first..first + input.layout.chunk_len(c))?;
            pick_in_chunk(&ranked_chunk(first, chunk), true, rest, max, params.temperature)
        })
    } else {
        let ranked = Ranked::of_row(row, max, params.temperature);
        keep(ranked, params, &|| chunk_masses().iter().sum()).and_then(|mut k| pick(&mut k.ranked, u * k.mass.low))
    };
    entry.map(|e| TokenId(e.token)).ok_or_else(|| bad_row("the row and its records differ"))
}

/// The draw with no truncation: the chunk it fell into and the token, if the records or the given chunk show it.
fn draw_from_all(
    records: &CandidateRow,
    input: &SampleInput,
    shown: Option<(usize, &[f32])>,
) -> Option<(usize, Option<Entry>)> {
    let temperature = input.params.temperature;
    let (c, rest) = find_chunk(&records_masses(records, temperature), input.key.uniform())?;
    let entry = match shown {
        Some((chunk, logits)) if chunk == c => {
            let entries = ranked_chunk(c * records.layout.chunk, logits);
            pick_in_chunk(&entries, true, rest, records.max, temperature)
        }
        _ => {
            let known = records.known(c);
            pick_in_chunk(known.best, known.frontier.is_none(), rest, records.max, temperature)
        }
    };
    Some((c, entry))
}

/// The chunk that `u` falls into, and how much weight to pass inside it.
fn find_chunk(masses: &[f64], u: f64) -> Option<(usize, f64)> {
    let target = u * masses.iter().sum::<f64>();
    let mut before = 0.0;
    for (c, mass) in masses.iter().enumerate() {
        let after = before + mass;
        if after > target {
            return Some((c, target - before));
        }
        before = after;
    }
    None
}

/// The first entry whose running weight exceeds `rest`; past the end of a complete chunk, whose mass may be rounded up, its
/// last entry of any weight.
fn pick_in_chunk(entries: &[Entry], complete: bool, rest: f64, max: f32, temperature: f32) -> Option<Entry> {
    let mut sum = 0.0;
    let mut last = None;
    for entry in entries {
        let w = weight(entry.logit, max, temperature);
        sum += w;
        if sum > rest {
            return Some(*entry);
        }
        last = if w > 0.0 { Some(*entry) } else { last };
    }
    last.filter(|_| complete)
}

/// The first token of the ranking whose running weight exceeds `target`, if it is known.
fn pick(ranked: &mut Ranked, target: f64) -> Option<Entry> {
    let mut sum = 0.0;
    for i in 0.. {
        let Rank::Token(entry, w) = ranked.at(i) else { return None };
        sum += w;
        if sum > target {
            return Some(entry);
        }
    }
    None
}

fn ranked_chunk(first: usize, logits: &[f32]) -> Vec<Entry> {
    let mut entries: Vec<Entry> =
        logits.iter().zip(first as u32..).map(|(&logit, token)| Entry { token, logit }).collect();
    entries.sort_unstable_by(best_first);
    entries
}

/// Each chunk's weight relative to the row's largest logit.
fn records_masses(records: &CandidateRow, temperature: f32) -> Vec<f64> {
    records.chunks.iter().map(|c| f64::from(c.sum_at_temperature) * weight(c.max, records.max, temperature)).collect()
}

/// What is reported with the token: nothing, or logprobs from the records.
struct Report {
    logprobs: Option<(LogNormalizer, Vec<TokenLogprob>)>,
}

impl Report {
    /// `None` when the records do not show as many alternatives as asked for.
    fn of_candidates(records: &CandidateRow, input: &SampleInput) -> Result<Option<Self>> {
        let Some(num_top) = input.params.logprobs else {
            return Ok(Some(Self { logprobs: None }));
        };
        refuse_modified(input)?;
        let normalizer = LogNormalizer::of_candidates(records);
        let top = top_of(&mut Ranked::of_candidates(records, 1.0), &normalizer, num_top as usize);
        Ok(top.map(|top| Self { logprobs: Some((normalizer, top)) }))
    }

    fn sampled(self, entry: Entry) -> Sampled {
        let token = TokenId(entry.token);
        match self.logprobs {
            None => Sampled { token, logprob: None, top: Vec::new() },
            Some((normalizer, top)) => Sampled { token, logprob: Some(normalizer.logprob(entry.logit)), top },
        }
    }

    fn outcome(self, entry: Option<Entry>) -> CandidateOutcome {
        entry.map_or(CandidateOutcome::NeedRow, |e| CandidateOutcome::Sampled(self.sampled(e)))
    }
}

/// Logprobs are of unmodified logits, which a modified row's records do not hold (`SamplingParams::readback` says so).
fn refuse_modified(input: &SampleInput) -> Result<()> {
    if input.adjustments.is_empty() && input.mask.is_none() {
        return Ok(());
    }
    Err(bad_row("logprobs beside adjustments need the unmodified row"))
}

fn refuse_non_finite(logits: &[f32], first: usize, masked: bool) -> Result<()> {
    let fine = |l: &f32| l.is_finite() || masked && *l == f32::NEG_INFINITY;
    logits.iter().position(|l| !fine(l)).map_or(Ok(()), |i| Err(non_finite(TokenId((first + i) as u32))))
}

fn check_len(row: &[f32], layout: &Layout) -> Result<()> {
    if row.len() == layout.vocab && layout.vocab > 0 && layout.chunk > 0 {
        return Ok(());
    }
    Err(bad_row("the row has the wrong size").with("expected", layout.vocab).with("got", row.len()))
}

fn check_records(records: &CandidateRow, input: &SampleInput) -> Result<()> {
    if records.layout == input.layout {
        return Ok(());
    }
    Err(bad_row("the records are of another layout")
        .with("expected", input.layout.vocab)
        .with("got", records.layout.vocab))
}
