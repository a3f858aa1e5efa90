//! A request taken over from an engine that is gone: the two lives together give what one would have given.
use serde_json::{Value, json};

use crate::engine::testing::{Bench, EOS, EventLog, byte, small};
use crate::engine::{GenerateRequest, GenerateResult, Progress, TokenEvent};

/// What a caller keeps: the progress as JSON, made of the events it received.
fn progress(events: &[TokenEvent], n: u32) -> Value {
    let of = |index: u32| -> Vec<Value> {
        let kept = events.iter().filter(|e| e.choice == index);
        let top = |e: &TokenEvent| {
            let list = e.top.iter().flatten();
            e.top.is_some().then(|| {
                list.map(|t| json!({ "token": t.token, "logprob": t.logprob.to_string() })).collect::<Vec<_>>()
            })
        };
        kept.map(|e| json!({ "token": e.token, "logprob": e.logprob.map(|x| x.to_string()), "top": top(e) })).collect()
    };
    json!({ "seed": 7, "elapsed_ms": 100.0, "choices": (0..n).map(of).collect::<Vec<_>>() })
}

fn resume(bench: &mut Bench, request: &str, prompt: &str, progress: &Value) -> crate::Result<EventLog> {
    let log = EventLog::default();
    let prompt = bench.engine.tokenize(prompt, true, true)?;
    let progress = Progress::from_json(&progress.to_string())?;
    bench.engine.resume(GenerateRequest::from_json(request)?, &prompt, &progress, log.sink())?;
    bench.task.run_until_parked();
    Ok(log)
}

/// Cuts the request after every number of its events and lets a second engine finish it.
fn every_cut_gives_the_same(request: &str, prompt: &str, n: u32, prepare: impl Fn(&Bench)) -> GenerateResult {
    let mut whole = Bench::new(small());
    prepare(&whole);
    let log = whole.run(request);
    let (result, events) = (log.result(), log.tokens());
    for cut in 0..=events.len() {
        let mut second = Bench::new(small());
        prepare(&second);
        let resumed = resume(&mut second, request, prompt, &progress(&events[..cut], n)).unwrap();
        let rest = resumed.outcome().unwrap();
        assert_eq!(rest.choices, result.choices, "cut at {cut}");
        assert_eq!((rest.usage.prompt_tokens, rest.usage.completion_tokens), {
            (result.usage.prompt_tokens, result.usage.completion_tokens)
        });
        assert_eq!(rest.timings.seed, result.timings.seed);
        // Each choice's events go on where they stopped: nothing twice, nothing left out.
        for index in 0..n {
            let of = |events: &[TokenEvent]| events.iter().filter(|e| e.choice == index).cloned().collect::<Vec<_>>();
            assert_eq!([of(&events[..cut]), of(&resumed.tokens())].concat(), of(&events), "cut at {cut}");
        }
        second.assert_clean();
    }
    result
}

#[test]
fn a_drawn_text_goes_on_with_the_same_draws() {
    let request =
        r#"{"prompt":"abcdefg","max_tokens":14,"logprobs":2,"repetition_penalty":1.3,"presence_penalty":0.5}"#;
    every_cut_gives_the_same(request, "abcdefg", 1, |_| {});
}

#[test]
fn choices_go_on_each_by_itself() {
    let request = r#"{"prompt":"abcdefg","max_tokens":6,"n":3}"#;
    let result = every_cut_gives_the_same(request, "abcdefg", 3, |_| {});
    assert_ne!(result.choices[0], result.choices[1]);
}

