//! The deterministic log: what was asked, what was planned, what came of it, and the digest after. `replay` runs it again.
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::plan::{Effects, Plan, StepOutcome, TokenSink};
use super::{LogMode, NewSequence, Scheduler, SchedulerConfig};
use crate::ids::{BlockId, PlanId, SequenceId, TokenId};
use crate::kv::{BlockChanges, KvManager};
use crate::sequence::{AbortReason, EventKind, FinishReason, StateKind};

/// Something that the scheduler was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `submit`, and the id or the code of the refusal. In a ring the tokens are left out; `num_tokens` says how many there were.
    Submit {
        /// What was submitted.
        new: NewSequence,
        /// Tokens submitted.
        num_tokens: usize,
        /// When.
        now: u64,
        /// Its id, or why it was refused.
        result: Result<SequenceId, &'static str>,
    },
    /// `abort`.
    Abort(SequenceId, AbortReason),
    /// `set_paused`.
    SetPaused(SequenceId, bool),
    /// `set_prefill_chunk`.
    SetPrefillChunk(usize),
    /// `device_lost`.
    DeviceLost,
    /// `plan`, and the plan's id if there was one.
    Plan {
        /// When.
        now: u64,
        /// The plan.
        id: Option<PlanId>,
    },
    /// `commit`: what the executor gave and what the sink answered to each token. In a ring both are left out.
    Commit {
        /// Which plan.
        plan: PlanId,
        /// What the executor gave.
        outcome: StepOutcome,
        /// What the sink answered, token by token.
        finishes: Vec<Option<FinishReason>>,
    },
    /// `rollback`.
    Rollback(PlanId),
    /// A test made the take or retain after so many others fail.
    #[cfg(test)]
    Fault(u32),
}

/// A sequence of a step's plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedEntry {
    /// Which.
    pub sequence: SequenceId,
    /// Prefilling or decoding.
    pub state: StateKind,
    /// Tokens computed.
    pub tokens: usize,
}

/// A transition of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceTransition {
    /// Which sequence.
    pub sequence: SequenceId,
    /// State before.
    pub from: StateKind,
    /// The event; `None` when a rollback undid an admission.
    pub event: Option<EventKind>,
    /// State after.
    pub to: StateKind,
}

/// One step: from the end of the last one to its commit or rollback.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepRecord {
    /// Number of the step, from 0.
    pub step: u64,
    /// When it was planned, in milliseconds on the scheduler's clock.
    pub at: u64,
    /// All that was asked, in order.
    pub commands: Vec<Command>,
    /// The plan.
    pub planned: Vec<PlannedEntry>,
    /// Blocks copied: from, to.
    pub copied: Vec<(BlockId, BlockId)>,
    /// Blocks that changed hands.
    pub blocks: BlockChanges,
    /// All transitions, in order.
    pub transitions: Vec<TraceTransition>,
    /// What the commit did.
    pub effects: Effects,
    /// Digest of the scheduler's state after it.
    pub digest: u64,
}

/// The log and the step that is being written.
#[derive(Debug)]
pub(super) struct Log {
    mode: LogMode,
    steps: VecDeque<StepRecord>,
    current: StepRecord,
}

impl Log {
    pub fn new(mode: LogMode) -> Self {
        Self { mode, steps: VecDeque::new(), current: StepRecord::default() }
    }

    pub fn steps(&self) -> &VecDeque<StepRecord> {
        &self.steps
    }

    fn whole(&self) -> bool {
        self.mode == LogMode::Whole
    }

    pub fn command(&mut self, command: Command) {
        self.current.commands.push(command);
    }

    pub fn submitted(&mut self, new: NewSequence, num_tokens: usize, now: u64, result: &crate::Result<SequenceId>) {
        let result = result.as_ref().map(|&id| id).map_err(|error| error.code);
        self.command(Command::Submit { new, num_tokens, now, result });
    }

    /// What to keep of a submission: in a ring not its tokens.
    pub fn submission(&self, new: &NewSequence) -> NewSequence {
        let tokens = if self.whole() { new.tokens.clone() } else { Vec::new() };
        NewSequence { tokens, ..*new }
    }

    pub fn transition(&mut self, sequence: SequenceId, from: StateKind, event: EventKind, to: StateKind) {
        self.current.transitions.push(TraceTransition { sequence, from, event: Some(event), to });
    }

    pub fn undone(&mut self, sequence: SequenceId, to: StateKind) {
        self.current.transitions.push(TraceTransition { sequence, from: StateKind::Prefilling, event: None, to });
    }

    pub fn planned(&mut self, now: u64, plan: Option<&Plan>) {
        self.command(Command::Plan { now, id: plan.map(|plan| plan.id) });
        self.current.at = now;
        let Some(plan) = plan else { return };
        let state = |prefill| if prefill { StateKind::Prefilling } else { StateKind::Decoding };
        self.current.planned.extend(plan.entries.iter().map(|entry| PlannedEntry {
            sequence: entry.sequence,
            state: state(entry.prefill),
            tokens: entry.count,
        }));
        self.current.copied.extend(plan.batch.copies.iter().map(|&(from, to)| (BlockId(from), BlockId(to))));
    }

