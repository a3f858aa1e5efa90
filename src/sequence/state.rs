//! The transition table: every state, every event, what happens to the blocks, what is refused. Holds no data of a sequence.
use crate::ids::TokenId;

/// Where a sequence is in its life. The last two absorb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SequenceState {
    /// Submitted, never admitted since. Holds no block.
    Waiting,
    /// Admitted; its tokens are being computed: `computed < tokens`.
    Prefilling,
    /// One token a step. Between steps `tokens = computed + 1`: the sampled token has no KV yet.
    Decoding,
    /// Was running, gave up its blocks, keeps its tokens; resumed by computing them again.
    Preempted(PreemptReason),
    /// Ended by itself.
    Finished(FinishReason),
    /// Ended from outside.
    Aborted(AbortReason),
}

/// Why a running sequence gave up its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PreemptReason {
    /// A sequence before it in order needed blocks, or it needed one itself and was the last.
    OutOfBlocks,
    /// The device went away with all KV.
    DeviceLost,
    /// A request of higher priority, or one whose reader keeps up, took its place.
    Priority,
}

/// Why a sequence ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end-of-generation token.
    Eos,
    /// A stop string.
    StopString,
    /// `max_tokens`, or the context, or there was nothing to generate.
    Length,
    /// The grammar is complete.
    Grammar,
}

/// Why a sequence was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// The caller's signal.
    Cancelled,
    /// Its deadline passed.
    Deadline,
    /// The engine was disposed of.
    Disposed,
    /// It cannot go on; the error's code.
    Failed(&'static str),
}

/// What may happen to a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// It runs from now on; `cached` of its tokens were found in the prefix cache.
    Admit {
        /// Tokens whose KV is there already.
        cached: usize,
    },
    /// A step computed `count` more of its tokens.
    PrefillAdvanced {
        /// Tokens computed, at least 1.
        count: usize,
    },
    /// A step gave it its next token; `finish` when that token ends it.
    TokenDecoded {
        /// The token.
        token: TokenId,
        /// Set when the token is the last.
        finish: Option<FinishReason>,
    },
    /// `children` more sequences go on from here.
    Fork {
        /// Sequences made, at least 1.
        children: u32,
    },
    /// It gives up its blocks.
    Preempt(PreemptReason),
    /// It ends by itself without a token.
    Finish(FinishReason),
    /// It ends from outside.
    Abort(AbortReason),
}

/// A state without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The names are those of `SequenceState`.
pub enum StateKind {
    Waiting,
    Prefilling,
    Decoding,
    Preempted,
    Finished,
    Aborted,
}

/// An event without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The names are those of `Event`.
pub enum EventKind {
    Admit,
    PrefillAdvanced,
    TokenDecoded,
    Fork,
    Preempt,
    Finish,
    Abort,
}

/// What a transition asks of whoever holds the sequence's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockEffect {
    /// The shared prefix is touched and the chunk's blocks are reserved, all or nothing.
    Reserve,
    /// KV was written into blocks that the plan reserved.
    Written,
    /// Every block's count goes up, all or nothing.
    Share,
    /// All its blocks are released.
    Release,
    /// Nothing.
    None,
}

/// An accepted event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: SequenceState,
    /// The state after.
    pub to: SequenceState,
    /// What happens to the blocks.
    pub blocks: BlockEffect,
}

/// An event that changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The state does not take this event.
    NotInThisState,
    /// The numbers are wrong: more than there is to compute, nothing at all, or KV missing before the sampled token.
    BadCount,
    /// The sequence has ended; an abort of it is a no-op.
    Ended,
}

/// The numbers that decide a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Prompt and generated tokens.
    pub tokens: usize,
    /// Tokens whose KV is committed.
    pub computed: usize,
    /// A fork is still to come.
    pub forks: bool,
    /// There is a token to generate.
    pub generates: bool,
}

impl SequenceState {
    /// Finished or aborted.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Finished(_) | Self::Aborted(_) => true,
            Self::Waiting | Self::Prefilling | Self::Decoding | Self::Preempted(_) => false,
        }
    }

    /// Prefilling or decoding.
    pub fn is_running(self) -> bool {
        match self {
            Self::Prefilling | Self::Decoding => true,
            Self::Waiting | Self::Preempted(_) | Self::Finished(_) | Self::Aborted(_) => false,
        }
    }

    /// The state without its payload.
    pub fn kind(self) -> StateKind {
        match self {
            Self::Waiting => StateKind::Waiting,
            Self::Prefilling => StateKind::Prefilling,
            Self::Decoding => StateKind::Decoding,
            Self::Preempted(_) => StateKind::Preempted,
            Self::Finished(_) => StateKind::Finished,
            Self::Aborted(_) => StateKind::Aborted,
        }
    }
}

