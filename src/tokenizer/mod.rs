//! GGUF vocabulary -> `tokenizers`, and the incremental detokenizer. Knows nothing of chat or sampling.
mod attributes;
mod bpe;
mod detokenizer;
mod pretokenize;
mod specials;
mod spm;
#[cfg(test)]
mod tests;
mod unicode;
mod vocabulary;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

pub use detokenizer::Detokenizer;
use tokenizers::models::bpe::Vocab;
pub use vocabulary::{SpecialIds, Vocabulary};

use crate::ids::TokenId;
use crate::{Error, Result};
use attributes::{Attributes, Kinds, classify};
use bpe::Bpe;
use pretokenize::PreTokenizerSpec;
use specials::{Fragment, MAX_SPECIAL_BYTES, Special, Specials};
use spm::Spm;

/// Longest text that is tokenized at once, in bytes: some fifty times what the longest contexts hold. One word of that length
/// takes about a hundred times its size to merge, which a page's 4 GiB still have.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// Text to token ids and back, built from a GGUF vocabulary alone.
pub struct Tokenizer {
    model: Model,
    specials: Specials,
    pieces: Pieces,
    control: Vec<bool>,
    end_of_generation: BTreeSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    pre_assumed: bool,
}

enum Model {
    Bpe(Box<Bpe>),
    Spm(Spm),
}

/// The bytes of every token, one after the other.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    fn get(&self, id: u32) -> Option<&[u8]> {
        let id = usize::try_from(id).ok()?;
        let start = id.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(start..*self.ends.get(id)?)
    }
}

/// What depends on the vocabulary's family, before the tokens are looked at.
struct Family {
    pre: Option<PreTokenizerSpec>,
    pre_assumed: bool,
    default_ids: [Option<u32>; 3],
    add_bos: bool,
    add_space_prefix: bool,
}

