//! The errors of requests that are ended from outside.
use crate::Error;
use crate::sequence::AbortReason;

/// Its caller ended it.
pub fn cancelled() -> Error {
    Error::new("request.cancelled", "the request was cancelled")
}

/// It outlived its engine.
pub fn disposed() -> Error {
    Error::new("engine.disposed", "the engine was disposed of")
}

/// What the scheduler's reason means to the caller; `elapsed_ms` since the submission.
pub fn aborted(reason: AbortReason, elapsed_ms: f64) -> Error {
    match reason {
        AbortReason::Cancelled => cancelled(),
        AbortReason::Deadline => {
            Error::new("request.deadline", "the request's timeout passed").with("elapsed_ms", elapsed_ms)
        }
        AbortReason::Disposed => disposed(),
        AbortReason::Failed(code) => Error::new(code, "the request cannot go on"),
    }
}