impl Event {
    /// The event without its payload.
    pub fn kind(self) -> EventKind {
        match self {
            Self::Admit { .. } => EventKind::Admit,
            Self::PrefillAdvanced { .. } => EventKind::PrefillAdvanced,
            Self::TokenDecoded { .. } => EventKind::TokenDecoded,
            Self::Fork { .. } => EventKind::Fork,
            Self::Preempt(_) => EventKind::Preempt,
            Self::Finish(_) => EventKind::Finish,
            Self::Abort(_) => EventKind::Abort,
        }
    }
}

/// The transition table. Pure: it looks at nothing but its arguments.
///
/// # Errors
/// The refusal; the caller's sequence must stay as it is.
pub fn transition(state: SequenceState, event: Event, counts: Counts) -> Result<Transition, Refusal> {
    use Event as E;
    use SequenceState as S;
    let left = counts.tokens.saturating_sub(counts.computed);
    let to = |to, blocks| Ok(Transition { from: state, to, blocks });
    match (state, event) {
        (S::Waiting | S::Preempted(_), E::Admit { cached }) => {
            // One token is always left to compute: a hit never covers the whole.
            if cached < counts.tokens { to(S::Prefilling, BlockEffect::Reserve) } else { Err(Refusal::BadCount) }
        }
        (S::Prefilling, E::PrefillAdvanced { count }) => {
            if count == 0 || count > left {
                Err(Refusal::BadCount)
            } else {
                let decodes = count == left && counts.generates;
                to(if decodes { S::Decoding } else { S::Prefilling }, BlockEffect::Written)
            }
        }
        (S::Decoding, E::TokenDecoded { finish, .. }) => match finish {
            _ if left > 1 || counts.forks => Err(Refusal::BadCount),
            Some(reason) => to(S::Finished(reason), BlockEffect::Release),
            None => to(S::Decoding, BlockEffect::Written),
        },
        (S::Decoding, E::Fork { children }) => {
            if children > 0 && left == 0 && counts.forks {
                to(S::Decoding, BlockEffect::Share)
            } else {
                Err(Refusal::BadCount)
            }
        }
        (S::Prefilling | S::Decoding, E::Preempt(reason)) => to(S::Preempted(reason), BlockEffect::Release),
        (S::Prefilling, E::Finish(reason)) => {
            // Without a token only a sequence that has nothing to generate ends here, when all of it is computed.
            if left == 0 && !counts.generates {
                to(S::Finished(reason), BlockEffect::Release)
            } else {
                Err(Refusal::BadCount)
            }
        }
        (S::Decoding, E::Finish(reason)) => to(S::Finished(reason), BlockEffect::Release),
        (S::Waiting | S::Preempted(_), E::Abort(reason)) => to(S::Aborted(reason), BlockEffect::None),
        (S::Prefilling | S::Decoding, E::Abort(reason)) => to(S::Aborted(reason), BlockEffect::Release),

        (S::Prefilling | S::Decoding, E::Admit { .. }) => Err(Refusal::NotInThisState),
        (S::Waiting | S::Decoding | S::Preempted(_), E::PrefillAdvanced { .. }) => Err(Refusal::NotInThisState),
        (S::Waiting | S::Prefilling | S::Preempted(_), E::TokenDecoded { .. }) => Err(Refusal::NotInThisState),
        (S::Waiting | S::Prefilling | S::Preempted(_), E::Fork { .. }) => Err(Refusal::NotInThisState),
        (S::Waiting | S::Preempted(_), E::Preempt(_)) => Err(Refusal::NotInThisState),
        (S::Waiting | S::Preempted(_), E::Finish(_)) => Err(Refusal::NotInThisState),

        (
            S::Finished(_) | S::Aborted(_),
            E::Admit { .. }
            | E::PrefillAdvanced { .. }
            | E::TokenDecoded { .. }
            | E::Fork { .. }
            | E::Preempt(_)
            | E::Finish(_)
            | E::Abort(_),
        ) => Err(Refusal::Ended),
    }
}
