//! Every field is honoured or refused by name.
use crate::engine::testing::{Bench, small};

fn refusal(json: &str) -> (&'static str, String) {
    let bench = Bench::new(small());
    let error = bench.try_submit(json).err().unwrap_or_else(|| panic!("accepted: {json}"));
    assert!(error.message.len() < 300);
    (error.code, error.details.get("field").and_then(|f| f.as_str()).unwrap_or_default().to_owned())
}

#[test]
fn unsupported_fields_are_named() {
    for (json, field) in [
        (r#"{"prompt":"a","bogus":1}"#, "bogus"),
        (r#"{"prompt":"a","stream":true}"#, "stream"),
        (r#"{"prompt":"a","store":true}"#, "store"),
        (r#"{"prompt":"a","adapter":"x"}"#, "adapter"),
        (r#"{"prompt":"a","response_format":{"type":"json_object"}}"#, "response_format.type"),
        (r#"{"messages":[],"tools":[{"type":"function"}]}"#, "tools"),
        (r#"{"messages":[],"tool_choice":"auto"}"#, "tool_choice"),
        (r#"{"messages":[],"tools":[{"type":"function"}],"tool_choice":"required"}"#, "tool_choice"),
    ] {
        assert_eq!(refusal(json), ("request.unsupported", field.to_owned()), "{json}");
    }
}

#[test]
fn wrong_values_are_named() {
    for (json, field) in [
        (r#"{}"#, "prompt"),
        (r#"{"prompt":5}"#, "prompt"),
        (r#"{"prompt":[97,"b"]}"#, "prompt[1]"),
        (r#"{"prompt":[260]}"#, "prompt[0]"),
        (r#"{"prompt":[-1]}"#, "prompt[0]"),
        (r#"{"prompt":[1.5]}"#, "prompt[0]"),
        (r#"{"prompt":"a","messages":[]}"#, "messages"),
        (r#"{"prompt":"a","tools":[]}"#, "tools"),
        (r#"{"prompt":"a","template_args":{}}"#, "template_args"),
        (r#"{"prompt":"a","temperature":"hot"}"#, "temperature"),
        (r#"{"prompt":"a","max_tokens":-1}"#, "max_tokens"),
        (r#"{"prompt":"a","max_tokens":1,"max_completion_tokens":2}"#, "max_completion_tokens"),
        (r#"{"prompt":"a","max_completion_tokens":"x"}"#, "max_tokens"),
        (r#"{"prompt":"a","priority":1.5}"#, "priority"),
        (r#"{"prompt":"a","timeout":-1}"#, "timeout"),
        (r#"{"prompt":"a","timeout":"soon"}"#, "timeout"),
        (r#"{"prompt":"a","top_logprobs":1}"#, "top_logprobs"),
        (r#"{"prompt":"a","logprobs":false,"top_logprobs":1}"#, "top_logprobs"),
        (r#"{"prompt":"a","logprobs":true,"top_logprobs":21}"#, "logprobs"),
        (r#"{"prompt":"a","logprobs":true,"top_logprobs":"x"}"#, "top_logprobs"),
        (r#"["prompt"]"#, "request"),
    ] {
        assert_eq!(refusal(json), ("request.invalid", field.to_owned()), "{json}");
    }
}

#[test]
fn meaningless_fields_are_accepted() {
    let mut bench = Bench::new(small());
    let log = bench.run(r#"{"prompt":[100,101],"max_completion_tokens":2,"user":"u","metadata":{},"store":false,"n":null,"bogus":null}"#);
    assert_eq!(log.result().usage.total_tokens, 4);
}

#[test]
fn limits_are_refused_with_their_numbers() {
    let bench = Bench::new(small());
    let error = bench.try_submit(&format!(r#"{{"prompt":"{}"}}"#, "x".repeat(128))).unwrap_err();
    assert_eq!(error.code, "request.context_exceeded");
    assert_eq!((&error.details["prompt_tokens"], &error.details["context_length"]), (&128.into(), &128.into()));
    assert!(bench.try_submit(&format!(r#"{{"prompt":"{}"}}"#, "x".repeat(127))).is_ok());
    assert_eq!(bench.try_submit(r#"{"prompt":""}"#).unwrap_err().code, "request.empty_prompt");
    assert_eq!(bench.try_submit(r#"{"prompt":[]}"#).unwrap_err().code, "request.empty_prompt");
    assert_eq!(bench.try_submit(r#"{"prompt":"a","n":9}"#).unwrap_err().code, "request.too_many_choices");
}

#[test]
fn higher_priority_runs_first() {
    let mut bench = Bench::new(crate::scheduler::SchedulerConfig { max_running: 1, ..small() });
    let first = bench.submit(r#"{"prompt":"a","max_tokens":3}"#);
    let low = bench.submit(r#"{"prompt":"b","max_tokens":3}"#);
    let high = bench.submit(r#"{"prompt":"c","max_tokens":3,"priority":5}"#);
    while !(first.ended() && high.ended()) {
        assert!(bench.task.poll());
        assert!(!low.ended());
    }
    bench.task.run_until_parked();
    low.result();
}
