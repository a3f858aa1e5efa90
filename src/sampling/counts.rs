//! How often each token stands in a sequence: what the penalties look at. Which tokens are counted is the caller's choice of
//! `new` and `push`.
use std::collections::BTreeMap;

use crate::ids::TokenId;

/// Occurrences by token, in ascending order of tokens. The repetition penalty looks at prompt and output, the presence and
/// frequency penalties at the output alone (as vLLM does). Plain data: cloning it forks it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TokenCounts {
    /// Output occurrences; 0 for a token that only the prompt has.
    output: BTreeMap<TokenId, u32>,
}

impl TokenCounts {
    /// Counts of a sequence that has generated nothing.
    pub fn new(prompt: &[TokenId]) -> Self {
        Self { output: prompt.iter().map(|&t| (t, 0)).collect() }
    }

    /// A token was generated.
    pub fn push(&mut self, token: TokenId) {
        let count = self.output.entry(token).or_default();
        *count = count.saturating_add(1);
    }

    /// (token, occurrences in the output) of every token in prompt or output, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, u32)> + '_ {
        self.output.iter().map(|(&t, &n)| (t, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_and_output_are_told_apart() {
        let mut counts = TokenCounts::new(&[TokenId(5), TokenId(2), TokenId(5)]);
        counts.push(TokenId(5));
        counts.push(TokenId(9));
        counts.push(TokenId(9));
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(TokenId(2), 0), (TokenId(5), 1), (TokenId(9), 2)]);
    }
}
