//! The file's key/value pairs: typed reading with errors that name the key, and a summary for people.
use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

use super::cursor::{Cursor, Stop, limit};
use super::value::{Array, StrArray, Value};
use crate::{Error, Result};

/// Most keys a file may have; real ones have fewer than a hundred.
pub const MAX_KEYS: u64 = 1 << 13;

/// Shortest pair in a file: the key's length and one byte of it, the type, a value of one byte.
const LEAST_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;

/// Key/value pairs in file order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    pairs: Vec<(Box<str>, Value)>,
    /// Indices into `pairs` in the order of the keys.
    by_key: Vec<u32>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt:ident -> $ty:ty = $convert:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// `gguf.missing_key`, `gguf.wrong_type`, `gguf.out_of_range` or `gguf.bad_utf8`.
        pub fn $name(&self, key: &str) -> Result<$ty> {
            $convert(key, self.required(key)?)
        }

        /// The same, or `None` where the file does not have the key.
        ///
        /// # Errors
        /// `gguf.wrong_type`, `gguf.out_of_range` or `gguf.bad_utf8`.
        pub fn $opt(&self, key: &str) -> Result<Option<$ty>> {
            self.raw(key).map(|value| $convert(key, value)).transpose()
        }
    )*};
}

impl Metadata {
    getters! {
        /// A string.
        str, opt_str -> &str = to_str;
        /// An integer of any type that fits 32 bits without a sign.
        u32, opt_u32 -> u32 = to_int;
        /// An integer of any type that is not negative.
        u64, opt_u64 -> u64 = to_int;
        /// An integer of any type that fits the machine's sizes.
        usize, opt_usize -> usize = to_int;
        /// A float; doubles are rounded.
        f32, opt_f32 -> f32 = to_f32;
        /// A boolean.
        bool, opt_bool -> bool = to_bool;
        /// An array of strings, as bytes.
        strs, opt_strs -> &StrArray = to_strs;
        /// An array of integers of any type that fit 32 bits with a sign.
        i32s, opt_i32s -> Cow<'_, [i32]> = to_i32s;
        /// An array of integers of any type that fit 32 bits without a sign.
        u32s, opt_u32s -> Cow<'_, [u32]> = to_u32s;
        /// An array of floats; doubles are rounded.
        f32s, opt_f32s -> Cow<'_, [f32]> = to_f32s;
    }

    /// The value of `key` as the file has it.
    pub fn raw(&self, key: &str) -> Option<&Value> {
        let found = self.by_key.binary_search_by(|&index| self.key_at(index).cmp(key)).ok()?;
        self.pairs.get(self.by_key[found] as usize).map(|(_, value)| value)
    }

    /// Whether the file has `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.raw(key).is_some()
    }

    /// All pairs in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.pairs.iter().map(|(key, value)| (&**key, value))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// All pairs for people and JavaScript. Arrays of more than 16 elements become `{type, len, first, last}`, strings
    /// of more than 64 KiB `{type, bytes, first}`; a float that JSON lacks becomes a string.
    pub fn to_json(&self) -> Map<String, Json> {
        self.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect()
    }

    /// Pairs that do not come from a file (tests, converted models).
    ///
    /// # Errors
    /// `gguf.duplicate_key`, `gguf.limit_exceeded`.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, Value)>) -> Result<Self> {
        let pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (key.into_boxed_str(), value)).collect();
        check_count(pairs.len() as u64)?;
        Self::index(pairs)
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, Stop> {
        let what = "metadata pairs";
        check_count(count)?;
        cursor.need(count, LEAST_PAIR_BYTES, what)?;
        // Grows as entries are found to be there: one takes more memory than the fewest bytes it can have.
        let mut pairs = Vec::new();
        for left in (1..=count).rev() {
            cursor.need(left, LEAST_PAIR_BYTES, what)?;
            let offset = cursor.pos();
            let key = cursor.name("metadata key")?;
            if key.is_empty() {
                let message = format!("The metadata key at byte {offset} is empty.");
                return Err(Error::new("gguf.empty_key", message).with("offset", offset).into());
            }
            let value = Value::read(cursor, key).map_err(|stop| match stop {
                Stop::Bad(error) => Stop::Bad(error.with("key", key)),
                more => more,
            })?;
            pairs.push((key.into(), value));
        }
        Ok(Self::index(pairs)?)
    }

    fn index(pairs: Vec<(Box<str>, Value)>) -> Result<Self> {
        let mut by_key: Vec<u32> = (0..pairs.len() as u32).collect();
        by_key.sort_unstable_by(|&a, &b| pairs[a as usize].0.cmp(&pairs[b as usize].0));
        for pair in by_key.windows(2) {
            let key = &*pairs[pair[0] as usize].0;
            if key == &*pairs[pair[1] as usize].0 {
                return Err(
                    Error::new("gguf.duplicate_key", format!("Metadata key '{key}' is there twice.")).with("key", key)
                );
            }
        }
        Ok(Self { pairs, by_key })
    }

    fn key_at(&self, index: u32) -> &str {
        self.pairs.get(index as usize).map_or("", |(key, _)| key)
    }

    fn required(&self, key: &str) -> Result<&Value> {
        self.raw(key).ok_or_else(|| {
            Error::new("gguf.missing_key", format!("The file lacks the metadata key '{key}'.")).with("key", key)
        })
    }
}