impl Family {
    fn of(vocabulary: &Vocabulary) -> Result<Self> {
        match vocabulary.model.as_str() {
            "gpt2" => {
                let pre = PreTokenizerSpec::from_name(vocabulary.pre.as_deref().unwrap_or("default"))?;
                Ok(Self {
                    pre: Some(pre),
                    pre_assumed: vocabulary.pre.is_none(),
                    default_ids: [None; 3],
                    add_bos: pre.add_bos,
                    add_space_prefix: false,
                })
            }
            "llama" => Ok(Self {
                pre: None,
                pre_assumed: false,
                default_ids: [Some(1), Some(2), Some(0)],
                add_bos: true,
                add_space_prefix: true,
            }),
            other => Err(Error::new(
                "tokenizer.unsupported_model",
                format!("The tokenizer model '{other}' isn't supported; gpt2 (BPE) and llama (SentencePiece) are."),
            )
            .with("key", "tokenizer.ggml.model")
            .with("got", other)),
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = if matches!(self.model, Model::Bpe(_)) { "BPE" } else { "SentencePiece" };
        f.debug_struct("Tokenizer").field("model", &model).field("tokens", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// Any `tokenizer.*` code of docs/errors.md that concerns a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self> {
        let family = Family::of(vocabulary)?;
        vocabulary.check()?;
        let within = |id: Option<u32>| id.filter(|&id| vocabulary.contains(id));
        let stated = [vocabulary.ids.bos, vocabulary.ids.eos, vocabulary.ids.unk];
        let [default_bos, default_eos, default_unk] = family.default_ids.map(within);
        let [bos, eos, unk] = stated.map(within);
        let (bos, eos, unk) = (bos.or(default_bos), eos.or(default_eos), unk.or(default_unk));
        let add_bos = vocabulary.add_bos.unwrap_or(family.add_bos);
        let add_eos = vocabulary.add_eos.unwrap_or(false);
        check_added("bos", add_bos, bos)?;
        check_added("eos", add_eos, eos)?;

        let (model, Kinds { attributes, end_of_generation }) = match family.pre {
            Some(pre) => {
                let ids: Vocab = index_tokens(vocabulary)?;
                let kinds = classify(vocabulary, eos, |text| ids.get(text).copied());
                let bpe = Bpe::new(ids, &vocabulary.merges, pre.splitter, pre.ignore_merges)?;
                (Model::Bpe(Box::new(bpe)), kinds)
            }
            None => {
                if vocabulary.scores.is_empty() {
                    return Err(Error::new("tokenizer.no_scores", "A SentencePiece vocabulary needs scores.")
                        .with("key", "tokenizer.ggml.scores"));
                }
                let ids: HashMap<String, u32> = index_tokens(vocabulary)?;
                let kinds = classify(vocabulary, eos, |text| ids.get(text).copied());
                (Model::Spm(Spm::new(ids, &vocabulary.scores, unk)), kinds)
            }
        };
        Ok(Self {
            specials: specials_of(vocabulary, &attributes)?,
            pieces: pieces_of(vocabulary, &attributes, matches!(model, Model::Spm(_)))?,
            control: attributes.iter().map(|a| a.is_control()).collect(),
            model,
            end_of_generation,
            bos,
            eos,
            add_bos,
            add_eos,
            add_space_prefix: vocabulary.add_space_prefix.unwrap_or(family.add_space_prefix),
            pre_assumed: family.pre_assumed,
        })
    }

    /// The ids of `text`. `add_special` adds the start and end tokens that the model wants; with `parse_special`, the
    /// text of a control token becomes that token, otherwise it is text like any other.
    ///
    /// # Errors
    /// `tokenizer.no_byte_token`, `tokenizer.text_too_long`.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<TokenId>> {
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("The text has {} bytes; {MAX_TEXT_BYTES} are allowed.", text.len());
            return Err(Error::new("tokenizer.text_too_long", message)
                .with("expected", format!("at most {MAX_TEXT_BYTES}"))
                .with("got", text.len()));
        }
        let mut out = Vec::new();
        if add_special && self.add_bos {
            out.extend(self.bos);
        }
        let mut after_special = true;
        for fragment in self.specials.partition(text, parse_special) {
            match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                }
                Fragment::Text(range) => {
                    let stretch = text.get(range).unwrap_or_default();
                    match &self.model {
                        Model::Bpe(bpe) => bpe.encode(stretch, &mut out)?,
                        Model::Spm(spm) => {
                            let prefix = if after_special && self.add_space_prefix { spm::SPACE } else { "" };
                            spm.encode(&format!("{prefix}{}", stretch.replace(' ', spm::SPACE)), &mut out)?;
                        }
                    }
                    after_special = false;
                }
            }
        }
        if add_special && self.add_eos {
            out.extend(self.eos);
        }
        Ok(out.into_iter().map(TokenId).collect())
    }

    /// The text of `tokens` from its beginning; control tokens are written only if `special`.
    ///
    /// # Errors
    /// `tokenizer.unknown_token` for an id beyond the vocabulary.
    pub fn decode(&self, tokens: &[TokenId], special: bool) -> Result<String> {
        let mut detokenizer = Detokenizer::from_start(self, special);
        let mut text = String::new();
        for &token in tokens {
            if self.pieces.get(token.0).is_none() {
                return Err(Error::new(
                    "tokenizer.unknown_token",
                    format!("Token {token} isn't in the vocabulary of {} tokens.", self.vocab_size()),
                )
                .with("expected", format!("less than {}", self.vocab_size()))
                .with("got", token.0));
            }
            text.push_str(&detokenizer.push(self, token));
        }
        text.push_str(&detokenizer.flush());
        Ok(text)
    }

    /// The bytes that `token` stands for: none for a control token unless `special`. `None` beyond the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId, special: bool) -> Option<&[u8]> {
        let piece = self.pieces.get(token.0)?;
        Some(if self.is_control(token) && !special { &[] } else { piece })
    }

    /// How many tokens the vocabulary has.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.control.len()
    }

    /// The start token, if the model has one.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos.map(TokenId)
    }

    /// The end-of-text token, if the model has one.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos.map(TokenId)
    }

    /// Whether `encode` with `add_special` puts the start token first.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model's texts begin with a space that isn't part of them.
    #[must_use]
    pub fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix && matches!(self.model, Model::Spm(_))
    }

    /// Whether the file names no pre-tokenizer, so that `default` was taken: worth a warning.
    #[must_use]
    pub fn pre_tokenizer_assumed(&self) -> bool {
        self.pre_assumed
    }

    /// The tokens that end a generation, in ascending order.
    pub fn end_of_generation(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.end_of_generation.iter().copied().map(TokenId)
    }

    /// Whether `token` ends a generation.
    #[must_use]
    pub fn is_end_of_generation(&self, token: TokenId) -> bool {
        self.end_of_generation.contains(&token.0)
    }

    /// Whether `token` is a control (or unknown) token, written only when special tokens are asked for.
    #[must_use]
    pub fn is_control(&self, token: TokenId) -> bool {
        usize::try_from(token.0).ok().and_then(|id| self.control.get(id)).copied().unwrap_or(false)
    }
}

