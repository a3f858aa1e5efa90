//! The engine: `Executor`, the loop, requests, events, stats, trace. Generic over the executor; the model is one of them.
//!
//! A request is a command that only queues. The loop takes a plan from the scheduler, has the executor compute it, commits
//! what came back and delivers it, then gives the turn away. Everything runs on one thread; the state is borrowed for the
//! length of one synchronous call and never across an await, and callbacks run with nothing borrowed.
mod choice;
mod conversation;
mod core;
mod ends;
#[allow(clippy::module_inception)] // The room's main type has the room's name.
mod engine;
mod event;
mod executor;
mod host;
mod info;
mod live;
mod meter;
mod pacing;
mod raw_request;
mod request;
mod resume;
mod rows;
mod run_loop;
mod shared;
mod sink;
mod stats;
mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod text;
mod trace;

pub use engine::{Engine, EngineParts};
pub use event::{
    Choice, Event, FinishReason, GenerateResult, PromptTokensDetails, RequestId, ScoreResult, Timings, TokenEvent,
    TokenLogprob, Usage,
};
pub use executor::{Executor, ExecutorStats, Fault, RowResult, SampleRequest, ScoreRequest, Scored, StepOutput};
pub use host::Host;
pub use info::{AdapterInfo, EngineInfo, KvInfo, MemoryInfo, Warning};
pub use meter::Rate;
pub use raw_request::GenerateRequest;
pub use request::{RequestOptions, ScoreBody};
pub use resume::{KeptLogprob, KeptToken, Progress};
pub use rows::{CandidateDraws, Wanted, sample_full_row, sample_greedy_record, score_full_row};
pub use run_loop::RunLoop;
pub use sink::{EventQueue, EventSink, MAX_UNREAD, ReadCredit};
pub use stats::{BlockStats, EngineStats, PrefixCacheStats, SequenceStats, TokenStats};
pub use text::{Conversation, RenderOptions, TextModel};
pub use trace::{StepTrace, TraceBlocks, TracePlanned, TraceTransition};