fn check_count(count: u64) -> Result<()> {
    if count > MAX_KEYS {
        let message = format!("The file declares {count} metadata pairs; {MAX_KEYS} are allowed.");
        return Err(limit(message, "metadata pairs", MAX_KEYS, count));
    }
    Ok(())
}

fn wrong_type(key: &str, expected: &str, value: &Value) -> Error {
    let got = match value {
        Value::Array(array) => format!("array of {}", array.element_type()),
        other => other.type_name().to_owned(),
    };
    let message = format!("Metadata key '{key}' is of type {got}; {expected} was expected.");
    Error::new("gguf.wrong_type", message).with("key", key).with("expected", expected).with("got", got)
}

/// An integer in the type that is asked for.
fn narrow<T: TryFrom<i128>>(key: &str, wide: i128) -> Result<T> {
    T::try_from(wide).map_err(|_| {
        let expected = std::any::type_name::<T>();
        let message = format!("Metadata key '{key}' holds {wide}, which does not fit {expected}.");
        let error = Error::new("gguf.out_of_range", message).with("key", key);
        error.with("expected", expected).with("got", wide.to_string())
    })
}

fn to_int<T: TryFrom<i128>>(key: &str, value: &Value) -> Result<T> {
    let wide = match *value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        _ => return Err(wrong_type(key, "an integer", value)),
    };
    narrow(key, wide)
}

fn to_f32(key: &str, value: &Value) -> Result<f32> {
    match *value {
        Value::F32(v) => Ok(v),
        Value::F64(v) => Ok(v as f32),
        _ => Err(wrong_type(key, "a float", value)),
    }
}

fn to_bool(key: &str, value: &Value) -> Result<bool> {
    match *value {
        Value::Bool(v) => Ok(v),
        _ => Err(wrong_type(key, "bool", value)),
    }
}

fn to_str<'a>(key: &str, value: &'a Value) -> Result<&'a str> {
    let Value::Str(bytes) = value else { return Err(wrong_type(key, "str", value)) };
    std::str::from_utf8(bytes).map_err(|error| {
        let message = format!("The string of metadata key '{key}' is not UTF-8.");
        Error::new("gguf.bad_utf8", message).with("key", key).with("offset", error.valid_up_to())
    })
}

fn to_strs<'a>(key: &str, value: &'a Value) -> Result<&'a StrArray> {
    static EMPTY: StrArray = StrArray::new();
    match value {
        Value::Array(Array::Str(strings)) => Ok(strings),
        Value::Array(array) if array.is_empty() => Ok(&EMPTY),
        _ => Err(wrong_type(key, "array of str", value)),
    }
}

