//! One future, polled by hand: a test sees every point at which it gives the turn away.
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

struct Flag {
    woken: AtomicBool,
    wakes: AtomicU64,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

/// A task on the simplest executor there is.
pub struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    flag: Arc<Flag>,
    pub polls: u64,
}

impl Task {
    pub fn new(future: impl Future<Output = ()> + 'static) -> Self {
        let flag = Arc::new(Flag { woken: AtomicBool::new(true), wakes: AtomicU64::new(0) });
        Self { future: Some(Box::pin(future)), flag, polls: 0 }
    }

    /// Polls once if it was woken. False: it is parked or over.
    pub fn poll(&mut self) -> bool {
        let Some(future) = &mut self.future else { return false };
        if !self.flag.woken.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.polls += 1;
        if future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.flag)))).is_ready() {
            self.future = None;
        }
        true
    }

    pub fn run_until_parked(&mut self) {
        let mut polls = 0;
        while self.poll() {
            polls += 1;
            assert!(polls < 1_000_000, "the loop does not come to rest");
        }
    }

    pub fn is_over(&self) -> bool {
        self.future.is_none()
    }

    /// Drops the future where it stands.
    pub fn drop_future(&mut self) {
        self.future = None;
    }
}