#[test]
fn ends_that_were_reached_are_not_passed() {
    let said = |text: &'static str| {
        move |bench: &Bench| bench.control.say(3, text.bytes().map(byte).chain([EOS]).chain(b"zz".map(byte)))
    };
    let stopped = every_cut_gives_the_same(r#"{"prompt":"abc","temperature":0}"#, "abc", 1, said("é🙂 hi"));
    assert_eq!(stopped.choices[0].text, "é🙂 hi");
    let request = r#"{"prompt":"abc","temperature":0,"stop":"END"}"#;
    let stopped = every_cut_gives_the_same(request, "abc", 1, said("one ENEND more"));
    assert_eq!(stopped.choices[0].text, "one EN");
    let request = r#"{"prompt":"abc","temperature":0,"max_tokens":4,"stop":"END"}"#;
    let cut = every_cut_gives_the_same(request, "abc", 1, said("abEN"));
    assert_eq!(cut.choices[0].text, "abEN");
    every_cut_gives_the_same(r#"{"prompt":"abc","max_tokens":0,"n":2}"#, "abc", 2, |_| {});
    // The context is the end: 128 tokens.
    let long = "x".repeat(120);
    let request = format!(r#"{{"prompt":"{long}","temperature":0}}"#);
    let full = every_cut_gives_the_same(&request, &long, 1, |_| {});
    assert_eq!(full.usage.total_tokens, 128);
}

#[test]
fn a_full_queue_does_not_refuse_what_was_accepted_before() {
    let config = || crate::scheduler::SchedulerConfig { max_queued: 1, max_running: 1, ..small() };
    let mut bench = Bench::new(config());
    bench.control.close();
    let request = r#"{"prompt":"abc","max_tokens":3,"temperature":0}"#;
    let first = bench.submit(request);
    assert_eq!(bench.try_submit(request).unwrap_err().code, "request.queue_full");
    let resumed = resume(&mut bench, request, "abc", &progress(&[], 1)).unwrap();
    bench.control.open();
    bench.task.run_until_parked();
    assert_eq!(resumed.result().choices, first.result().choices);
}

#[test]
fn times_count_from_the_first_submission() {
    let mut bench = Bench::new(small());
    bench.control.cost.set((10.0, 0.0));
    bench.host.advance(1000.0);
    let request = r#"{"prompt":"abc","max_tokens":3,"temperature":0}"#;
    let mut kept = progress(&[], 1);
    kept["first_run_ms"] = json!(5.0);
    let timings = resume(&mut bench, request, "abc", &kept).unwrap().outcome().unwrap().timings;
    assert_eq!((timings.queued, timings.time_to_first_token, timings.decode), (5.0, 110.0, 20.0));
    // A deadline too: it had 105 ms, of which 100 are gone.
    let request = r#"{"prompt":"abcd","max_tokens":9,"temperature":0,"timeout":105}"#;
    assert_eq!(resume(&mut bench, request, "abcd", &progress(&[], 1)).unwrap().code(), "request.deadline");
}

#[test]
fn a_progress_that_cannot_be_is_refused() {
    let mut bench = Bench::new(small());
    let request = r#"{"prompt":"abc","max_tokens":3,"temperature":0}"#;
    let tokens = |list: &[u32]| list.iter().map(|t| json!({ "token": t })).collect::<Vec<_>>();
    for choices in [
        json!([tokens(&[5, 6, 7, 8])]),
        json!([tokens(&[5]), tokens(&[5])]),
        json!([tokens(&[2, 5])]),
        json!([tokens(&[100_000])]),
        json!(7),
    ] {
        let kept = json!({ "seed": 7, "elapsed_ms": 0, "choices": choices });
        assert_eq!(resume(&mut bench, request, "abc", &kept).unwrap_err().code, "request.invalid", "{choices}");
    }
    bench.assert_clean();
}

#[test]
fn the_prompt_of_a_live_request_can_be_had() {
    let mut bench = Bench::new(small());
    bench.control.close();
    let log = bench.submit(r#"{"messages":[{"role":"user","content":"hey"}],"max_tokens":3}"#);
    let prompt = bench.engine.prompt(log.id()).unwrap();
    assert_eq!(bench.engine.detokenize(&prompt, true).unwrap(), "<s>user=hey;2024:");
    bench.control.open();
    bench.task.run_until_parked();
    assert_eq!(bench.engine.prompt(log.id()), None);
}
