//! Templates against the goldens, and how bad ones end.
use std::path::Path;

use serde_json::json;

use super::*;

const NOON: LocalTime = LocalTime { year: 2024, month: 7, day: 26, hour: 12, minute: 0, second: 0 };

fn input<'a>(messages: &'a Json, tools: Option<&'a Json>, add_generation_prompt: bool) -> RenderInput<'a> {
    RenderInput { messages, tools, add_generation_prompt, template_args: None, now: NOON }
}

fn render(source: &str) -> Result<String> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    ChatTemplate::new(Some(source), "<s>", "</s>")?.render(&input(&messages, None, false))
}

fn code(source: &str) -> &'static str {
    match render(source) {
        Ok(text) => panic!("{source} rendered {text:?}"),
        Err(error) => error.code,
    }
}

/// The golden rows, with the third-party templates where they are at hand.
#[test]
fn published_templates_match_the_goldens() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = std::env::var_os("FIRESIDE_GOLDENS").map_or_else(|| root.join("../shared/goldens"), Into::into);
    let Ok(templates) = std::fs::read_to_string(folder.join("chat/templates.json")) else {
        eprintln!("SKIPPED: no chat/templates.json in {} (set FIRESIDE_GOLDENS)", folder.display());
        return;
    };
    let templates: Map<String, Json> = serde_json::from_str(&templates).unwrap();
    let rows = std::fs::read_to_string(root.join("tests/goldens/chat/chat.jsonl")).unwrap();
    let mut wrong = Vec::new();
    for row in rows.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()) {
        let text = |key: &str| row[key].as_str();
        let source = templates[text("template").unwrap()].as_str().unwrap();
        let template = ChatTemplate::new(Some(source), text("bos_token").unwrap(), text("eos_token").unwrap()).unwrap();
        let tools = Some(&row["tools"]).filter(|tools| !tools.is_null());
        let got = template.render(&input(&row["messages"], tools, row["add_generation_prompt"].as_bool().unwrap()));
        let right = match (&got, text("text"), text("error")) {
            (Ok(got), Some(want), _) => got == want,
            // A Python exception's text isn't part of the contract; what a template raises is.
            (Err(error), None, Some(want)) if want.contains("Error: ") => error.code == "chat.template_failed",
            (Err(error), None, Some(want)) => error.details.get("raised").is_some_and(|raised| raised == want),
            _ => false,
        };
        if !right {
            wrong.push(format!("{}\n got {got:?}", row));
        }
    }
    assert!(wrong.is_empty(), "{} rows differ\n{}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
}
