//! Chat templates: the model's own Jinja text rendered over messages. Tokenizing the result is the caller's.
mod python;
mod syntax;
#[cfg(test)]
mod tests;
mod time;

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use crate::{Error, Result};
pub use time::LocalTime;

/// ChatML, for files without a template: the format that most models without one were tuned on.
const DEFAULT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Longest template, in bytes; published ones have up to 25 KiB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// What a render may use besides what its input pays for: this many steps, or this times 64 bytes.
const BASE_FUEL: u64 = 500_000;

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
    /// `chat.template_invalid`.
    pub fn new(source: Option<&str>, bos: &str, eos: &str) -> Result<Self> {
        let text = source.unwrap_or(DEFAULT_TEMPLATE);
        if text.len() > MAX_TEMPLATE_BYTES {
            let message = format!("The chat template has {} bytes; {MAX_TEMPLATE_BYTES} are allowed.", text.len());
            return Err(Error::new("chat.template_invalid", message)
                .with("expected", format!("at most {MAX_TEMPLATE_BYTES}"))
                .with("got", text.len()));
        }
        let mut environment = environment()?;
        environment.add_template_owned(NAME, syntax::prepare(text)).map_err(|e| invalid(&e))?;
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
    /// `chat.template_raised` with the template's own words, `chat.template_fuel`, `chat.template_failed`,
    /// `chat.reserved_argument`.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String> {
        let context = self.context(input)?;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(BASE_FUEL.saturating_add(input.weight())));
        let now = input.now;
        environment.add_function("strftime_now", move |format: &str| now.strftime(format));
        let template = environment.get_template(NAME).map_err(|error| failed(&error))?;
        template.render(context).map_err(|error| failed(&error))
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
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(python::write);
    environment.add_filter("string", python::string);
    environment.add_filter("trim", python::trim);
    environment.add_filter("join", python::join);
    environment.add_filter("tojson", python::to_json);
    environment.add_filter(syntax::ITERABLE_FILTER, |state: &State, value: Value| {
        // Jinja2 refuses to loop over none, and templates rely on it; minijinja takes it for an empty list.
        if value.is_none() {
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable"));
        }
        python::pay_for(state, &value)?;
        Ok(value)
    });
    environment.add_filter(syntax::ASSIGNED_FILTER, |state: &State, value: Value| {
        python::pay_for(state, &value)?;
        Ok(value)
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    Ok(environment)
}

fn invalid(error: &minijinja::Error) -> Error {
    let message = format!("The chat template can't be compiled: {}.", describe(error));
    Error::new("chat.template_invalid", message).with("line", error.line())
}

fn failed(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(Raised(message)) = at.downcast_ref() {
            return Error::new("chat.template_raised", format!("The chat template refuses: {message}"))
                .with("raised", message.as_str());
        }
        if at.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return Error::new("chat.template_fuel", "The chat template does more work than any sensible one needs.")
                .with("line", error.line());
        }
        cause = at.source();
    }
    Error::new("chat.template_failed", format!("The chat template fails: {}.", describe(error)))
        .with("line", error.line())
}

/// The error's own words and where it happened.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}
