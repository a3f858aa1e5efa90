//! The loop: plan, execute, commit, yield; parked on a waker when there is nothing to do. It owns the executor and holds no
//! borrow of the state across an await.
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::core::Core;
use super::executor::{Executor, Fault, StepOutput};
use super::host::Host;
use super::shared::Shared;
use super::step::Step;
use crate::Result;

/// The engine's only task. Nothing runs until [`RunLoop::run`] is polled.
///
/// Dropping it, finished or not, ends every request with `engine.disposed`.
pub struct RunLoop<E: Executor, H: Host> {
    executor: E,
    host: Rc<H>,
    shared: Rc<Shared>,
    // After the executor: whoever waits for the end finds the device free.
    _end: End,
}

struct End(Rc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        // Not when a panic unwinds through a borrow of the state.
        if self.0.core.try_borrow_mut().is_ok() {
            self.0.dispose();
        }
        self.0.note_loop_ended();
    }
}

impl<E: Executor, H: Host> RunLoop<E, H> {
    pub(super) fn new(executor: E, host: Rc<H>, shared: Rc<Shared>) -> Self {
        Self { executor, host, _end: End(Rc::clone(&shared)), shared }
    }

    /// Runs until the engine is disposed of or its executor is beyond use; then drops the executor.
    pub async fn run(mut self) {
        while !self.shared.is_closed() {
            self.shared.ticks.set(self.shared.ticks.get().saturating_add(1));
            let step = self.with_core(|core, now| core.begin_step(now));
            match step {
                None => self.park().await,
                Some(step) => {
                    self.execute(step).await;
                    self.host.yield_now().await;
                }
            }
        }
    }

    /// Calls into the state, then delivers events; the host's time goes to the step's account.
    fn with_core<T>(&self, call: impl FnOnce(&mut Core, f64) -> T) -> T {
        let began = self.host.now_ms();
        let result = call(&mut self.shared.core.borrow_mut(), began);
        self.shared.deliver();
        let spent = self.host.now_ms() - began;
        self.shared.core.borrow_mut().meter.host_time(spent);
        result
    }

    async fn execute(&mut self, step: Step) {
        let Some(output) = self.compute(&step).await else {
            return self.with_core(|core, _| core.give_up_step(step));
        };
        let fault = output.as_ref().err().map_or(Fault::Step, |error| self.executor.fault(error));
        let stats = self.executor.stats();
        self.with_core(|core, now| core.finish_step(step, output, fault, now, stats));
    }

    /// `None` when the engine was disposed of meanwhile, or nobody is left in the step, and the executor lets go of it: its
    /// future is dropped where it stands.
    async fn compute(&mut self, step: &Step) -> Option<Result<StepOutput>> {
        let scores: Vec<_> = step.scores.iter().map(|(_, request)| *request).collect();
        let shared = &self.shared;
        let can_give_up = self.executor.can_give_up();
        let mut computing = pin!(self.executor.execute(&step.plan.batch, &step.samples, &scores));
        poll_fn(|cx| {
            // A read that a GPU has begun is awaited: a buffer whose mapping nobody takes back spoils the device for all.
            if can_give_up && (shared.is_closed() || shared.core.borrow().scheduler.is_stale(&step.plan)) {
                return Poll::Ready(None);
            }
            shared.set_waker(cx);
            computing.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Waits for a command, or for the next deadline of a request that cannot run.
    async fn park(&self) {
        let deadline = {
            let core = self.shared.core.borrow();
            debug_assert_eq!(
                core.scheduler.check_integrity(),
                Ok(()),
                "the state is whole whenever the loop goes idle"
            );
            core.scheduler.next_deadline()
        };
        let Some(deadline) = deadline else {
            return poll_fn(|cx| self.shared.poll_signal(cx)).await;
        };
        let mut sleep = pin!(self.host.sleep((deadline as f64 - self.host.now_ms()).max(0.0)));
        poll_fn(|cx| match self.shared.poll_signal(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => sleep.as_mut().poll(cx),
        })
        .await;
    }
}
