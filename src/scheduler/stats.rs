//! Figures of the scheduler, kept as they change. Plain data.

/// Everything here is read in O(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerStats {
    /// Sequences that wait for their first admission.
    pub waiting: usize,
    /// Sequences whose prompt is being computed.
    pub prefilling: usize,
    /// Sequences that get a token a step.
    pub decoding: usize,
    /// Sequences that gave up their blocks and wait to go on.
    pub preempted: usize,
    /// Sequences that ended by themselves, ever.
    pub finished: u64,
    /// Sequences that were ended from outside, ever.
    pub aborted: u64,
    /// Blocks of the pool.
    pub blocks_total: usize,
    /// Blocks without content.
    pub blocks_free: usize,
    /// Blocks that nobody holds, whose content may be hit.
    pub blocks_cached: usize,
    /// Blocks that tables hold.
    pub blocks_held: usize,
    /// Blocks that more than one table holds.
    pub blocks_shared: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Plans committed.
    pub steps: u64,
    /// Plans rolled back.
    pub rollbacks: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks copied because a shared one was about to be written.
    pub copies_on_write: u64,
    /// Admissions that found a prefix.
    pub prefix_hits: u64,
    /// Tokens found in the prefix cache, resumed sequences included.
    pub prefix_hit_tokens: u64,
    /// Tokens that admissions had to compute.
    pub prefix_miss_tokens: u64,
    /// Cached blocks whose content was given up for another's.
    pub evictions: u64,
    /// Prompt tokens of the sequences submitted.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Tokens computed as prefill, resumed ones included.
    pub prefill_tokens_computed: u64,
}
