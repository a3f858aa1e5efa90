//! `StepTrace`: the tail of the scheduler's log as the API shapes it. What is logged is the scheduler's.
use serde::Serialize;

use crate::ids::BlockId;
use crate::scheduler::StepRecord;
use crate::sequence::{EventKind, StateKind};

/// One scheduler step: who ran, which blocks changed hands, which states changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepTrace {
    /// Number of the step, from 0.
    pub step: u64,
    /// When it was planned, in milliseconds on the engine's clock.
    pub at: u64,
    /// The sequences of its plan.
    pub planned: Vec<TracePlanned>,
    /// Blocks that changed hands.
    pub blocks: TraceBlocks,
    /// In order.
    pub transitions: Vec<TraceTransition>,
}

/// A sequence of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TracePlanned {
    /// Which.
    pub sequence: String,
    /// `prefilling` or `decoding`.
    pub state: &'static str,
    /// Tokens computed.
    pub tokens: usize,
}

/// Blocks that changed hands in a step.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TraceBlocks {
    /// Taken for new content.
    pub allocated: Vec<BlockId>,
    /// Given back without content.
    pub freed: Vec<BlockId>,
    /// From, to.
    pub copied: Vec<(BlockId, BlockId)>,
    /// Given back with content that can be hit.
    pub cached: Vec<BlockId>,
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceTransition {
    /// Which sequence.
    pub sequence: String,
    /// State before.
    pub from: &'static str,
    /// What happened.
    pub event: &'static str,
    /// State after.
    pub to: &'static str,
}

impl From<&StepRecord> for StepTrace {
    fn from(record: &StepRecord) -> Self {
        let planned = record.planned.iter().map(|p| TracePlanned {
            sequence: p.sequence.to_string(),
            state: state_name(p.state),
            tokens: p.tokens,
        });
        let transitions = record.transitions.iter().map(|t| TraceTransition {
            sequence: t.sequence.to_string(),
            from: state_name(t.from),
            event: t.event.map_or("rollback", event_name),
            to: state_name(t.to),
        });
        Self {
            step: record.step,
            at: record.at,
            planned: planned.collect(),
            blocks: TraceBlocks {
                allocated: record.blocks.allocated.clone(),
                freed: record.blocks.freed.clone(),
                copied: record.copied.clone(),
                cached: record.blocks.cached.clone(),
            },
            transitions: transitions.collect(),
        }
    }
}

fn state_name(state: StateKind) -> &'static str {
    match state {
        StateKind::Waiting => "waiting",
        StateKind::Prefilling => "prefilling",
        StateKind::Decoding => "decoding",
        StateKind::Preempted => "preempted",
        StateKind::Finished => "finished",
        StateKind::Aborted => "aborted",
    }
}

fn event_name(event: EventKind) -> &'static str {
    match event {
        EventKind::Admit => "admit",
        EventKind::PrefillAdvanced => "prefill_advanced",
        EventKind::TokenDecoded => "token_decoded",
        EventKind::Fork => "fork",
        EventKind::Preempt => "preempt",
        EventKind::Finish => "finish",
        EventKind::Abort => "abort",
    }
}
