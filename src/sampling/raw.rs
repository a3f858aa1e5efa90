//! Request fields as they arrive, before anything is believed of them. What they mean is `params.rs`'s.
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A value of any type, kept as sent so that a wrong one can be refused by name. Unlike `serde_json::Value` it holds NaN
/// and infinities, which a page can send and which must not pass for `null`.
#[derive(Debug, Clone, PartialEq)]
pub enum RawValue {
    /// `null` or `undefined`: the field counts as absent.
    Null,
    /// A boolean.
    Bool(bool),
    /// Any number.
    Number(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<RawValue>),
    /// An object.
    Map(BTreeMap<String, RawValue>),
}

impl RawValue {
    /// What an error's `got` shows: scalars as they are (strings cut at 64 characters), the rest by kind.
    pub(super) fn describe(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(*b),
            Self::Number(x) => serde_json::Number::from_f64(*x).map_or_else(|| x.to_string().into(), Value::Number),
            Self::Text(t) => t.chars().take(64).collect::<String>().into(),
            Self::List(items) => format!("a list of {}", items.len()).into(),
            Self::Map(_) => "an object".into(),
        }
    }
}

impl From<f64> for RawValue {
    fn from(x: f64) -> Self {
        Self::Number(x)
    }
}

impl From<&str> for RawValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawValue;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_none<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawValue, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, b: bool) -> Result<RawValue, E> {
        Ok(RawValue::Bool(b))
    }

    // Integers past 2^53 lose low bits here, and every integer field refuses values that large.
    fn visit_i64<E>(self, x: i64) -> Result<RawValue, E> {
        Ok(RawValue::Number(x as f64))
    }

    fn visit_u64<E>(self, x: u64) -> Result<RawValue, E> {
        Ok(RawValue::Number(x as f64))
    }

    fn visit_f64<E>(self, x: f64) -> Result<RawValue, E> {
        Ok(RawValue::Number(x))
    }

    fn visit_str<E>(self, text: &str) -> Result<RawValue, E> {
        Ok(RawValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(RawValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawValue, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            fields.insert(key, value);
        }
        Ok(RawValue::Map(fields))
    }
}

/// The sampling fields of a request, unchecked. Absent and `null` mean the default. `SamplingParams::new` checks them.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // The names are the public contract's, and `SamplingParams` documents each.
pub struct RawSampling {
    pub temperature: Option<RawValue>,
    pub top_k: Option<RawValue>,
    pub top_p: Option<RawValue>,
    pub min_p: Option<RawValue>,
    pub typical_p: Option<RawValue>,
    pub repetition_penalty: Option<RawValue>,
    pub presence_penalty: Option<RawValue>,
    pub frequency_penalty: Option<RawValue>,
    pub logit_bias: Option<RawValue>,
    pub seed: Option<RawValue>,
    pub stop: Option<RawValue>,
    pub n: Option<RawValue>,
    pub max_tokens: Option<RawValue>,
    /// A count here; the chat form's `logprobs` and `top_logprobs` are folded into it by the caller.
    pub logprobs: Option<RawValue>,
    pub response_format: Option<RawValue>,
    pub adapter: Option<RawValue>,
}
