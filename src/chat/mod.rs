//! Chat templates: the model's own Jinja text rendered over messages. Tokenizing the result is the caller's.
mod cost;
mod expression;
mod python;
mod syntax;
#[cfg(test)]
mod tests;
mod time;

use std::{fmt, io};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value};
use serde_json::{Map, Value as Json};

use crate::{Error, Result};
use cost::Excess;
pub use time::LocalTime;

/// ChatML, for files without a template: the format that most models without one were tuned on.
const DEFAULT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Longest template, in bytes; published ones have up to 25 KiB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// What a render may use besides what its input pays for: this many steps, or this times 64 bytes. Published templates take
/// under a tenth of it for a short conversation with tools. Work that outgrows its price grows with the square of this.
const BASE_FUEL: u64 = 100_000;

/// Bytes of a named value, and of the whole text, whatever the input; and that many times the input's weight.
const BASE_VALUE_BYTES: u64 = 256 << 10;
const BASE_OUTPUT_BYTES: u64 = 1 << 20;
const TIMES_INPUT: u64 = 8;

/// Longest words of a template that an error repeats.
const MAX_WORDS: usize = 1000;

const NAME: &str = "chat";

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    is_default: bool,
}

/// What a template is rendered over.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// The conversation: an array of objects with `role`, `content` and what else the template reads.
    pub messages: &'a Json,
    /// Tool declarations, in OpenAI's form.
    pub tools: Option<&'a Json>,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables that the template reads (`enable_thinking`, `documents`, ...).
    pub template_args: Option<&'a Map<String, Json>>,
    /// What `strftime_now` tells.
    pub now: LocalTime,
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("is_default", &self.is_default).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles `source`, or ChatML if the file has none. `bos` and `eos` are the texts of the model's start and end
    /// tokens (empty if it has none).
    ///
    /// # Errors
    /// `chat.template_invalid`, `chat.template_too_long`, `chat.template_depth`.
    pub fn new(source: Option<&str>, bos: &str, eos: &str) -> Result<Self> {
        let text = source.unwrap_or(DEFAULT_TEMPLATE);
        if text.len() > MAX_TEMPLATE_BYTES {
            let message = format!("The chat template has {} bytes; {MAX_TEMPLATE_BYTES} are allowed.", text.len());
            return Err(Error::new("chat.template_too_long", message)
                .with("expected", format!("at most {MAX_TEMPLATE_BYTES}"))
                .with("got", text.len()));
        }
        let mut environment = environment()?;
        let prepared = syntax::prepare(text).ok_or_else(|| too_deep(None))?;
        environment.add_template_owned(NAME, prepared).map_err(|e| invalid(&e))?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned(), is_default: source.is_none() })
    }

    /// Whether ChatML stands in for a template that the file lacks: worth a warning.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// The prompt text. Start and end tokens are in it as the template writes them: tokenize it with special tokens
    /// parsed and none added.
    ///
    /// # Errors
    /// `chat.template_raised` with the template's own words, `chat.template_failed`, `chat.reserved_argument`; for a
    /// template without bounds `chat.template_fuel`, `chat.template_value`, `chat.template_depth`, `chat.template_output`.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String> {
        let context = self.context(input)?;
        let mut environment = self.environment.clone();
        let weight = input.weight();
        environment.set_fuel(Some(BASE_FUEL.saturating_add(weight)));
        cost::install(&mut environment, BASE_VALUE_BYTES.saturating_add(weight.saturating_mul(TIMES_INPUT)));
        let now = input.now;
        environment.add_function("strftime_now", move |state: &State, format: &str| {
            // A conversion may be ten times as long as its letter.
            cost::pay_bytes(state, format.len().saturating_mul(16))?;
            Ok::<_, minijinja::Error>(now.strftime(format))
        });
        let template = environment.get_template(NAME).map_err(|error| failed(&error))?;
        let mut text = Bounded {
            text: Vec::new(),
            most: BASE_OUTPUT_BYTES.saturating_add(weight.saturating_mul(TIMES_INPUT)),
            is_full: false,
        };
        match template.render_captured_to(context, &mut text) {
            Ok(_) => String::from_utf8(text.text).map_err(|_| render_failed("the text is not UTF-8", None)),
            Err(_) if text.is_full => Err(failed(&cost::exceeded(Excess::Output)).with("limit", text.most)),
            Err(error) => Err(failed(&error)),
        }
    }

    fn context(&self, input: &RenderInput<'_>) -> Result<Value> {
        // Templates written for `transformers` are given `tools` and `documents` always, as none where there are none.
        let fixed = [
            ("messages", Value::from(Serde(input.messages))),
            ("tools", Value::from(Serde(input.tools))),
            ("add_generation_prompt", Value::from(input.add_generation_prompt)),
        ];
        let mut context = vec![
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("documents", Value::from(())),
        ];
        for (key, value) in input.template_args.into_iter().flatten() {
            if fixed.iter().any(|(name, _)| name == key) {
                let message = format!("The template argument '{key}' has a field of its own in the request.");
                return Err(Error::new("chat.reserved_argument", message).with("argument", key.as_str()));
            }
            context.retain(|(name, _)| name != key);
            context.push((key.as_str(), Value::from(Serde(value))));
        }
        Ok(Value::from_pairs(context.into_iter().chain(fixed)))
    }
}

