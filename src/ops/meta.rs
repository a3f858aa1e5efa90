//! One upload a step: every index array of a batch in one u32 tensor, and where each lies in it.
use crate::scheduler::batch::BatchInput;

/// Offsets, in words, of the arrays inside a step's `meta` tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaLayout {
    /// T.
    pub num_tokens: usize,
    /// S.
    pub num_sequences: usize,
    /// R.
    pub num_rows: usize,
    /// Copies.
    pub num_copies: usize,
    /// Words of one row of the block tables (the longest table).
    pub table_stride: usize,
    /// `[T]` token ids.
    pub ids: usize,
    /// `[T]` absolute positions.
    pub positions: usize,
    /// `[T]` KV slots.
    pub slots: usize,
    /// `[T]` sequence row of each token.
    pub seqs: usize,
    /// `[R]` rows whose logits are wanted.
    pub rows: usize,
    /// `[copies][2]`.
    pub copies: usize,
    /// `[S][table_stride]` block tables, padded with 0.
    pub tables: usize,
    /// Whole length.
    pub len: usize,
}

/// Packs a batch into words.
pub fn pack(batch: &BatchInput) -> (Vec<u32>, MetaLayout) {
    let (t, s, r, c) = (batch.num_tokens(), batch.num_sequences(), batch.logit_rows.len(), batch.copies.len());
    let stride = batch.block_tables.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut at = 0;
    let mut take = |n: usize| {
        let offset = at;
        at += n;
        offset
    };
    let layout = MetaLayout {
        num_tokens: t,
        num_sequences: s,
        num_rows: r,
        num_copies: c,
        table_stride: stride,
        ids: take(t),
        positions: take(t),
        slots: take(t),
        seqs: take(t),
        rows: take(r),
        copies: take(2 * c),
        tables: take(s * stride),
        len: 0,
    };
    let layout = MetaLayout { len: at, ..layout };
    let mut words = Vec::with_capacity(at);
    words.extend(batch.token_ids.iter().map(|id| id.0));
    words.extend(&batch.positions);
    words.extend(&batch.slot_mapping);
    words.extend(&batch.seq_of_token);
    words.extend(&batch.logit_rows);
    words.extend(batch.copies.iter().flat_map(|&(from, to)| [from, to]));
    for table in &batch.block_tables {
        words.extend(table);
        words.resize(words.len() + stride - table.len(), 0);
    }
    (words, layout)
}
