//! Test support: a task that is polled by hand, a host whose clock stands still, an executor whose logits are a function of
//! the tokens that it finds in its paged KV. Nothing here is part of the library.
mod host;
mod scripted;
mod task;
pub mod vocabulary;

pub use host::FakeHost;
pub use scripted::{Control, ScriptedExecutor, logits_of};
pub use task::Task;
pub use vocabulary::{EOS, NAP, byte, text_model};

use std::cell::RefCell;
use std::rc::Rc;

use super::{Engine, EngineInfo, EngineParts, Event, GenerateRequest, GenerateResult, KvInfo, MemoryInfo, TokenEvent};
use crate::Error;
use crate::scheduler::SchedulerConfig;

/// An engine over the scripted executor, its loop in hand.
pub struct Bench {
    pub engine: Engine,
    pub task: Task,
    pub host: FakeHost,
    pub control: Rc<Control>,
}

/// A small geometry: 64 blocks of 4 tokens, prefill in chunks.
pub fn small() -> SchedulerConfig {
    SchedulerConfig {
        max_running: 8,
        max_queued: 64,
        token_budget: 32,
        prefill_chunk: 8,
        block_size: 4,
        num_blocks: 64,
        watermark_blocks: 1,
        context_length: 128,
        ..SchedulerConfig::default()
    }
}

impl Bench {
    pub fn new(config: SchedulerConfig) -> Self {
        let (host, control) = (FakeHost::default(), Rc::new(Control::default()));
        let text = text_model();
        let info = EngineInfo {
            model_id: "scripted".into(),
            architecture: "none".into(),
            parameters: 0,
            quantization: "none".into(),
            context_length: config.context_length as u64,
            layers: 0,
            vocab_size: text.vocab_size() as u64,
            backend: "cpu".into(),
            adapter: None,
            threads: 1,
            memory: MemoryInfo { weight_bytes: 0, kv_bytes: 0, wasm_bytes: 0 },
            kv: KvInfo { block_size: config.block_size as u64, blocks: config.num_blocks as u64, dtype: "f32".into() },
            kernels: None,
            warnings: Vec::new(),
            version: "test".into(),
        };
        let executor = ScriptedExecutor::new(&config, text.vocab_size(), Rc::clone(&control), host.clone());
        let parts = EngineParts { info, text, scheduler: config };
        let (engine, run_loop) = Engine::new(parts, executor, host.clone()).unwrap();
        Self { engine, task: Task::new(run_loop.run()), host, control }
    }

    /// Submits; the events go to the log that is returned.
    pub fn submit(&self, json: &str) -> EventLog {
        self.try_submit(json).unwrap()
    }

    pub fn try_submit(&self, json: &str) -> crate::Result<EventLog> {
        let log = EventLog::default();
        let id = self.engine.generate(GenerateRequest::from_json(json)?, 7, log.sink())?;
        log.0.borrow_mut().id = Some(id);
        Ok(log)
    }

    /// Submits and runs until the loop parks.
    pub fn run(&mut self, json: &str) -> EventLog {
        let log = self.submit(json);
        self.task.run_until_parked();
        log
    }

    /// Nothing is held and every invariant stands.
    pub fn assert_clean(&self) {
        let stats = self.engine.stats();
        assert_eq!(stats.blocks.held, 0, "{stats:?}");
        assert_eq!((stats.sequences.waiting, stats.sequences.prefilling), (0, 0));
        assert_eq!((stats.sequences.decoding, stats.sequences.preempted), (0, 0));
        assert_eq!(stats.blocks.free + stats.blocks.cached, stats.blocks.total);
        self.engine.check();
    }
}

/// What a request's sink received.
#[derive(Debug, Default, Clone)]
pub struct EventLog(Rc<RefCell<Received>>);

#[derive(Debug, Default)]
struct Received {
    id: Option<super::RequestId>,
    events: Vec<Event>,
}

impl EventLog {
    /// A sink that appends; it insists that nothing follows the terminal event.
    pub fn sink(&self) -> impl FnMut(Event) + use<> {
        let log = Rc::clone(&self.0);
        move |event| {
            let mut log = log.borrow_mut();
            assert!(log.events.last().is_none_or(|e| !e.is_terminal()), "an event after the last: {event:?}");
            log.events.push(event);
        }
    }

    pub fn id(&self) -> super::RequestId {
        self.0.borrow().id.unwrap()
    }

    pub fn tokens(&self) -> Vec<TokenEvent> {
        let of = |e: &Event| if let Event::Token(t) = e { Some(t.clone()) } else { None };
        self.0.borrow().events.iter().filter_map(of).collect()
    }

    pub fn ended(&self) -> bool {
        self.0.borrow().events.last().is_some_and(Event::is_terminal)
    }

    pub fn outcome(&self) -> Result<GenerateResult, Error> {
        match self.0.borrow().events.last() {
            Some(Event::Done(result)) => Ok(result.clone()),
            Some(Event::Error(error)) => Err(error.clone()),
            other => panic!("not ended: {other:?}"),
        }
    }

    pub fn score(&self) -> super::ScoreResult {
        match self.0.borrow().events.last() {
            Some(Event::Scored(result)) => result.clone(),
            other => panic!("not scored: {other:?}"),
        }
    }

    /// The result of a request that must have succeeded, its events agreeing with it.
    pub fn result(&self) -> GenerateResult {
        let result = self.outcome().unwrap();
        for (index, choice) in (0..).zip(&result.choices) {
            let events: Vec<_> = self.tokens().into_iter().filter(|t| t.choice == index).collect();
            let text: String = events.iter().map(|t| t.text.as_str()).collect();
            assert_eq!(text, choice.text, "the deltas are the text");
            assert_eq!(events.iter().map(|t| t.token).collect::<Vec<_>>(), choice.tokens);
            assert!(events.iter().zip(0..).all(|(t, i)| t.position == i));
        }
        result
    }

    pub fn code(&self) -> &'static str {
        self.outcome().unwrap_err().code
    }
}
