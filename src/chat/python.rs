//! Values as Python writes them: `str()` and `repr()` for output, `json.dumps` for `tojson`.
use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

use super::cost::{BYTES_PER_FUEL, Excess, MAX_DEPTH, exceeded, pay_bytes, pay_for_trim};

/// Widest `indent`.
const MAX_INDENT: usize = 32;

/// The formatter of `{{ ... }}`.
pub(super) fn write(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&to_text(state, value)?),
    }
    .map_err(Error::from)
}

/// The `string` filter: Python's `str()`.
pub(super) fn string(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    to_text(state, value).map(Value::from)
}

/// The `trim` filter: Python's `str(value).strip(characters)`.
pub(super) fn trim(state: &State, value: &Value, characters: Option<String>) -> Result<Value, Error> {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None => to_text(state, value)?,
    };
    Ok(Value::from(match characters {
        Some(characters) => {
            pay_for_trim(state, &text, &characters)?;
            text.trim_matches(|c| characters.contains(c))
        }
        None => text.trim(),
    }))
}

/// The `join` filter: Python's `str()` of the items, or of one attribute of each.
pub(super) fn join(
    state: &State,
    value: &Value,
    separator: Option<String>,
    attribute: Option<Value>,
    args: Kwargs,
) -> Result<Value, Error> {
    let separator = separator.map_or_else(|| args.get::<Option<String>>("d"), |s| Ok(Some(s)))?.unwrap_or_default();
    let attribute = attribute.map_or_else(|| args.get::<Option<Value>>("attribute"), |a| Ok(Some(a)))?;
    args.assert_all_used()?;
    join_items(state, value, &separator, attribute.as_ref())
}

/// The items' text with `separator` between them, paid for before it grows: items may be one long text many times.
pub(super) fn join_items(
    state: &State,
    items: &Value,
    separator: &str,
    attribute: Option<&Value>,
) -> Result<Value, Error> {
    let mut out = String::new();
    for (at, item) in items.try_iter()?.enumerate() {
        state.consume_fuel(1)?;
        let item = attribute.map_or(Ok(item.clone()), |name| item.get_item(name))?;
        let separator = if at == 0 { "" } else { separator };
        pay_bytes(state, separator.len() + item.as_str().map_or(0, str::len))?;
        out.push_str(separator);
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&to_text(state, &item)?),
        }
    }
    Ok(Value::from(out))
}

