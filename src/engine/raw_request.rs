//! A generate request as it arrives: every known field by name, the first unknown one remembered. Nothing is checked
//! here but the shape of the object; `request.rs` says what it means.
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::ids::TokenId;
use crate::sampling::{RawSampling, RawValue};
use crate::{Error, Result};

/// The fields of `GenerateRequest` (or `messages` in place of `prompt`), unchecked. `null` means absent.
///
/// Deserialized from any self-describing format, so that NaN in a number field is refused by name instead of being read
/// as `null`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerateRequest {
    /// Text, or token ids.
    pub prompt: Option<RawValue>,
    /// A conversation for the model's chat template.
    pub messages: Option<Value>,
    /// Tools that the template shows to the model.
    pub tools: Option<Value>,
    /// Only `"none"` is honoured: tool calls are not parsed.
    pub tool_choice: Option<Value>,
    /// More variables for the chat template.
    pub template_args: Option<Value>,
    /// The chat form of `max_tokens`.
    pub max_completion_tokens: Option<RawValue>,
    /// The chat form: `logprobs` is a boolean then.
    pub top_logprobs: Option<RawValue>,
    /// Milliseconds from submission.
    pub timeout: Option<RawValue>,
    /// Higher runs first.
    pub priority: Option<RawValue>,
    /// `store: true` cannot be honoured.
    pub store: Option<RawValue>,
    /// Sampling fields, with `max_tokens`, `logprobs`, `n` and `stop`.
    pub sampling: RawSampling,
    /// The first field that the engine does not know.
    pub unknown: Option<String>,
}

impl GenerateRequest {
    /// Reads a request from JSON text.
    ///
    /// # Errors
    /// `request.invalid` when the text is not a JSON object.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| {
            Error::new("request.invalid", format!("a request must be a JSON object: {e}")).with("field", "request")
        })
    }

    /// The same request with its prompt already made into tokens.
    pub(super) fn with_prompt(self, tokens: &[TokenId]) -> Self {
        let prompt = RawValue::List(tokens.iter().map(|t| RawValue::Number(f64::from(t.0))).collect());
        Self { prompt: Some(prompt), messages: None, tools: None, tool_choice: None, template_args: None, ..self }
    }

    fn set<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> std::result::Result<(), A::Error> {
        let s = &mut self.sampling;
        let raw = match name {
            "messages" => return set_value(&mut self.messages, map),
            "tools" => return set_value(&mut self.tools, map),
            "tool_choice" => return set_value(&mut self.tool_choice, map),
            "template_args" => return set_value(&mut self.template_args, map),
            // OpenAI's bookkeeping fields, which mean nothing here.
            "user" | "metadata" => return map.next_value::<serde::de::IgnoredAny>().map(|_| ()),
            "prompt" => &mut self.prompt,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "top_logprobs" => &mut self.top_logprobs,
            "timeout" => &mut self.timeout,
            "priority" => &mut self.priority,
            "store" => &mut self.store,
            "temperature" => &mut s.temperature,
            "top_k" => &mut s.top_k,
            "top_p" => &mut s.top_p,
            "min_p" => &mut s.min_p,
            "typical_p" => &mut s.typical_p,
            "repetition_penalty" => &mut s.repetition_penalty,
            "presence_penalty" => &mut s.presence_penalty,
            "frequency_penalty" => &mut s.frequency_penalty,
            "logit_bias" => &mut s.logit_bias,
            "seed" => &mut s.seed,
            "stop" => &mut s.stop,
            "n" => &mut s.n,
            "max_tokens" => &mut s.max_tokens,
            "logprobs" => &mut s.logprobs,
            "response_format" => &mut s.response_format,
            "adapter" => &mut s.adapter,
            unknown => {
                if map.next_value::<RawValue>()? != RawValue::Null {
                    self.unknown.get_or_insert_with(|| unknown.chars().take(64).collect());
                }
                return Ok(());
            }
        };
        *raw = Some(map.next_value::<RawValue>()?).filter(|v| *v != RawValue::Null);
        Ok(())
    }
}

fn set_value<'de, A: MapAccess<'de>>(to: &mut Option<Value>, map: &mut A) -> std::result::Result<(), A::Error> {
    *to = Some(map.next_value::<Value>()?).filter(|v| !v.is_null());
    Ok(())
}

impl<'de> Deserialize<'de> for GenerateRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = GenerateRequest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a request object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<GenerateRequest, A::Error> {
                let mut request = GenerateRequest::default();
                while let Some(name) = map.next_key::<String>()? {
                    request.set(&name, &mut map)?;
                }
                Ok(request)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_fields_are_kept_and_the_first_unknown_one_is_named() {
        let r = GenerateRequest::from_json(
            r#"{"prompt":"a","temperature":0.5,"n":null,"user":"u","metadata":{"a":1},"later":null,"bogus":1,"more":2}"#,
        )
        .unwrap();
        assert_eq!(r.prompt, Some("a".into()));
        assert_eq!(r.sampling.temperature, Some(0.5.into()));
        assert_eq!(r.sampling.n, None);
        assert_eq!(r.unknown.as_deref(), Some("bogus"));
    }

    #[test]
    fn anything_but_an_object_is_invalid() {
        for json in ["", "[]", "\"x\"", "{", "null", "{\"prompt\":"] {
            assert_eq!(GenerateRequest::from_json(json).unwrap_err().code, "request.invalid", "{json}");
        }
    }
}
