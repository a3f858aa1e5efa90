//! The `#[wasm_bindgen]` surface: byte sources, commands, errors to JavaScript. Decides nothing.
//!
//! Requests and answers are JSON text; thrown values are `{ code, message, details }`. The TypeScript layer checks
//! arguments before they come here and turns thrown values into `FiresideError`.
mod alloc;
mod error;
mod host;
mod source;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use js_sys::{Function, Promise};
use serde_json::json;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use crate::Error;
use crate::engine::{
    Engine, Event, GenerateRequest, Progress, ReadCredit, RequestId, RequestOptions, RunLoop, ScoreBody,
};
use crate::ids::TokenId;
use crate::model::executor::ModelExecutor;
use crate::model::open::{self, Phase};
use crate::model::settings::LoadSettings;
use crate::sampling::{RawValue, SEED_LIMIT};
use host::{Pauses, Turns, WebHost};
use source::{JsSource, WebSource};

type Loop = RunLoop<ModelExecutor<Pauses>, WebHost>;

/// Panics become readable messages on the console before they trap.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}

/// What a model's header tells, as JSON (`model::survey::Survey`); reads nothing else of the source.
#[wasm_bindgen]
pub async fn survey(source: JsSource) -> Result<String, JsValue> {
    let survey = crate::model::survey::survey(&WebSource::new(source)).await.map_err(|e| error::to_js(&e))?;
    Ok(to_json(&survey))
}

/// Destroys the GPU device that engines of this instance used, once there are none. True when there was one: the next engine
/// then needs a fresh instance.
#[wasm_bindgen(js_name = releaseDevice)]
pub fn release_device() -> bool {
    crate::backend::release_device()
}

/// One loaded model.
#[wasm_bindgen]
pub struct WasmEngine {
    engine: Engine,
    run_loop: RefCell<Option<Loop>>,
    /// Of the live requests whose readers say what they read.
    credits: Rc<RefCell<BTreeMap<RequestId, ReadCredit>>>,
}

#[wasm_bindgen]
impl WasmEngine {
    /// Loads a model. `options` is JSON (`LoadSettings`), `on_event` gets `("progress", json)` and `("warning", json)`.
    pub async fn load(source: JsSource, options: String, on_event: Function) -> Result<WasmEngine, JsValue> {
        let settings = LoadSettings::from_json(&options).map_err(|e| error::to_js(&e))?;
        let source = WebSource::new(source);
        let turns = Rc::new(Turns::new()?);
        let mut told = f64::NEG_INFINITY;
        let mut on_phase = |phase: Phase, loaded: u64, total: u64| {
            // Ends of phases are always told, steps between them at a pace that a page can draw.
            let now = host::now_ms();
            if loaded == total || now - told >= 50.0 {
                told = now;
                let progress = json!({ "phase": phase, "loaded": loaded, "total": total, "fromCache": false });
                send(&on_event, "progress", &progress.to_string());
            }
        };
        let (pauses, web_host) = (Pauses::new(Rc::clone(&turns)), WebHost::new(turns));
        let opened = open::open(&source, &settings, pauses, web_host, &mut on_phase).await;
        let (engine, run_loop) = opened.map_err(|e| error::to_js(&e))?;
        for warning in &engine.info().warnings {
            send(&on_event, "warning", &to_json(warning));
        }
        Ok(Self { engine, run_loop: RefCell::new(Some(run_loop)), credits: Rc::default() })
    }

    /// `EngineInfo` as JSON.
    pub fn info(&self) -> String {
        to_json(self.engine.info())
    }

    /// `EngineStats` as JSON, with the memory figures of this instance.
    pub fn stats(&self) -> String {
        let mut stats = serde_json::to_value(self.engine.stats()).unwrap_or_default();
        if let Some(stats) = stats.as_object_mut() {
            let bytes = open::linear_memory_bytes();
            stats.insert("peakWasmBytes".into(), bytes.into());
            stats.insert("liveWasmBytes".into(), alloc::live_bytes().into());
        }
        stats.to_string()
    }

