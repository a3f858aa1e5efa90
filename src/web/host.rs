//! Clock, turns and timers of a page or worker: `performance.now`, a `MessageChannel`, `setTimeout`.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use futures_channel::oneshot;
use wasm_bindgen::prelude::*;

use crate::chat::LocalTime;
use crate::engine::Host;
use crate::model::transformer::Checkpoint;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(callback: &js_sys::Function, ms: f64) -> JsValue;
    #[wasm_bindgen(js_name = clearTimeout)]
    fn clear_timeout(id: &JsValue);
}

/// Milliseconds on a clock that never goes back.
pub fn now_ms() -> f64 {
    performance_now()
}

type Waiting = Rc<RefCell<VecDeque<oneshot::Sender<()>>>>;

/// Gives the turn away by a macrotask: `setTimeout` would cost 4 ms a turn once nested, a microtask gives nothing away.
pub struct Turns {
    port: web_sys::MessagePort,
    waiting: Waiting,
    receiver: web_sys::MessagePort,
    _on_message: Closure<dyn FnMut()>,
}

impl Turns {
    /// Opens the channel.
    pub fn new() -> Result<Self, JsValue> {
        let channel = web_sys::MessageChannel::new()?;
        let waiting: Waiting = Rc::default();
        let queue = Rc::clone(&waiting);
        let on_message = Closure::<dyn FnMut()>::new(move || {
            let next = queue.borrow_mut().pop_front();
            // Whoever waited may be gone: a dropped future is no error.
            let _ = next.map(|sender| sender.send(()));
        });
        let receiver = channel.port1();
        receiver.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        Ok(Self { port: channel.port2(), waiting, receiver, _on_message: on_message })
    }

    /// Completes after everything that was already queued had its turn.
    pub async fn yield_now(&self) {
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().push_back(sender);
        if self.port.post_message(&JsValue::NULL).is_ok() {
            let _ = receiver.await;
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.receiver.set_onmessage(None);
        self.receiver.close();
        self.port.close();
    }
}

/// Completes after `ms`; dropping the future clears the timer.
pub async fn sleep(ms: f64) {
    struct Timer(JsValue);
    impl Drop for Timer {
        fn drop(&mut self) {
            clear_timeout(&self.0);
        }
    }
    let (sender, receiver) = oneshot::channel();
    let callback = Closure::once(move || {
        let _ = sender.send(());
    });
    // Longer waits than a timer's 31 bits are cut; whoever slept looks at the clock again.
    let _timer = Timer(set_timeout(callback.as_ref().unchecked_ref(), ms.clamp(0.0, 2_147_483_647.0)));
    let _ = receiver.await;
}

/// The engine's host in a page or worker.
pub struct WebHost {
    turns: Rc<Turns>,
}

impl WebHost {
    /// Shares the turns of a thread.
    pub fn new(turns: Rc<Turns>) -> Self {
        Self { turns }
    }
}

impl Host for WebHost {
    fn now_ms(&self) -> f64 {
        now_ms()
    }

    fn local_time(&self) -> LocalTime {
        let date = js_sys::Date::new_0();
        LocalTime {
            year: date.get_full_year() as i32,
            month: date.get_month() as u8 + 1,
            day: date.get_date() as u8,
            hour: date.get_hours() as u8,
            minute: date.get_minutes() as u8,
            second: date.get_seconds() as u8,
        }
    }

    async fn yield_now(&self) {
        self.turns.yield_now().await;
    }

    async fn sleep(&self, ms: f64) {
        sleep(ms).await;
    }
}

/// Time within a step after which the next checkpoint gives the turn away.
const PAUSE_MS: f64 = 20.0;
/// Time that the work between two checkpoints should take at most: with the pause's, an inbox waits less than 50 ms.
const TILE_MS: f64 = 20.0;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.25;
/// Rows that share the reading of weights; a few more than would fit are worth it.
const FULL_ROWS: usize = 8;
const ALMOST_FULL_ROWS: usize = 6;
/// Rows after which larger tiles are no faster.
const BEST_ROWS: usize = 64;

/// Gives the turn away within a long step, and learns how much work fits between two turns.
pub struct Pauses {
    turns: Rc<Turns>,
    /// The end of the last pause.
    last: f64,
    /// The last call.
    called: f64,
    /// Multiply-adds a millisecond.
    speed: f64,
}

impl Pauses {
    /// Shares the turns of a thread. Speed starts at what a slow machine does.
    pub fn new(turns: Rc<Turns>) -> Self {
        Self { turns, last: now_ms(), called: now_ms(), speed: 2e6 }
    }
}

impl Checkpoint for Pauses {
    fn rows(&self, work: usize) -> usize {
        let fit = (self.speed * TILE_MS / work.max(1) as f64) as usize;
        match fit {
            0 => 1,
            1..ALMOST_FULL_ROWS => fit,
            ALMOST_FULL_ROWS..BEST_ROWS => fit.max(FULL_ROWS) / FULL_ROWS * FULL_ROWS,
            _ => fit / BEST_ROWS * BEST_ROWS,
        }
    }

    async fn pause(&mut self, work: usize) {
        let now = now_ms();
        let took = now - self.called;
        // A clock that hardly moved says nothing.
        if took >= 1.0 && work > 0 {
            self.speed += NEWEST * (work as f64 / took - self.speed);
        }
        if now - self.last >= PAUSE_MS {
            self.turns.yield_now().await;
            self.last = now_ms();
        }
        self.called = now_ms();
    }
}
