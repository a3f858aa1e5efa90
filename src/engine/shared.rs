//! What the handles and the loop share: the state, the waker of a parked loop, the delivery of events. The state is borrowed
//! for the length of one synchronous call; callbacks run with nothing borrowed, so they may call the engine.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_channel::oneshot;

use super::core::Core;
use super::ends::disposed;
use super::host::Host;
use crate::Error;
use crate::chat::LocalTime;
use crate::sequence::AbortReason;

/// One engine.
pub struct Shared {
    pub core: RefCell<Core>,
    clock: Box<dyn Fn() -> f64>,
    calendar: Box<dyn Fn() -> LocalTime>,
    waker: RefCell<Option<Waker>>,
    /// Something happened since the loop last looked.
    signalled: Cell<bool>,
    delivering: Cell<bool>,
    pub ticks: Cell<u64>,
    loop_ended: Cell<bool>,
    end_waiters: RefCell<Vec<oneshot::Sender<()>>>,
}

impl Shared {
    pub fn new<H: Host + 'static>(core: Core, host: &Rc<H>) -> Rc<Self> {
        let (clock, calendar) = (Rc::clone(host), Rc::clone(host));
        Rc::new(Self {
            core: RefCell::new(core),
            clock: Box::new(move || clock.now_ms()),
            calendar: Box::new(move || calendar.local_time()),
            waker: RefCell::default(),
            signalled: Cell::new(false),
            delivering: Cell::new(false),
            ticks: Cell::new(0),
            loop_ended: Cell::new(false),
            end_waiters: RefCell::default(),
        })
    }

    pub fn now(&self) -> f64 {
        (self.clock)()
    }

    pub fn local_time(&self) -> LocalTime {
        (self.calendar)()
    }

    /// Wakes the loop if it is parked, or keeps it from parking.
    pub fn notify(&self) {
        self.signalled.set(true);
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Ready once after each burst of [`Shared::notify`].
    pub fn poll_signal(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.signalled.replace(false) {
            return Poll::Ready(());
        }
        self.set_waker(cx);
        Poll::Pending
    }

    /// Has the loop polled at the next [`Shared::notify`].
    pub fn set_waker(&self, cx: &Context<'_>) {
        *self.waker.borrow_mut() = Some(cx.waker().clone());
    }

    /// Runs one call on the state, then delivers what it put into the outbox and wakes the loop.
    pub fn command<T>(&self, call: impl FnOnce(&mut Core, f64) -> T) -> T {
        let now = self.now();
        let result = call(&mut self.core.borrow_mut(), now);
        self.deliver();
        self.notify();
        result
    }

    /// Hands out the outbox, event by event. A callback that calls the engine only adds to it: events of one request stay
    /// in order and no callback runs inside another.
    pub fn deliver(&self) {
        struct Delivering<'a>(&'a Cell<bool>);
        impl Drop for Delivering<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        if self.delivering.replace(true) {
            return;
        }
        let _guard = Delivering(&self.delivering);
        loop {
            let Some((sink, event)) = self.core.borrow_mut().outbox.pop_front() else { return };
            sink.borrow_mut().deliver(event);
        }
    }

    /// Ends everything with `engine.disposed`, unless something else ended it before.
    pub fn dispose(&self) {
        self.command(|core, now| core.close(disposed(), AbortReason::Disposed, now));
    }

    pub fn is_closed(&self) -> bool {
        self.core.borrow().closed().is_some()
    }

    pub fn closed_error(&self) -> Option<Error> {
        self.core.borrow().closed().cloned()
    }

    /// The loop is gone, and the executor with it.
    pub fn note_loop_ended(&self) {
        self.loop_ended.set(true);
        let waiters = std::mem::take(&mut *self.end_waiters.borrow_mut());
        for waiter in waiters {
            // Whoever waited may have left.
            let _ = waiter.send(());
        }
    }

    /// Completes when the loop is gone.
    pub async fn loop_end(&self) {
        if self.loop_ended.get() {
            return;
        }
        let (sender, receiver) = oneshot::channel();
        self.end_waiters.borrow_mut().push(sender);
        let _ = receiver.await;
    }
}
