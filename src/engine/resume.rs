//! A request that another engine ran before this one: its device or its instance is gone, its caller kept what it received. What
//! was emitted is replayed into the choices, so that texts, stop strings, penalties and draws go on as if nothing had happened.
use std::collections::BTreeMap;

use serde::Deserialize;

use super::choice::GrowingChoice;
use super::live::Times;
use crate::ids::TokenId;
use crate::sampling::{Sampled, SamplingParams, TokenCounts, TokenLogprob};
use crate::sequence::FinishReason;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// What the caller of a request kept of it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// What its draws are made from: the request's seed, or the one that was chosen for it.
    pub seed: u64,
    /// Milliseconds since its submission.
    pub elapsed_ms: f64,
    /// Milliseconds from its submission to its first step and its first token, where there was one.
    pub first_run_ms: Option<f64>,
    /// See `first_run_ms`.
    pub first_token_ms: Option<f64>,
    /// The tokens received of each choice, by index. Choices without a token may be left out.
    pub choices: Vec<Vec<KeptToken>>,
}

/// One token event, without its text: that follows from the tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct KeptToken {
    /// The token.
    pub token: u32,
    /// Nats, where log-probabilities were asked for.
    #[serde(default, deserialize_with = "exact_option")]
    pub logprob: Option<f64>,
    /// The likeliest tokens at its place, likewise.
    #[serde(default)]
    pub top: Option<Vec<KeptLogprob>>,
}

/// A token and its log-probability.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct KeptLogprob {
    /// The token.
    pub token: u32,
    /// Nats.
    #[serde(deserialize_with = "exact")]
    pub logprob: f64,
}

/// A number written as text: reading JSON's own numbers may be off by a last bit, and what was emitted must come out the same.
fn exact<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<f64, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

fn exact_option<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<f64>, D::Error> {
    let text = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

fn invalid(expected: &str) -> Error {
    Error::new("request.invalid", format!("`progress` must be {expected}"))
        .with("field", "progress")
        .with("expected", expected)
}

impl Progress {
    /// Reads it from JSON text.
    ///
    /// # Errors
    /// `request.invalid`.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| invalid(&format!("what an engine emitted ({e})")))
    }

    /// The moments of the request on a clock that says `now`.
    pub(super) fn times(&self, now: f64) -> Times {
        let submitted = now - self.elapsed_ms.max(0.0);
        let at = |since: Option<f64>| since.map(|ms| submitted + ms);
        Times { submitted, first_run: at(self.first_run_ms), first_token: at(self.first_token_ms) }
    }

    /// Every choice as far as it came, ended where its tokens say so: by an ending token, by a stop string, or by being `longest`.
    pub(super) fn choices(
        &self,
        prompt: &[TokenId],
        params: &SamplingParams,
        longest: usize,
        tokenizer: &Tokenizer,
    ) -> Result<BTreeMap<u32, GrowingChoice>> {
        if self.choices.len() > params.n as usize {
            return Err(invalid("of no more choices than the request's n"));
        }
        let nothing = Vec::new();
        let mut choices = BTreeMap::new();
        for index in 0..params.n {
            let kept = self.choices.get(index as usize).unwrap_or(&nothing);
            let counts = params.counts_tokens().then(|| TokenCounts::new(prompt));
            let first = GrowingChoice::new(&params.stop, params.logprobs.is_some(), counts);
            choices.insert(index, replay(first.fork(index), kept, longest, tokenizer)?);
        }
        Ok(choices)
    }
}

fn replay(
    mut choice: GrowingChoice,
    kept: &[KeptToken],
    longest: usize,
    tokenizer: &Tokenizer,
) -> Result<GrowingChoice> {
    if kept.len() > longest {
        return Err(invalid("no longer than the request's max_tokens"));
    }
    for token in kept {
        if choice.has_ended() {
            return Err(invalid("without a token after a choice's end"));
        }
        if token.token as usize >= tokenizer.vocab_size() {
            return Err(invalid("of tokens of this model"));
        }
        let top = token.top.iter().flatten().map(|t| TokenLogprob { token: TokenId(t.token), logprob: t.logprob });
        let sampled = Sampled { token: TokenId(token.token), logprob: token.logprob, top: top.collect() };
        let full = choice.num_tokens() + 1 == longest;
        if let Some(end) = choice.push(tokenizer, sampled).or(full.then_some(FinishReason::Length)) {
            choice.end(end);
        }
        // It was delivered before.
        choice.take_event();
    }
    if longest == 0 {
        choice.end(FinishReason::Length);
    }
    Ok(choice)
}
