//! Building a plan: decodes first, then prefills, then admissions, each with its blocks reserved. Executes nothing.
use super::batch::BatchInput;
use super::plan::{Plan, PlanEntry};
use super::record::{Admission, Place, Reserved, RunKey};
use super::{InFlight, Scheduler};
use crate::ids::{PlanId, SequenceId};
use crate::sequence::{AbortReason, Event, PreemptReason, SequenceState};

/// A plan being built.
#[derive(Debug, Default)]
struct Draft {
    /// Sequence, its epoch then, tokens.
    entries: Vec<(SequenceId, u64, usize)>,
    /// Tokens that may still be planned.
    room: usize,
}

/// What became of an attempt to admit.
enum Attempt {
    Admitted,
    /// It waits for another's block, the next in line may go on.
    Parked,
    /// It does not fit; those behind it do not overtake.
    Blocked,
}

impl Scheduler {
    /// The next step, its blocks reserved. `None`: there is nothing to do now, or a plan is in flight already.
    ///
    /// Sequences whose deadline has passed are aborted first: [`Scheduler::reap`] afterwards, whatever this returns.
    pub fn plan(&mut self, now: u64) -> Option<Plan> {
        if self.in_flight.is_some() {
            return None;
        }
        self.now = self.now.max(now);
        self.expire();
        let mut draft = Draft { entries: Vec::new(), room: self.config.token_budget };
        self.plan_decodes(&mut draft);
        if !draft.entries.is_empty() {
            draft.room = draft.room.min(self.prefill_chunk);
        }
        self.plan_prefills(&mut draft);
        self.plan_admissions(&mut draft);
        let plan = self.finish_plan(draft);
        self.log.planned(self.now, plan.as_ref());
        if plan.is_none() {
            self.log.seal_idle(self.digest(), &mut self.kv);
        }
        plan
    }

    fn expire(&mut self) {
        while let Some(&(deadline, id)) = self.queues.deadlines.first() {
            if deadline > self.now {
                break;
            }
            if self.event(id, Event::Abort(AbortReason::Deadline)).is_err() {
                self.queues.deadlines.remove(&(deadline, id));
            }
        }
    }

    fn plan_decodes(&mut self, draft: &mut Draft) {
        for (_, _, id) in self.running_in_order() {
            if draft.room == 0 {
                break;
            }
            let Some(record) = self.records.get(&id) else { continue };
            if record.sequence.state() == SequenceState::Decoding && !record.paused && self.reserve_decode(id) {
                self.draft(draft, id, 1);
            }
        }
    }

    /// One slot for a decoding sequence; the last in order give up their blocks for it, or it its own when it is the last.
    fn reserve_decode(&mut self, id: SequenceId) -> bool {
        loop {
            let Some(record) = self.records.get_mut(&id) else { return false };
            let start = record.sequence.computed();
            if let Ok(reservation) = self.kv.reserve(&mut record.table, start, start + 1) {
                record.reserved = Some(Reserved { reservation, admission: None });
                self.sync(id);
                return true;
            }
            let Some((_, _, victim)) = self.queues.victim() else { return false };
            let head = self.queues.head().map(|(_, _, head)| head);
            if victim == id && head == Some(id) {
                return false;
            }
            self.preempt(victim, PreemptReason::OutOfBlocks);
            if victim == id {
                return false;
            }
        }
    }

    fn plan_prefills(&mut self, draft: &mut Draft) {
        for (_, _, id) in self.running_in_order() {
            if draft.room == 0 {
                break;
            }
            let Some(record) = self.records.get(&id) else { continue };
            if record.sequence.state() == SequenceState::Prefilling && !record.paused {
                let count = self.reserve_prefill(id, draft.room);
                if count > 0 {
                    self.draft(draft, id, count);
                }
            }
        }
    }