    /// The last scheduler steps as JSON, oldest first.
    pub fn trace(&self, last: u32) -> String {
        to_json(&self.engine.trace(last as usize))
    }

    /// Queues a generation; its events are `("token", json)`, then `("done", json)` or `("error", json)`. With `paced`, it
    /// pauses when too many token events are out that `read` has not told of.
    pub fn submit(
        &self,
        request: &str,
        prompt: Option<Vec<u32>>,
        on_event: Function,
        paced: bool,
    ) -> Result<f64, JsValue> {
        let mut request = GenerateRequest::from_json(request).map_err(|e| error::to_js(&e))?;
        if let Some(tokens) = prompt {
            request.prompt = Some(RawValue::List(tokens.into_iter().map(|t| RawValue::Number(f64::from(t))).collect()));
        }
        let seed = (js_sys::Math::random() * SEED_LIMIT as f64) as u64;
        let id = if paced {
            self.start_paced(on_event, |sink| self.engine.generate_paced(request, seed, sink))
        } else {
            self.engine.generate(request, seed, sink(on_event))
        };
        Ok(id.map_err(|e| error::to_js(&e))?.0 as f64)
    }

    /// Submits with a sink that passes events on, and where the request is paced keeps the credit of its reader until it ends.
    fn start_paced(
        &self,
        on_event: Function,
        submit: impl FnOnce(Box<dyn FnMut(Event)>) -> crate::Result<(RequestId, ReadCredit)>,
    ) -> crate::Result<RequestId> {
        let (credits, own) = (Rc::downgrade(&self.credits), Rc::new(Cell::new(None)));
        let (id_of_sink, mut deliver) = (Rc::clone(&own), sink(on_event));
        let paced = move |event: Event| {
            if event.is_terminal()
                && let (Some(credits), Some(id)) = (credits.upgrade(), id_of_sink.get())
            {
                credits.borrow_mut().remove(&id);
            }
            deliver(event);
        };
        let (id, credit) = submit(Box::new(paced))?;
        own.set(Some(id));
        // One that was resumed at its very end is over by now.
        if self.engine.is_live(id) {
            self.credits.borrow_mut().insert(id, credit);
        }
        Ok(id)
    }

    /// So many more token events of a paced request were read. Nothing happens when it has ended.
    pub fn read(&self, id: f64, count: u32) {
        let credit = self.credits.borrow().get(&RequestId(id as u64)).cloned();
        if let Some(credit) = credit {
            credit.read(count as usize);
        }
    }

    /// Tokens as the vocabulary has them, as JSON: `{ bytes, control }` each, or null for ids beyond it.
    pub fn pieces(&self, tokens: Vec<u32>) -> String {
        let piece = |(bytes, control): (&[u8], bool)| json!({ "bytes": bytes, "control": control });
        let pieces: Vec<_> = tokens.into_iter().map(|t| self.engine.piece(TokenId(t)).map(piece)).collect();
        to_json(&pieces)
    }

    /// Takes over a request of an engine that is gone, as [`WasmEngine::submit`] does a new one. `prompt` is what
    /// [`WasmEngine::prompt`] gave there, `progress` (JSON of [`Progress`]) what the request's events were.
    pub fn resume(
        &self,
        request: &str,
        prompt: Vec<u32>,
        progress: &str,
        on_event: Function,
        paced: bool,
    ) -> Result<f64, JsValue> {
        let request = GenerateRequest::from_json(request).map_err(|e| error::to_js(&e))?;
        let progress = Progress::from_json(progress).map_err(|e| error::to_js(&e))?;
        let prompt: Vec<TokenId> = prompt.into_iter().map(TokenId).collect();
        let id = if paced {
            self.start_paced(on_event, |sink| self.engine.resume_paced(request, &prompt, &progress, sink))
        } else {
            self.engine.resume(request, &prompt, &progress, sink(on_event))
        };
        Ok(id.map_err(|e| error::to_js(&e))?.0 as f64)
    }

