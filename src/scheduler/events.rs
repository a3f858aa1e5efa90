//! One place where events reach sequences: blocks, queues, counters, trace and digest follow each transition from here.
use super::Scheduler;
use super::record::{Place, Record};
use crate::ids::SequenceId;
use crate::sequence::{
    AbortReason, BlockEffect, Event, FinishReason, PreemptReason, Refusal, SequenceState, StateKind, Transition,
};

impl Scheduler {
    /// Applies an event and all that follows from it. A refused event changes nothing.
    pub(super) fn event(&mut self, id: SequenceId, event: Event) -> Result<Transition, Refusal> {
        let record = self.records.get_mut(&id).ok_or(Refusal::Ended)?;
        let width = record.sequence.width();
        let change = record.sequence.apply(event)?;
        match event {
            Event::TokenDecoded { token, .. } => {
                record.tokens_digest = super::record::digest_tokens(record.tokens_digest, &[token]);
                self.stats.completion_tokens += 1;
            }
            // The children take the places that their parent kept for them.
            Event::Fork { .. } => self.queues.slots -= width.saturating_sub(record.sequence.width()) as usize,
            Event::Preempt(_) => self.stats.preemptions += 1,
            Event::Admit { .. } | Event::PrefillAdvanced { .. } | Event::Finish(_) | Event::Abort(_) => {}
        }
        self.log.transition(id, change.from.kind(), event.kind(), change.to.kind());
        self.count(change.from.kind(), change.to.kind());
        if change.blocks == BlockEffect::Release {
            let failed = matches!(change.to, SequenceState::Aborted(AbortReason::Failed(_)));
            self.release(id, failed);
        }
        match change.to {
            SequenceState::Preempted(_) => self.requeue(id),
            SequenceState::Finished(_) | SequenceState::Aborted(_) => self.end(id),
            SequenceState::Waiting | SequenceState::Prefilling | SequenceState::Decoding => {}
        }
        self.sync(id);
        Ok(change)
    }

    /// Preempts a running sequence; what a plan being built has for it leaves that plan.
    pub(super) fn preempt(&mut self, id: SequenceId, reason: PreemptReason) {
        let preempted = self.event(id, Event::Preempt(reason));
        debug_assert!(preempted.is_ok(), "only running sequences are preempted");
    }

    /// Gives back all that a sequence holds, and its announcements.
    pub(super) fn release(&mut self, id: SequenceId, forget: bool) {
        self.withdraw(id);
        let Some(record) = self.records.get_mut(&id) else { return };
        if let Some(reserved) = record.reserved.take() {
            self.kv.settle(reserved.reservation);
        }
        self.kv.release_all(&mut record.table, forget);
        record.epoch += 1;
    }

    /// A running sequence goes back in line, or aside when it is paused.
    pub(super) fn requeue(&mut self, id: SequenceId) {
        let Some(record) = self.records.get_mut(&id) else { return };
        self.queues.leave(record, self.config.ageing_ms);
        let place = if record.paused { Place::Held } else { Place::Waiting };
        self.queues.enter(record, place, self.config.ageing_ms);
    }

    /// A terminal sequence leaves the scheduler's records and waits to be reaped.
    fn end(&mut self, id: SequenceId) {
        let Some(record) = self.records.remove(&id) else { return };
        self.queues.leave(&record, self.config.ageing_ms);
        if let Some(deadline) = record.deadline {
            self.queues.deadlines.remove(&(deadline, id));
        }
        self.digest ^= record.digest;
        self.ended_order.push(id);
        self.ended.insert(id, record.sequence);
    }

    /// Puts a new record into a place.
    pub(super) fn insert(&mut self, mut record: Record, place: Place) {
        let id = record.sequence.id();
        if self.config.prefix_cache {
            record.extend_hashes(self.config.fingerprint, self.config.block_size);
        }
        if let Some(deadline) = record.deadline {
            self.queues.deadlines.insert((deadline, id));
        }
        self.queues.enter(&mut record, place, self.config.ageing_ms);
        *self.live(record.sequence.state().kind()) += 1;
        self.records.insert(id, record);
        self.sync(id);
    }

    /// Announces the blocks that a prefill is going to compute: equal requests wait for them instead of computing them too.
    pub(super) fn announce(&mut self, id: SequenceId) {
        let Some(record) = self.records.get_mut(&id) else { return };
        record.computing = record.table.published()..record.hashes.len();
        for hash in record.hashes.iter().skip(record.computing.start) {
            *self.computing.entry(*hash).or_insert(0) += 1;
        }
    }

    /// Withdraws the announcements of the blocks below `end`: they are computed now.
    pub(super) fn withdraw_below(&mut self, id: SequenceId, end: usize) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let done = record.computing.start..record.computing.end.min(end).max(record.computing.start);
        record.computing.start = done.end;
        let hashes = record.hashes.get(done).unwrap_or_default().to_vec();
        for hash in hashes {
            if let Some(times) = self.computing.get_mut(&hash) {
                *times -= 1;
                if *times == 0 {
                    self.computing.remove(&hash);
                }
            }
            self.queues.wake(hash, &mut self.records, self.config.ageing_ms);
        }
    }

    fn withdraw(&mut self, id: SequenceId) {
        self.withdraw_below(id, usize::MAX);
    }

    /// Brings the digest up to date with one sequence.
    pub(super) fn sync(&mut self, id: SequenceId) {
        if let Some(record) = self.records.get_mut(&id) {
            let now = record.compute_digest();
            self.digest ^= record.digest ^ now;
            record.digest = now;
        }
    }

    /// Ends a sequence that cannot go on.
    pub(super) fn fail(&mut self, id: SequenceId, code: &'static str) {
        let failed = self.event(id, Event::Abort(AbortReason::Failed(code)));
        debug_assert!(failed.is_ok(), "only live sequences fail");
    }

    /// Ends a sequence that has nothing (more) to generate.
    pub(super) fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        let finished = self.event(id, Event::Finish(reason));
        debug_assert!(finished.is_ok(), "only a computed sequence finishes");
    }

    fn count(&mut self, from: StateKind, to: StateKind) {
        let left = self.live(from);
        *left = left.saturating_sub(1);
        match to {
            StateKind::Finished => self.stats.finished += 1,
            StateKind::Aborted => self.stats.aborted += 1,
            StateKind::Waiting | StateKind::Prefilling | StateKind::Decoding | StateKind::Preempted => {
                *self.live(to) += 1;
            }
        }
    }

    /// The counter of live sequences in a state.
    pub(super) fn live(&mut self, kind: StateKind) -> &mut usize {
        match kind {
            StateKind::Waiting => &mut self.stats.waiting,
            StateKind::Prefilling => &mut self.stats.prefilling,
            StateKind::Decoding => &mut self.stats.decoding,
            // Terminal sequences are counted for ever elsewhere; nothing leaves those states.
            StateKind::Preempted | StateKind::Finished | StateKind::Aborted => &mut self.stats.preempted,
        }
    }
}
