//! Who runs next: queues, policy, plan, commit, rollback. Pure: no clock, no model, no async.
pub mod batch;
mod config;
mod plan;
mod stats;

pub use config::{LogMode, NewSequence, SchedulerConfig};
pub use plan::{AbortOutcome, Effects, Plan, PlanEntry, StepOutcome, TokenSink};
pub use stats::SchedulerStats;

use crate::Result;
use crate::ids::SequenceId;
use crate::sequence::{AbortReason, Sequence};

/// The scheduler: sequences, their blocks, and which of them a step computes.
///
/// At most one plan is in flight. `now` is milliseconds on a clock that never goes back.
#[derive(Debug)]
pub struct Scheduler {}

#[allow(unused_variables, missing_docs, clippy::todo)] // Signatures first; bodies follow in the next commits.
impl Scheduler {
    pub fn new(config: SchedulerConfig) -> Result<Self> {
        todo!()
    }
    /// Enqueues. Errors: request.queue_full, request.context_exceeded, request.empty_prompt, request.too_many_choices, kv.never_fits
    pub fn submit(&mut self, new: NewSequence, now: u64) -> Result<SequenceId> {
        todo!()
    }
    /// Ends a live sequence at once, in any phase (also while its plan is in flight).
    pub fn abort(&mut self, id: SequenceId, reason: AbortReason) -> AbortOutcome {
        todo!()
    }
    /// A paused sequence (its reader does not keep up) is not planned and is the first to be preempted. False: no such live sequence.
    pub fn set_paused(&mut self, id: SequenceId, paused: bool) -> bool {
        todo!()
    }
    /// Prompt tokens a step while others decode (clamped to at least 1): the engine sizes it from measured step times.
    pub fn set_prefill_chunk(&mut self, tokens: usize) {
        todo!()
    }
    /// The next step, its blocks reserved. `None`: nothing to do now (park), or a plan is in flight. Sequences past their
    /// deadline are aborted first: call `reap` after it whatever it returns.
    pub fn plan(&mut self, now: u64) -> Option<Plan> {
        todo!()
    }
    /// Infallible and synchronous; a stale plan or entry changes nothing.
    pub fn commit(&mut self, plan: Plan, outcome: StepOutcome, sink: &mut dyn TokenSink) -> Effects {
        todo!()
    }
    /// The executor failed: reservations are released, admissions undone.
    pub fn rollback(&mut self, plan: Plan) {
        todo!()
    }
    /// The device is gone with all KV: everything running is preempted, the cache emptied. A plan in flight is stale from now on.
    pub fn device_lost(&mut self) {
        todo!()
    }
    /// Sequences that ended since the last call, in the order they ended; the scheduler forgets them.
    pub fn reap(&mut self) -> Vec<Sequence> {
        todo!()
    }
    /// When `plan` must be called at the latest, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<u64> {
        todo!()
    }
    /// A sequence that is live or not reaped yet.
    pub fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        todo!()
    }
    /// O(1).
    pub fn stats(&self) -> SchedulerStats {
        todo!()
    }
    /// Every invariant, checked the slow way.
    pub fn check_integrity(&self) -> Result<(), String> {
        todo!()
    }
    /// Digest of the whole state, kept incrementally.
    pub fn digest(&self) -> u64 {
        todo!()
    }
}
