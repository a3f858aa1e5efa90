//! One step on its way through the executor: what was asked, and how the answer reaches the requests at commit.
use std::collections::BTreeMap;
use std::ops::Range;

use super::event::RequestId;
use super::executor::{RowResult, SampleRequest, ScoreRequest, Scored, StepOutput};
use super::live::{Live, Work};
use super::text::TextModel;
use crate::Error;
use crate::ids::{SequenceId, TokenId};
use crate::sampling::Sampled;
use crate::scheduler::{Plan, StepOutcome, TokenSink};
use crate::sequence::FinishReason;

/// A plan with everything that the executor must know.
#[derive(Debug)]
pub struct Step {
    pub plan: Plan,
    /// One for each entry that samples, in plan order.
    pub samples: Vec<SampleRequest>,
    /// With the place of the entry that each belongs to.
    pub scores: Vec<(usize, ScoreRequest)>,
    /// When it was planned.
    pub began: f64,
}

/// Draws by sequence and choice (a sequence about to fork draws for its children too).
pub type Drawn = BTreeMap<(SequenceId, u32), Sampled>;

/// An output taken apart for the scheduler and the requests.
#[derive(Debug, Default)]
pub struct Sorted {
    /// For the scheduler.
    pub outcome: StepOutcome,
    /// Tokens with their log-probabilities.
    pub drawn: Drawn,
    /// By row of the batch.
    pub scored: BTreeMap<usize, Scored>,
    /// Sequences that cannot go on.
    pub errors: Vec<(SequenceId, Error)>,
}

impl Sorted {
    /// Takes a checked output apart.
    pub fn new(step: &Step, output: StepOutput) -> Self {
        let mut sorted = Self::default();
        let sampling = step.plan.entries.iter().enumerate().filter(|(_, e)| e.samples > 0);
        for ((i, entry), row) in sampling.zip(output.rows) {
            match row {
                RowResult::Tokens(tokens) => {
                    for (sampled, choice) in tokens.into_iter().zip(entry.choice..) {
                        sorted.outcome.tokens.push(sampled.token);
                        sorted.drawn.insert((entry.sequence, choice), sampled);
                    }
                }
                RowResult::Failed(error) => {
                    sorted.outcome.tokens.extend((0..entry.samples).map(|_| TokenId(0)));
                    sorted.fail(i, entry.sequence, error);
                }
            }
        }
        for ((i, request), score) in step.scores.iter().zip(output.scores) {
            match (score, step.plan.entries.get(*i)) {
                (Ok(score), _) => {
                    sorted.scored.insert(request.row, score);
                }
                (Err(error), Some(entry)) => sorted.fail(*i, entry.sequence, error),
                (Err(_), None) => {}
            }
        }
        sorted
    }

    /// The first error of an entry counts.
    fn fail(&mut self, entry: usize, sequence: SequenceId, error: Error) {
        if self.outcome.failed.iter().all(|(other, _)| *other != entry) {
            self.outcome.failed.push((entry, error.code));
            self.errors.push((sequence, error));
        }
    }
}

/// Hears of each committed token and hands it to its choice.
pub struct StepSink<'a> {
    pub requests: &'a mut BTreeMap<RequestId, Live>,
    pub by_sequence: &'a mut BTreeMap<SequenceId, (RequestId, u32)>,
    pub text: &'a TextModel,
    pub drawn: Drawn,
    pub scored: BTreeMap<usize, Scored>,
    /// Choices that took a token, in commit order.
    pub touched: Vec<(RequestId, u32)>,
    pub now: f64,
}

impl TokenSink for StepSink<'_> {
    fn token(&mut self, sequence: SequenceId, _index: usize, token: TokenId) -> Option<FinishReason> {
        let (id, choice) = *self.by_sequence.get(&sequence)?;
        let live = self.requests.get_mut(&id)?;
        let Work::Generate(generation) = &mut live.work else { return None };
        let sampled = self.drawn.remove(&(sequence, choice)).filter(|s| s.token == token);
        let sampled = sampled.unwrap_or(Sampled { token, logprob: None, top: Vec::new() });
        live.times.first_token.get_or_insert(self.now);
        self.touched.push((id, choice));
        generation.choices.get_mut(&choice)?.push(self.text.tokenizer(), sampled)
    }

    fn forked(&mut self, parent: SequenceId, child: SequenceId, choice: u32) {
        let Some(&(id, parent_choice)) = self.by_sequence.get(&parent) else { return };
        let Some(live) = self.requests.get_mut(&id) else { return };
        self.by_sequence.insert(child, (id, choice));
        live.sequences.insert(child);
        if let Work::Generate(generation) = &mut live.work {
            if let Some(forked) = generation.choices.get(&parent_choice).map(|c| c.fork(choice)) {
                generation.choices.insert(choice, forked);
            }
            if let Some(sampled) = self.drawn.remove(&(parent, choice)) {
                self.drawn.insert((child, choice), sampled);
            }
        }
    }

    fn prompt_rows(&mut self, sequence: SequenceId, first: usize, rows: Range<usize>) {
        let live = self.by_sequence.get(&sequence).and_then(|(id, _)| self.requests.get_mut(id));
        let Some(Work::Score(scoring)) = live.map(|l| &mut l.work) else { return };
        for (position, row) in (first..).zip(rows) {
            if let Some(scored) = self.scored.get(&row) {
                scoring.note(position, scored);
            }
        }
    }
}
