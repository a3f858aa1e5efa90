//! The invariants, checked the slow way: in every test, and when a debug build goes idle.
use std::collections::{BTreeMap, BTreeSet};

use super::Scheduler;
use super::record::{Place, Record};
use crate::ids::SequenceId;
use crate::kv::HashIndex;
use crate::sequence::{SequenceState, StateKind};

impl Scheduler {
    /// Checks every invariant of sequences, tables, blocks, queues, counters and digests.
    ///
    /// # Errors
    /// A sentence saying which does not hold.
    pub fn check_integrity(&self) -> Result<(), String> {
        let records: BTreeMap<_, _> = self.records.iter().collect();
        self.kv.check_integrity(records.values().map(|record| &record.table))?;
        let mut digest = 0;
        let mut computing = HashIndex::<u32>::default();
        for (&&id, record) in &records {
            self.check_record(id, record).map_err(|wrong| format!("sequence {id}: {wrong}"))?;
            digest ^= record.digest;
            for hash in record.hashes.get(record.computing.clone()).unwrap_or_default() {
                *computing.entry(*hash).or_insert(0) += 1;
            }
        }
        if digest != self.digest {
            return Err("the digest of the sequences is stale".to_owned());
        }
        if computing != self.computing {
            return Err("the announcements are not those of the running prefills".to_owned());
        }
        for (id, sequence) in &self.ended {
            if !sequence.state().is_terminal() || self.records.contains_key(id) {
                return Err(format!("sequence {id} waits to be reaped and has not ended"));
            }
        }
        self.check_queues(&records)?;
        self.check_flight(&records)
    }

    fn check_record(&self, id: SequenceId, record: &Record) -> Result<(), String> {
        let sequence = &record.sequence;
        let (state, computed, len) = (sequence.state(), sequence.computed(), sequence.tokens().len());
        if sequence.id() != id || state.is_terminal() {
            return Err(format!("is kept as live under {id} in state {state:?}"));
        }
        if record.digest != record.compute_digest()
            || record.tokens_digest != super::record::digest_tokens(0, sequence.tokens())
        {
            return Err("its digest is stale".to_owned());
        }
        let counts = match state {
            SequenceState::Prefilling => computed < len,
            SequenceState::Decoding => computed + 1 == len,
            _ => computed == 0 && record.table.is_empty() && record.reserved.is_none(),
        };
        if !counts {
            return Err(format!("{state:?} with {computed} of {len} tokens computed, {} blocks", record.table.len()));
        }
        if record.reserved.is_none() && record.table.len() != self.kv.blocks_for(computed) {
            return Err(format!("{} blocks for {computed} computed tokens", record.table.len()));
        }
        if self.config.prefix_cache && record.hashes.len() != len / self.config.block_size {
            return Err(format!("{} hashes for {len} tokens", record.hashes.len()));
        }
        if sequence.generated().len() >= sequence.max_tokens()
            && sequence.max_tokens() > 0
            && sequence.prompt_len() < len
        {
            return Err(format!("is live with {} of {} tokens", sequence.generated().len(), sequence.max_tokens()));
        }
        Ok(())
    }

    fn check_queues(&self, records: &BTreeMap<&SequenceId, &Record>) -> Result<(), String> {
        let (queues, ageing) = (&self.queues, self.config.ageing_ms);
        let places = queues.waiting.len() + queues.parked.len() + queues.running.len();
        let held = records.values().filter(|record| record.place == Place::Held).count();
        let deadlines = records.values().filter(|record| record.deadline.is_some()).count();
        if places + held != records.len() || deadlines != queues.deadlines.len() {
            return Err("a sequence is in two queues, or in none".to_owned());
        }
        let (mut slots, mut live) = (0, BTreeMap::<StateKind, usize>::new());
        for record in records.values() {
            let id = record.sequence.id();
            let (running, key) = (record.sequence.state().is_running(), record.run_key());
            let placed = match record.place {
                Place::Waiting => queues.waiting.contains(&record.wait_key(ageing)) && !record.paused && !running,
                Place::Parked(hash) => {
                    queues.parked.contains(&(hash, id)) && self.computing.contains_key(&hash) && !running
                }
                Place::Held => record.paused && !running,
                Place::Running => queues.running.contains(&key) && running,
            };
            if !placed || queues.paused.contains(&key) != (record.paused && running) {
                return Err(format!("sequence {id} is not where its place {:?} says", record.place));
            }
            if record.deadline.is_some_and(|deadline| !queues.deadlines.contains(&(deadline, id))) {
                return Err(format!("sequence {id} has a deadline that nothing watches"));
            }
            slots += if running { record.sequence.width() as usize } else { 0 };
            *live.entry(record.sequence.state().kind()).or_default() += 1;
        }
        if slots != queues.slots || slots > self.config.max_running {
            return Err(format!("{slots} run, {} are counted, {} may", queues.slots, self.config.max_running));
        }
        let counted = [
            (StateKind::Waiting, self.stats.waiting),
            (StateKind::Prefilling, self.stats.prefilling),
            (StateKind::Decoding, self.stats.decoding),
            (StateKind::Preempted, self.stats.preempted),
        ];
        for (kind, count) in counted {
            if live.get(&kind).copied().unwrap_or(0) != count {
                return Err(format!("{count} sequences are counted as {kind:?}, there are {:?}", live.get(&kind)));
            }
        }
        Ok(())
    }

    fn check_flight(&self, records: &BTreeMap<&SequenceId, &Record>) -> Result<(), String> {
        let flying: BTreeSet<_> = self.in_flight.iter().flat_map(|flight| &flight.sequences).collect();
        for record in records.values() {
            if record.reserved.is_some() && !flying.contains(&record.sequence.id()) {
                return Err(format!("sequence {} has a reservation and is in no plan", record.sequence.id()));
            }
        }
        if self.in_flight.is_none() && self.kv.num_pins() > 0 {
            return Err("a copy's source is held outside a plan".to_owned());
        }
        Ok(())
    }

    /// Checks a plan in flight: tables reach as far as it computes, what it writes is its writer's alone, slots are distinct.
    ///
    /// # Errors
    /// A sentence saying what does not hold.
    pub fn check_plan(&self, plan: &super::Plan) -> Result<(), String> {
        let mut slots = BTreeSet::new();
        if !plan.batch.slot_mapping.iter().all(|slot| slots.insert(slot)) {
            return Err("two tokens of a plan share a slot".to_owned());
        }
        for entry in &plan.entries {
            let Some(record) = self.records.get(&entry.sequence) else { continue };
            if record.epoch != entry.epoch {
                continue;
            }
            let end = entry.start + entry.count;
            if record.table.len() != self.kv.blocks_for(end) {
                return Err(format!("{} blocks for a plan up to {end}", record.table.len()));
            }
            let written = entry.start / self.config.block_size..record.table.len();
            for &block in record.table.blocks().get(written).unwrap_or_default() {
                if !self.kv.writable(block) {
                    return Err(format!("sequence {} would write into shared block {block}", entry.sequence));
                }
            }
        }
        Ok(())
    }

    /// Number of requests parked behind a hash. For tests of the prefix wait.
    #[cfg(test)]
    pub(super) fn num_parked(&self) -> usize {
        self.queues.parked.len()
    }
}
