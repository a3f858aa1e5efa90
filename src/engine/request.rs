//! What a request asks for, checked: every field is honoured or refused by name. Queues and limits are the scheduler's.
use serde_json::Value;

use super::raw_request::GenerateRequest;
use super::text::{Conversation, TextModel};
use crate::chat::LocalTime;
use crate::ids::TokenId;
use crate::sampling::{MAX_LOGPROBS, RawValue, SamplingParams};
use crate::{Error, Result};

/// Largest integer that a JavaScript number holds exactly.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// A generate request, ready to be queued.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The prompt.
    pub tokens: Vec<TokenId>,
    /// Every sampling field in range.
    pub params: SamplingParams,
    /// What the draws are made from.
    pub seed: u64,
    /// When and before whom it runs.
    pub options: RequestOptions,
}

/// What may be said about any request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestOptions {
    /// Milliseconds from submission.
    pub timeout_ms: Option<f64>,
    /// Higher runs first and is preempted last.
    pub priority: i32,
}

/// A score request as it arrives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScoreBody {
    /// The text, as tokens.
    pub tokens: Vec<TokenId>,
    /// How many of the likeliest tokens to list at each place.
    pub top_logprobs: Option<u32>,
    /// When and before whom it runs.
    pub options: RequestOptions,
}

/// `request.invalid` for one field.
fn invalid(field: &str, expected: &str, got: impl Into<Value>) -> Error {
    Error::new("request.invalid", format!("`{field}` must be {expected}"))
        .with("field", field)
        .with("expected", expected)
        .with("got", got)
}

fn unsupported(field: &str, why: &str) -> Error {
    Error::new("request.unsupported", format!("`{field}` is not supported: {why}")).with("field", field)
}

/// Checks a request and makes its prompt into tokens. `fallback_seed` is used where the request names none; `now` is what a
/// template may write as the date.
///
/// # Errors
/// `request.invalid`, `request.unsupported`, and those of the tokenizer and the chat template.
pub fn prepare(mut request: GenerateRequest, text: &TextModel, fallback_seed: u64, now: LocalTime) -> Result<Prepared> {
    if let Some(field) = &request.unknown {
        return Err(unsupported(field, "this engine does not know the field"));
    }
    if !matches!(request.store.take(), None | Some(RawValue::Bool(false))) {
        return Err(unsupported("store", "completions are not stored"));
    }
    fold_max_tokens(&mut request)?;
    fold_logprobs(&mut request)?;
    let options = RequestOptions {
        timeout_ms: milliseconds("timeout", request.timeout.as_ref())?,
        priority: integer("priority", request.priority.as_ref())?.unwrap_or(0),
    };
    let params = SamplingParams::new(&request.sampling, text.vocab_size())?;
    let seed = params.seed.unwrap_or(fallback_seed % crate::sampling::SEED_LIMIT);
    let tokens = prompt_tokens(request, text, now)?;
    Ok(Prepared { tokens, params, seed, options })
}

impl ScoreBody {
    /// Checks what only the engine knows about.
    ///
    /// # Errors
    /// `request.invalid`: a token outside the vocabulary, too many alternatives.
    pub fn check(&self, vocab_size: usize) -> Result<()> {
        check_tokens("tokens", &self.tokens, vocab_size)?;
        match self.top_logprobs {
            Some(n) if n > MAX_LOGPROBS => {
                Err(invalid("topLogprobs", &format!("a whole number from 0 to {MAX_LOGPROBS}"), n))
            }
            _ => Ok(()),
        }
    }
}

/// `max_completion_tokens` is the chat form's name for `max_tokens`.
fn fold_max_tokens(request: &mut GenerateRequest) -> Result<()> {
    let Some(chat_form) = request.max_completion_tokens.take() else { return Ok(()) };
    match &request.sampling.max_tokens {
        Some(other) if *other != chat_form => {
            Err(invalid("max_completion_tokens", "the same as max_tokens where both are given", describe(&chat_form)))
        }
        _ => {
            request.sampling.max_tokens = Some(chat_form);
            Ok(())
        }
    }
}

/// The chat form says `logprobs: true, top_logprobs: n`, the plain form `logprobs: n`.
fn fold_logprobs(request: &mut GenerateRequest) -> Result<()> {
    let top = request.top_logprobs.take();
    match (&request.sampling.logprobs, top) {
        (Some(RawValue::Bool(true)), top) => {
            integer("top_logprobs", top.as_ref())?;
            request.sampling.logprobs = Some(top.unwrap_or(RawValue::Number(0.0)));
        }
        (Some(RawValue::Bool(false)), None) => request.sampling.logprobs = None,
        (_, Some(top)) => return Err(invalid("top_logprobs", "given with logprobs: true", describe(&top))),
        (_, None) => {}
    }
    Ok(())
}

