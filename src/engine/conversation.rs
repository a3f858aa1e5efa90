//! Messages as chat templates expect them, from messages as the API takes them. Rendering is the chat room's.
use serde_json::{Map, Value};

use crate::{Error, Result};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

fn invalid(field: String, expected: &str, got: &Value) -> Error {
    let got = match got {
        Value::String(s) => Value::String(s.chars().take(64).collect()),
        Value::Array(items) => format!("a list of {}", items.len()).into(),
        Value::Object(_) => "an object".into(),
        scalar => scalar.clone(),
    };
    Error::new("request.invalid", format!("`{field}` must be {expected}"))
        .with("field", field)
        .with("expected", expected)
        .with("got", got)
}

/// Checks a conversation and brings it into the form that templates are written for: a string for each content, `system` for
/// `developer`, objects for the arguments of tool calls.
///
/// # Errors
/// `request.invalid` naming the place, `request.unsupported` for content that is no text.
pub fn normalize(messages: &Value) -> Result<Value> {
    let list = messages.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| invalid("messages".into(), "a list of at least one message", messages))?;
    list.iter().enumerate().map(|(i, message)| normalize_message(i, message)).collect::<Result<_>>().map(Value::Array)
}

fn normalize_message(i: usize, message: &Value) -> Result<Value> {
    let mut message =
        message.as_object().cloned().ok_or_else(|| invalid(format!("messages[{i}]"), "an object", message))?;
    let role = message.get("role").unwrap_or(&Value::Null);
    match role.as_str().filter(|role| ROLES.contains(role)) {
        None => return Err(invalid(format!("messages[{i}].role"), "system, developer, user, assistant or tool", role)),
        Some("developer") => {
            message.insert("role".into(), "system".into());
        }
        Some("assistant") => parse_arguments(&mut message),
        Some(_) => {}
    }
    match message.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let text = join_parts(i, parts)?;
            message.insert("content".into(), text.into());
        }
        // Templates know answers of tool calls alone by the missing content.
        None | Some(Value::Null) if message.contains_key("tool_calls") => {}
        other => {
            let got = other.unwrap_or(&Value::Null);
            return Err(invalid(format!("messages[{i}].content"), "a string or a list of text parts", got));
        }
    }
    Ok(Value::Object(message))
}

fn join_parts(i: usize, parts: &[Value]) -> Result<String> {
    let mut text = String::new();
    for (k, part) in parts.iter().enumerate() {
        let field = || format!("messages[{i}].content[{k}]");
        match (part.get("type").and_then(Value::as_str), part.get("text")) {
            (Some("text"), Some(Value::String(piece))) => text.push_str(piece),
            (Some(kind), _) if kind != "text" => {
                return Err(Error::new(
                    "request.unsupported",
                    format!("`{}` is not text, and this engine reads text only", field()),
                )
                .with("field", field())
                .with("got", kind.chars().take(64).collect::<String>()));
            }
            _ => return Err(invalid(field(), "a part with type \"text\" and a text", part)),
        }
    }
    Ok(text)
}

/// OpenAI sends the arguments of a call as a string of JSON; templates write objects. What is no object stays as it is.
fn parse_arguments(message: &mut Map<String, Value>) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments")) else { continue };
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        if let Some(object) = parsed {
            *arguments = Value::Object(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_become_strings_and_arguments_objects() {
        let got = normalize(&json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ]))
        .unwrap();
        assert_eq!(
            got,
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "ab", "name": "n"},
                {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
                {"role": "tool", "content": "2", "tool_call_id": "1"},
            ])
        );
    }

    #[test]
    fn wrong_messages_are_named() {
        for (messages, code, field) in [
            (json!([]), "request.invalid", "messages"),
            (json!("hi"), "request.invalid", "messages"),
            (json!(["hi"]), "request.invalid", "messages[0]"),
            (json!([{"role": "user", "content": "a"}, {"content": "a"}]), "request.invalid", "messages[1].role"),
            (json!([{"role": "robot", "content": "a"}]), "request.invalid", "messages[0].role"),
            (json!([{"role": "user"}]), "request.invalid", "messages[0].content"),
            (json!([{"role": "assistant", "content": null}]), "request.invalid", "messages[0].content"),
            (json!([{"role": "user", "content": 5}]), "request.invalid", "messages[0].content"),
            (json!([{"role": "user", "content": ["a"]}]), "request.invalid", "messages[0].content[0]"),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "request.unsupported",
                "messages[0].content[0]",
            ),
        ] {
            let error = normalize(&messages).unwrap_err();
            assert_eq!((error.code, error.details["field"].as_str()), (code, Some(field)), "{messages}");
        }
    }
}
