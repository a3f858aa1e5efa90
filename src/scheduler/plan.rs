//! What a step is: the plan that goes to the executor, what comes back, and who is told. Plain data.
use std::ops::Range;

use super::batch::BatchInput;
use crate::ids::{PlanId, SequenceId, TokenId};
use crate::sequence::FinishReason;

/// One step. Hand it back to [`super::Scheduler::commit`] or [`super::Scheduler::rollback`].
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its number; a plan that is not the one in flight changes nothing.
    pub id: PlanId,
    /// One a sequence, in the order of the batch's rows.
    pub entries: Vec<PlanEntry>,
    /// The same as flat arrays for the executor.
    pub batch: BatchInput,
}

/// What one sequence does in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanEntry {
    /// Whose tokens.
    pub sequence: SequenceId,
    /// An entry whose sequence has another epoch by now is dropped at commit.
    pub epoch: u64,
    /// First position computed.
    pub start: usize,
    /// Tokens computed.
    pub count: usize,
    /// Whether these are prompt (or resumed) tokens, not the one token of a decode step.
    pub prefill: bool,
    /// Which of the batch's `logit_rows` are this entry's. When `samples > 0` the last of them is sampled.
    pub rows: Range<usize>,
    /// How many of `rows`, from the first on, are logits of prompt positions that were asked for.
    pub prompt_rows: usize,
    /// Draws from the last row: 0 when nothing is sampled yet, n at the fork point, else 1.
    pub samples: u32,
    /// The choice that the first draw is for; the others follow it.
    pub choice: u32,
    /// How many tokens the sequence has generated: the index of the draw.
    pub output_index: usize,
}

/// What the executor made of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepOutcome {
    /// The tokens drawn: entry after entry in plan order, `samples` of each. Those of a failed entry are there too, whatever they are.
    pub tokens: Vec<TokenId>,
    /// Entries (by their place in the plan) without a usable result, and the error code; those sequences end, the others go on.
    pub failed: Vec<(usize, &'static str)>,
}

/// Who hears of each token as it is committed.
pub trait TokenSink {
    /// `token` is number `index` (from 0) of the generated tokens of `sequence`. Returns why the sequence ends with it, if it does
    /// (end-of-generation, stop string, grammar); the scheduler itself ends it for length.
    fn token(&mut self, sequence: SequenceId, index: usize, token: TokenId) -> Option<FinishReason>;

    /// `child` goes on as choice `choice` from where `parent` is, before any token of either.
    fn forked(&mut self, parent: SequenceId, child: SequenceId, choice: u32);

    /// The logits of prompt positions `first..` of `sequence` are in these rows of the batch's `logit_rows`. Each position is told once.
    fn prompt_rows(&mut self, sequence: SequenceId, first: usize, rows: Range<usize>);
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// Entries that took effect.
    pub committed: usize,
    /// Entries dropped because their sequence had moved on, or the whole plan had.
    pub dropped: usize,
    /// Tokens appended, in order.
    pub tokens: Vec<(SequenceId, TokenId)>,
    /// Sequences made: parent, child.
    pub forked: Vec<(SequenceId, SequenceId)>,
    /// Sequences that ended; [`super::Scheduler::reap`] hands them out.
    pub ended: Vec<SequenceId>,
}

/// What an abort did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortOutcome {
    /// It was live; it is aborted now.
    Aborted,
    /// It had ended already: nothing changed.
    AlreadyEnded,
    /// No sequence ever had this id: nothing changed.
    Unknown,
}