    /// As many tokens of a running prefill as `room` and the blocks allow. One that gets none takes them from the last in order, and
    /// waits when it is itself the last: it may go on with what it has when others end.
    fn reserve_prefill(&mut self, id: SequenceId, room: usize) -> usize {
        loop {
            let Some(record) = self.records.get_mut(&id) else { return 0 };
            let start = record.sequence.computed();
            let slack = (record.table.len() * self.config.block_size).saturating_sub(start);
            let reach = slack.saturating_add(self.kv.available().saturating_mul(self.config.block_size));
            let left = record.sequence.tokens().len().saturating_sub(start);
            let count = left.min(room).min(reach);
            if count > 0
                && let Ok(reservation) = self.kv.reserve(&mut record.table, start, start + count)
            {
                record.reserved = Some(Reserved { reservation, admission: None });
                self.sync(id);
                return count;
            }
            match self.queues.victim() {
                Some((_, _, victim)) if victim != id => self.preempt(victim, PreemptReason::OutOfBlocks),
                _ => return 0,
            }
        }
    }

    fn plan_admissions(&mut self, draft: &mut Draft) {
        while draft.room > 0 {
            let Some(&(_, _, id)) = self.queues.waiting.first() else { break };
            match self.try_admit(id, draft) {
                Attempt::Admitted | Attempt::Parked => {}
                Attempt::Blocked => break,
            }
        }
    }

    fn try_admit(&mut self, id: SequenceId, draft: &mut Draft) -> Attempt {
        let Some(record) = self.records.get(&id) else { return Attempt::Blocked };
        let width = record.sequence.width() as usize;
        while self.queues.slots.saturating_add(width) > self.config.max_running {
            if !self.displace_for(id) {
                return Attempt::Blocked;
            }
        }
        loop {
            let Some(record) = self.records.get_mut(&id) else { return Attempt::Blocked };
            let tokens = record.sequence.tokens();
            let limit = record.hit_limit(self.config.block_size);
            let hit = self.kv.find_prefix(record.adapter, tokens, &record.hashes, limit);
            let ahead = record.hashes.get(hit.len()..limit).unwrap_or_default();
            if let Some(last) = ahead.iter().take_while(|hash| self.computing.contains_key(hash)).last().copied() {
                self.queues.leave(record, self.config.ageing_ms);
                self.queues.enter(record, Place::Parked(last), self.config.ageing_ms);
                return Attempt::Parked;
            }
            let cached = hit.len() * self.config.block_size;
            let (len, point) = (tokens.len(), record.sequence.admission_point());
            let whole = self.kv.blocks_for(len).saturating_sub(hit.len());
            let mut cost = self.kv.admission_cost(&hit, whole);
            if self.queues.anything_runs() {
                cost = cost.saturating_add(self.promised()).saturating_add(self.config.watermark_blocks);
            }
            let count = draft.room.min(len.saturating_sub(cached));
            let new_blocks = self.kv.blocks_for(cached + count).saturating_sub(hit.len());
            let Some(record) = self.records.get_mut(&id) else { return Attempt::Blocked };
            if cost > self.kv.available() || self.kv.admit(&mut record.table, &hit, new_blocks).is_err() {
                if self.displace_for(id) {
                    continue;
                }
                return Attempt::Blocked;
            }
            let admission = Admission { point, hit_tokens: cached, miss_tokens: len - cached };
            self.enter_running(id, cached, admission);
            self.draft(draft, id, count);
            return Attempt::Admitted;
        }
    }

    fn enter_running(&mut self, id: SequenceId, cached: usize, admission: Admission) {
        let admitted = self.event(id, Event::Admit { cached });
        debug_assert!(admitted.is_ok(), "a sequence in line can be admitted");
        let Some(record) = self.records.get_mut(&id) else { return };
        record.reserved = Some(Reserved { reservation: Default::default(), admission: Some(admission) });
        self.queues.leave(record, self.config.ageing_ms);
        self.queues.enter(record, Place::Running, self.config.ageing_ms);
        self.announce(id);
        self.sync(id);
    }

