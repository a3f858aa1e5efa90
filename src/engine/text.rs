//! The model's words as requests need them: prompts and conversations to tokens. Splitting and templates are their rooms'.
use serde_json::{Map, Value};

use super::conversation::normalize;
use crate::chat::{ChatTemplate, LocalTime, RenderInput};
use crate::ids::TokenId;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// A conversation and what its template may see besides.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// As the API takes them.
    pub messages: &'a Value,
    /// Tool declarations, in OpenAI's form.
    pub tools: Option<&'a Value>,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// More variables for the template: an object.
    pub template_args: Option<&'a Value>,
    /// What the user's clock shows.
    pub now: LocalTime,
}

/// The options of `renderChat`, checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RenderOptions {
    tools: Option<Value>,
    without_generation_prompt: bool,
    template_args: Option<Value>,
}

impl RenderOptions {
    /// Reads an object of `tools`, `addGenerationPrompt` and `templateArgs`; null is no options.
    ///
    /// # Errors
    /// `request.invalid`, `request.unsupported` for a field of another name.
    pub fn from_json(options: &Value) -> Result<Self> {
        let fields = match options {
            Value::Null => return Ok(Self::default()),
            Value::Object(fields) => fields,
            other => return Err(wrong("options", "an object", other)),
        };
        let mut out = Self::default();
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            match (name.as_str(), value) {
                ("tools", tools) => out.tools = Some(tools.clone()),
                ("templateArgs", args) => out.template_args = Some(args.clone()),
                ("addGenerationPrompt", Value::Bool(add)) => out.without_generation_prompt = !add,
                ("addGenerationPrompt", other) => return Err(wrong("addGenerationPrompt", "true or false", other)),
                (unknown, _) => {
                    let field = unknown.chars().take(64).collect::<String>();
                    let message = format!("`{field}` is not an option that this engine knows");
                    return Err(Error::new("request.unsupported", message).with("field", field));
                }
            }
        }
        Ok(out)
    }

    /// A conversation under these options.
    pub fn conversation<'a>(&'a self, messages: &'a Value, now: LocalTime) -> Conversation<'a> {
        Conversation {
            messages,
            tools: self.tools.as_ref(),
            add_generation_prompt: !self.without_generation_prompt,
            template_args: self.template_args.as_ref(),
            now,
        }
    }
}

/// A tokenizer and the chat template.
pub struct TextModel {
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl TextModel {
    /// Puts a tokenizer and a template together.
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Self {
        Self { tokenizer, template }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The tokens of a plain prompt: with the start token where the model wants one, the texts of control tokens parsed.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>> {
        self.tokenizer.encode(text, true, true)
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// `request.invalid`, `request.unsupported`, and those of the template.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String> {
        let no_tools = |tools: &&Value| tools.as_array().is_none_or(|list| !list.is_empty());
        if let Some(tools) = conversation.tools.filter(|tools| !tools.is_array()) {
            return Err(wrong("tools", "a list", tools));
        }
        let args = match conversation.template_args {
            None => &Map::new(),
            Some(Value::Object(args)) => args,
            Some(other) => return Err(wrong("template_args", "an object", other)),
        };
        self.template.render(&RenderInput {
            messages: &normalize(conversation.messages)?,
            tools: conversation.tools.filter(no_tools),
            add_generation_prompt: conversation.add_generation_prompt,
            template_args: Some(args),
            now: conversation.now,
        })
    }

    /// The tokens of a conversation. The template writes start and end tokens itself: none are added.
    ///
    /// # Errors
    /// As [`TextModel::render`], and those of the tokenizer.
    pub fn encode_chat(&self, conversation: &Conversation<'_>) -> Result<Vec<TokenId>> {
        self.tokenizer.encode(&self.render(conversation)?, false, true)
    }
}

fn wrong(field: &str, expected: &str, got: &Value) -> Error {
    let got = got.to_string().chars().take(64).collect::<String>();
    Error::new("request.invalid", format!("`{field}` must be {expected}"))
        .with("field", field)
        .with("expected", expected)
        .with("got", got)
}
