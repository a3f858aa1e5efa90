//! One request between submission and its last event: its choices or scores, its times, its result. When it runs is the
//! scheduler's to say.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::choice::GrowingChoice;
use super::ends::aborted;
use super::event::{Event, GenerateResult, PromptTokensDetails, ScoreResult, Timings, TokenLogprob, Usage};
use super::executor::Scored;
use super::sink::EventSink;
use crate::Error;
use crate::ids::{SequenceId, TokenId};
use crate::sampling::SamplingParams;
use crate::sequence::{Sequence, SequenceState};

/// Shared with the outbox, which alone borrows it mutably, one event at a time.
pub type SharedSink = Rc<RefCell<dyn EventSink>>;

/// A live request.
pub struct Live {
    pub sink: SharedSink,
    pub work: Work,
    /// Those that have not ended.
    pub sequences: BTreeSet<SequenceId>,
    pub times: Times,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub paused: bool,
    /// The first thing that went wrong: the request ends with it.
    pub failure: Option<Error>,
}

/// What a request wants.
pub enum Work {
    Generate(Generation),
    Score(Scoring),
}

/// A generation in progress.
pub struct Generation {
    pub params: Rc<SamplingParams>,
    pub seed: u64,
    /// By index; those above 0 appear when the prompt is computed.
    pub choices: BTreeMap<u32, GrowingChoice>,
}

/// A scoring in progress.
pub struct Scoring {
    pub tokens: Vec<TokenId>,
    pub num_top: Option<u32>,
    logprobs: Vec<f32>,
    top: Vec<Vec<TokenLogprob>>,
}

/// Moments of a request, in milliseconds on the engine's clock.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub submitted: f64,
    pub first_run: Option<f64>,
    pub first_token: Option<f64>,
}

impl Times {
    pub fn submitted_at(now: f64) -> Self {
        Self { submitted: now, first_run: None, first_token: None }
    }

    fn timings(&self, end: f64, seed: u64) -> Timings {
        let first_run = self.first_run.unwrap_or(end);
        let first_token = self.first_token.unwrap_or(end);
        Timings {
            queued: first_run - self.submitted,
            prefill: first_token - first_run,
            decode: end - first_token,
            time_to_first_token: first_token - self.submitted,
            seed,
        }
    }
}

impl Scoring {
    pub fn new(tokens: Vec<TokenId>, num_top: Option<u32>) -> Self {
        let logprobs = vec![f32::NAN; tokens.len()];
        let top = if num_top.is_some() { vec![Vec::new(); tokens.len()] } else { Vec::new() };
        Self { tokens, num_top, logprobs, top }
    }

    /// The token whose log-probability the logits at `position` give.
    pub fn target(&self, position: usize) -> Option<TokenId> {
        self.tokens.get(position.checked_add(1)?).copied()
    }

    /// Notes what the logits at `position` say of the token after it.
    pub fn note(&mut self, position: usize, scored: &Scored) {
        if let Some(logprob) = self.logprobs.get_mut(position + 1) {
            *logprob = scored.logprob as f32;
        }
        if let Some(top) = self.top.get_mut(position + 1) {
            *top = scored.top.iter().map(Into::into).collect();
        }
    }

    fn finish(self) -> ScoreResult {
        ScoreResult { logprobs: self.logprobs, top: self.num_top.map(|_| self.top) }
    }
}

impl Live {
    /// Notes how one of the sequences ended.
    pub fn end_sequence(&mut self, choice: u32, sequence: &Sequence, now: f64) {
        self.sequences.remove(&sequence.id());
        self.cached_tokens = self.cached_tokens.max(sequence.cached_tokens());
        match sequence.state() {
            SequenceState::Finished(reason) => {
                if let Work::Generate(generation) = &mut self.work
                    && let Some(choice) = generation.choices.get_mut(&choice)
                {
                    choice.end(reason);
                }
            }
            SequenceState::Aborted(reason) => {
                let elapsed = (now - self.times.submitted).max(0.0).round();
                self.failure.get_or_insert_with(|| aborted(reason, elapsed));
            }
            // Only ended sequences are reaped.
            SequenceState::Waiting
            | SequenceState::Prefilling
            | SequenceState::Decoding
            | SequenceState::Preempted(_) => {}
        }
    }

    /// The last event of a request whose sequences have all ended.
    pub fn finish(self, now: f64) -> Event {
        if let Some(error) = self.failure {
            return Event::Error(error);
        }
        match self.work {
            Work::Score(scoring) => Event::Scored(scoring.finish()),
            Work::Generate(generation) => {
                let timings = self.times.timings(now, generation.seed);
                Event::Done(generation.finish(self.prompt_tokens, self.cached_tokens, timings))
            }
        }
    }
}

impl Generation {
    fn finish(mut self, prompt_tokens: usize, cached_tokens: usize, timings: Timings) -> GenerateResult {
        // With nothing to generate no choice forks off: all are as empty as the first.
        if let Some(first) = self.choices.get(&0).cloned() {
            for index in 1..self.params.n {
                self.choices.entry(index).or_insert_with(|| first.fork(index));
            }
        }
        let completion_tokens = self.choices.values().map(|c| c.num_tokens() as u64).sum();
        let prompt_tokens = prompt_tokens as u64;
        GenerateResult {
            choices: self.choices.into_values().map(GrowingChoice::finish).collect(),
            usage: Usage {
                prompt_tokens,
                completion_tokens,
                total_tokens: prompt_tokens + completion_tokens,
                prompt_tokens_details: PromptTokensDetails { cached_tokens: cached_tokens as u64 },
            },
            timings,
        }
    }
}
