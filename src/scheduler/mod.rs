//! Who runs next: queues, policy, plan, commit, rollback. Pure: no clock, no model, no async.
pub mod batch;
mod commit;
mod config;
mod events;
mod integrity;
mod log;
mod plan;
mod planner;
mod queues;
mod record;
mod stats;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

pub use config::{LogMode, NewSequence, SchedulerConfig};
pub use log::{Command, Divergence, PlannedEntry, StepRecord, TraceTransition, replay};
pub use plan::{AbortOutcome, Effects, Plan, PlanEntry, StepOutcome, TokenSink};
pub use stats::SchedulerStats;

use crate::ids::{PlanId, SequenceId};
use crate::kv::{HashIndex, KvManager, fold};
use crate::sequence::{AbortReason, Event, Sequence, SequenceSpec, StateKind};
use crate::{Error, Result};
use log::Log;
use queues::Queues;
use record::{Place, Record, Records};

/// The scheduler: sequences, their blocks, and which of them a step computes.
///
/// At most one plan is in flight. `now` is milliseconds on a clock that never goes back. Sequences that ended are kept until
/// [`Scheduler::reap`].
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    prefill_chunk: usize,
    kv: KvManager,
    records: Records,
    queues: Queues,
    /// Blocks that running prefills are computing, by the hash they will have.
    computing: HashIndex<u32>,
    in_flight: Option<InFlight>,
    ended: BTreeMap<SequenceId, Sequence>,
    ended_order: Vec<SequenceId>,
    next_sequence: u64,
    next_plan: u64,
    now: u64,
    stats: SchedulerStats,
    log: Log,
    /// The sequences' part of the digest.
    digest: u64,
}

/// The plan that the executor works on.
#[derive(Debug)]
struct InFlight {
    id: PlanId,
    sequences: Vec<SequenceId>,
}

