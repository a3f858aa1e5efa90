//! Any text as a chat template over a short conversation: text or a typed error, soon and in little memory (`-rss_limit_mb`,
//! `-timeout` of libFuzzer).
#![no_main]
use fireside::chat::{ChatTemplate, LocalTime, RenderInput};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|source: &str| {
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let now = LocalTime { year: 2024, month: 2, day: 29, hour: 23, minute: 59, second: 60 };
    let input =
        RenderInput { messages: &messages, tools: Some(&tools), add_generation_prompt: true, template_args: None, now };
    let result = ChatTemplate::new(Some(source), "<s>", "</s>").and_then(|template| template.render(&input));
    if let Err(error) = result {
        assert!(error.code.starts_with("chat."));
    }
});
