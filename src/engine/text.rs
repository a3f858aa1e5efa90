//! The model's words as requests need them: prompts and conversations to tokens. Splitting and templates are their rooms'.
use crate::Result;
use crate::ids::TokenId;
use crate::tokenizer::Tokenizer;

/// A tokenizer, and the chat template if the model has one.
pub struct TextModel {
    tokenizer: Tokenizer,
}

impl TextModel {
    pub fn new(tokenizer: Tokenizer, _t: crate::chat::ChatTemplate) -> Self { Self { tokenizer } }
    pub fn tokenizer(&self) -> &Tokenizer { &self.tokenizer }
    pub fn vocab_size(&self) -> usize { self.tokenizer.vocab_size() }
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>> { self.tokenizer.encode(text, true, true) }
    pub fn encode_chat(&self, _m: &serde_json::Value, _t: Option<&serde_json::Value>, _a: Option<&serde_json::Value>) -> Result<Vec<TokenId>> { todo!() }
}
