//! Byte-level BPE: words cut by the pre-tokenizer, their bytes as GPT-2's characters, merged by `tokenizers`.
use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::pretokenize::PreTokenizer;
use super::unicode::byte_to_char;
use crate::gguf::StrArray;
use crate::{Error, Result};

/// The merge model and how words are cut for it.
pub(super) struct Bpe {
    model: BPE,
    splitter: PreTokenizer,
    /// Bytes whose character is a token. Vocabularies may lack bytes that never occur in UTF-8 (and some that do).
    known: Box<[bool; 256]>,
}

impl Bpe {
    /// Builds the model.
    ///
    /// # Errors
    /// `tokenizer.no_merges`, `tokenizer.bad_merge`.
    pub fn new(ids: Vocab, merges: &StrArray, splitter: PreTokenizer, ignore_merges: bool) -> Result<Self> {
        if merges.is_empty() {
            return Err(Error::new("tokenizer.no_merges", "The vocabulary is BPE but the file holds no merges.")
                .with("key", "tokenizer.ggml.merges"));
        }
        let longest = ids.keys().map(String::len).max().unwrap_or(0);
        let merges = parse_merges(merges, longest)?;
        let mut known = Box::new([false; 256]);
        let mut buffer = [0; 4];
        for (byte, known) in (0u8..=255).zip(known.iter_mut()) {
            *known = ids.contains_key(&*byte_to_char(byte).encode_utf8(&mut buffer));
        }
        // No cache: the crate's is thread-local and outlives the tokenizer.
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(ignore_merges)
            .cache_capacity(0)
            .build()
            .map_err(|error| {
                Error::new("tokenizer.bad_merge", format!("A merge uses or makes a token that isn't there ({error})."))
                    .with("key", "tokenizer.ggml.merges")
            })?;
        Ok(Self { model, splitter, known })
    }

    /// Appends the ids of `text`. Bytes without a token are left out.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut mapped = String::new();
        let mut result = Ok(());
        self.splitter.split(text, &mut |word| {
            if result.is_ok() {
                result = self.encode_word(word, &mut mapped, out);
            }
        });
        result
    }

    fn encode_word(&self, word: &str, mapped: &mut String, out: &mut Vec<u32>) -> Result<()> {
        // A byte without a token keeps its neighbours apart: they must not be merged across it.
        for stretch in word.as_bytes().split(|&b| !self.known[usize::from(b)]) {
            if stretch.is_empty() {
                continue;
            }
            mapped.clear();
            mapped.extend(stretch.iter().map(|&b| byte_to_char(b)));
            let tokens = self.model.tokenize(mapped).map_err(|error| {
                Error::new("tokenizer.encode_failed", format!("A word could not be tokenized ({error})."))
            })?;
            out.extend(tokens.iter().map(|t| t.id));
        }
        Ok(())
    }
}

/// Splits `left right` lines; of a pair that is listed twice the first counts.
fn parse_merges(lines: &StrArray, longest: usize) -> Result<Merges> {
    let mut seen = HashSet::with_capacity(lines.len());
    let mut merges = Merges::with_capacity(lines.len());
    for (rank, line) in lines.iter().enumerate() {
        // The builder copies each merge's result into a buffer as long as the longest token.
        let pair = split_merge(line).filter(|(left, right)| left.len() + right.len() <= longest);
        let Some((left, right)) = pair else {
            return Err(Error::new("tokenizer.bad_merge", format!("Merge {rank} isn't a pair that makes a token."))
                .with("key", "tokenizer.ggml.merges")
                .with("merge", rank)
                .with("got", String::from_utf8_lossy(line).chars().take(80).collect::<String>()));
        };
        if seen.insert(line) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}

/// The two parts; the left one may itself begin with a space.
fn split_merge(line: &[u8]) -> Option<(&str, &str)> {
    let line = std::str::from_utf8(line).ok()?;
    let first = line.chars().next()?.len_utf8();
    let space = first + line.get(first..)?.find(' ')?;
    let right = line.get(space + 1..).filter(|right| !right.is_empty())?;
    Some((line.get(..space)?, right))
}
