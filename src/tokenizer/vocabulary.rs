//! The vocabulary as plain data, as a GGUF file states it, and the checks that make it safe to build a tokenizer from.
use crate::gguf::{Metadata, StrArray};
use crate::{Error, Result};

/// Most tokens a vocabulary may have; the largest published ones have 262,144.
const MAX_TOKENS: usize = 1 << 24;

/// Longest token, in bytes; the longest published ones are runs of a few hundred spaces. Tokenizing a text takes time in
/// proportion to it, if the vocabulary is made for that.
const MAX_TOKEN_BYTES: usize = 4096;

/// What `tokenizer.*` says. `None` is a key the file doesn't have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `general.name`: some families are told apart by nothing else (Phi-3's tokens swallow the whitespace after them).
    pub name: Option<String>,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: which pre-tokenizer, for `gpt2`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: StrArray,
    /// `tokenizer.ggml.scores`, by id; empty if absent.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty if absent.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: `left right`, best first; empty if absent.
    pub merges: StrArray,
    /// The `tokenizer.ggml.*_token_id` keys.
    pub ids: SpecialIds,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// Tokens that the file names by their use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Start of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// What can't be tokenized.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Fill in the middle: prefix.
    pub fim_pre: Option<u32>,
    /// Fill in the middle: suffix.
    pub fim_suf: Option<u32>,
    /// Fill in the middle: middle.
    pub fim_mid: Option<u32>,
    /// Fill in the middle: padding.
    pub fim_pad: Option<u32>,
    /// Fill in the middle: repository name.
    pub fim_rep: Option<u32>,
    /// Fill in the middle: file separator.
    pub fim_sep: Option<u32>,
}

impl SpecialIds {
    fn read(metadata: &Metadata) -> Result<Self> {
        let id = |names: &[&str]| {
            for name in names {
                if let Some(id) = metadata.opt_u32(&format!("tokenizer.ggml.{name}_token_id"))? {
                    return Ok(Some(id));
                }
            }
            Ok(None)
        };
        Ok(Self {
            bos: id(&["bos"])?,
            eos: id(&["eos"])?,
            eot: id(&["eot"])?,
            eom: id(&["eom"])?,
            unk: id(&["unknown"])?,
            pad: id(&["padding"])?,
            // The second names are those of older converters.
            fim_pre: id(&["fim_pre", "prefix"])?,
            fim_suf: id(&["fim_suf", "suffix"])?,
            fim_mid: id(&["fim_mid", "middle"])?,
            fim_pad: id(&["fim_pad"])?,
            fim_rep: id(&["fim_rep"])?,
            fim_sep: id(&["fim_sep"])?,
        })
    }
}

/// A token that no vocabulary in use has the like of.
pub(super) fn too_long(message: String, id: u32, limit: usize, got: usize) -> Error {
    Error::new("tokenizer.token_too_long", message)
        .with("key", "tokenizer.ggml.tokens")
        .with("token", id)
        .with("expected", format!("at most {limit} bytes"))
        .with("got", got)
}

impl Vocabulary {
    /// Reads the vocabulary from a file's metadata. Nothing is checked beyond the values' types.
    ///
    /// # Errors
    /// The `gguf.*` codes of [`Metadata`]'s getters.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let string = |key: &str| Ok(metadata.opt_str(key)?.map(str::to_owned));
        let strings = |key: &str| Ok(metadata.opt_strs(key)?.cloned().unwrap_or_default());
        Ok(Self {
            name: string("general.name").unwrap_or_default(),
            model: metadata.str("tokenizer.ggml.model")?.to_owned(),
            pre: string("tokenizer.ggml.pre")?,
            tokens: strings("tokenizer.ggml.tokens")?,
            scores: metadata.opt_f32s("tokenizer.ggml.scores")?.unwrap_or_default().into_owned(),
            token_types: metadata.opt_i32s("tokenizer.ggml.token_type")?.unwrap_or_default().into_owned(),
            merges: strings("tokenizer.ggml.merges")?,
            ids: SpecialIds::read(metadata)?,
            add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.opt_bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.opt_bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: string("tokenizer.chat_template")?,
        })
    }

    /// Checks everything that needs no more than the arrays' lengths and values.
    pub(super) fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(
                Error::new("tokenizer.no_tokens", "The file holds no vocabulary.").with("key", "tokenizer.ggml.tokens")
            );
        }
        if count > MAX_TOKENS {
            let message = format!("The vocabulary has {count} tokens; {MAX_TOKENS} are allowed.");
            return Err(Error::new("tokenizer.too_many_tokens", message)
                .with("expected", format!("at most {MAX_TOKENS}"))
                .with("got", count));
        }
        if let Some((id, token)) = self.entries().find(|(_, token)| token.len() > MAX_TOKEN_BYTES) {
            let message = format!("Token {id} has {} bytes; {MAX_TOKEN_BYTES} are allowed.", token.len());
            return Err(too_long(message, id, MAX_TOKEN_BYTES, token.len()));
        }
        self.check_length("tokenizer.ggml.token_type", self.token_types.len())?;
        self.check_length("tokenizer.ggml.scores", self.scores.len())?;
        if let Some(id) = self.scores.iter().position(|s| s.is_nan()) {
            return Err(Error::new("tokenizer.bad_score", format!("The score of token {id} isn't a number."))
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
        Err(Error::new("tokenizer.bad_length", format!("{key} holds {got} entries for {expected} tokens."))
            .with("key", key)
            .with("expected", expected)
            .with("got", got))
    }

    /// The ids that generation depends on. The rest (padding above all) is out of range in files that work, and unused.
    fn check_ids(&self) -> Result<()> {
        let ids = &self.ids;
        for (name, id) in [("bos", ids.bos), ("eos", ids.eos), ("eot", ids.eot), ("eom", ids.eom)] {
            if let Some(id) = id.filter(|&id| !self.contains(id)) {
                let key = format!("tokenizer.ggml.{name}_token_id");
                let count = self.tokens.len();
                let message = format!("{key} is {id}, but the vocabulary has {count} tokens.");
                return Err(Error::new("tokenizer.id_out_of_range", message)
                    .with("key", key)
                    .with("expected", format!("less than {count}"))
                    .with("got", id));
            }
        }
        Ok(())
    }

    /// Whether `id` is a token.
    pub(super) fn contains(&self, id: u32) -> bool {
        usize::try_from(id).is_ok_and(|id| id < self.tokens.len())
    }

    /// All tokens with their ids.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0u32..).zip(self.tokens.iter())
    }
}
