//! A set of allowed tokens, as a grammar gives it. Which tokens those are is the grammar's.
use crate::ids::TokenId;

/// One bit a token, 32 a word, lowest bit first: set means allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab: usize,
}

impl TokenMask {
    /// Allows nothing yet.
    pub fn none(vocab: usize) -> Self {
        Self { words: vec![0; vocab.div_ceil(32)], vocab }
    }

    /// Allows a token; one outside the vocabulary changes nothing.
    pub fn allow(&mut self, token: TokenId) {
        let i = token.0 as usize;
        if i < self.vocab {
            self.words[i / 32] |= 1 << (i % 32);
        }
    }

    /// Whether the token may be sampled.
    pub fn allows(&self, token: TokenId) -> bool {
        let i = token.0 as usize;
        i < self.vocab && self.words[i / 32] >> (i % 32) & 1 == 1
    }

    /// The words, for a device.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// V.
    pub fn vocab(&self) -> usize {
        self.vocab
    }
}