fn check_added(name: &str, add: bool, id: Option<u32>) -> Result<()> {
    if add && id.is_none() {
        return Err(Error::new(
            "tokenizer.no_special_id",
            format!("The file asks for the {name} token to be added but doesn't say which token that is."),
        )
        .with("key", format!("tokenizer.ggml.{name}_token_id")));
    }
    Ok(())
}

/// Ids by text. Empty tokens and such that aren't UTF-8 have no text to be found by.
fn index_tokens<M: Default + Extend<(String, u32)> + Lookup>(vocabulary: &Vocabulary) -> Result<M> {
    let mut ids = M::default();
    for (id, token) in vocabulary.entries() {
        let Some(text) = std::str::from_utf8(token).ok().filter(|text| !text.is_empty()) else { continue };
        if let Some(first) = ids.lookup(text) {
            let message = format!("Tokens {first} and {id} have the same text.");
            return Err(Error::new("tokenizer.duplicate_token", message)
                .with("key", "tokenizer.ggml.tokens")
                .with("first", first)
                .with("second", id));
        }
        ids.extend([(text.to_owned(), id)]);
    }
    Ok(ids)
}

/// The one question that both map types are asked while they are filled.
trait Lookup {
    fn lookup(&self, text: &str) -> Option<u32>;
}

impl Lookup for Vocab {
    fn lookup(&self, text: &str) -> Option<u32> {
        self.get(text).copied()
    }
}

impl Lookup for HashMap<String, u32> {
    fn lookup(&self, text: &str) -> Option<u32> {
        self.get(text).copied()
    }
}

fn specials_of(vocabulary: &Vocabulary, attributes: &[Attributes]) -> Result<Specials> {
    let name = vocabulary.name.as_deref().unwrap_or_default().to_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let special = vocabulary.entries().zip(attributes).filter(|(_, a)| a.is_special());
    let with_text = special.filter_map(|((id, token), attributes)| {
        let text = std::str::from_utf8(token).ok()?.to_owned();
        let strips_right = phi3 && !matches!(text.as_str(), "<unk>" | "<s>" | "<|endoftext|>");
        Some(Special { text, id, always: !attributes.is_control(), strips_right })
    });
    let specials: Vec<Special> = with_text.collect();
    if let Some(Special { text, id, .. }) = specials.iter().find(|s| s.text.len() > MAX_SPECIAL_BYTES) {
        let message = format!("Special token {id} has {} bytes; {MAX_SPECIAL_BYTES} are allowed.", text.len());
        return Err(vocabulary::too_long(message, *id, MAX_SPECIAL_BYTES, text.len()));
    }
    Ok(Specials::new(specials))
}

fn pieces_of(vocabulary: &Vocabulary, attributes: &[Attributes], spm: bool) -> Result<Pieces> {
    let mut pieces = Pieces::default();
    pieces.ends.reserve(vocabulary.tokens.len());
    for ((id, token), attributes) in vocabulary.entries().zip(attributes) {
        // A token that isn't UTF-8 stands for its bytes.
        let normal = std::str::from_utf8(token).ok().filter(|_| attributes.is_normal() && !attributes.is_special());
        match normal {
            Some(text) if spm => pieces.bytes.extend_from_slice(text.replace(spm::SPACE, " ").as_bytes()),
            Some(text) => push_byte_level(text, &mut pieces.bytes),
            None if attributes.is_byte() && !attributes.is_special() => pieces.bytes.push(byte_of(id, token)?),
            None if attributes.is_special() || attributes.is_normal() => pieces.bytes.extend_from_slice(token),
            None => {}
        }
        pieces.ends.push(pieces.bytes.len());
    }
    Ok(pieces)
}

/// Characters outside the byte alphabet (converters' additions) stand for themselves.
fn push_byte_level(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match unicode::char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn byte_of(id: u32, token: &[u8]) -> Result<u8> {
    let text = String::from_utf8_lossy(token);
    let hex = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|hex| hex.len() == 2);
    hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or_else(|| {
        Error::new("tokenizer.bad_byte_token", format!("Token {id} is typed as a byte but isn't written <0xNN>."))
            .with("token", id)
            .with("got", text.chars().take(80).collect::<String>())
    })
}
