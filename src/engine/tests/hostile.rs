//! Requests as a page may send them: whatever the JSON holds, it is taken or refused with a typed error.
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::chat::LocalTime;
use crate::engine::conversation::normalize;
use crate::engine::request::prepare;
use crate::engine::testing::vocabulary::text_model;
use crate::engine::{GenerateRequest, RenderOptions};

const NOW: LocalTime = LocalTime { year: 2024, month: 7, day: 26, hour: 1, minute: 2, second: 3 };

/// What fields are made of: edges of every kind, a few levels deep.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        proptest::sample::select(vec![0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 1e300, 5e-324, 4294967296.0])
            .prop_map(|x| json!(x)),
        "\\PC{0,6}".prop_map(Value::from),
        proptest::sample::select(vec!["user", "assistant", "tool", "system", "text", "none", "{\"a\":1}", "", "a\0"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let key = prop_oneof![
            proptest::sample::select(vec![
                "role",
                "content",
                "type",
                "text",
                "tool_calls",
                "function",
                "arguments",
                "name",
                "0",
                "-1",
                "99999999999",
            ])
            .prop_map(str::to_owned),
            "\\PC{0,4}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((key, inner), 0..5).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn field() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "prompt",
        "messages",
        "tools",
        "tool_choice",
        "template_args",
        "max_completion_tokens",
        "top_logprobs",
        "timeout",
        "priority",
        "store",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "stop",
        "n",
        "max_tokens",
        "logprobs",
        "response_format",
        "adapter",
        "user",
        "metadata",
        "bogus",
    ])
}

fn is_typed(code: &str) -> bool {
    ["request.", "chat.", "tokenizer."].iter().any(|room| code.starts_with(room))
}

fn submit(request: &str) {
    let model = text_model();
    let prepared = GenerateRequest::from_json(request).and_then(|request| prepare(request, &model, 1, NOW));
    if let Err(error) = prepared {
        assert!(is_typed(error.code) && error.message.len() < 3000, "{request}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn requests_of_any_fields_are_taken_or_refused(fields in proptest::collection::vec((field(), value()), 0..5), prompt: bool) {
        let mut request: serde_json::Map<String, Value> = fields.into_iter().map(|(name, v)| (name.to_owned(), v)).collect();
        if prompt {
            request.entry("prompt").or_insert("a".into());
        }
        submit(&Value::Object(request).to_string());
    }

    #[test]
    fn conversations_of_any_shape_are_taken_or_refused(messages in value(), tools in value(), args in value()) {
        if let Err(error) = normalize(&messages) {
            prop_assert!(is_typed(error.code), "{error}");
        }
        let list = json!([{"role": "user", "content": messages.clone()}, messages.clone()]);
        submit(&json!({"messages": list, "tools": tools, "tool_choice": "none", "template_args": args}).to_string());
        submit(&json!({"messages": messages}).to_string());
        if let Err(error) = RenderOptions::from_json(&args) {
            prop_assert!(is_typed(error.code), "{error}");
        }
    }

    #[test]
    fn text_that_is_hardly_json_is_taken_or_refused(text in r#"[{}\[\]",:\\a0-9eE.\-+ ]{0,40}|\PC{0,20}"#) {
        submit(&text);
        submit(&format!("{{\"prompt\":{text}}}"));
    }
}

#[test]
fn nesting_and_repeated_fields_are_refused_or_taken_last() {
    submit(&format!("{{\"prompt\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000)));
    submit(&format!("{{\"messages\":{}", "{\"a\":".repeat(100_000)));
    submit(r#"{"prompt":1,"prompt":"a","prompt":[0,-1,1.5,1e999]}"#);
    submit(r#"{"prompt":[0,1,4294967296,18446744073709551616,-1]}"#);
}