impl Scheduler {
    /// A scheduler with a pool of free blocks.
    ///
    /// # Errors
    /// `scheduler.bad_config`.
    pub fn new(config: SchedulerConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            prefill_chunk: config.prefill_chunk,
            kv: KvManager::new(config.num_blocks, config.block_size),
            records: Records::default(),
            queues: Queues::default(),
            computing: HashIndex::default(),
            in_flight: None,
            ended: BTreeMap::new(),
            ended_order: Vec::new(),
            next_sequence: 0,
            next_plan: 0,
            now: 0,
            stats: SchedulerStats::default(),
            log: Log::new(config.log),
            digest: 0,
            config,
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Puts a sequence in line. The id is that of its choice 0; the others get theirs when they fork.
    ///
    /// # Errors
    /// `request.queue_full`, `request.empty_prompt`, `request.too_many_choices`, `request.context_exceeded`, `kv.never_fits`; nothing
    /// changed.
    pub fn submit(&mut self, new: NewSequence, now: u64) -> Result<SequenceId> {
        self.now = self.now.max(now);
        let (kept, num_tokens) = (self.log.submission(&new), new.tokens.len());
        let result = self.check_submission(&new).map(|max_tokens| self.accept(new, max_tokens));
        self.log.submitted(kept, num_tokens, now, &result);
        result
    }

    fn accept(&mut self, new: NewSequence, max_tokens: usize) -> SequenceId {
        let id = SequenceId(self.next_sequence);
        self.next_sequence += 1;
        let prompt_len = new.tokens.len().saturating_sub(new.generated);
        self.stats.prompt_tokens += prompt_len as u64;
        // Without a token to generate there is nothing that choices could differ in.
        let choices = if max_tokens == 0 { 1 } else { new.choices };
        let sequence = Sequence::new(SequenceSpec {
            id,
            choice: new.choice,
            choices,
            tokens: new.tokens,
            prompt_len,
            max_tokens,
            prompt_logits: new.prompt_logits,
        });
        let record = Record::new(sequence, new.adapter, new.priority, self.now, new.deadline_ms);
        self.insert(record, Place::Waiting);
        id
    }

    /// Most tokens to generate, or why the submission is refused.
    fn check_submission(&self, new: &NewSequence) -> Result<usize> {
        let (config, len) = (&self.config, new.tokens.len());
        let prompt = len.saturating_sub(new.generated);
        if prompt == 0 {
            return Err(Error::new("request.empty_prompt", "the prompt has no tokens and the model adds none"));
        }
        if new.choices == 0 || new.choices as usize > config.max_running {
            return Err(Error::new(
                "request.too_many_choices",
                "n must be at least 1 and at most what may run at once",
            )
            .with("n", new.choices)
            .with("max_running", config.max_running));
        }
        // A prompt that is only scored needs no room for a token after it.
        let room_for_one = usize::from(!(new.prompt_logits && new.max_tokens == Some(0)));
        if len.saturating_add(room_for_one) > config.context_length {
            return Err(Error::new("request.context_exceeded", "the prompt leaves no room in the context")
                .with("prompt_tokens", len)
                .with("context_length", config.context_length));
        }
        let wanted = self.longest_completion(prompt, new.max_tokens);
        // KV is needed for all but the last token, and for the whole prompt.
        let longest = prompt.saturating_add(wanted).saturating_sub(1).max(len);
        if self.kv.blocks_for(longest) > config.num_blocks {
            return Err(Error::new("kv.never_fits", "the KV cache could not hold this request even alone")
                .with("tokens", longest)
                .with("blocks_needed", self.kv.blocks_for(longest))
                .with("blocks", config.num_blocks)
                .with("block_size", config.block_size));
        }
        // Last: the others are refused for good, this one may be submitted again.
        if self.stats.waiting >= config.max_queued && !new.resumed {
            return Err(Error::new("request.queue_full", "too many requests are waiting")
                .with("max_queued", config.max_queued)
                .with("waiting", self.stats.waiting));
        }
        Ok(wanted)
    }

    /// Most tokens that a prompt of `prompt` tokens may be continued by, when `max_tokens` are asked for (`None`: as many as fit).
    pub fn longest_completion(&self, prompt: usize, max_tokens: Option<usize>) -> usize {
        let pool_left = self.config.capacity().saturating_sub(prompt);
        max_tokens.unwrap_or(pool_left).min(self.config.context_length.saturating_sub(prompt))
    }

    /// Ends a live sequence at once, in any phase; what the plan in flight computes for it is dropped at commit.
    pub fn abort(&mut self, id: SequenceId, reason: AbortReason) -> AbortOutcome {
        if id.0 >= self.next_sequence {
            return AbortOutcome::Unknown;
        }
        match self.event(id, Event::Abort(reason)) {
            Ok(_) => {
                self.log.command(Command::Abort(id, reason));
                AbortOutcome::Aborted
            }
            Err(_) => AbortOutcome::AlreadyEnded,
        }
    }

    /// A paused sequence (its reader does not keep up) is not planned, and is the first to give up its blocks. False: it is not live.
    pub fn set_paused(&mut self, id: SequenceId, paused: bool) -> bool {
        let Some(record) = self.records.get_mut(&id) else { return false };
        if record.paused == paused {
            return true;
        }
        self.log.command(Command::SetPaused(id, paused));
        record.paused = paused;
        if record.place == Place::Running {
            let key = record.run_key();
            if paused {
                self.queues.paused.insert(key);
                // Nobody is to wait for blocks that it does not compute.
                self.withdraw_below(id, usize::MAX);
            } else {
                self.queues.paused.remove(&key);
                if record.sequence.state().kind() == StateKind::Prefilling {
                    self.announce(id);
                }
            }
        } else {
            self.requeue(id);
        }
        self.sync(id);
        true
    }

    /// Whether a live sequence is paused.
    pub fn is_paused(&self, id: SequenceId) -> bool {
        self.records.get(&id).is_some_and(|record| record.paused)
    }

    /// Prompt tokens of a step while other sequences decode, at least 1: sized by measured step times.
    pub fn set_prefill_chunk(&mut self, tokens: usize) {
        if self.prefill_chunk != tokens.max(1) {
            self.prefill_chunk = tokens.max(1);
            self.log.command(Command::SetPrefillChunk(tokens));
        }
    }

    /// Sequences that ended since the last call, in the order they ended. The scheduler forgets them.
    pub fn reap(&mut self) -> Vec<Sequence> {
        let mut ended = std::mem::take(&mut self.ended);
        std::mem::take(&mut self.ended_order).iter().filter_map(|id| ended.remove(id)).collect()
    }

    /// When [`Scheduler::plan`] must be called at the latest, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<u64> {
        self.queues.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// A sequence that is live or not reaped yet.
    pub fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        self.records.get(&id).map(|record| &record.sequence).or_else(|| self.ended.get(&id))
    }

    /// All figures, in O(1).
    pub fn stats(&self) -> SchedulerStats {
        let blocks = self.kv.stats();
        SchedulerStats {
            blocks_total: blocks.total,
            blocks_free: blocks.free,
            blocks_cached: blocks.cached,
            blocks_held: blocks.held,
            blocks_shared: blocks.shared,
            block_size: self.config.block_size,
            evictions: blocks.evictions,
            ..self.stats
        }
    }

    /// Digest of the whole state that decisions depend on: sequences, tables, blocks. Kept as it changes.
    pub fn digest(&self) -> u64 {
        let counters = fold(fold(self.next_sequence, self.prefill_chunk as u64), self.in_flight.is_some().into());
        fold(fold(self.digest, self.kv.digest()), counters)
    }

    /// The log's steps, oldest first.
    pub fn steps(&self) -> &VecDeque<StepRecord> {
        self.log.steps()
    }

    /// Makes the take or retain of a block after `after` others fail.
    #[cfg(test)]
    pub(crate) fn inject_fault(&mut self, after: u32) {
        self.log.command(Command::Fault(after));
        self.kv.pool_mut().fail_after = Some(after);
    }

    #[cfg(test)]
    pub(crate) fn fault_pending(&mut self) -> bool {
        self.kv.pool_mut().fail_after.is_some_and(|after| after < 10_000)
    }
}