    /// Blocks that running prefills have yet to take for the tokens they have.
    fn promised(&self) -> usize {
        let left = |(_, _, id): &RunKey| {
            let record = self.records.get(id)?;
            let prefilling = record.sequence.state() == SequenceState::Prefilling;
            prefilling.then(|| self.kv.blocks_for(record.sequence.tokens().len()).saturating_sub(record.table.len()))
        };
        self.queues.running.iter().filter_map(left).sum()
    }

    /// Preempts one running sequence in favour of a waiting one: a paused one, else the last if it is lower in priority and behind in
    /// line, so that the two cannot displace each other in turn. Never the head.
    fn displace_for(&mut self, id: SequenceId) -> bool {
        let Some(record) = self.records.get(&id) else { return false };
        let Some((_, _, victim)) = self.queues.victim() else { return false };
        let Some(last) = self.records.get(&victim) else { return false };
        let ageing = self.config.ageing_ms;
        let outranked = last.priority < record.priority && last.wait_key(ageing) > record.wait_key(ageing);
        let is_head = self.queues.head() == Some(last.run_key());
        if !last.paused && (is_head || !outranked) {
            return false;
        }
        self.preempt(victim, PreemptReason::Priority);
        true
    }

    fn running_in_order(&self) -> Vec<RunKey> {
        self.queues.running.iter().copied().collect()
    }

    fn draft(&self, draft: &mut Draft, id: SequenceId, count: usize) {
        let Some(record) = self.records.get(&id) else { return };
        draft.entries.push((id, record.epoch, count));
        draft.room = draft.room.saturating_sub(count);
    }

    /// Turns a draft into a plan. Entries of sequences that were preempted while it was built are left out.
    fn finish_plan(&mut self, draft: Draft) -> Option<Plan> {
        let mut entries = Vec::with_capacity(draft.entries.len());
        let mut batch = BatchInput { query_start: vec![0], ..BatchInput::default() };
        for (id, epoch, count) in draft.entries {
            let Some(record) = self.records.get(&id) else { continue };
            let (true, Some(reserved)) = (record.epoch == epoch, record.reserved) else { continue };
            let sequence = &record.sequence;
            let (start, len) = (sequence.computed(), sequence.tokens().len());
            let prefill = sequence.state() == SequenceState::Prefilling;
            let samples = if start + count == len && !sequence.prompt_only() { sequence.width() } else { 0 };
            let first_row = batch.logit_rows.len();
            let base = batch.token_ids.len();
            let mut prompt_rows = 0;
            for position in start..start + count {
                let wanted = sequence.prompt_logits()
                    && position >= sequence.delivered_rows()
                    && position < sequence.prompt_len();
                prompt_rows += usize::from(wanted);
                if wanted || (samples > 0 && position + 1 == len) {
                    batch.logit_rows.push((base + position - start) as u32);
                }
                batch.positions.push(position as u32);
                let block = record.table.blocks().get(position / self.config.block_size).map_or(0, |block| block.0);
                batch
                    .slot_mapping
                    .push(block * self.config.block_size as u32 + (position % self.config.block_size) as u32);
                batch.seq_of_token.push(entries.len() as u32);
            }
            batch.token_ids.extend_from_slice(sequence.tokens().get(start..start + count).unwrap_or_default());
            batch.query_start.push(batch.token_ids.len() as u32);
            batch.context_lens.push((start + count) as u32);
            let blocks = self.kv.blocks_for(start + count);
            batch.block_tables.push(record.table.blocks().iter().take(blocks).map(|block| block.0).collect());
            batch.copies.extend(reserved.reservation.copy().map(|copy| (copy.from.0, copy.to.0)));
            batch.sequences.push(id);
            entries.push(PlanEntry {
                sequence: id,
                epoch,
                start,
                count,
                prefill,
                rows: first_row..batch.logit_rows.len(),
                prompt_rows,
                samples,
                choice: sequence.choice(),
                output_index: sequence.generated().len(),
            });
        }
        if entries.is_empty() {
            return None;
        }
        let id = PlanId(self.next_plan);
        self.next_plan += 1;
        self.in_flight = Some(InFlight { id, sequences: batch.sequences.clone() });
        Some(Plan { id, entries, batch })
    }
}
