//! The engine over models: the same bits alone, in a crowd and after preemption; shared prefixes computed once; choices that
//! share a prompt. The real model on the CPU, a tiny one on WebGPU. The scheduler's own tests need no model and live with it.
#![cfg(any(feature = "cpu", feature = "webgpu"))]
mod support;

use std::path::Path;

use fireside::chat::LocalTime;
use fireside::engine::{Engine, EngineStats, Event, GenerateRequest, GenerateResult, Host};
use fireside::model::open::open;
use fireside::model::settings::LoadSettings;
use fireside::model::source::FileSource;
use fireside::model::transformer::NoCheckpoint;
use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use support::{default_model, goldens};

/// A clock, and turns that are given by being polled again.
struct TestHost(std::time::Instant);

impl Host for TestHost {
    fn now_ms(&self) -> f64 {
        self.0.elapsed().as_secs_f64() * 1e3
    }

    fn local_time(&self) -> LocalTime {
        LocalTime { year: 2024, month: 7, day: 26, hour: 12, minute: 0, second: 0 }
    }

    async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return std::task::Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }

    async fn sleep(&self, ms: f64) {
        let end = self.now_ms() + ms;
        while self.now_ms() < end {
            self.yield_now().await;
        }
    }
}

/// Opens a model, submits everything at once, gives the results in order and the figures at the end.
fn run(path: &Path, settings: &Value, requests: &[Value]) -> (Vec<Result<GenerateResult, String>>, EngineStats) {
    pollster::block_on(async {
        let source = FileSource::open(path).expect("the model");
        let settings = LoadSettings::from_json(&settings.to_string()).expect("settings");
        let host = TestHost(std::time::Instant::now());
        let (engine, run_loop) =
            open(&source, &settings, NoCheckpoint, host, &mut |_, _, _| {}).await.expect("an engine");
        let work = async {
            let results = join_all(requests.iter().map(|r| generate(&engine, r))).await;
            let stats = engine.stats();
            engine.dispose().await;
            (results, stats)
        };
        join(run_loop.run(), work).await.1
    })
}

async fn generate(engine: &Engine, request: &Value) -> Result<GenerateResult, String> {
    let request = GenerateRequest::from_json(&request.to_string()).map_err(|e| e.to_string())?;
    let (_, mut events) = engine.generate_queued(request, 1).map_err(|e| e.to_string())?;
    while let Some(event) = events.next().await {
        match event {
            Event::Done(result) => return Ok(result),
            Event::Error(error) => return Err(error.to_string()),
            _ => {}
        }
    }
    Err("the events ended without a result".to_owned())
}

/// Tokens and the bits of their log-probabilities.
fn bits(result: &GenerateResult) -> Vec<(u32, u64)> {
    let events = result.choices[0].logprobs.as_ref().expect("logprobs");
    events.iter().map(|e| (e.token.0, e.logprob.expect("a logprob").to_bits())).collect()
}

const PROMPTS: [&str; 8] = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Water boils at",
    "1, 2, 3, 4,",
    "In the beginning there was nothing but the sea and the sky, and nobody to",
    "Q: What is a block?\nA:",
];

