//! `EngineStats`: the scheduler's counters, the speed of the last second and the executor's counters, as the API shapes them.
use serde::Serialize;

use super::executor::ExecutorStats;
use super::meter::Rate;
use crate::scheduler::SchedulerStats;

/// Counts of an engine. O(1) to make, but for the rates (the steps of one second).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineStats {
    /// Sequences by state; the last two ever, the others now.
    pub sequences: SequenceStats,
    /// KV blocks now.
    pub blocks: BlockStats,
    /// Steps committed.
    pub steps: u64,
    /// Sequences that gave up their blocks.
    pub preemptions: u64,
    /// Blocks copied before a write into a shared one.
    pub copies_on_write: u64,
    /// Prefix sharing.
    pub prefix_cache: PrefixCacheStats,
    /// Tokens ever.
    pub tokens: TokenStats,
    /// The last second.
    pub rate: Rate,
    /// The executor's counters since load.
    pub executor: ExecutorStats,
    /// Turns that the loop took since load; it takes none while there is nothing to do.
    pub ticks: u64,
}

/// Sequences by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The names of the states.
pub struct SequenceStats {
    pub waiting: u64,
    pub prefilling: u64,
    pub decoding: u64,
    pub preempted: u64,
    pub finished: u64,
    pub aborted: u64,
}

/// KV blocks by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // The names of the states.
pub struct BlockStats {
    pub total: u64,
    pub free: u64,
    pub cached: u64,
    pub held: u64,
    pub shared: u64,
    /// Tokens a block.
    pub block_size: u64,
}

/// What the prefix cache gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrefixCacheStats {
    /// Admissions that found a prefix.
    pub hits: u64,
    /// Tokens found.
    pub hit_tokens: u64,
    /// Tokens that had to be computed.
    pub miss_tokens: u64,
    /// Cached blocks given up.
    pub evictions: u64,
}

/// Tokens ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TokenStats {
    /// Of prompts.
    pub prompt: u64,
    /// Sampled.
    pub completion: u64,
}

impl EngineStats {
    /// Puts the parts together.
    pub fn new(s: &SchedulerStats, rate: Rate, executor: ExecutorStats, ticks: u64) -> Self {
        Self {
            sequences: SequenceStats {
                waiting: s.waiting as u64,
                prefilling: s.prefilling as u64,
                decoding: s.decoding as u64,
                preempted: s.preempted as u64,
                finished: s.finished,
                aborted: s.aborted,
            },
            blocks: BlockStats {
                total: s.blocks_total as u64,
                free: s.blocks_free as u64,
                cached: s.blocks_cached as u64,
                held: s.blocks_held as u64,
                shared: s.blocks_shared as u64,
                block_size: s.block_size as u64,
            },
            steps: s.steps,
            preemptions: s.preemptions,
            copies_on_write: s.copies_on_write,
            prefix_cache: PrefixCacheStats {
                hits: s.prefix_hits,
                hit_tokens: s.prefix_hit_tokens,
                miss_tokens: s.prefix_miss_tokens,
                evictions: s.evictions,
            },
            tokens: TokenStats { prompt: s.prompt_tokens, completion: s.completion_tokens },
            rate,
            executor,
            ticks,
        }
    }
}
