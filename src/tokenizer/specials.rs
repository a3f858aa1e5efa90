//! Special tokens in text: cuts a text into special tokens and the plain stretches between them.
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
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

/// Longest text of a special token, in bytes; published ones have up to a hundred. Looking for them takes that many steps a
/// byte at worst.
pub(super) const MAX_SPECIAL_BYTES: usize = 256;

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
    ///
    /// Tokens of one length are looked for together, the longest first, so that a vocabulary of very many that all occur
    /// costs a pass over the text for each length, not for each token.
    pub fn partition(&self, text: &str, parse_special: bool) -> Vec<Fragment> {
        let mut by_length: BTreeMap<Reverse<usize>, Vec<usize>> = BTreeMap::new();
        for (at, occurs) in self.occurring(text).into_iter().enumerate() {
            if occurs && (parse_special || self.ranked[at].always) {
                by_length.entry(Reverse(self.ranked[at].text.len())).or_default().push(at);
            }
        }
        let mut cuts = Cuts { text, taken: vec![false; text.len()], found: Vec::new() };
        for (Reverse(length), ranks) in by_length {
            let ranks: HashMap<&[u8], usize> = ranks.iter().map(|&at| (self.ranked[at].text.as_bytes(), at)).collect();
            let windows = text.as_bytes().windows(length).enumerate();
            let mut places: Vec<(usize, usize)> = windows
                .filter(|&(start, _)| !cuts.taken[start])
                .filter_map(|(start, window)| Some((*ranks.get(window)?, start)))
                .collect();
            places.sort_unstable();
            places.into_iter().for_each(|(at, start)| cuts.take(&self.ranked[at], start));
        }
        cuts.fragments()
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

/// A text with the tokens found in it so far.
struct Cuts<'t> {
    text: &'t str,
    /// Bytes that belong to a token, or were swallowed by one.
    taken: Vec<bool>,
    /// Start, end with what was swallowed, and id of each.
    found: Vec<(usize, usize, u32)>,
}

impl Cuts<'_> {
    /// Takes `special` at `start` if that is still plain text. What was taken before is at least as long, so it holds one of
    /// the ends of whatever it touches.
    fn take(&mut self, special: &Special, start: usize) {
        let mut end = start + special.text.len();
        if self.taken[start] || self.taken[end - 1] {
            return;
        }
        if special.strips_right {
            let is_space = |b: u8| matches!(b, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r');
            let rest = self.text.as_bytes()[end..].iter().zip(&self.taken[end..]);
            end += rest.take_while(|&(&byte, &taken)| is_space(byte) && !taken).count();
        }
        self.taken[start..end].fill(true);
        self.found.push((start, end, special.id));
    }

    fn fragments(mut self) -> Vec<Fragment> {
        self.found.sort_unstable();
        let mut fragments = Vec::with_capacity(2 * self.found.len() + 1);
        let mut from = 0;
        for (start, end, id) in self.found {
            if from < start {
                fragments.push(Fragment::Text(from..start));
            }
            fragments.push(Fragment::Token(id));
            from = end;
        }
        if from < self.text.len() {
            fragments.push(Fragment::Text(from..self.text.len()));
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn specials(texts: &[&str]) -> Specials {
        let list = texts.iter().zip(0u32..);
        Specials::new(
            list.map(|(t, id)| Special { text: (*t).into(), id, always: id % 2 == 0, strips_right: id % 3 == 2 })
                .collect(),
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

    /// One token taken out of one stretch, leftmost first.
    fn cut(special: &Special, text: &str, range: Range<usize>, out: &mut Vec<Fragment>) {
        let mut start = range.start;
        while let Some(found) = text[start..range.end].find(&special.text) {
            let at = start + found;
            if start < at {
                out.push(Fragment::Text(start..at));
            }
            out.push(Fragment::Token(special.id));
            start = at + special.text.len();
            if special.strips_right {
                let stripped = text[start..range.end].trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
                start = range.end - stripped.len();
            }
        }
        if start < range.end {
            out.push(Fragment::Text(start..range.end));
        }
    }

    /// The definition: every token in rank order searched in every stretch that is left.
    fn by_definition(set: &Specials, text: &str, parse_special: bool) -> Vec<Fragment> {
        let mut fragments = if text.is_empty() { vec![] } else { vec![Fragment::Text(0..text.len())] };
        for special in set.ranked.iter().filter(|s| parse_special || s.always) {
            let mut next = Vec::new();
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => cut(special, text, range, &mut next),
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
