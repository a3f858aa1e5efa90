//! After execution: commit entry by entry, or roll the whole plan back. Infallible and synchronous.
use super::log::Command;
use super::plan::{Effects, Plan, PlanEntry, StepOutcome, TokenSink};
use super::record::{Place, Record};
use super::{InFlight, Scheduler};
use crate::ids::{PlanId, SequenceId, TokenId};
use crate::sequence::{Event, FinishReason, PreemptReason, SequenceState};

impl Scheduler {
    /// Commits a plan with what the executor made of it. Entries whose sequence has moved on are dropped one by one; a plan that is not
    /// the one in flight changes nothing. For each entry the order is: prefill, fork, tokens.
    pub fn commit(&mut self, plan: Plan, outcome: StepOutcome, sink: &mut dyn TokenSink) -> Effects {
        let mut effects = Effects::default();
        let Some(flight) = self.take_flight(plan.id) else {
            effects.dropped = plan.entries.len();
            return effects;
        };
        let ended_before = self.ended_order.len();
        let mut finishes = Vec::new();
        let mut drawn = outcome.tokens.as_slice();
        let mut failed = outcome.failed.iter().peekable();
        for (index, entry) in plan.entries.iter().enumerate() {
            let samples = (entry.samples as usize).min(drawn.len());
            let (tokens, rest) = drawn.split_at(samples);
            drawn = rest;
            while failed.next_if(|(place, _)| *place < index).is_some() {}
            let mut code = failed.next_if(|(place, _)| *place == index).map(|&(_, code)| code);
            if samples < entry.samples as usize {
                code = code.or(Some("scheduler.short_outcome"));
            }
            if !self.settle(entry) {
                effects.dropped += 1;
                continue;
            }
            effects.committed += 1;
            match code {
                Some(code) => self.fail(entry.sequence, code),
                None => self.commit_entry(entry, tokens, sink, &mut effects, &mut finishes),
            }
        }
        if effects.dropped > 0 || plan.entries.len() != flight.sequences.len() {
            // An entry that did not come back as it went out: what it reserved is given up.
            self.undo(flight);
        }
        self.stats.steps += 1;
        effects.ended = self.ended_order.get(ended_before..).unwrap_or_default().to_vec();
        self.log.committed(plan.id, outcome, finishes, &effects);
        self.log.seal(self.digest(), &mut self.kv);
        effects
    }

    /// The executor failed: the plan's reservations are released and its admissions undone. Evictions, preemptions and the order of use
    /// of cached blocks stand. A plan that is not the one in flight changes nothing.
    pub fn rollback(&mut self, plan: Plan) {
        if let Some(flight) = self.take_flight(plan.id) {
            self.undo(flight);
            self.stats.rollbacks += 1;
            self.log.command(Command::Rollback(plan.id));
            self.log.seal(self.digest(), &mut self.kv);
        }
    }

    /// The device is gone with all KV: the plan in flight is undone, everything running is preempted, nothing cached is ever hit again.
    pub fn device_lost(&mut self) {
        self.log.command(Command::DeviceLost);
        if let Some(flight) = self.in_flight.take() {
            self.undo(flight);
            self.stats.rollbacks += 1;
        }
        while let Some(&(_, _, id)) = self.queues.running.last() {
            self.preempt(id, PreemptReason::DeviceLost);
        }
        self.kv.device_lost();
    }

    /// Whether no entry of a plan would be committed any more: every sequence has ended or moved on.
    pub fn is_stale(&self, plan: &Plan) -> bool {
        let moved_on = |e: &PlanEntry| self.records.get(&e.sequence).is_none_or(|record| record.epoch != e.epoch);
        plan.entries.iter().all(moved_on)
    }

    fn take_flight(&mut self, id: PlanId) -> Option<InFlight> {
        self.in_flight.take_if(|flight| flight.id == id)
    }

    fn undo(&mut self, flight: InFlight) {
        // In reverse, so that the free list is as it was.
        for &id in flight.sequences.iter().rev() {
            let Some(record) = self.records.get_mut(&id) else { continue };
            let Some(reserved) = record.reserved.take() else { continue };
            match reserved.admission {
                None => self.kv.undo(&mut record.table, reserved.reservation),
                Some(admission) => {
                    self.kv.release_all(&mut record.table, false);
                    record.sequence.restore_admission(admission.point);
                    let kind = record.sequence.state().kind();
                    self.stats.prefilling -= 1;
                    *self.live(kind) += 1;
                    self.log.undone(id, kind);
                    self.withdraw_below(id, usize::MAX);
                    self.requeue(id);
                }
            }
            self.sync(id);
        }
    }

