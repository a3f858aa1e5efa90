//! The model's words as requests need them: prompts and conversations to tokens. Splitting and templates are their rooms'.
use serde_json::{Map, Value};

use super::conversation::normalize;
use crate::chat::{ChatTemplate, LocalTime, RenderInput};
use crate::ids::TokenId;
use crate::tokenizer::{Tokenizer, Vocabulary};
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

/// A tokenizer and the chat template.
pub struct TextModel {
    tokenizer: Tokenizer,
    /// A template that does not compile refuses conversations; plain prompts do not need it.
    template: Result<ChatTemplate>,
}

impl TextModel {
    /// Builds both from a file's vocabulary.
    ///
    /// # Errors
    /// Any `tokenizer.*` code that concerns a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self> {
        let tokenizer = Tokenizer::new(vocabulary)?;
        let text = |token: Option<TokenId>| {
            let bytes = token.and_then(|t| tokenizer.token_bytes(t, true)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let template = ChatTemplate::new(vocabulary.chat_template.as_deref(), &bos, &eos);
        Ok(Self { tokenizer, template })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// What is worth telling about this vocabulary.
    pub fn warnings(&self) -> Vec<Error> {
        let mut out = Vec::new();
        if self.tokenizer.pre_tokenizer_assumed() {
            out.push(Error::new(
                "tokenizer.pre_assumed",
                "the file names no pre-tokenizer; `default` is used and may split text otherwise than the model was trained on",
            ));
        }
        match &self.template {
            Ok(template) if template.is_default() => {
                out.push(Error::new("chat.default_template", "the file has no chat template; ChatML is used"));
            }
            Ok(_) => {}
            Err(error) => out.push(error.clone()),
        }
        out
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
        let template = self.template.as_ref().map_err(Error::clone)?;
        let no_tools = |tools: &&Value| tools.as_array().is_none_or(|list| !list.is_empty());
        if let Some(tools) = conversation.tools.filter(|tools| !tools.is_array()) {
            return Err(wrong("tools", "a list", tools));
        }
        let args = match conversation.template_args {
            None => &Map::new(),
            Some(Value::Object(args)) => args,
            Some(other) => return Err(wrong("template_args", "an object", other)),
        };
        template.render(&RenderInput {
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
