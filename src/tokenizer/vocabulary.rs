//! The vocabulary as plain data, as a GGUF file states it, and the checks that make it safe to build a tokenizer from.
use crate::{Error, Result};

/// Most tokens a vocabulary may have; ids are `u32` and the largest published vocabularies hold 262,144.
const MAX_TOKENS: usize = 1 << 24;

/// What `tokenizer.ggml.*` says. `None` is a key the file doesn't have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `general.name`: some families are told apart by nothing else (Phi-3's tokens swallow the whitespace after them).
    pub name: Option<String>,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: which pre-tokenizer, for `gpt2`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id; empty if absent.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty if absent.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: `left right`, best first; empty if absent.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.fim_pad_token_id`.
    pub fim_pad: Option<u32>,
    /// `tokenizer.ggml.fim_rep_token_id`: repository name.
    pub fim_rep: Option<u32>,
    /// `tokenizer.ggml.fim_sep_token_id`: file separator.
    pub fim_sep: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// Checks everything that needs no more than the arrays' lengths and values.
    pub(super) fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(
                Error::new("tokenizer.no_tokens", "The file holds no vocabulary").with("key", "tokenizer.ggml.tokens")
            );
        }
        if count > MAX_TOKENS {
            return Err(Error::new("tokenizer.too_many_tokens", "The vocabulary is larger than this engine accepts")
                .with("expected", MAX_TOKENS)
                .with("got", count));
        }
        self.check_length("tokenizer.ggml.token_type", self.token_types.len())?;
        self.check_length("tokenizer.ggml.scores", self.scores.len())?;
        if let Some(id) = self.scores.iter().position(|s| s.is_nan()) {
            return Err(Error::new("tokenizer.bad_score", format!("The score of token {id} isn't a number"))
                .with("key", "tokenizer.ggml.scores")
                .with("token", id));
        }
        self.check_ids()
    }

    fn check_length(&self, key: &str, got: usize) -> Result<()> {
        let expected = self.tokens.len();
        if got == 0 || got == expected {
            return Ok(());
        }
        Err(Error::new("tokenizer.bad_length", format!("{key} holds {got} entries for {expected} tokens"))
            .with("key", key)
            .with("expected", expected)
            .with("got", got))
    }

    fn check_ids(&self) -> Result<()> {
        let named = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unk),
            ("padding", self.pad),
            ("fim_pad", self.fim_pad),
            ("fim_rep", self.fim_rep),
            ("fim_sep", self.fim_sep),
        ];
        let count = self.tokens.len();
        for (name, id) in named {
            if let Some(id) = id.filter(|&id| usize::try_from(id).map_or(true, |id| id >= count)) {
                let key = format!("tokenizer.ggml.{name}_token_id");
                return Err(Error::new(
                    "tokenizer.id_out_of_range",
                    format!("{key} is {id}, but the vocabulary has {count} tokens"),
                )
                .with("key", key)
                .with("expected", format!("less than {count}"))
                .with("got", id));
            }
        }
        Ok(())
    }
}
