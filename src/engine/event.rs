//! What a request gives back: tokens as they come, then one result or one error. Plain data, serialized as the API has it.
use serde::{Serialize, Serializer};

use crate::Error;
use crate::ids::TokenId;

/// A request of an engine. Never reused within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a request's sink receives: any number of `Token`, then exactly one of the others.
#[derive(Debug, Clone)]
pub enum Event {
    /// One token of one choice.
    Token(TokenEvent),
    /// The generation ended.
    Done(GenerateResult),
    /// The scoring ended.
    Scored(ScoreResult),
    /// The request ended without a result.
    Error(Error),
}

impl Event {
    /// Whether nothing follows.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Event::Token(_))
    }
}

/// A token and its natural log-probability under the unmodified logits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Nats.
    pub logprob: f64,
}

impl From<&crate::sampling::TokenLogprob> for TokenLogprob {
    fn from(t: &crate::sampling::TokenLogprob) -> Self {
        Self { token: t.token, logprob: t.logprob }
    }
}

/// One token of one choice. The texts of a choice, concatenated, are its text; one may be empty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenEvent {
    /// Which choice, from 0.
    pub choice: u32,
    /// Which token of the choice, from 0.
    pub position: u32,
    /// The token.
    pub token: TokenId,
    /// Text that became certain with this token.
    pub text: String,
    /// Present when log-probabilities were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f64>,
    /// The most likely tokens at this place, best first, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<TokenLogprob>>,
    /// Where the token's text begins in the choice's, in UTF-16 units, when log-probabilities were asked for: `text` may come
    /// later than its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Why the choice ended, with its last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-generation token or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
}

/// One finished choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The whole text: no end-of-generation token, no stop string.
    pub text: String,
    /// Every sampled token, the ending one too.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The events of the choice, when log-probabilities were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenEvent>>,
}

/// Token counts. The prompt counts once whatever the number of choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Sampled tokens of all choices.
    pub completion_tokens: u64,
    /// The sum.
    pub total_tokens: u64,
    /// Of the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Where the prompt's tokens came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Tokens whose KV was found in the cache at first admission.
    pub cached_tokens: u64,
}

/// Milliseconds on the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timings {
    /// From submission to the first step that ran it.
    pub queued: f64,
    /// From there to the first token (or the end, where there is none).
    pub prefill: f64,
    /// From the first token to the end.
    pub decode: f64,
    /// From submission to the first token (or the end, where there is none).
    pub time_to_first_token: f64,
    /// What the draws were made from.
    pub seed: u64,
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GenerateResult {
    /// In the order of their index.
    pub choices: Vec<Choice>,
    /// Token counts.
    pub usage: Usage,
    /// Times and the seed.
    pub timings: Timings,
}

/// Log-probability of each token given those before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScoreResult {
    /// Nats; entry 0 is NaN (JSON null).
    #[serde(serialize_with = "nan_as_null")]
    pub logprobs: Vec<f32>,
    /// The most likely tokens at each place, best first, when asked for; entry 0 is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<Vec<TokenLogprob>>>,
}

fn nan_as_null<S: Serializer>(values: &[f32], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(values.iter().map(|v| v.is_finite().then_some(*v)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_api() {
        let event = TokenEvent {
            choice: 0,
            position: 1,
            token: TokenId(7),
            text: "a".into(),
            logprob: None,
            top: None,
            offset: None,
            finish_reason: None,
        };
        assert_eq!(serde_json::to_string(&event).unwrap(), r#"{"choice":0,"position":1,"token":7,"text":"a"}"#);
        let score = ScoreResult { logprobs: vec![f32::NAN, -1.5], top: None };
        assert_eq!(serde_json::to_string(&score).unwrap(), r#"{"logprobs":[null,-1.5]}"#);
        assert_eq!(serde_json::to_string(&FinishReason::Length).unwrap(), r#""length""#);
        assert!(Event::Scored(score).is_terminal() && !Event::Token(event).is_terminal());
    }
}
