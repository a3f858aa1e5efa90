//! Special tokens in text: cuts a text into special tokens and the plain stretches between them.
use std::ops::Range;

/// A token that is matched as a whole before anything else.
#[derive(Debug, Clone)]
pub(super) struct Special {
    pub text: String,
    pub id: u32,
    /// Matched even when special parsing is off (user-defined tokens).
    pub always: bool,
    /// Swallows the whitespace that follows it.
    pub strips_right: bool,
}

/// A stretch of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

/// All special tokens of a vocabulary.
///
/// Longer tokens win over shorter ones anywhere in the text, and ties go to the lower id: a token is looked for in
/// what the longer ones left. That differs from leftmost-longest matching where tokens overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct Specials {
    /// Longest first.
    ranked: Vec<Special>,
    /// Indices into `ranked`, sorted by text.
    lexical: Vec<usize>,
}

impl Specials {
    pub fn new(mut specials: Vec<Special>) -> Self {
        specials.retain(|s| !s.text.is_empty());
        specials.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        let mut lexical: Vec<usize> = (0..specials.len()).collect();
        lexical.sort_by(|&a, &b| specials[a].text.cmp(&specials[b].text));
        Self { ranked: specials, lexical }
    }

    /// Cuts `text`; control and unknown tokens match only if `parse_special`.
    pub fn partition(&self, text: &str, parse_special: bool) -> Vec<Fragment> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for (special, occurs) in self.ranked.iter().zip(self.occurring(text)) {
            if occurs && (parse_special || special.always) {
                fragments = fragments.into_iter().fold(Vec::new(), |mut out, fragment| {
                    match fragment {
                        Fragment::Text(range) => special.cut(text, range, &mut out),
                        token => out.push(token),
                    }
                    out
                });
            }
        }
        fragments
    }

    /// Which of `ranked` occur in `text` at all: one walk, so that thousands of tokens cost no search each.
    fn occurring(&self, text: &str) -> Vec<bool> {
        let mut found = vec![false; self.ranked.len()];
        let first = self.first_bytes();
        let bytes = text.as_bytes();
        for (start, &byte) in bytes.iter().enumerate() {
            // The tokens that begin with what was read so far are neighbours in lexical order.
            let mut candidates = first[usize::from(byte)].clone();
            let mut depth = 1;
            while !candidates.is_empty() {
                let window = &self.lexical[candidates.clone()];
                if let Some(&shortest) = window.first().filter(|&&at| self.ranked[at].text.len() == depth) {
                    found[shortest] = true;
                    candidates.start += 1;
                    continue;
                }
                let Some(&next) = bytes.get(start + depth) else { break };
                let low = window.partition_point(|&at| self.ranked[at].text.as_bytes()[depth] < next);
                let high = window.partition_point(|&at| self.ranked[at].text.as_bytes()[depth] <= next);
                candidates = candidates.start + low..candidates.start + high;
                depth += 1;
            }
        }
        found
    }

    /// For each first byte, where the tokens that begin with it lie in `lexical`.
    fn first_bytes(&self) -> Vec<Range<usize>> {
        let mut first = vec![0..0; 256];
        for (position, &at) in self.lexical.iter().enumerate() {
            let range: &mut Range<usize> = &mut first[usize::from(self.ranked[at].text.as_bytes()[0])];
            if range.end == 0 {
                range.start = position;
            }
            range.end = position + 1;
        }
        first
    }
}

impl Special {
    fn cut(&self, text: &str, range: Range<usize>, out: &mut Vec<Fragment>) {
        let mut start = range.start;
        while let Some(found) = text[start..range.end].find(&self.text) {
            let at = start + found;
            if start < at {
                out.push(Fragment::Text(start..at));
            }
            out.push(Fragment::Token(self.id));
            start = at + self.text.len();
            if self.strips_right {
                let is_space = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r');
                start += text.as_bytes()[start..range.end].iter().take_while(|b| is_space(b)).count();
            }
        }
        if start < range.end {
            out.push(Fragment::Text(start..range.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn specials(texts: &[&str]) -> Specials {
        let list = texts.iter().zip(0u32..);
        Specials::new(
            list.map(|(t, id)| Special { text: (*t).into(), id, always: id % 2 == 0, strips_right: false }).collect(),
        )
    }

    #[test]
    fn longer_tokens_win_even_when_they_begin_later() {
        let set = specials(&["ab", "bcd"]);
        assert_eq!(set.partition("xabcd", true), [Fragment::Text(0..2), Fragment::Token(1)]);
        assert_eq!(set.partition("abab", true), [Fragment::Token(0), Fragment::Token(0)]);
        assert_eq!(set.partition("abcd", false), [Fragment::Token(0), Fragment::Text(2..4)]);
        assert_eq!(set.partition("", true), []);
    }

    #[test]
    fn a_stripping_token_swallows_the_whitespace_after_it() {
        let set = Specials::new(vec![Special { text: "<e>".into(), id: 7, always: false, strips_right: true }]);
        assert_eq!(
            set.partition("<e> \n x<e>\t", true),
            [Fragment::Token(7), Fragment::Text(6..7), Fragment::Token(7)]
        );
    }

    /// The definition: every token in rank order searched in every stretch that is left.
    fn by_definition(set: &Specials, text: &str, parse_special: bool) -> Vec<Fragment> {
        let mut fragments = if text.is_empty() { vec![] } else { vec![Fragment::Text(0..text.len())] };
        for special in set.ranked.iter().filter(|s| parse_special || s.always) {
            let mut next = Vec::new();
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => special.cut(text, range, &mut next),
                    token => next.push(token),
                }
            }
            fragments = next;
        }
        fragments
    }

    proptest! {
        #[test]
        fn the_walk_misses_no_token(texts in proptest::collection::btree_set("[ab é]{1,4}", 0..9), text in "[ab é]{0,24}", parse: bool) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let set = specials(&texts);
            prop_assert_eq!(set.partition(&text, parse), by_definition(&set, &text, parse));
        }
    }
}
