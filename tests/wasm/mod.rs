//! What the page's and the Worker's tests share: the wasm surface as JavaScript calls it, over tiny models with known answers.
pub mod readback;

use fireside::web::WasmEngine;
use futures_channel::oneshot;
use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

#[wasm_bindgen(inline_js = "
export function bytes_source(bytes) {
  return { len: bytes.length, read: async (offset, length) => bytes.slice(offset, offset + length) };
}
export function has_webgpu() { return Boolean(globalThis.navigator?.gpu); }
export function is_worker() { return typeof WorkerGlobalScope !== 'undefined'; }
")]
extern "C" {
    fn bytes_source(bytes: &js_sys::Uint8Array) -> JsValue;
    pub fn has_webgpu() -> bool;
    pub fn is_worker() -> bool;
}

const INDEX: &str = include_str!("../goldens/tiny/index.json");
const MODELS: &[(&str, &[u8])] = &[
    ("tiny-llama-f16.gguf", include_bytes!("../goldens/tiny/tiny-llama-f16.gguf")),
    ("tiny-llama-mix32.gguf", include_bytes!("../goldens/tiny/tiny-llama-mix32.gguf")),
    ("tiny-llama-kq.gguf", include_bytes!("../goldens/tiny/tiny-llama-kq.gguf")),
    ("tiny-llama-freqs.gguf", include_bytes!("../goldens/tiny/tiny-llama-freqs.gguf")),
];
/// Logits apart below which either of two tokens may be the best one.
const NEAR_TIE: f64 = 0.05;
const TOKENS: usize = 32;

fn text(error: &JsValue) -> String {
    js_sys::JSON::stringify(error).ok().and_then(|s| s.as_string()).unwrap_or_else(|| format!("{error:?}"))
}

async fn load(bytes: &[u8], backend: &str) -> Result<WasmEngine, JsValue> {
    let source = bytes_source(&js_sys::Uint8Array::from(bytes));
    let ignore = js_sys::Function::new_no_args("");
    WasmEngine::load(source.unchecked_into(), json!({ "backend": backend }).to_string(), ignore).await
}

/// A callback for a request's events, and what its last one was.
fn last_event() -> (Closure<dyn FnMut(String, String)>, oneshot::Receiver<Result<Value, Value>>) {
    let (sender, receiver) = oneshot::channel();
    let mut sender = Some(sender);
    let on_event = Closure::new(move |kind: String, json: String| {
        if kind != "token" {
            let value: Value = serde_json::from_str(&json).expect("JSON");
            let _ = sender.take().map(|s| s.send(if kind == "done" { Ok(value) } else { Err(value) }));
        }
    });
    (on_event, receiver)
}

fn function(closure: &Closure<dyn FnMut(String, String)>) -> js_sys::Function {
    closure.as_ref().unchecked_ref::<js_sys::Function>().clone()
}

fn plain(error: &JsValue) -> Value {
    serde_json::from_str(&text(error)).expect("a plain error")
}

async fn generate(engine: &WasmEngine, request: &Value) -> Result<Value, Value> {
    let (on_event, receiver) = last_event();
    engine.submit(&request.to_string(), None, function(&on_event), false).map_err(|e| plain(&e))?;
    receiver.await.expect("one last event")
}

async fn score(engine: &WasmEngine, tokens: Vec<u32>) -> Result<Value, Value> {
    let (on_event, receiver) = last_event();
    engine.score(tokens, 1, function(&on_event), 0).map_err(|e| plain(&e))?;
    receiver.await.expect("one last event")
}

fn start(engine: &WasmEngine) {
    let run = JsFuture::from(engine.run());
    spawn_local(async move { drop(run.await) });
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// With every tiny llama model: the best token after each step of the reference's greedy text is the reference's wherever
/// that is no near tie, and what is generated is that text up to its first near tie. All prompts run at once.
pub async fn greedy_follows_the_reference(backend: &str) {
    let index: Value = serde_json::from_str(INDEX).expect("the index");
    for (name, bytes) in MODELS {
        let entry = index.as_array().expect("a list").iter().find(|e| e["file"] == *name).expect("an entry");
        let prompts = entry["prompts"].as_array().expect("prompts").iter().filter(|p| p["adapter"].is_null());
        let engine = load(bytes, backend).await.unwrap_or_else(|e| panic!("{name}: {}", text(&e)));
        let info: Value = serde_json::from_str(&engine.info()).expect("info");
        assert_eq!(info["backend"], *backend, "{name}");
        start(&engine);
        let checked = join_all(prompts.map(|prompt| check_prompt(&engine, name, prompt))).await;
        assert!(checked.iter().sum::<usize>() > TOKENS, "{name}: too little was compared");
        engine.dispose();
    }
}

/// How many steps were compared.
async fn check_prompt(engine: &WasmEngine, name: &str, prompt: &Value) -> usize {
    let (start, expected) = (ids(&prompt["ids"]), ids(&prompt["greedy_ids_f64"]));
    let gaps: Vec<f64> = prompt["greedy_gaps"].as_array().expect("gaps").iter().filter_map(Value::as_f64).collect();
    let tied = |i: usize| gaps[i] < NEAR_TIE;

    let request = json!({ "prompt": start, "temperature": 0, "max_tokens": TOKENS });
    let whole = [start.clone(), expected.clone()].concat();
    let (result, scored) = join(generate(engine, &request), score(engine, whole)).await;
    let result = result.unwrap_or_else(|e| panic!("{name}: {e}"));
    let scored = scored.unwrap_or_else(|e| panic!("{name}: {e}"));

    let got = ids(&result["choices"][0]["tokens"]);
    let certain = (0..gaps.len()).find(|&i| tied(i)).unwrap_or(gaps.len()).min(got.len());
    assert_eq!(got[..certain], expected[..certain], "{name}, {}", prompt["text"]);
    let steps = (0..expected.len().min(gaps.len())).filter(|&i| !tied(i));
    steps
        .inspect(|i| {
            let best = &scored["top"][start.len() + i][0]["token"];
            assert_eq!(*best, expected[*i], "{name}, {}, step {i}", prompt["text"]);
        })
        .count()
}

/// Errors arrive as `{ code, message, details }`, thrown or by event, and leave the engine usable.
pub async fn errors_are_plain_objects() {
    let (name, bytes) = MODELS[0];
    let thrown = load(&bytes[..1000], "cpu").await.err().expect("half a header is no model");
    let error = plain(&thrown);
    assert!(error["code"].as_str().is_some_and(|c| c.starts_with("gguf.")), "{error}");
    assert!(error["details"].is_object(), "{error}");
    let engine = load(bytes, "cpu").await.unwrap_or_else(|e| panic!("{name}: {}", text(&e)));
    start(&engine);
    let refused = generate(&engine, &json!({ "prompt": "the", "bogus": 1 })).await.expect_err("an unknown field");
    assert_eq!(refused["code"], "request.unsupported");
    let result = generate(&engine, &json!({ "prompt": "the", "temperature": 0, "max_tokens": 2 })).await;
    assert_eq!(result.expect("a result")["usage"]["completion_tokens"], 2);
    engine.dispose();
    let late = generate(&engine, &json!({ "prompt": "the" })).await.expect_err("a disposed engine");
    assert_eq!(late["code"], "engine.disposed");
}
