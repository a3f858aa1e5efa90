//! Streaming detokenization: token bytes in, whole characters out.
use super::Tokenizer;
use crate::ids::TokenId;

/// Turns a stream of tokens into text, piece by piece.
///
/// The pieces joined are the UTF-8 decoding of the tokens' bytes joined: a character that is split over tokens comes
/// out when it is whole, and what can't become one comes out as U+FFFD, one for each maximal ill-formed part, as soon
/// as that is certain (as WHATWG's `TextDecoder` does with `{stream: true}` and `ignoreBOM`). Plain data: clone it to
/// fork a stream, serialize it to resume one.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Detokenizer {
    /// Up to three bytes of a character that isn't whole yet.
    pending: Vec<u8>,
    /// Whether control tokens are written as their text.
    special: bool,
    /// Whether a leading space that the tokenizer put before the text is still to be taken away.
    strip_space: bool,
}

impl Detokenizer {
    /// For text that continues something, such as a generation: nothing is taken away. With `special`, control tokens
    /// are written as their text.
    #[must_use]
    pub fn new(special: bool) -> Self {
        Self { pending: Vec::new(), special, strip_space: false }
    }

    /// For text from its beginning: takes away the space that `tokenizer` puts before a text, if it does.
    #[must_use]
    pub fn from_start(tokenizer: &Tokenizer, special: bool) -> Self {
        Self { pending: Vec::new(), special, strip_space: tokenizer.adds_space_prefix() }
    }

    /// The text that `token` completes; empty for ids beyond the vocabulary (padded models can draw them).
    pub fn push(&mut self, tokenizer: &Tokenizer, token: TokenId) -> String {
        let mut bytes = tokenizer.token_bytes(token, self.special).unwrap_or_default();
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            if !tokenizer.is_control(token) {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.push_bytes(bytes)
    }

    /// The text that `bytes` complete.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        if self.pending.is_empty() {
            return self.decode(bytes);
        }
        let mut joined = std::mem::take(&mut self.pending);
        joined.extend_from_slice(bytes);
        self.decode(&joined)
    }

    fn decode(&mut self, mut bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(rest) => {
                    text.push_str(rest);
                    return text;
                }
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).unwrap_or_default());
            let Some(bad) = error.error_len() else {
                self.pending = rest.to_vec();
                return text;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            bytes = rest.get(bad..).unwrap_or_default();
        }
    }

    /// Ends the stream: U+FFFD if a character was left unfinished, else nothing.
    pub fn flush(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() {
            String::new()
        } else {
            char::REPLACEMENT_CHARACTER.to_string()
        }
    }

    /// Whether bytes are waiting for the rest of their character.
    #[must_use]
    pub fn is_mid_character(&self) -> bool {
        !self.pending.is_empty()
    }
}
