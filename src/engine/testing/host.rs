//! A host whose clock moves only when told.
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::chat::LocalTime;
use crate::engine::Host;

#[derive(Default)]
struct State {
    now: Cell<f64>,
    sleepers: RefCell<Vec<(f64, Waker)>>,
    yields: Cell<u64>,
}

/// Clones share the clock.
#[derive(Default, Clone)]
pub struct FakeHost(Rc<State>);

impl FakeHost {
    pub fn advance(&self, ms: f64) {
        self.0.now.set(self.0.now.get() + ms);
        let now = self.0.now.get();
        let mut sleepers = self.0.sleepers.borrow_mut();
        let (due, later) = std::mem::take(&mut *sleepers).into_iter().partition::<Vec<_>, _>(|(at, _)| *at <= now);
        *sleepers = later;
        drop(sleepers);
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub fn yields(&self) -> u64 {
        self.0.yields.get()
    }

    pub fn sleeping(&self) -> bool {
        !self.0.sleepers.borrow().is_empty()
    }
}

impl Host for FakeHost {
    fn now_ms(&self) -> f64 {
        self.0.now.get()
    }

    fn local_time(&self) -> LocalTime {
        LocalTime { year: 2024, month: 7, day: 26, hour: 12, minute: 0, second: 0 }
    }

    async fn yield_now(&self) {
        self.0.yields.set(self.0.yields.get() + 1);
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    async fn sleep(&self, ms: f64) {
        let until = self.now_ms() + ms;
        poll_fn(|cx| {
            if self.now_ms() >= until {
                return Poll::Ready(());
            }
            self.0.sleepers.borrow_mut().push((until, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
