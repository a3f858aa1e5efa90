//! One choice as it grows: tokens to text, stop strings, token events. What runs when is not its business.
use super::event::{Choice, FinishReason, TokenEvent};
use crate::ids::TokenId;
use crate::sampling::{Sampled, StopMatcher, TokenCounts};
use crate::sequence::FinishReason as SequenceEnd;
use crate::tokenizer::{Detokenizer, Tokenizer};

/// A choice of a running request. Plain data: forking a sequence clones it.
#[derive(Debug, Clone)]
pub struct GrowingChoice {
    index: u32,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    text: String,
    /// UTF-16 units of all decoded text, held back or not.
    decoded: u64,
    tokens: Vec<TokenId>,
    /// Every event so far, when log-probabilities were asked for.
    listed: Option<Vec<TokenEvent>>,
    /// The event of the token just taken, until its text is final.
    pending: Option<TokenEvent>,
    counts: Option<TokenCounts>,
    end: Option<FinishReason>,
}

impl GrowingChoice {
    /// Choice 0 of a request, before its first token. `counts` when penalties look at them.
    pub fn new(stops: &[String], logprobs: bool, counts: Option<TokenCounts>) -> Self {
        Self {
            index: 0,
            detokenizer: Detokenizer::new(false),
            stop: StopMatcher::new(stops),
            text: String::new(),
            decoded: 0,
            tokens: Vec::new(),
            listed: logprobs.then(Vec::new),
            pending: None,
            counts,
            end: None,
        }
    }

    /// The same choice under another index.
    pub fn fork(&self, index: u32) -> Self {
        Self { index, ..self.clone() }
    }

    /// What penalties look at.
    pub fn counts(&self) -> Option<&TokenCounts> {
        self.counts.as_ref()
    }

    /// Sampled tokens so far, the ending one too.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Whether it has its finish reason.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// How many they are.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Takes the next token; says why the choice ends with it, if it does.
    pub fn push(&mut self, tokenizer: &Tokenizer, sampled: Sampled) -> Option<SequenceEnd> {
        let token = sampled.token;
        let position = self.tokens.len() as u32;
        self.tokens.push(token);
        if let Some(counts) = &mut self.counts {
            counts.push(token);
        }
        let mut end = None;
        let mut text = String::new();
        // Half a character that this token does not go on with becomes one U+FFFD, before the token's own text.
        let goes_on = tokenizer.token_bytes(token, false).is_none_or(|b| b.first().is_none_or(|b| b & 0xc0 == 0x80));
        let broken = self.detokenizer.is_mid_character() && !goes_on;
        let offset = self.listed.is_some().then_some(self.decoded + u64::from(broken));
        if tokenizer.is_end_of_generation(token) {
            end = Some(SequenceEnd::Eos);
        } else {
            let decoded = self.detokenizer.push(tokenizer, token);
            self.decoded += decoded.encode_utf16().count() as u64;
            let step = self.stop.push(&decoded);
            text = step.emit;
            end = end.or(step.matched.map(|_| SequenceEnd::StopString));
        }
        let top = self.listed.is_some().then(|| sampled.top.iter().map(Into::into).collect());
        let logprob = sampled.logprob;
        self.pending =
            Some(TokenEvent { choice: self.index, position, token, text, logprob, top, offset, finish_reason: None });
        end
    }

    /// The choice ends. Text that was held back belongs to the token just taken, or to `text` alone where there is none.
    pub fn end(&mut self, reason: SequenceEnd) {
        let mut rest = String::new();
        if self.stop.matched().is_none() {
            // The last bytes may be what a stop string was waiting for.
            rest = self.stop.push(&self.detokenizer.flush()).emit;
            rest.push_str(&self.stop.flush());
        }
        match &mut self.pending {
            Some(event) => event.text.push_str(&rest),
            None => self.text.push_str(&rest),
        }
        self.end = Some(match reason {
            SequenceEnd::Eos | SequenceEnd::StopString | SequenceEnd::Grammar => FinishReason::Stop,
            SequenceEnd::Length => FinishReason::Length,
        });
    }

    /// The event of the token just taken, its text now final.
    pub fn take_event(&mut self) -> Option<TokenEvent> {
        let mut event = self.pending.take()?;
        event.finish_reason = self.end;
        self.text.push_str(&event.text);
        if let Some(listed) = &mut self.listed {
            listed.push(event.clone());
        }
        Some(event)
    }

    /// The finished choice.
    pub fn finish(self) -> Choice {
        Choice {
            text: self.text,
            tokens: self.tokens,
            finish_reason: self.end.unwrap_or(FinishReason::Length),
            logprobs: self.listed,
        }
    }
}