/// The rendered text, up to a length.
struct Bounded {
    text: Vec<u8>,
    most: u64,
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.text.len() + bytes.len()) as u64 > self.most {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RenderInput<'_> {
    /// Roughly the input's bytes: work is paid for in proportion, so that long conversations render.
    fn weight(&self) -> u64 {
        let args = self.template_args.into_iter().flatten().map(|(key, value)| key.len() as u64 + weight(value));
        weight(self.messages) + self.tools.map_or(0, weight) + args.sum::<u64>()
    }
}

fn weight(value: &Json) -> u64 {
    const NODE: u64 = 64;
    NODE + match value {
        Json::String(text) => text.len() as u64,
        Json::Array(items) => items.iter().map(weight).sum(),
        Json::Object(fields) => fields.iter().map(|(key, value)| key.len() as u64 + weight(value)).sum(),
        _ => 0,
    }
}

/// An environment that behaves as Jinja2 does under `transformers`.
fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    environment
        .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| invalid(&e))?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(python::write);
    environment.add_filter("string", python::string);
    environment.add_filter("trim", python::trim);
    environment.add_filter("join", python::join);
    environment.add_filter("tojson", python::to_json);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    Ok(environment)
}

fn invalid(error: &minijinja::Error) -> Error {
    if error.detail() == Some("template exceeds maximum recursion limits") {
        return too_deep(error.line());
    }
    let message = format!("The chat template can't be compiled: {}.", describe(error));
    Error::new("chat.template_invalid", message).with("line", error.line())
}

fn failed(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(Raised(message)) = at.downcast_ref() {
            let words = cut(message);
            return Error::new("chat.template_raised", format!("The chat template refuses: {words}"))
                .with("raised", words);
        }
        if let Some(excess) = at.downcast_ref() {
            return match excess {
                Excess::Depth => too_deep(error.line()),
                Excess::Value => too_large(error.line()),
                Excess::Output => Error::new(
                    "chat.template_output",
                    "The chat template writes more text than any sensible one would for this input.",
                ),
            };
        }
        let inner: Option<&minijinja::Error> = at.downcast_ref();
        if inner.is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return Error::new("chat.template_fuel", "The chat template does more work than any sensible one needs.")
                .with("line", error.line());
        }
        match inner.and_then(minijinja::Error::detail) {
            Some("recursion limit exceeded") => return too_deep(error.line()),
            Some("repeated sequence is too large") => return too_large(error.line()),
            _ => cause = at.source(),
        }
    }
    render_failed(&describe(error), error.line())
}

fn render_failed(why: &str, line: Option<usize>) -> Error {
    Error::new("chat.template_failed", format!("The chat template fails: {why}.")).with("line", line)
}

fn too_deep(line: Option<usize>) -> Error {
    let message = format!("The chat template nests values or calls deeper than {}.", cost::MAX_DEPTH);
    Error::new("chat.template_depth", message).with("line", line)
}

fn too_large(line: Option<usize>) -> Error {
    Error::new("chat.template_value", "The chat template makes a value far larger than its input.").with("line", line)
}

/// The error's own words and where it happened.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), cut);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// Words of a template, short enough for an error.
fn cut(words: &str) -> String {
    words.chars().take(MAX_WORDS).collect()
}