    /// The prompt of a live request as tokens; undefined when it is not live.
    pub fn prompt(&self, id: f64) -> Option<Vec<u32>> {
        let tokens = self.engine.prompt(RequestId(id as u64))?;
        Some(tokens.into_iter().map(|t| t.0).collect())
    }

    /// Queues a scoring; its event is `("done", json)` or `("error", json)`.
    pub fn score(
        &self,
        tokens: Vec<u32>,
        top_logprobs: u32,
        on_event: Function,
        priority: i32,
    ) -> Result<f64, JsValue> {
        let body = ScoreBody {
            tokens: tokens.into_iter().map(TokenId).collect(),
            top_logprobs: (top_logprobs > 0).then_some(top_logprobs),
            options: RequestOptions { priority, ..RequestOptions::default() },
        };
        let id = self.engine.score(body, sink(on_event)).map_err(|e| error::to_js(&e))?;
        Ok(id.0 as f64)
    }

    /// Ends a request; its last event is an error. Nothing happens when it has ended. `why` is for logs on the caller's side.
    pub fn abort(&self, id: f64, _why: &str) {
        self.engine.cancel(RequestId(id as u64));
    }

    /// Runs the engine's loop; resolves when the engine is disposed of. A second call resolves at once.
    pub fn run(&self) -> Promise {
        let run_loop = self.run_loop.borrow_mut().take();
        future_to_promise(async move {
            if let Some(run_loop) = run_loop {
                run_loop.run().await;
            }
            Ok(JsValue::UNDEFINED)
        })
    }

    /// The tokens of a text.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, JsValue> {
        let tokens = self.engine.tokenize(text, add_special, parse_special).map_err(|e| error::to_js(&e))?;
        Ok(tokens.into_iter().map(|t| t.0).collect())
    }

    /// The text of tokens.
    pub fn detokenize(&self, tokens: Vec<u32>, special: bool) -> Result<String, JsValue> {
        let tokens: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
        self.engine.detokenize(&tokens, special).map_err(|e| error::to_js(&e))
    }

    /// A conversation as the model's template writes it. `options` is JSON `{ tools?, addGenerationPrompt?, templateArgs? }`.
    #[wasm_bindgen(js_name = renderChat)]
    pub fn render_chat(&self, messages: &str, options: &str) -> Result<String, JsValue> {
        let parse = |field: &str, text: &str| {
            serde_json::from_str(text).map_err(|e| {
                let error = Error::new("request.invalid", format!("`{field}` must be JSON: {e}"));
                error::to_js(&error.with("field", field))
            })
        };
        let (messages, options) = (parse("messages", messages)?, parse("options", options)?);
        self.engine.render_chat(&messages, &options).map_err(|e| error::to_js(&e))
    }

    /// Ends every request with `engine.disposed`. Idempotent.
    pub fn dispose(&self) {
        self.engine.dispose_now();
        // A loop that never ran is dropped here, and the model with it.
        drop(self.run_loop.borrow_mut().take());
    }
}

fn to_json(value: &impl serde::Serialize) -> String {
    // Plain structs of numbers and strings always serialize.
    serde_json::to_string(value).unwrap_or_default()
}

fn sink(on_event: Function) -> impl FnMut(Event) + 'static {
    move |event| match event {
        Event::Token(token) => send(&on_event, "token", &to_json(&token)),
        Event::Done(result) => send(&on_event, "done", &to_json(&result)),
        Event::Scored(result) => send(&on_event, "done", &to_json(&result)),
        Event::Error(error) => send(&on_event, "error", &error::to_json(&error)),
    }
}

/// Calls back into JavaScript; what a callback throws is its own affair.
fn send(on_event: &Function, kind: &str, json: &str) {
    let _ = on_event.call2(&JsValue::UNDEFINED, &JsValue::from_str(kind), &JsValue::from_str(json));
}