fn greedy(prompt: &Value, max_tokens: usize) -> Value {
    json!({ "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "logprobs": 0 })
}

/// Runs `requests` alone, together, and together in a pool too small for them: the same bits each time.
fn crowds_change_no_bit(path: &Path, backend: &str, requests: &[Value], few_blocks: u32) {
    let base = json!({ "backend": backend, "contextLength": 256 });
    let alone: Vec<_> = requests
        .iter()
        .map(|r| bits(run(path, &base, std::slice::from_ref(r)).0[0].as_ref().expect("a result")))
        .collect();
    assert!(alone.iter().all(|tokens| !tokens.is_empty()));

    let (together, stats) = run(path, &base, requests);
    for (i, result) in together.iter().enumerate() {
        assert_eq!(bits(result.as_ref().expect("a result")), alone[i], "{}", requests[i]);
    }
    assert_eq!(stats.preemptions, 0);

    let kv = json!({ "blocks": few_blocks });
    let small = json!({ "backend": backend, "contextLength": 80, "kvCache": kv, "prefillChunk": 7 });
    let (squeezed, stats) = run(path, &small, requests);
    for (i, result) in squeezed.iter().enumerate() {
        assert_eq!(bits(result.as_ref().expect("a result")), alone[i], "preempted: {}", requests[i]);
    }
    let lengths: Vec<_> = alone.iter().map(Vec::len).collect();
    assert!(stats.preemptions > 0, "the pool was meant to be too small for {lengths:?}: {stats:?}");
}

/// `n` choices of one request: the prompt is computed once, and choice 0 is what n = 1 gives.
fn choices_share_one_prompt(path: &Path, backend: &str, prompt: &Value) {
    let base = json!({ "backend": backend, "contextLength": 256 });
    let request = |n: u32| json!({ "prompt": prompt, "temperature": 0.9, "seed": 7, "max_tokens": 12, "n": n });
    let (one, _) = run(path, &base, &[request(1)]);
    let (four, stats) = run(path, &base, &[request(4)]);
    let (one, four) = (one[0].as_ref().expect("a result"), four[0].as_ref().expect("a result"));
    assert_eq!(four.choices.len(), 4);
    assert_eq!(four.choices[0].tokens, one.choices[0].tokens);
    assert!((1..4).any(|i| four.choices[i].tokens != four.choices[0].tokens), "choices draw differently");
    assert_eq!(stats.tokens.prompt, one.usage.prompt_tokens, "the prompt was computed once");
    assert_eq!(four.usage.prompt_tokens, one.usage.prompt_tokens);
}

/// Fifty requests at once that share 300 tokens: their 18 full blocks are computed by one of them.
fn a_common_prefix_is_computed_once(path: &Path, backend: &str) {
    let prefix: Vec<u32> = (0..300).map(|i| 10 + (i * 13) % 150).collect();
    let requests: Vec<Value> = (0..50u32)
        .map(|i| {
            let prompt: Vec<u32> = prefix.iter().copied().chain([20 + i, 30, 40]).collect();
            json!({ "prompt": prompt, "temperature": 0, "max_tokens": 4 })
        })
        .collect();
    let (results, stats) = run(path, &json!({ "backend": backend, "contextLength": 400 }), &requests);
    let mut cached: Vec<u64> =
        results.iter().map(|r| r.as_ref().expect("a result").usage.prompt_tokens_details.cached_tokens).collect();
    cached.sort_unstable();
    assert_eq!(cached[0], 0);
    assert!(cached[1..].iter().all(|&c| c == 288), "{cached:?}");
    assert_eq!(stats.prefix_cache.hit_tokens, 49 * 288);
}

#[cfg(feature = "cpu")]
mod cpu {
    use super::*;

    #[test]
    fn eight_streams_give_the_bits_that_each_gives_alone() {
        let Some(path) = default_model() else { return };
        // Eleven blocks hold five of the eight sequences at their longest.
        crowds_change_no_bit(&path, "cpu", &PROMPTS.map(|prompt| greedy(&json!(prompt), 24)), 11);
    }

    #[test]
    fn choices_share_one_prompt_and_the_first_is_the_one_that_n_1_gives() {
        let Some(path) = default_model() else { return };
        choices_share_one_prompt(&path, "cpu", &json!(PROMPTS[6]));
    }

    #[test]
    fn fifty_requests_compute_their_common_prefix_once() {
        let Some(path) = default_model() else { return };
        a_common_prefix_is_computed_once(&path, "cpu");
    }
}

#[cfg(feature = "webgpu")]
mod webgpu {
    use super::*;
    use fireside::backend::Backend;

    /// The tiny model's file, where there is an adapter.
    fn tiny() -> Option<std::path::PathBuf> {
        match pollster::block_on(Backend::webgpu()) {
            Ok(_) => Some(goldens().join("tiny/tiny-llama-f16.gguf")),
            Err(error) => {
                assert!(std::env::var_os("FIRESIDE_REQUIRE_GPU").is_none(), "{error}");
                eprintln!("SKIPPED: {error}");
                None
            }
        }
    }

    fn prompt(length: u32, from: u32) -> Value {
        json!((0..length).map(|i| 10 + (i * 13 + from * 31) % 150).collect::<Vec<_>>())
    }

    #[test]
    fn eight_streams_give_the_bits_that_each_gives_alone() {
        let Some(path) = tiny() else { return };
        let lengths = [5, 3, 17, 20, 9, 1, 33, 12];
        let mut requests: Vec<Value> = (0..8).map(|i| greedy(&prompt(lengths[i as usize], i), 44)).collect();
        // Without its end token, so that every sequence gets as long as it may.
        requests.iter_mut().for_each(|request| request["logit_bias"] = json!({ "2": -100 }));
        // The longest sequence alone takes five blocks.
        crowds_change_no_bit(&path, "webgpu", &requests, 6);
    }

    #[test]
    fn choices_share_one_prompt_and_the_first_is_the_one_that_n_1_gives() {
        let Some(path) = tiny() else { return };
        choices_share_one_prompt(&path, "webgpu", &prompt(21, 3));
    }

    #[test]
    fn fifty_requests_compute_their_common_prefix_once() {
        let Some(path) = tiny() else { return };
        a_common_prefix_is_computed_once(&path, "webgpu");
    }
}

#[cfg(feature = "cpu")]
#[test]
fn usage_is_what_was_emitted() {
    let path = goldens().join("tiny/tiny-llama-f16.gguf");
    let request = json!({ "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 6 });
    let none = json!({ "prompt": [5, 6, 7], "max_tokens": 0 });
    let too_long = json!({ "prompt": vec![5; 64], "max_tokens": 1 });
    let (results, _) = run(&path, &json!({ "backend": "cpu", "contextLength": 64 }), &[request, none, too_long]);
    let first = results[0].as_ref().expect("a result");
    assert_eq!(first.usage.prompt_tokens, 3);
    assert_eq!(first.usage.completion_tokens, first.choices[0].tokens.len() as u64);
    let second = results[1].as_ref().expect("a result");
    assert_eq!((second.usage.prompt_tokens, second.usage.completion_tokens), (3, 0));
    assert!(results[2].as_ref().expect_err("too long").contains("request.context_exceeded"));
}
