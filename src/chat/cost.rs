//! What templates pay for besides minijinja's own fuel: values that are large when they are walked, and the operations whose
//! work or result is out of proportion to what they are given. All of it ends in one of four errors, none of it in a hang.
//!
//! Values share parts: a list that holds a list twice costs two slots and doubles what comparing, writing or hashing it takes.
//! Such values come from names (bounded in size wherever one is bound), from products (walked where they are made) and from
//! `range` and `map` (paid for here). So whatever an operation walks was paid for, or is small.
use std::fmt;

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{python, syntax};

/// Deepest nesting of a value that is walked or written, and of calls.
pub(super) const MAX_DEPTH: usize = 128;
/// Bytes that one fuel pays for, as minijinja counts.
pub(super) const BYTES_PER_FUEL: usize = 64;
/// Parts of a value that one fuel pays for when they are only looked at.
const PARTS_PER_FUEL: u64 = 8;
/// What a part of a value counts for among bytes.
const PART_BYTES: u64 = 32;

/// Why a render was ended, for a code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    /// A named value beyond the bound.
    Value,
    /// Nesting of values or calls.
    Depth,
    /// Too much text.
    Output,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value => "a value is too large",
            Self::Depth => "a value is nested too deeply",
            Self::Output => "the text is too long",
        })
    }
}

impl std::error::Error for Excess {}

/// The error that [`super::failed`] knows by its source.
pub(super) fn exceeded(excess: Excess) -> Error {
    Error::new(ErrorKind::InvalidOperation, excess.to_string()).with_source(excess)
}

/// Pays for `bytes` of text, ahead of making or reading them.
pub(super) fn pay_bytes(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
}

/// Pays for visiting every part of `value`, shared parts each time; its size in bytes, each part counted.
pub(super) fn pay_for(state: &State, value: &Value) -> Result<u64, Error> {
    let mut walk = Walk { state, parts: 0, bytes: 0, most: u64::MAX, namespaces: true };
    walk.visit(value, 0)?;
    Ok(walk.size())
}

struct Walk<'a, 't, 'e> {
    state: &'a State<'t, 'e>,
    parts: u64,
    bytes: u64,
    most: u64,
    /// Whether a namespace may be among the parts.
    namespaces: bool,
}

impl Walk<'_, '_, '_> {
    fn size(&self) -> u64 {
        self.bytes.saturating_add(self.parts.saturating_mul(PART_BYTES))
    }

    fn visit(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.parts += 1;
        if self.parts.is_multiple_of(PARTS_PER_FUEL) {
            self.state.consume_fuel(1)?;
        }
        if depth > MAX_DEPTH {
            return Err(exceeded(Excess::Depth));
        }
        // One that holds itself has no end, and what compares or writes values does not look for that.
        if !self.namespaces && value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace")) {
            return Err(exceeded(Excess::Depth));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter()?.try_for_each(|item| self.visit(&item, depth + 1))?;
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.visit(&key, depth + 1)?;
                    self.visit(&value.get_item(&key)?, depth + 1)?;
                }
            }
            ValueKind::String => self.bytes = self.bytes.saturating_add(value.as_str().map_or(0, str::len) as u64),
            ValueKind::Bytes => self.bytes = self.bytes.saturating_add(value.as_bytes().map_or(0, <[u8]>::len) as u64),
            _ => {}
        }
        if self.size() > self.most { Err(exceeded(Excess::Value)) } else { Ok(()) }
    }
}

/// Puts everything that pays into `environment`. No named value may be larger than `most_bytes`.
pub(super) fn install(environment: &mut Environment<'_>, most_bytes: u64) {
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_unknown_method_callback(method);
    // Its text is the whole context, unpaid for, and no template of a model has use for it.
    environment.remove_global("debug");
    environment.add_function("range", range);
    let check = move |state: &State, value: &Value, namespaces: bool| {
        let mut walk = Walk { state, parts: 0, bytes: 0, most: most_bytes, namespaces };
        walk.visit(value, 0)
    };
    environment.add_filter(syntax::ITERABLE_FILTER, move |state: &State, value: Value| {
        // Jinja2 refuses to loop over none, and templates rely on it; minijinja takes it for an empty list.
        if value.is_none() {
            return Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable"));
        }
        check(state, &value, true)?;
        Ok(value)
    });
    environment.add_filter(syntax::BOUND_FILTER, move |state: &State, value: Value| {
        check(state, &value, true)?;
        Ok(value)
    });
    environment.add_filter(syntax::ATTRIBUTE_FILTER, move |state: &State, value: Value| {
        check(state, &value, false)?;
        Ok(value)
    });
    environment.add_filter(syntax::STEP_FILTER, |value: Value| {
        // minijinja cuts a step to the machine's width, and in wasm 2^32 would become 0.
        match i64::try_from(value.clone()) {
            Ok(step) if narrow(step).is_none() => Err(too_large_a_number(step)),
            _ => Ok(value),
        }
    });
    environment.add_filter(syntax::PRODUCT_FILTER, |state: &State, value: Value| {
        if !value.is_number() {
            pay_for_whole(state, &value)?;
        }
        Ok(value)
    });
    add_filters(environment);
}

