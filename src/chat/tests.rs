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
        let plain = input(&row["messages"], tools, row["add_generation_prompt"].as_bool().unwrap());
        let got = template.render(&RenderInput { template_args: row["args"].as_object(), ..plain });
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

/// A template of the shape that most models have: whitespace control, a namespace, string methods, tools, exceptions.
const OWN: &str = r#"{{- bos_token }}
{%- set ns = namespace(turns=0, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and not message.content.startswith('<tool>') %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {% for tool in tools %}
[tool] {{ tool.function | tojson }}
    {% endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('role ' + message.role + '?') }}
    {%- endif %}
    {%- generation %}
    {{- '[' ~ message['role'] ~ (' last' if loop.index0 == ns.last else '') + '] ' + message.content | trim + '\n' }}
    {%- endgeneration %}
    {%- for call in message.tool_calls | default([]) if call.function is defined %}
        {{- call.function.name }}({% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{{ ", " if not loop.last }}{% endfor %})
    {% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant] {% endif %}
"#;

#[test]
fn an_ordinary_template_renders() {
    let messages = json!([
        {"role": "system", "content": " Be brief. \n"},
        {"role": "user", "content": "héllo {{ x }}"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": {"z": 1, "a": [true, null, 1.0, "q"]}}}
        ]},
        {"role": "tool", "content": "<tool>2"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "b": 1, "a": "é<'&"}}]);
    let template = ChatTemplate::new(Some(OWN), "<s>", "</s>").unwrap();
    assert!(!template.is_default());
    assert_eq!(
        template.render(&input(&messages, Some(&tools), true)).unwrap(),
        "<s>[tool] {\"name\": \"f\", \"b\": 1, \"a\": \"é<'&\"}\n[system] Be brief.\n[user last] héllo {{ x }}\n\
         [assistant] \nf(z=1, a=[True, None, 1.0, 'q'])\n[tool] <tool>2\n[assistant] "
    );
    let error = template.render(&input(&json!([{"role": "nobody", "content": ""}]), None, true)).unwrap_err();
    assert_eq!((error.code, error.details["raised"].as_str()), ("chat.template_raised", Some("role nobody?")));
}

#[test]
fn output_is_as_python_writes_it() {
    for (source, want) in [
        ("{{ none }} {{ true }} {{ 1.0 }} {{ undefined_name }}|", "None True 1.0 |"),
        ("{{ {'a': [1, none, 'x']} }}", "{'a': [1, None, 'x']}"),
        ("{{ [1, none]|string ~ '!' }}", "[1, None]!"),
        ("{{ {'b': 1, 'a': []}|tojson }}", r#"{"b": 1, "a": []}"#),
        (
            "{{ {'b': {}, 'a': [1, {'c': 2}]}|tojson(indent=2) }}",
            "{\n  \"b\": {},\n  \"a\": [\n    1,\n    {\n      \"c\": 2\n    }\n  ]\n}",
        ),
        ("{{ {'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true) }}", r#"{"a": "\u00e9", "b": 1}"#),
        ("{{ -2.5e-7|trim }}{{ 'xaxx'|trim('x') }}{{ none is iterable }}{{ [] is iterable }}", "-2.5e-07aFalseTrue"),
        ("{{ [1, none, 'a']|join('-') }} {{ [{'k': 1}, {'k': 2}]|join(', ', attribute='k') }}", "1-None-a 1, 2"),
        ("{{ [1, 2]|tojson(separators=[',', ':']) }}", "[1,2]"),
        ("{{ '<&>\"'|tojson }}", r#""<&>\"""#),
        ("{{ strftime_now('%d %B %Y') }}", "26 July 2024"),
        ("{{ 'a,b'.split(',')[-1] }}{{ ' x '.strip() }}{{ 'ab'.upper() }}", "bxAB"),
        ("{% if x is not defined and none is none and messages is iterable %}y{% endif %}", "y"),
        ("a\n    {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("{{ documents is none }}{{ tools is none }}", "TrueTrue"),
    ] {
        assert_eq!(render(source).unwrap(), want, "{source}");
    }
}

#[test]
fn bad_templates_end_with_a_code() {
    for source in ["{% if %}", "{{ 'open", "{% for x in %}{% endfor %}", "{% unknown_tag %}", "{{ (1 }}", "{% endif %}"]
    {
        assert_eq!(code(source), "chat.template_invalid", "{source}");
    }
    for source in [
        "{{ x.y.z }}",
        "{{ 'a' + none }}",
        "{{ 'a' + 1 }}",
        "{% for x in none %}{% endfor %}",
        "{% for x in 3 %}{% endfor %}",
        "{{ no_such_function() }}",
        "{{ messages|no_such_filter }}",
        "{{ messages|tojson(unknown=1) }}",
        "{% include 'other' %}",
        "{{ 'abc'[::4294967296] }}",
        "{{ 'abc'[::-9223372036854775808] }}",
        "{{ range(4294967296) if false else range(-4294967296, 3, 4294967296) }}",
    ] {
        assert_eq!(code(source), "chat.template_failed", "{source}");
    }
    assert_eq!(code(&"{{ x }}".repeat(1 << 20)), "chat.template_too_long");
    assert_eq!(code(&format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000))), "chat.template_depth");
    assert_eq!(code("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "chat.template_depth");
}

#[test]
fn a_long_conversation_has_fuel_enough() {
    let content = "words ".repeat(200);
    let messages: Vec<_> = (0..2_000)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": content}))
        .collect();
    let text =
        ChatTemplate::new(Some(OWN), "", "").unwrap().render(&input(&Json::Array(messages), None, true)).unwrap();
    assert!(text.len() > 2_000_000);
}

#[test]
fn a_file_without_a_template_gets_chatml() {
    let template = ChatTemplate::new(None, "", "").unwrap();
    assert!(template.is_default());
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(
        template.render(&input(&messages, None, true)).unwrap(),
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(template.render(&input(&messages, None, false)).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
}

#[test]
fn template_arguments_reach_the_template_but_take_no_fields_place() {
    let template = ChatTemplate::new(Some("{{ enable_thinking }} {{ bos_token }}"), "<s>", "").unwrap();
    let messages = json!([]);
    let args = json!({"enable_thinking": false, "bos_token": "B"});
    let with = RenderInput { template_args: args.as_object(), ..input(&messages, None, false) };
    assert_eq!(template.render(&with).unwrap(), "False B");
    let args = json!({"messages": []});
    let with = RenderInput { template_args: args.as_object(), ..input(&messages, None, false) };
    assert_eq!(template.render(&with).unwrap_err().code, "chat.reserved_argument");
}
