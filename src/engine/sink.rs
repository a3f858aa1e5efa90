//! Where a request's events go: a callback (paced by credit if wanted), or a bounded queue that somebody awaits. Order and
//! timing are the engine's.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use super::event::Event;

/// Unread token events at which a request's sequences pause.
pub const MAX_UNREAD: usize = 64;

/// Receives the events of one request, in order, never two at a time. It may call the engine.
pub trait EventSink {
    /// Takes the next event.
    fn deliver(&mut self, event: Event);
    /// Token events delivered and not read yet: at [`MAX_UNREAD`] the request pauses until fewer are left.
    fn unread(&self) -> usize {
        0
    }
    /// Nobody will read any more: the request is cancelled.
    fn abandoned(&self) -> bool {
        false
    }
}

impl<F: FnMut(Event)> EventSink for F {
    fn deliver(&mut self, event: Event) {
        self(event);
    }
}

/// The reader's side of a paced callback: says how many of the token events were read. Dropping it changes nothing.
#[derive(Clone)]
pub struct ReadCredit {
    unread: Rc<Cell<usize>>,
    notify: Rc<dyn Fn()>,
}

/// The engine's side: counts what it delivers.
pub(super) struct PacedSink<S> {
    sink: S,
    unread: Rc<Cell<usize>>,
}

/// A sink whose request pauses at [`MAX_UNREAD`] token events that nobody has read; `notify` has the engine look again.
pub(super) fn paced<S: EventSink>(sink: S, notify: Rc<dyn Fn()>) -> (PacedSink<S>, ReadCredit) {
    let unread = Rc::new(Cell::new(0));
    (PacedSink { sink, unread: Rc::clone(&unread) }, ReadCredit { unread, notify })
}

impl ReadCredit {
    /// So many more token events were read.
    pub fn read(&self, count: usize) {
        let before = self.unread.get();
        self.unread.set(before.saturating_sub(count));
        if before >= MAX_UNREAD && self.unread.get() < MAX_UNREAD {
            (self.notify)();
        }
    }
}

impl<S: EventSink> EventSink for PacedSink<S> {
    fn deliver(&mut self, event: Event) {
        if !event.is_terminal() {
            self.unread.set(self.unread.get().saturating_add(1));
        }
        self.sink.deliver(event);
    }

    fn unread(&self) -> usize {
        self.unread.get()
    }

    fn abandoned(&self) -> bool {
        self.sink.abandoned()
    }
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    /// The terminal event was taken.
    over: bool,
    reader: Option<Waker>,
    /// Called when reading may let a paused request go on, or when the reader leaves.
    notify: Option<Rc<dyn Fn()>>,
}

/// The reading end: `next().await` until `None`. Dropping it cancels the request.
pub struct EventQueue {
    queue: Rc<RefCell<Queue>>,
}

/// The engine's end of an [`EventQueue`].
pub(super) struct QueueSink {
    queue: Weak<RefCell<Queue>>,
}

/// A queue whose reader calls `notify` when the engine should look again.
pub(super) fn event_queue(notify: Rc<dyn Fn()>) -> (QueueSink, EventQueue) {
    let queue = Rc::new(RefCell::new(Queue { notify: Some(notify), ..Queue::default() }));
    (QueueSink { queue: Rc::downgrade(&queue) }, EventQueue { queue })
}

impl EventSink for QueueSink {
    fn deliver(&mut self, event: Event) {
        let Some(queue) = self.queue.upgrade() else { return };
        let reader = {
            let mut queue = queue.borrow_mut();
            queue.events.push_back(event);
            queue.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    fn unread(&self) -> usize {
        self.queue.upgrade().map_or(0, |q| q.borrow().events.iter().filter(|e| !e.is_terminal()).count())
    }

    fn abandoned(&self) -> bool {
        self.queue.strong_count() == 0
    }
}

impl EventQueue {
    /// The next event; `None` after the terminal one.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| {
            if let Some(event) = self.try_next() {
                return Poll::Ready(Some(event));
            }
            let mut queue = self.queue.borrow_mut();
            if queue.over {
                return Poll::Ready(None);
            }
            queue.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The next event, if there is one now.
    pub fn try_next(&mut self) -> Option<Event> {
        let (event, notify) = {
            let mut queue = self.queue.borrow_mut();
            let event = queue.events.pop_front()?;
            queue.over |= event.is_terminal();
            let resumes = queue.events.len() + 1 == MAX_UNREAD;
            (event, queue.notify.clone().filter(|_| resumes))
        };
        notify.into_iter().for_each(|notify| notify());
        Some(event)
    }

    /// Events waiting to be read.
    pub fn len(&self) -> usize {
        self.queue.borrow().events.len()
    }

    /// Whether nothing waits to be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        let notify = self.queue.borrow_mut().notify.take();
        // The loop looks when it next runs, after this queue is gone.
        notify.into_iter().for_each(|notify| notify());
    }
}
