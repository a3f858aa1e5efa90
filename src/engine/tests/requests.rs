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

#[test]
fn conversations_go_through_the_template() {
    let mut bench = Bench::new(small());
    let messages = r#"[{"role":"developer","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"}]}]"#;
    let parsed: serde_json::Value = serde_json::from_str(messages).unwrap();
    let render = |options: &str| bench.engine.render_chat(&parsed, &serde_json::from_str(options).unwrap());
    let text = render("null").unwrap();
    assert_eq!(text, "<s>system=s;user=hi;2024:");
    let all = render(r#"{"addGenerationPrompt":false,"tools":[{}],"templateArgs":{"mood":"gay"}}"#).unwrap();
    assert_eq!(all, "<s>system=s;user=hi;tools=1;gay;");
    assert_eq!(render(r#"{"addGenerationPrompt":1}"#).unwrap_err().code, "request.invalid");
    assert_eq!(render(r#"{"add_generation_prompt":true}"#).unwrap_err().code, "request.unsupported");
    let log = bench.run(&format!(r#"{{"messages":{messages},"max_tokens":1,"template_args":{{"mood":"gay"}}}}"#));
    assert_eq!(log.result().usage.prompt_tokens as usize, text.len() - 2 + 4, "`<s>` is one token, and none is added");
    let tools = r#"[{"type":"function","function":{"name":"f"}}]"#;
    let log = bench.run(&format!(r#"{{"messages":{messages},"max_tokens":1,"tools":{tools},"tool_choice":"none"}}"#));
    assert_eq!(log.result().usage.prompt_tokens as usize, text.len() - 2 + 8);
    assert_eq!(refusal(&format!(r#"{{"messages":{messages},"template_args":[1]}}"#)).1, "template_args");
    assert_eq!(refusal(&format!(r#"{{"messages":{messages},"tools":{{}},"tool_choice":"none"}}"#)).1, "tools");
    assert_eq!(refusal(r#"{"messages":[{"role":"user","content":{"type":"text"}}]}"#).1, "messages[0].content");
}
