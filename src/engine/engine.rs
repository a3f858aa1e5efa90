//! `Engine`: the handle that pages and tests hold. Every call is a short synchronous command; the work is the loop's.
use std::cell::Cell;
use std::rc::Rc;

use serde_json::Value;

use super::core::{Core, shared_sink};
use super::ends::cancelled;
use super::event::RequestId;
use super::executor::Executor;
use super::host::Host;
use super::info::EngineInfo;
use super::raw_request::GenerateRequest;
use super::request::{ScoreBody, prepare};
use super::resume::Progress;
use super::run_loop::RunLoop;
use super::shared::Shared;
use super::sink::{EventQueue, EventSink, ReadCredit, event_queue, paced};
use super::stats::EngineStats;
use super::text::{RenderOptions, TextModel};
use super::trace::StepTrace;
use crate::Result;
use crate::ids::TokenId;
use crate::scheduler::SchedulerConfig;
use crate::sequence::AbortReason;

/// What an engine is made of, besides its executor and host.
pub struct EngineParts {
    /// What was loaded.
    pub info: EngineInfo,
    /// The model's words.
    pub text: TextModel,
    /// Sizes and limits.
    pub scheduler: SchedulerConfig,
}

/// A handle; clones are handles of the same engine. When the last one is dropped the engine is disposed of.
pub struct Engine {
    shared: Rc<Shared>,
    info: Rc<EngineInfo>,
    text: Rc<TextModel>,
    handles: Rc<Cell<usize>>,
}

impl Clone for Engine {
    fn clone(&self) -> Self {
        self.handles.set(self.handles.get() + 1);
        Self {
            shared: Rc::clone(&self.shared),
            info: Rc::clone(&self.info),
            text: Rc::clone(&self.text),
            handles: Rc::clone(&self.handles),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handles.set(self.handles.get().saturating_sub(1));
        if self.handles.get() == 0 {
            self.shared.dispose();
        }
    }
}

impl Engine {
    /// An idle engine and the loop that does its work: spawn `RunLoop::run` on the thread's executor.
    ///
    /// # Errors
    /// `scheduler.bad_config`.
    pub fn new<E: Executor, H: Host + 'static>(
        parts: EngineParts,
        executor: E,
        host: H,
    ) -> Result<(Self, RunLoop<E, H>)> {
        let host = Rc::new(host);
        let text = Rc::new(parts.text);
        let core = Core::new(parts.scheduler, Rc::clone(&text))?;
        let shared = Shared::new(core, &host);
        let run_loop = RunLoop::new(executor, host, Rc::clone(&shared));
        let engine = Self { shared, info: Rc::new(parts.info), text, handles: Rc::new(Cell::new(1)) };
        Ok((engine, run_loop))
    }

    /// What was loaded and where it runs.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Queues a generation: checks every field, makes the prompt into tokens, computes nothing. Its events go to `sink`;
    /// a request refused here sends none. `seed` is used where the request names none: the caller has the randomness.
    ///
    /// # Errors
    /// `request.*`, `kv.never_fits`, those of the tokenizer and template; `engine.disposed` or whatever ended the engine.
    pub fn generate(&self, request: GenerateRequest, seed: u64, sink: impl EventSink + 'static) -> Result<RequestId> {
        self.refuse_if_closed()?;
        let prepared = prepare(request, &self.text, seed, self.shared.local_time())?;
        self.shared.command(|core, now| core.submit_generate(prepared, shared_sink(sink), now))
    }

