//! An allocator that counts the bytes that each thread holds, for tests that bound memory. A binary that uses it counts
//! everything it does; numbers are requested bytes, not what the system's allocator rounds them up to.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counted.
struct Counting;

fn count(bytes: isize) {
    // A thread that ends frees what its own counters can no longer be asked about.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
    if let Ok(bytes) = usize::try_from(bytes) {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
    }
}

#[allow(unsafe_code, reason = "an allocator can be written in no other way")]
// SAFETY: every call goes to the system's allocator unchanged; counting touches plain cells and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are handed on; `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What a piece of work took.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Most bytes held at once beyond those held before.
    pub peak: usize,
    /// The largest single allocation.
    #[allow(dead_code, reason = "not every test asks")]
    pub largest: usize,
}

/// The result and the memory taken on this thread on the way.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Held) {
    let before = LIVE.get();
    PEAK.set(before);
    LARGEST.set(0);
    let result = work();
    (result, Held { peak: (PEAK.get() - before) as usize, largest: LARGEST.get() })
}