fn to_text(state: &State, value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut writer = Writer { state, out: String::new(), paid: 0, style: Style::Repr };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// The `tojson` filter: Python's `json.dumps` with its arguments, `ensure_ascii` off unless asked for.
pub(super) fn to_json(state: &State, value: &Value, args: Kwargs) -> Result<Value, Error> {
    let indent = match args.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(width) => Some(" ".repeat(usize::try_from(width).unwrap_or(0).min(MAX_INDENT))),
    };
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be a pair")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style::Json(JsonStyle {
        ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent.map(|text| text.chars().take(MAX_INDENT).collect()),
        item,
        key,
    });
    args.assert_all_used()?;
    let mut writer = Writer { state, out: String::new(), paid: 0, style };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct JsonStyle {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

enum Style {
    Json(JsonStyle),
    Repr,
}

struct Writer<'a, 'e> {
    state: &'a State<'a, 'e>,
    out: String,
    /// Bytes of `out` that are paid for.
    paid: usize,
    style: Style,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // Values can share parts, so that few of them write out very long: each visit is paid for, and what is between.
        self.state.consume_fuel(1 + ((self.out.len() - self.paid) / BYTES_PER_FUEL) as u64)?;
        self.paid = self.out.len();
        if depth > MAX_DEPTH {
            return Err(exceeded(Excess::Depth));
        }
        match value.kind() {
            ValueKind::Undefined if matches!(self.style, Style::Repr) => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str(self.constants()[0]),
            ValueKind::Bool => self.out.push_str(self.constants()[if value.is_true() { 1 } else { 2 }]),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind if matches!(self.style, Style::Json(_)) => {
                let message = format!("a value of type {kind} can't be written as JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
            _ => {
                let text = value.to_string();
                pay_bytes(self.state, text.len())?;
                self.out.push_str(&text);
            }
        }
        Ok(())
    }

    /// None, true, false.
    fn constants(&self) -> [&'static str; 3] {
        match self.style {
            Style::Json(_) => ["null", "true", "false"],
            Style::Repr => ["None", "True", "False"],
        }
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return;
        }
        let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        let json = matches!(self.style, Style::Json(_));
        match number {
            n if n.is_nan() => self.out.push_str(if json { "NaN" } else { "nan" }),
            n if n.is_infinite() => {
                self.out.push_str(if n < 0.0 { "-" } else { "" });
                self.out.push_str(if json { "Infinity" } else { "inf" });
            }
            n => self.out.push_str(&float(n)),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        pay_bytes(self.state, text.len())?;
        match &self.style {
            Style::Json(style) => json_string(text, style.ascii, &mut self.out),
            Style::Repr => repr_string(text, &mut self.out),
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.between(std::mem::replace(&mut empty, false), depth);
            self.value(&item, depth + 1)?;
        }
        self.close(empty, ']', depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.state.consume_fuel(value.len().unwrap_or(0) as u64)?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if matches!(&self.style, Style::Json(style) if style.sorted) {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in &keys {
            self.between(std::mem::replace(&mut empty, false), depth);
            self.key(key, depth)?;
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(empty, '}', depth);
        Ok(())
    }

    fn key(&mut self, key: &Value, depth: usize) -> Result<(), Error> {
        let quoted = matches!(self.style, Style::Json(_)) && key.as_str().is_none();
        self.out.push_str(if quoted { "\"" } else { "" });
        self.value(key, depth + 1)?;
        self.out.push_str(if quoted { "\"" } else { "" });
        match &self.style {
            Style::Json(style) => self.out.push_str(&style.key),
            Style::Repr => self.out.push_str(": "),
        }
        Ok(())
    }

    fn between(&mut self, first: bool, depth: usize) {
        if !first {
            match &self.style {
                Style::Json(style) => self.out.push_str(&style.item),
                Style::Repr => self.out.push_str(", "),
            }
        }
        self.new_line(depth + 1);
    }

    fn close(&mut self, empty: bool, bracket: char, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Style::Json(JsonStyle { indent: Some(indent), .. }) = &self.style {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }
}

/// Shortest digits that read back equal; an exponent below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    push_hex(out, 'u', u32::from(*unit), 4);
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn push_hex(out: &mut String, letter: char, code: u32, width: usize) {
    // Writing to a string can't fail.
    let _ = write!(out, "\\{letter}{code:0width$x}");
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ 0..=0xff => push_hex(out, 'x', code, 2),
                code @ 0x100..=0xffff => push_hex(out, 'u', code, 4),
                code => push_hex(out, 'U', code, 8),
            },
        }
    }
    out.push(quote);
}

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // After another character, so that combining marks count as printable.
    let pair = ['a', c].iter().collect::<String>();
    !pair.escape_debug().to_string().contains("\\u")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, want) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123_456.789, "123456.789"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(float(number), want);
        }
    }

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        let repr = |text: &str| {
            let mut out = String::new();
            repr_string(text, &mut out);
            out
        };
        assert_eq!(repr("a'b"), r#""a'b""#);
        assert_eq!(repr("a'\"b"), r#"'a\'"b'"#);
        assert_eq!(
            repr("\n\u{1}\u{200b}é\u{301}\u{e0001}\\"),
            r"'\n\x01\u200bé\u0301\U000e0001\\'".replace("\\u0301", "\u{301}")
        );
        let json = |text: &str, ascii| {
            let mut out = String::new();
            json_string(text, ascii, &mut out);
            out
        };
        assert_eq!(json("é\"\\\u{1}\u{7f}😀\n", false), "\"é\\\"\\\\\\u0001\u{7f}😀\\n\"");
        assert_eq!(json("é😀", true), "\"\\u00e9\\ud83d\\ude00\"");
    }
}
