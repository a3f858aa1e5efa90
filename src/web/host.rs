//! Clock, turns and timers of a page or worker: `performance.now`, a `MessageChannel`, `setTimeout`.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use futures_channel::oneshot;
use wasm_bindgen::prelude::*;

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