fn to_i32s<'a>(key: &str, value: &'a Value) -> Result<Cow<'a, [i32]>> {
    if let Value::Array(Array::I32(v)) = value { Ok(Cow::Borrowed(v)) } else { integers(key, value).map(Cow::Owned) }
}

fn to_u32s<'a>(key: &str, value: &'a Value) -> Result<Cow<'a, [u32]>> {
    if let Value::Array(Array::U32(v)) = value { Ok(Cow::Borrowed(v)) } else { integers(key, value).map(Cow::Owned) }
}

fn integers<T: TryFrom<i128>>(key: &str, value: &Value) -> Result<Vec<T>> {
    fn all<S: Copy + Into<i128>, T: TryFrom<i128>>(key: &str, from: &[S]) -> Result<Vec<T>> {
        from.iter().map(|&v| narrow(key, v.into())).collect()
    }
    let Value::Array(array) = value else { return Err(wrong_type(key, "array of integers", value)) };
    match array {
        Array::U8(v) => all(key, v),
        Array::I8(v) => all(key, v),
        Array::U16(v) => all(key, v),
        Array::I16(v) => all(key, v),
        Array::U32(v) => all(key, v),
        Array::I32(v) => all(key, v),
        Array::U64(v) => all(key, v),
        Array::I64(v) => all(key, v),
        other if other.is_empty() => Ok(Vec::new()),
        _ => Err(wrong_type(key, "array of integers", value)),
    }
}

fn to_f32s<'a>(key: &str, value: &'a Value) -> Result<Cow<'a, [f32]>> {
    match value {
        Value::Array(Array::F32(v)) => Ok(Cow::Borrowed(v)),
        Value::Array(Array::F64(v)) => Ok(v.iter().map(|&x| x as f32).collect()),
        Value::Array(array) if array.is_empty() => Ok(Cow::Owned(Vec::new())),
        _ => Err(wrong_type(key, "array of floats", value)),
    }
}

const WHOLE_ARRAY: usize = 16;
const WHOLE_STRING: usize = 64 << 10;

fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => float_json(f64::from(*v)),
        Value::F64(v) => float_json(*v),
        Value::Bool(v) => json!(v),
        Value::Str(bytes) if bytes.len() > WHOLE_STRING => {
            json!({ "type": "str", "bytes": bytes.len(), "first": string_json(&bytes[..1024]) })
        }
        Value::Str(bytes) => string_json(bytes),
        Value::Array(array) => array_json(array),
    }
}

fn float_json(v: f64) -> Json {
    if v.is_finite() { json!(v) } else { json!(v.to_string()) }
}

fn string_json(bytes: &[u8]) -> Json {
    Json::String(String::from_utf8_lossy(bytes).into_owned())
}

fn array_json(array: &Array) -> Json {
    let len = array.len() as usize;
    let item = |i: usize| match array {
        Array::U8(v) => json!(v.get(i)),
        Array::I8(v) => json!(v.get(i)),
        Array::U16(v) => json!(v.get(i)),
        Array::I16(v) => json!(v.get(i)),
        Array::U32(v) => json!(v.get(i)),
        Array::I32(v) => json!(v.get(i)),
        Array::U64(v) => json!(v.get(i)),
        Array::I64(v) => json!(v.get(i)),
        Array::F32(v) => v.get(i).map_or(Json::Null, |&x| float_json(f64::from(x))),
        Array::F64(v) => v.get(i).map_or(Json::Null, |&x| float_json(x)),
        Array::Bool(v) => json!(v.get(i)),
        Array::Str(v) => v.get(i).map_or(Json::Null, |s| string_json(&s[..s.len().min(1024)])),
        Array::Nested { .. } => Json::Null,
    };
    let items = |range: std::ops::Range<usize>| -> Vec<Json> { range.map(item).collect() };
    if matches!(array, Array::Nested { .. }) {
        json!({ "type": "array", "len": array.len() })
    } else if len <= WHOLE_ARRAY {
        Json::Array(items(0..len))
    } else {
        json!({ "type": array.element_type(), "len": len, "first": items(0..8), "last": items(len - 4..len) })
    }
}
