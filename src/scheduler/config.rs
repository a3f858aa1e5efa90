//! What a scheduler is made with and what is submitted to it, checked once. Decides nothing later.
use crate::ids::TokenId;
use crate::{Error, Result};

/// Sizes and limits of a scheduler; fixed for its life but for [`super::Scheduler::set_prefill_chunk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences that may run at once, at least 1.
    pub max_running: usize,
    /// Requests that may wait for their first admission, at least 1.
    pub max_queued: usize,
    /// Tokens of one step, decode and prefill together, at least 1.
    pub token_budget: usize,
    /// Prompt tokens of one step while other sequences decode, at least 1.
    pub prefill_chunk: usize,
    /// Tokens a KV block holds, at least 1.
    pub block_size: usize,
    /// KV blocks of the pool, at least 1.
    pub num_blocks: usize,
    /// Blocks that an admission leaves free while something runs.
    pub watermark_blocks: usize,
    /// Longest sequence, prompt and completion together, at least 1.
    pub context_length: usize,
    /// Share the KV of equal prefixes between requests.
    pub prefix_cache: bool,
    /// Model, KV dtype and rope settings: KV is shared only under the same fingerprint.
    pub fingerprint: u64,
    /// Milliseconds of waiting that weigh as much as one step of priority; 0: waiting weighs nothing.
    pub ageing_ms: u64,
    /// How much of the log is kept.
    pub log: LogMode,
}

/// How much of the deterministic log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMode {
    /// The last so many steps, without the tokens of prompts: for traces.
    Ring(usize),
    /// Everything since the start, with what [`super::replay`] needs.
    Whole,
}

impl Default for SchedulerConfig {
    /// The public defaults; the geometry (`num_blocks`, `context_length`, `fingerprint`) is the caller's to set.
    fn default() -> Self {
        Self {
            max_running: 8,
            max_queued: 64,
            token_budget: 512,
            prefill_chunk: 64,
            block_size: 16,
            num_blocks: 256,
            watermark_blocks: 2,
            context_length: 2048,
            prefix_cache: true,
            fingerprint: 0,
            ageing_ms: 10_000,
            log: LogMode::Ring(1024),
        }
    }
}

impl SchedulerConfig {
    /// # Errors
    /// `scheduler.bad_config` naming the field that is zero or too large.
    pub fn check(&self) -> Result<()> {
        let at_least_one = [
            ("max_running", self.max_running),
            ("max_queued", self.max_queued),
            ("token_budget", self.token_budget),
            ("prefill_chunk", self.prefill_chunk),
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("context_length", self.context_length),
        ];
        for (field, value) in at_least_one {
            if value == 0 {
                return Err(bad(field, value, "must be at least 1"));
            }
        }
        // Slots are u32 on the device, and one number of blocks is kept apart as "none".
        let slots = self.num_blocks.checked_mul(self.block_size);
        if slots.is_none_or(|slots| u32::try_from(slots).is_err()) || self.num_blocks >= u32::MAX as usize {
            return Err(bad("num_blocks", self.num_blocks, "times block_size must fit 32 bits"));
        }
        if u32::try_from(self.context_length).is_err() {
            return Err(bad("context_length", self.context_length, "must fit 32 bits"));
        }
        if u32::try_from(self.max_running).is_err() {
            return Err(bad("max_running", self.max_running, "must fit 32 bits"));
        }
        Ok(())
    }

    /// Longest sequence that the pool can hold alone: the last token sampled needs no KV.
    pub fn capacity(&self) -> usize {
        self.num_blocks.saturating_mul(self.block_size).saturating_add(1)
    }
}

fn bad(field: &'static str, value: usize, rule: &str) -> Error {
    Error::new("scheduler.bad_config", format!("{field} {rule}")).with("field", field).with("got", value)
}

/// A sequence to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewSequence {
    /// The prompt, followed by `generated` tokens of an earlier life.
    pub tokens: Vec<TokenId>,
    /// How many tokens at the end of `tokens` an earlier life generated (0 for a new request). They count against `max_tokens`.
    pub generated: usize,
    /// Most tokens to generate. `None`: what the context and the pool have left.
    pub max_tokens: Option<usize>,
    /// Choices: the prompt is computed once, then `choices - 1` sequences fork off. At least 1.
    pub choices: u32,
    /// Which choice of its request this one is: 0 but for one taken over from another engine.
    pub choice: u32,
    /// Higher runs first and is preempted last.
    pub priority: i32,
    /// On the clock of `now`: past it the sequence is aborted.
    pub deadline_ms: Option<u64>,
    /// The logits of every prompt position are wanted (score, echo): no prefix hits are taken.
    pub prompt_logits: bool,
    /// Which adapter computes it (0: none): KV is not shared across adapters.
    pub adapter: u64,
    /// It was accepted before, by an engine that is gone: a full queue does not refuse it.
    pub resumed: bool,
}
