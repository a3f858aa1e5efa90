//! SentencePiece BPE as GGUF's `llama` vocabularies have it: adjacent symbols are merged whenever their text together
//! is a token, best score first, and what is left over goes out as bytes.
//!
//! It can't be had from rank-based BPE: tokens share scores, and then the leftmost pair wins whichever token it makes.
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::{Error, Result};

/// U+2581, which stands for a space in these vocabularies.
pub(super) const SPACE: &str = "\u{2581}";

/// The vocabulary of a SentencePiece BPE model.
#[derive(Debug, Clone)]
pub(super) struct Spm {
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    byte_ids: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
    longest: usize,
}

/// A stretch of text, linked to its neighbours; `len` is 0 once merged into the one on its left.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    previous: Option<u32>,
    next: Option<u32>,
    start: usize,
    len: usize,
}

/// Two neighbours that can be merged. Stale when their lengths no longer add up.
#[derive(Debug, Clone, Copy)]
struct Bigram {
    score: f32,
    left: u32,
    right: u32,
    len: usize,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(other.len.cmp(&self.len))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

impl Spm {
    /// `ids` by text, `scores` by id; `scores` must be as long as the vocabulary and free of NaN.
    pub fn new(ids: HashMap<String, u32>, scores: &[f32], unk: Option<u32>) -> Self {
        let mut byte_ids = Box::new([None; 256]);
        for (byte, id) in (0u8..=255).zip(byte_ids.iter_mut()) {
            let raw = [byte];
            let plain = std::str::from_utf8(&raw).ok();
            *id = ids.get(&format!("<0x{byte:02X}>")).or_else(|| ids.get(plain?)).copied();
        }
        let longest = ids.keys().map(String::len).max().unwrap_or(0);
        // Adding zero makes -0 and 0 one score.
        Self { ids, scores: scores.iter().map(|s| s + 0.0).collect(), byte_ids, unk, longest }
    }

    /// Appends the ids of `text` (in which spaces are already [`SPACE`]).
    ///
    /// # Errors
    /// `tokenizer.no_byte_token` for a byte that has no token, in a vocabulary without an unknown token.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut symbols = symbols_of(text)?;
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            self.offer(text, &symbols, u32::try_from(right - 1).ok(), u32::try_from(right).ok(), &mut queue);
        }
        while let Some(best) = queue.pop() {
            let (Some(left), Some(right)) = (get(&symbols, best.left), get(&symbols, best.right)) else { continue };
            if left.len == 0 || right.len == 0 || left.len + right.len != best.len {
                continue;
            }
            if let Some(symbol) = get_mut(&mut symbols, best.left) {
                symbol.len = best.len;
                symbol.next = right.next;
            }
            if let Some(symbol) = get_mut(&mut symbols, best.right) {
                symbol.len = 0;
            }
            if let Some(symbol) = right.next.and_then(|at| get_mut(&mut symbols, at)) {
                symbol.previous = Some(best.left);
            }
            self.offer(text, &symbols, left.previous, Some(best.left), &mut queue);
            self.offer(text, &symbols, Some(best.left), right.next, &mut queue);
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            self.emit(&text[symbol.start..symbol.start + symbol.len], out)?;
        }
        Ok(())
    }

    fn offer(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<u32>,
        right: Option<u32>,
        queue: &mut BinaryHeap<Bigram>,
    ) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (Some(a), Some(b)) = (get(symbols, left), get(symbols, right)) else { return };
        let len = a.len + b.len;
        if len > self.longest {
            return;
        }
        let Some(id) = self.ids.get(&text[a.start..a.start + len]) else { return };
        if let Some(&score) = usize::try_from(*id).ok().and_then(|id| self.scores.get(id)) {
            queue.push(Bigram { score, left, right, len });
        }
    }

    fn emit(&self, piece: &str, out: &mut Vec<u32>) -> Result<()> {
        if let Some(&id) = self.ids.get(piece) {
            out.push(id);
            return Ok(());
        }
        for byte in piece.bytes() {
            let id = self.byte_ids[usize::from(byte)].or(self.unk);
            out.push(id.ok_or_else(|| {
                Error::new(
                    "tokenizer.no_byte_token",
                    format!("The vocabulary has no token for the byte {byte:#04x} and no unknown token."),
                )
                .with("byte", byte)
            })?);
        }
        Ok(())
    }
}

fn symbols_of(text: &str) -> Result<Vec<Symbol>> {
    if u32::try_from(text.len()).is_err() {
        return Err(Error::new("tokenizer.text_too_long", "The text is longer than 4 GiB.").with("got", text.len()));
    }
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut previous = None;
    for (at, (start, c)) in (0u32..).zip(text.char_indices()) {
        symbols.push(Symbol { previous, next: Some(at + 1), start, len: c.len_utf8() });
        previous = Some(at);
    }
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    Ok(symbols)
}

fn get(symbols: &[Symbol], at: u32) -> Option<Symbol> {
    symbols.get(usize::try_from(at).ok()?).copied()
}

fn get_mut(symbols: &mut [Symbol], at: u32) -> Option<&mut Symbol> {
    symbols.get_mut(usize::try_from(at).ok()?)
}
