//! The module's allocator, which counts: what is live tells a leak, where linear memory (which never shrinks) cannot.
#![allow(unsafe_code, reason = "an allocator is an unsafe trait; every call goes to the standard one unchanged")]
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every method passes its arguments to `System` and gives back what it gave; the count touches no memory of a caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the one that `System` asks for; the same holds below.
        let memory = unsafe { System.alloc(layout) };
        note(memory, 0, layout.size());
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let memory = unsafe { System.alloc_zeroed(layout) };
        note(memory, 0, layout.size());
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) };
        note(memory, layout.size(), 0);
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let moved = unsafe { System.realloc(memory, layout, new_size) };
        note(moved, layout.size(), new_size);
        moved
    }
}

/// A failed allocation changes nothing.
fn note(memory: *mut u8, before: usize, after: usize) {
    if !memory.is_null() {
        // Wraps around 0 and back: only sums count.
        LIVE.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that Rust code of this instance holds now, all its engines together.
pub fn live_bytes() -> u64 {
    LIVE.load(Ordering::Relaxed) as u64
}
