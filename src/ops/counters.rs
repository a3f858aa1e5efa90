//! What kernels cost, counted where they are started. A thread's counters are its own: one engine runs a step at a time.
use std::cell::Cell;

thread_local! {
    static DISPATCHES: Cell<u64> = const { Cell::new(0) };
    static WEIGHT_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// What was started since the last [`take_counters`] of this thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernels started on the GPU.
    pub dispatches: u64,
    /// Bytes of weight matrices that products read: each tile of rows reads them once.
    pub weight_bytes: u64,
}

/// Takes and resets this thread's counters.
pub fn take_counters() -> Counters {
    Counters { dispatches: DISPATCHES.take(), weight_bytes: WEIGHT_BYTES.take() }
}

/// One kernel was started.
#[cfg(feature = "webgpu")]
pub(super) fn count_dispatch() {
    DISPATCHES.set(DISPATCHES.get() + 1);
}

/// A product reads this many bytes of weights.
pub(super) fn count_weight_bytes(bytes: usize) {
    WEIGHT_BYTES.set(WEIGHT_BYTES.get() + bytes as u64);
}