    /// As [`Engine::generate`], with the events in a queue that the caller awaits. Past [`super::MAX_UNREAD`] unread
    /// tokens the request pauses; dropping the queue cancels it.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_queued(&self, request: GenerateRequest, seed: u64) -> Result<(RequestId, EventQueue)> {
        let (sink, queue) = event_queue(self.notifier());
        Ok((self.generate(request, seed, sink)?, queue))
    }

    /// As [`Engine::generate`], for a reader elsewhere: the request pauses at [`super::MAX_UNREAD`] token events of which the
    /// credit has not heard that they were read.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_paced(
        &self,
        request: GenerateRequest,
        seed: u64,
        sink: impl EventSink + 'static,
    ) -> Result<(RequestId, ReadCredit)> {
        let (sink, credit) = paced(sink, self.notifier());
        Ok((self.generate(request, seed, sink)?, credit))
    }

    fn notifier(&self) -> Rc<dyn Fn()> {
        let shared = Rc::downgrade(&self.shared);
        Rc::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.notify();
            }
        })
    }

    /// Takes over a request that ran in an engine which is gone (its device lost, its instance trapped): `prompt` is what
    /// [`Engine::prompt`] said there, `progress` what its sink received. Only what follows is generated and delivered, and the whole
    /// is what that engine would have given.
    ///
    /// # Errors
    /// As [`Engine::generate`], without `request.queue_full`; `request.invalid` for a progress that no such request can have.
    pub fn resume(
        &self,
        request: GenerateRequest,
        prompt: &[TokenId],
        progress: &Progress,
        sink: impl EventSink + 'static,
    ) -> Result<RequestId> {
        self.refuse_if_closed()?;
        let prepared = prepare(request.with_prompt(prompt), &self.text, progress.seed, self.shared.local_time())?;
        self.shared.command(|core, now| core.submit_resumed(prepared, progress, shared_sink(sink), now))
    }

    /// As [`Engine::resume`], for a reader elsewhere (see [`Engine::generate_paced`]).
    ///
    /// # Errors
    /// As [`Engine::resume`].
    pub fn resume_paced(
        &self,
        request: GenerateRequest,
        prompt: &[TokenId],
        progress: &Progress,
        sink: impl EventSink + 'static,
    ) -> Result<(RequestId, ReadCredit)> {
        let (sink, credit) = paced(sink, self.notifier());
        Ok((self.resume(request, prompt, progress, sink)?, credit))
    }

    /// Whether a request's last event is still to come.
    pub fn is_live(&self, id: RequestId) -> bool {
        self.shared.core.borrow().requests.contains_key(&id)
    }

    /// The prompt of a live request as tokens: what to keep in order to resume it elsewhere.
    pub fn prompt(&self, id: RequestId) -> Option<Vec<TokenId>> {
        self.shared.core.borrow().prompt(id)
    }

    /// Queues a scoring. Its one event goes to `sink`.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn score(&self, body: ScoreBody, sink: impl EventSink + 'static) -> Result<RequestId> {
        self.refuse_if_closed()?;
        self.shared.command(|core, now| core.submit_score(body, shared_sink(sink), now))
    }

    /// Ends a request now, in whatever phase: its sink gets `request.cancelled`. False when it had ended.
    pub fn cancel(&self, id: RequestId) -> bool {
        self.shared.command(|core, now| core.cancel(id, cancelled(), AbortReason::Cancelled, now))
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<TokenId>> {
        self.text.tokenizer().encode(text, add_special, parse_special)
    }

    /// The text of tokens; control tokens are written only if `special`.
    ///
    /// # Errors
    /// `tokenizer.unknown_token`.
    pub fn detokenize(&self, tokens: &[TokenId], special: bool) -> Result<String> {
        self.text.tokenizer().decode(tokens, special)
    }

    /// The bytes of one token as the vocabulary has them, and whether it is a control token (which adds nothing to a text).
    /// `None` beyond the vocabulary: padded models can draw such ids.
    pub fn piece(&self, token: TokenId) -> Option<(&[u8], bool)> {
        let tokenizer = self.text.tokenizer();
        Some((tokenizer.token_bytes(token, true)?, tokenizer.is_control(token)))
    }

    /// The text that a conversation becomes. `options` is an object of `tools`, `addGenerationPrompt` (default true) and
    /// `templateArgs`, or null.
    ///
    /// # Errors
    /// `request.invalid`, `request.unsupported`, and those of the template.
    pub fn render_chat(&self, messages: &Value, options: &Value) -> Result<String> {
        let options = RenderOptions::from_json(options)?;
        self.text.render(&options.conversation(messages, self.shared.local_time()))
    }

    /// Counters and rates.
    pub fn stats(&self) -> EngineStats {
        let core = self.shared.core.borrow();
        let rate = core.meter.rate(self.shared.now());
        EngineStats::new(&core.scheduler.stats(), rate, core.meter.executor, self.shared.ticks.get())
    }

    /// The last `last` scheduler steps, oldest first.
    pub fn trace(&self, last: usize) -> Vec<StepTrace> {
        let core = self.shared.core.borrow();
        let steps = core.scheduler.steps();
        steps.iter().skip(steps.len().saturating_sub(last)).map(Into::into).collect()
    }

    /// Whether `dispose` was called or the executor gave up.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Ends every request with `engine.disposed`, at once; the executor goes when the loop next runs. Idempotent.
    pub fn dispose_now(&self) {
        self.shared.dispose();
    }

    /// As [`Engine::dispose_now`]; completes when the executor is dropped. Idempotent.
    pub fn dispose(&self) -> impl Future<Output = ()> + 'static {
        self.shared.dispose();
        let shared = Rc::clone(&self.shared);
        async move { shared.loop_end().await }
    }

    /// Every invariant of the scheduler, the slow way.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.shared.core.borrow().scheduler.check_integrity(), Ok(()));
    }

    fn refuse_if_closed(&self) -> Result<()> {
        self.shared.closed_error().map_or(Ok(()), Err)
    }
}
