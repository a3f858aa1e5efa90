//! The one error type: a stable code, a sentence, and details that survive structured cloning. Every room may use it.
//!
//! Codes are `room.what` and each has its paragraph in docs/errors.md (tests/tidy.rs checks that).
use serde_json::{Map, Value};

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Error {
    /// Stable, documented, e.g. `gguf.truncated`.
    pub code: &'static str,
    /// One sentence for people.
    pub message: String,
    /// The same facts for programs: offsets, names, expected and got.
    pub details: Box<Map<String, Value>>,
}

impl Error {
    /// A new error; add facts with [`Error::with`].
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Box::default() }
    }

    /// Adds one fact.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }
}