/// Pays for the whole of `value`, text included.
fn pay_for_whole(state: &State, value: &Value) -> Result<(), Error> {
    let size = pay_for(state, value)?;
    pay_bytes(state, usize::try_from(size).unwrap_or(usize::MAX))
}

/// Filters that compare items, or give one value many times: minijinja's fuel sees the number of items, not their size.
fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter("sort", |state: &State, value: Value, args: Kwargs| {
        pay_for_whole(state, &value)?;
        builtin::sort(state, value, args)
    });
    environment.add_filter("unique", |state: &State, value: Value, args: Kwargs| {
        pay_for_whole(state, &value)?;
        builtin::unique(state, value, args)
    });
    environment.add_filter("min", |state: &State, value: Value, args: Kwargs| {
        pay_for_whole(state, &value)?;
        builtin::min(state, value, args)
    });
    environment.add_filter("max", |state: &State, value: Value, args: Kwargs| {
        pay_for_whole(state, &value)?;
        builtin::max(state, value, args)
    });
    environment.add_filter("groupby", |state: &State, value: Value, attribute: Option<String>, args: Kwargs| {
        pay_for_whole(state, &value)?;
        builtin::groupby(value, attribute.as_deref(), args)
    });
    environment.add_filter("map", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let mapped = Value::from(builtin::map(state, value, args)?);
        pay_for_whole(state, &mapped)?;
        Ok::<_, Error>(mapped)
    });
    environment.add_filter("split", |state: &State, value: Value, separator: Option<String>, most: Option<i64>| {
        pay_for_pieces(state, value.as_str().unwrap_or_default(), separator.as_deref())?;
        builtin::split(&value, separator.map(Into::into), most)
    });
    environment.add_filter("lines", |state: &State, value: Value| {
        pay_for_pieces(state, value.as_str().unwrap_or_default(), Some("\n"))?;
        builtin::lines(&value)
    });
}

/// `range` with its items paid for where they are made: a range may lie in a list many times.
fn range(state: &State, lower: i64, upper: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    let (start, end) = upper.map_or((0, lower), |upper| (lower, upper));
    let distance = end.abs_diff(start);
    let step = step.unwrap_or(1);
    let wanted = if (end > start) == (step > 0) { distance / step.unsigned_abs().max(1) } else { 0 };
    state.consume_fuel(wanted / 4)?;
    let narrow = |x: i64| narrow(x).ok_or_else(|| too_large_a_number(x));
    minijinja::functions::range(narrow(start)?, Some(narrow(end)?), Some(narrow(step)?))
}

/// Numbers that can be added and negated on any machine.
fn narrow(number: i64) -> Option<isize> {
    isize::try_from(number).ok().filter(|n| n.unsigned_abs() < 1 << 29)
}

fn too_large_a_number(number: i64) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{number} is too large a number for a range or step"))
}

/// Pays for the list that a text is cut into: a slot can take more room than the piece of text.
fn pay_for_pieces(state: &State, text: &str, separator: Option<&str>) -> Result<(), Error> {
    let pieces = match separator {
        Some("") => text.len(),
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    pay_bytes(state, text.len().saturating_add(pieces.saturating_mul(PART_BYTES as usize)))
}

/// Taking characters off an end looks each of them up among those that go.
pub(super) fn pay_for_trim(state: &State, text: &str, characters: &str) -> Result<(), Error> {
    pay_bytes(state, text.len().saturating_mul(characters.len().max(8) / 8))
}

/// Methods of strings, lists and dicts as Python has them, paid for before they work.
fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        if method == "count" {
            pay_for_whole(state, value)?;
        }
        return unknown_method_callback(state, value, method, args);
    };
    pay_bytes(state, text.len())?;
    let first = args.first().and_then(Value::as_str);
    match method {
        "strip" | "lstrip" | "rstrip" => pay_for_trim(state, text, first.unwrap_or_default())?,
        "split" => pay_for_pieces(state, text, first)?,
        "splitlines" => pay_for_pieces(state, text, Some("\n"))?,
        "startswith" | "endswith" => args.iter().try_for_each(|arg| pay_for(state, arg).map(drop))?,
        "format" => pay_for_format(state, text, args)?,
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            return python::join_items(state, items, text, None);
        }
        _ => {}
    }
    unknown_method_callback(state, value, method, args)
}

/// Each field may write an argument, and pad it to a width.
fn pay_for_format(state: &State, text: &str, args: &[Value]) -> Result<(), Error> {
    let mut largest = 0;
    for arg in args {
        largest = largest.max(pay_for(state, arg)?);
    }
    let fields = text.matches('{').count();
    let largest = usize::try_from(largest).unwrap_or(usize::MAX);
    let digits = |c: char| !c.is_ascii_digit();
    let widths = text.split(digits).filter(|run| !run.is_empty()).map(|run| run.parse::<usize>().unwrap_or(usize::MAX));
    // A number outside a field is no width, but only a wide one costs anything to speak of.
    let padding = widths.fold(0usize, usize::saturating_add);
    pay_bytes(state, fields.saturating_mul(largest).saturating_add(padding))
}