    /// Ends the reservation of an entry. False: its sequence has moved on, the entry is stale.
    fn settle(&mut self, entry: &PlanEntry) -> bool {
        let Some(record) = self.records.get_mut(&entry.sequence) else { return false };
        if record.epoch != entry.epoch {
            return false;
        }
        let Some(reserved) = record.reserved.take() else { return false };
        self.kv.settle(reserved.reservation);
        self.stats.copies_on_write += u64::from(reserved.reservation.copy().is_some());
        if let Some(admission) = reserved.admission {
            self.stats.prefix_hits += u64::from(admission.hit_tokens > 0);
            self.stats.prefix_hit_tokens += admission.hit_tokens as u64;
            self.stats.prefix_miss_tokens += admission.miss_tokens as u64;
        }
        true
    }

    fn commit_entry(
        &mut self,
        entry: &PlanEntry,
        tokens: &[TokenId],
        sink: &mut dyn TokenSink,
        effects: &mut Effects,
        finishes: &mut Vec<Option<FinishReason>>,
    ) {
        let id = entry.sequence;
        let end = entry.start + entry.count;
        if entry.prefill && !self.advance_prefill(entry, end, sink) {
            return;
        }
        self.publish(id, end);
        self.sync(id);
        let Some(record) = self.records.get(&id) else { return };
        let sequence = &record.sequence;
        if end == sequence.tokens().len() && sequence.prompt_only() {
            return self.finish(id, FinishReason::Length);
        }
        let mut choices = vec![id];
        if sequence.state() == SequenceState::Decoding && sequence.width() > 1 {
            match self.fork(id, sink, effects) {
                Some(children) => choices.extend(children),
                // It could not share its blocks now. It has emitted nothing: it starts over.
                None => return self.preempt(id, PreemptReason::OutOfBlocks),
            }
        }
        for (&id, &token) in choices.iter().zip(tokens) {
            self.decode(id, token, sink, effects, finishes);
        }
    }

    fn advance_prefill(&mut self, entry: &PlanEntry, end: usize, sink: &mut dyn TokenSink) -> bool {
        let id = entry.sequence;
        if self.event(id, Event::PrefillAdvanced { count: entry.count }).is_err() {
            return false;
        }
        self.stats.prefill_tokens_computed += entry.count as u64;
        let Some(record) = self.records.get_mut(&id) else { return false };
        if entry.prompt_rows > 0 {
            let first = entry.start.max(record.sequence.delivered_rows());
            record.sequence.note_delivered_rows(end);
            sink.prompt_rows(id, first, entry.rows.start..entry.rows.start + entry.prompt_rows);
        }
        true
    }

    /// Makes the blocks that are full by now addressable, and lets those go on that waited for them.
    fn publish(&mut self, id: SequenceId, computed: usize) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let tokens = record.sequence.tokens();
        self.kv.publish(&mut record.table, record.adapter, tokens, &record.hashes, computed);
        if !record.computing.is_empty() {
            self.withdraw_below(id, computed / self.config.block_size);
        }
    }

    fn fork(&mut self, id: SequenceId, sink: &mut dyn TokenSink, effects: &mut Effects) -> Option<Vec<SequenceId>> {
        let record = self.records.get(&id)?;
        let children = record.sequence.width().saturating_sub(1);
        let tables = self.kv.fork(&record.table, children as usize).ok()?;
        if self.event(id, Event::Fork { children }).is_err() {
            for mut table in tables {
                self.kv.release_all(&mut table, false);
            }
            return None;
        }
        let mut ids = Vec::with_capacity(tables.len());
        for (table, number) in tables.into_iter().zip(1..) {
            let parent = self.records.get(&id)?;
            let (child_id, choice) = (SequenceId(self.next_sequence), parent.sequence.choice().saturating_add(number));
            let sequence = parent.sequence.child(child_id, choice)?;
            let (adapter, priority, arrival, deadline) =
                (parent.adapter, parent.priority, parent.arrival, parent.deadline);
            let mut child = Record::new(sequence, adapter, priority, arrival, deadline);
            child.table = table;
            child.hashes = parent.hashes.clone();
            child.paused = parent.paused;
            self.next_sequence += 1;
            self.insert(child, Place::Running);
            sink.forked(id, child_id, choice);
            effects.forked.push((id, child_id));
            ids.push(child_id);
        }
        Some(ids)
    }

    fn decode(
        &mut self,
        id: SequenceId,
        token: TokenId,
        sink: &mut dyn TokenSink,
        effects: &mut Effects,
        finishes: &mut Vec<Option<FinishReason>>,
    ) {
        let Some(record) = self.records.get(&id) else { return };
        if record.sequence.state() != SequenceState::Decoding {
            return;
        }
        let sequence = &record.sequence;
        let last = sequence.generated().len() + 1 >= sequence.max_tokens();
        let told = sink.token(id, sequence.generated().len(), token);
        finishes.push(told);
        effects.tokens.push((id, token));
        let finish = told.or(last.then_some(FinishReason::Length));
        let decoded = self.event(id, Event::TokenDecoded { token, finish });
        debug_assert!(decoded.is_ok(), "a decoding sequence takes its token");
        if self.config.prefix_cache
            && let Some(record) = self.records.get_mut(&id)
        {
            record.extend_hashes(self.config.fingerprint, self.config.block_size);
        }
    }
}
