//! The flat arrays of one step: what a plan becomes for the executor. Nothing here decides anything.
use crate::ids::{SequenceId, TokenId};

/// One forward for a mixed batch: T tokens of S sequences, flattened in plan order.
///
/// Token `t` belongs to sequence row `seq_of_token[t]`; its KV goes to slot `slot_mapping[t]`
/// (block x block_size + offset) and it attends to positions `0..=positions[t]` of that row's block table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchInput {
    /// `[T]` token ids.
    pub token_ids: Vec<TokenId>,
    /// `[T]` absolute position of each token in its sequence.
    pub positions: Vec<u32>,
    /// `[T]` KV slot each token's K and V are written to; distinct within a batch.
    pub slot_mapping: Vec<u32>,
    /// `[T]` index of the sequence row, ascending.
    pub seq_of_token: Vec<u32>,
    /// `[S + 1]` first token of each sequence row; the last entry is T.
    pub query_start: Vec<u32>,
    /// `[S]` tokens whose KV exists after this step.
    pub context_lens: Vec<u32>,
    /// `[S][..]` block ids of each row, `ceil(context_len / block_size)` of them.
    pub block_tables: Vec<Vec<u32>>,
    /// `[R]` indices into `0..T` whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
    /// Blocks to copy (from, to) before anything is written.
    pub copies: Vec<(u32, u32)>,
    /// `[S]` which sequence each row is (for logs; the executor does not need it).
    pub sequences: Vec<SequenceId>,
}

impl BatchInput {
    /// T.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// S.
    pub fn num_sequences(&self) -> usize {
        self.context_lens.len()
    }
}