fn prompt_tokens(request: GenerateRequest, text: &TextModel, now: LocalTime) -> Result<Vec<TokenId>> {
    match (request.prompt, request.messages) {
        (Some(_), Some(_)) => Err(invalid("messages", "absent where prompt is given", "both")),
        (None, None) => {
            Err(invalid("prompt", "a string or an array of token ids (or messages in its place)", Value::Null))
        }
        (None, Some(messages)) => {
            refuse_tool_calls(request.tools.as_ref(), request.tool_choice.as_ref())?;
            text.encode_chat(&Conversation {
                messages: &messages,
                tools: request.tools.as_ref(),
                add_generation_prompt: true,
                template_args: request.template_args.as_ref(),
                now,
            })
        }
        (Some(prompt), None) => {
            for (field, value) in [
                ("tools", request.tools),
                ("tool_choice", request.tool_choice),
                ("template_args", request.template_args),
            ] {
                if value.is_some() {
                    return Err(invalid(field, "given with messages, not with prompt", "both"));
                }
            }
            match prompt {
                RawValue::Text(prompt) => text.encode_prompt(&prompt),
                RawValue::List(items) => token_list(&items, text.vocab_size()),
                other => Err(invalid("prompt", "a string or an array of token ids", describe(&other))),
            }
        }
    }
}

/// Tools may be shown to the model, but its calls are not parsed: only a request that expects none is honoured.
fn refuse_tool_calls(tools: Option<&Value>, choice: Option<&Value>) -> Result<()> {
    match choice {
        Some(Value::String(choice)) if choice == "none" => Ok(()),
        Some(_) => Err(unsupported("tool_choice", "tool calls are not parsed; only \"none\" is honoured")),
        None if tools.is_none_or(|t| t.as_array().is_some_and(Vec::is_empty)) => Ok(()),
        None => Err(unsupported(
            "tools",
            "tool calls are not parsed; with tool_choice \"none\" they are shown to the model",
        )),
    }
}

fn token_list(items: &[RawValue], vocab_size: usize) -> Result<Vec<TokenId>> {
    let token = |(i, item): (usize, &RawValue)| match item {
        RawValue::Number(x) if x.fract() == 0.0 && *x >= 0.0 && *x < vocab_size as f64 => Ok(TokenId(*x as u32)),
        other => Err(invalid(&format!("prompt[{i}]"), &format!("a token id below {vocab_size}"), describe(other))),
    };
    items.iter().enumerate().map(token).collect()
}

fn check_tokens(field: &str, tokens: &[TokenId], vocab_size: usize) -> Result<()> {
    match tokens.iter().position(|t| t.0 as usize >= vocab_size) {
        None => Ok(()),
        Some(i) => Err(invalid(&format!("{field}[{i}]"), &format!("a token id below {vocab_size}"), tokens[i].0)),
    }
}

fn integer(field: &str, value: Option<&RawValue>) -> Result<Option<i32>> {
    match value {
        None | Some(RawValue::Null) => Ok(None),
        Some(RawValue::Number(x)) if x.fract() == 0.0 && *x >= f64::from(i32::MIN) && *x <= f64::from(i32::MAX) => {
            Ok(Some(*x as i32))
        }
        Some(other) => Err(invalid(field, "a whole number of 32 bits", describe(other))),
    }
}

fn milliseconds(field: &str, value: Option<&RawValue>) -> Result<Option<f64>> {
    match value {
        None | Some(RawValue::Null) => Ok(None),
        Some(RawValue::Number(x)) if (0.0..=MAX_SAFE_INTEGER).contains(x) => Ok(Some(*x)),
        Some(other) => Err(invalid(field, "milliseconds, 0 or more", describe(other))),
    }
}

/// A short name for a value: an error never repeats a whole prompt.
fn describe(value: &RawValue) -> Value {
    match value {
        RawValue::Null => Value::Null,
        RawValue::Bool(b) => (*b).into(),
        RawValue::Number(x) if x.is_finite() => (*x).into(),
        RawValue::Number(x) => x.to_string().into(),
        RawValue::Text(t) => t.chars().take(64).collect::<String>().into(),
        RawValue::List(items) => format!("a list of {}", items.len()).into(),
        RawValue::Map(_) => "an object".into(),
    }
}
