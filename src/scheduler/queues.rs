//! The ordered sets that sequences stand in: waiting, parked behind a prefill, running, and by deadline. Holds ids, no sequences.
use std::collections::BTreeSet;

use super::record::{Place, Record, Records, RunKey, WaitKey};
use crate::ids::SequenceId;
use crate::kv::PrefixHash;

/// All queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub waiting: BTreeSet<WaitKey>,
    pub parked: BTreeSet<(PrefixHash, SequenceId)>,
    pub running: BTreeSet<RunKey>,
    /// Those of `running` that are paused.
    pub paused: BTreeSet<RunKey>,
    pub deadlines: BTreeSet<(u64, SequenceId)>,
    /// Places that running sequences take of `max_running`: their widths.
    pub slots: usize,
}

impl Queues {
    /// Takes a sequence out of its place.
    pub fn leave(&mut self, record: &Record, ageing_ms: u64) {
        match record.place {
            Place::Waiting => {
                self.waiting.remove(&record.wait_key(ageing_ms));
            }
            Place::Parked(hash) => {
                self.parked.remove(&(hash, record.sequence.id()));
            }
            Place::Held => {}
            Place::Running => {
                self.running.remove(&record.run_key());
                self.paused.remove(&record.run_key());
                self.slots = self.slots.saturating_sub(record.sequence.width() as usize);
            }
        }
    }

    /// Puts a sequence that is in no place into one.
    pub fn enter(&mut self, record: &mut Record, place: Place, ageing_ms: u64) {
        record.place = place;
        match place {
            Place::Waiting => {
                self.waiting.insert(record.wait_key(ageing_ms));
            }
            Place::Parked(hash) => {
                self.parked.insert((hash, record.sequence.id()));
            }
            Place::Held => {}
            Place::Running => {
                self.running.insert(record.run_key());
                if record.paused {
                    self.paused.insert(record.run_key());
                }
                self.slots += record.sequence.width() as usize;
            }
        }
    }

    /// Those parked behind `hash` are in line again.
    pub fn wake(&mut self, hash: PrefixHash, records: &mut Records, ageing_ms: u64) {
        let behind = (hash, SequenceId(0))..=(hash, SequenceId(u64::MAX));
        while let Some(&(hash, id)) = self.parked.range(behind.clone()).next() {
            self.parked.remove(&(hash, id));
            if let Some(record) = records.get_mut(&id) {
                self.enter(record, Place::Waiting, ageing_ms);
            }
        }
    }

    /// Who gives up its blocks first: the last of the paused, else the last of all.
    pub fn victim(&self) -> Option<RunKey> {
        self.paused.last().or(self.running.last()).copied()
    }

    /// The first that is not paused: it is never preempted for another.
    pub fn head(&self) -> Option<RunKey> {
        self.running.iter().find(|key| !self.paused.contains(key)).copied()
    }

    /// Whether something runs that is not paused.
    pub fn anything_runs(&self) -> bool {
        self.running.len() > self.paused.len()
    }
}
