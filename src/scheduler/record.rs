//! What the scheduler keeps about one live sequence, and the orders sequences stand in. Decides nothing.
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use crate::ids::{SequenceId, TokenId};
use crate::kv::{BlockTable, PrefixHash, Reservation, fold};
use crate::sequence::{AbortReason, AdmissionPoint, FinishReason, PreemptReason, Sequence, SequenceState};

/// Order of running sequences: priority, arrival, id. Fixed at submission; the first is the head, the last the victim.
pub(super) type RunKey = (Reverse<i32>, u64, SequenceId);

/// Order of waiting sequences. With linear ageing the order of two of them never changes, so it is a fixed key: the arrival,
/// moved by `ageing_ms` for each step of priority.
pub(super) type WaitKey = (i128, u64, SequenceId);

/// Live sequences by id. Never iterated where the order could matter.
pub(super) type Records = HashMap<SequenceId, Record, BuildHasherDefault<IdHasher>>;

/// Which queue has a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In line for admission.
    Waiting,
    /// Until a running prefill commits the block with this hash, or gives up.
    Parked(PrefixHash),
    /// Not running and paused.
    Held,
    /// Running, paused or not.
    Running,
}

/// What the plan in flight reserved for a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reserved {
    pub reservation: Reservation,
    /// Set when the plan admitted it too.
    pub admission: Option<Admission>,
}

/// An admission that is not committed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission {
    pub point: AdmissionPoint,
    pub hit_tokens: usize,
    pub miss_tokens: usize,
}

/// One live sequence.
#[derive(Debug)]
pub(super) struct Record {
    pub sequence: Sequence,
    pub table: BlockTable,
    /// Of every full block of its tokens, computed or not; empty without the prefix cache.
    pub hashes: Vec<PrefixHash>,
    pub adapter: u64,
    pub priority: i32,
    pub arrival: u64,
    pub deadline: Option<u64>,
    /// Moves whenever a plan made before could no longer be committed.
    pub epoch: u64,
    pub paused: bool,
    pub place: Place,
    pub reserved: Option<Reserved>,
    /// Blocks (by index) that it has announced to be computing.
    pub computing: Range<usize>,
    pub tokens_digest: u64,
    /// Its share of the scheduler's digest.
    pub digest: u64,
}

impl Record {
    pub fn new(sequence: Sequence, adapter: u64, priority: i32, arrival: u64, deadline: Option<u64>) -> Self {
        let tokens_digest = digest_tokens(0, sequence.tokens());
        Self {
            sequence,
            table: BlockTable::default(),
            hashes: Vec::new(),
            adapter,
            priority,
            arrival,
            deadline,
            epoch: 0,
            paused: false,
            place: Place::Waiting,
            reserved: None,
            computing: 0..0,
            tokens_digest,
            digest: 0,
        }
    }

    pub fn run_key(&self) -> RunKey {
        (Reverse(self.priority), self.arrival, self.sequence.id())
    }

    pub fn wait_key(&self, ageing_ms: u64) -> WaitKey {
        let virtual_arrival = if ageing_ms == 0 {
            -i128::from(self.priority)
        } else {
            i128::from(self.arrival) - i128::from(self.priority) * i128::from(ageing_ms)
        };
        (virtual_arrival, self.arrival, self.sequence.id())
    }

    /// Hashes the blocks that have become full.
    pub fn extend_hashes(&mut self, fingerprint: u64, block_size: usize) {
        for tokens in self.sequence.tokens().chunks_exact(block_size).skip(self.hashes.len()) {
            let parent = self.hashes.last().copied().unwrap_or(PrefixHash::root(fingerprint, self.adapter));
            self.hashes.push(parent.next(tokens));
        }
    }

    /// Blocks that a prefix hit may cover: one token is always left to compute.
    pub fn hit_limit(&self, block_size: usize) -> usize {
        if self.sequence.prompt_logits() { 0 } else { self.sequence.tokens().len().saturating_sub(1) / block_size }
    }

    /// Its share of the digest, computed anew.
    pub fn compute_digest(&self) -> u64 {
        let sequence = &self.sequence;
        let flags = u64::from(self.paused) | u64::from(self.reserved.is_some()) << 1;
        [
            state_code(sequence.state()),
            sequence.computed() as u64,
            sequence.tokens().len() as u64,
            self.tokens_digest,
            sequence.cached_tokens() as u64,
            sequence.delivered_rows() as u64,
            u64::from(sequence.width()) << 32 | u64::from(sequence.choice()),
            u64::from(sequence.preemptions()),
            self.table.digest(),
            self.table.len() as u64,
            self.epoch,
            flags,
        ]
        .into_iter()
        .fold(fold(1, sequence.id().0), fold)
    }
}

/// Digest of a token list that grows at its end.
pub(super) fn digest_tokens(digest: u64, tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(digest, |digest, token| fold(digest, u64::from(token.0)))
}

fn state_code(state: SequenceState) -> u64 {
    match state {
        SequenceState::Waiting => 1,
        SequenceState::Prefilling => 2,
        SequenceState::Decoding => 3,
        SequenceState::Preempted(PreemptReason::OutOfBlocks) => 4,
        SequenceState::Preempted(PreemptReason::DeviceLost) => 5,
        SequenceState::Preempted(PreemptReason::Priority) => 6,
        SequenceState::Finished(FinishReason::Eos) => 7,
        SequenceState::Finished(FinishReason::StopString) => 8,
        SequenceState::Finished(FinishReason::Length) => 9,
        SequenceState::Finished(FinishReason::Grammar) => 10,
        SequenceState::Aborted(AbortReason::Cancelled) => 11,
        SequenceState::Aborted(AbortReason::Deadline) => 12,
        SequenceState::Aborted(AbortReason::Disposed) => 13,
        SequenceState::Aborted(AbortReason::Failed(code)) => {
            code.bytes().fold(14, |hash, byte| fold(hash, byte.into()))
        }
    }
}

/// Ids are counted up: one multiplication spreads them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = fold(self.0, value);
    }
}