    pub fn committed(
        &mut self,
        plan: PlanId,
        outcome: StepOutcome,
        finishes: Vec<Option<FinishReason>>,
        effects: &Effects,
    ) {
        let command = if self.whole() {
            Command::Commit { plan, outcome, finishes }
        } else {
            Command::Commit { plan, outcome: StepOutcome::default(), finishes: Vec::new() }
        };
        self.command(command);
        self.current.effects.clone_from(effects);
    }

    /// Ends a step.
    pub fn seal(&mut self, digest: u64, kv: &mut KvManager) {
        self.current.digest = digest;
        kv.swap_changes(&mut self.current.blocks);
        if let LogMode::Ring(size) = self.mode {
            while self.steps.len() >= size.max(1) {
                self.steps.pop_front();
            }
        }
        let next = StepRecord { step: self.current.step + 1, ..StepRecord::default() };
        self.steps.push_back(std::mem::replace(&mut self.current, next).fitted());
    }

    /// Ends a step without a plan. One in which nothing was asked and nothing happened leaves no trace in a ring.
    pub fn seal_idle(&mut self, digest: u64, kv: &mut KvManager) {
        if self.whole() || self.current.commands.len() > 1 || !self.current.transitions.is_empty() {
            self.seal(digest, kv);
        } else {
            self.current.commands.clear();
        }
    }
}

impl StepRecord {
    /// Gives back the room that was never used: a ring of records holds what they say and no more.
    fn fitted(mut self) -> Self {
        self.commands.shrink_to_fit();
        self.planned.shrink_to_fit();
        self.copied.shrink_to_fit();
        self.transitions.shrink_to_fit();
        for list in [&mut self.blocks.allocated, &mut self.blocks.freed, &mut self.blocks.cached] {
            list.shrink_to_fit();
        }
        self
    }
}

/// Where a replay left the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divergence {
    /// The step.
    pub step: u64,
    /// The digest in the log.
    pub expected: u64,
    /// The digest that came out.
    pub got: u64,
}

/// Runs a whole log again on a fresh scheduler. Returns that scheduler.
///
/// # Errors
/// The first step whose digest, or whose refusals, differ; also for a log that is not whole.
pub fn replay(config: SchedulerConfig, steps: &VecDeque<StepRecord>) -> Result<Scheduler, Divergence> {
    let begin = Divergence { step: 0, expected: 0, got: 0 };
    let mut scheduler = Scheduler::new(config).map_err(|_| begin)?;
    let mut plans = BTreeMap::new();
    for record in steps {
        let same = record.commands.iter().all(|command| run(&mut scheduler, &mut plans, command));
        let got = scheduler.digest();
        if !same || got != record.digest {
            return Err(Divergence { step: record.step, expected: record.digest, got });
        }
        scheduler.reap();
    }
    Ok(scheduler)
}

fn run(scheduler: &mut Scheduler, plans: &mut BTreeMap<PlanId, Plan>, command: &Command) -> bool {
    match command {
        Command::Submit { new, num_tokens, now, result } => {
            new.tokens.len() == *num_tokens
                && scheduler.submit(new.clone(), *now).map_err(|error| error.code) == *result
        }
        Command::Abort(id, reason) => {
            scheduler.abort(*id, *reason);
            true
        }
        Command::SetPaused(id, paused) => {
            scheduler.set_paused(*id, *paused);
            true
        }
        Command::SetPrefillChunk(tokens) => {
            scheduler.set_prefill_chunk(*tokens);
            true
        }
        Command::DeviceLost => {
            scheduler.device_lost();
            true
        }
        Command::Plan { now, id } => {
            let plan = scheduler.plan(*now);
            let same = plan.as_ref().map(|plan| plan.id) == *id;
            plans.extend(plan.map(|plan| (plan.id, plan)));
            same
        }
        Command::Commit { plan, outcome, finishes } => plans.remove(plan).is_some_and(|plan| {
            let mut answers = Answers(finishes.iter());
            scheduler.commit(plan, outcome.clone(), &mut answers);
            answers.0.next().is_none()
        }),
        Command::Rollback(plan) => plans.remove(plan).is_some_and(|plan| {
            scheduler.rollback(plan);
            true
        }),
        #[cfg(test)]
        Command::Fault(after) => {
            scheduler.inject_fault(*after);
            true
        }
    }
}

/// Answers as the sink of the recorded run did.
struct Answers<'a>(std::slice::Iter<'a, Option<FinishReason>>);

impl TokenSink for Answers<'_> {
    fn token(&mut self, _: SequenceId, _: usize, _: TokenId) -> Option<FinishReason> {
        self.0.next().copied().flatten()
    }

    fn forked(&mut self, _: SequenceId, _: SequenceId, _: u32) {}

    fn prompt_rows(&mut self, _: SequenceId, _: usize, _: Range<usize>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_no_room_for_what_its_steps_do_not_say() {
        let mut log = Log::new(LogMode::Ring(4));
        let mut kv = KvManager::new(4, 4);
        for step in 0..20usize {
            for _ in 0..1 + step % 5 * 20 {
                log.command(Command::SetPrefillChunk(1));
            }
            log.seal(0, &mut kv);
        }
        assert_eq!(log.steps().len(), 4);
        assert!(log.steps().iter().all(|step| step.commands.capacity() == step.commands.len()));
    }
}
