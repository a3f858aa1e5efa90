//! What the engine needs from where it runs: clocks, a way to give the turn away, a timer. The web room implements it with
//! `performance.now`, `Date`, a `MessageChannel` and `setTimeout`.
use crate::chat::LocalTime;

/// Injected by whoever starts the loop.
#[allow(async_fn_in_trait)]
pub trait Host {
    /// Milliseconds on a clock that never goes back.
    fn now_ms(&self) -> f64;
    /// What the user's clock shows: chat templates may write the date.
    fn local_time(&self) -> LocalTime;
    /// Gives everything else that waits (messages, clicks) one turn. On the web a macrotask, not a microtask.
    async fn yield_now(&self);
    /// Completes after at least `ms` milliseconds. Dropping the future cancels it.
    async fn sleep(&self, ms: f64);
}
