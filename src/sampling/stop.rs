//! Stop strings over streamed text: what may be shown, what must be held back, where to cut. Deciding that the sequence
//! ends is the caller's.
use std::sync::Arc;

/// Finds the first of a few stop strings in text that comes in pieces.
///
/// The match is the one that completes first, as if the text came byte by byte; of those that complete on the same byte the
/// longest wins. So the outcome does not depend on how the text is cut into pieces. Time is linear in the text for each
/// stop string (Knuth, Morris and Pratt's automaton). Plain data: cloning it forks the stream.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Arc<[Pattern]>,
    /// How many bytes of each pattern the text so far ends with.
    matched: Vec<usize>,
    /// Text not yet emitted: the longest end of the text that begins a stop string.
    held: String,
    found: Option<usize>,
}

#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[i]`: the longest proper prefix of the pattern that is a suffix of its first `i + 1` bytes.
    fallback: Vec<usize>,
}

/// What a piece of text led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is now certain to be shown.
    pub emit: String,
    /// The stop string (by its place in the request) that ended the text; its own text is never emitted.
    pub matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher at the start of a text. An empty stop string never matches.
    pub fn new(stops: &[String]) -> Self {
        let patterns: Arc<[Pattern]> = stops.iter().map(|s| Pattern::new(s)).collect();
        Self { matched: vec![0; patterns.len()], patterns, held: String::new(), found: None }
    }

    /// Takes the next piece. After a match all further text is ignored.
    pub fn push(&mut self, delta: &str) -> StopStep {
        if self.found.is_some() {
            return StopStep { emit: String::new(), matched: self.found };
        }
        let start = self.held.len();
        self.held.push_str(delta);
        for (i, byte) in delta.bytes().enumerate() {
            let mut best: Option<(usize, usize)> = None;
            for (p, (pattern, state)) in self.patterns.iter().zip(&mut self.matched).enumerate() {
                *state = pattern.step(*state, byte);
                let len = pattern.bytes.len();
                if len > 0 && *state == len && best.is_none_or(|(_, longest)| len > longest) {
                    best = Some((p, len));
                }
            }
            if let Some((p, len)) = best {
                self.found = Some(p);
                // All of the match is in `held`: its head was held back as a prefix of this very pattern.
                self.held.truncate((start + i + 1).saturating_sub(len));
                return StopStep { emit: std::mem::take(&mut self.held), matched: self.found };
            }
        }
        // A stop string starts on a character boundary, and so does every occurrence of its prefix.
        let keep = self.matched.iter().copied().max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        StopStep { emit: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The text ended without a match: hands over what was held back.
    pub fn flush(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }

    /// The stop string that ended the text, if one did.
    pub fn matched(&self) -> Option<usize> {
        self.found
    }

    /// Bytes held back now.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut pattern = Self { fallback: Vec::with_capacity(bytes.len()), bytes };
        let mut k = 0;
        for i in 0..pattern.bytes.len() {
            if i > 0 {
                k = pattern.step(k, pattern.bytes[i]);
            }
            pattern.fallback.push(k);
        }
        pattern
    }

    /// The longest prefix that ends the text once `byte` follows a text that ends with the first `state` bytes.
    fn step(&self, mut state: usize, byte: u8) -> usize {
        loop {
            if self.bytes.get(state) == Some(&byte) {
                return state + 1;
            }
            if state == 0 {
                return 0;
            }
            state = self.fallback[state - 1];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            text.push_str(&step.emit);
        }
        text.push_str(&matcher.flush());
        (text, matcher.matched())
    }

    #[test]
    fn examples() {
        assert_eq!(stream(&[], &["ab", "c"]), ("abc".into(), None));
        assert_eq!(stream(&["\n\n"], &["a\n", "\nb"]), ("a".into(), Some(0)));
        assert_eq!(stream(&["stop"], &["a st", "o", "ny st", "op", "x"]), ("a stony ".into(), Some(0)));
        assert_eq!(stream(&["aab"], &["a", "a", "a", "a", "b"]), ("aa".into(), Some(0)));
        assert_eq!(stream(&["bc", "abcd", "abc"], &["xabcd"]), ("x".into(), Some(2)), "same byte: the longest");
        assert_eq!(stream(&["é!"], &["caf", "é", "é", "!"]), ("café".into(), Some(0)));
        assert_eq!(stream(&["END"], &["the EN"]), ("the EN".into(), None), "held text is handed over");
    }

    #[test]
    fn only_what_may_become_a_stop_is_held() {
        let mut matcher = StopMatcher::new(&["hello".into(), "loud".into()]);
        assert_eq!(matcher.push("say hel").emit, "say ");
        assert_eq!(matcher.push("l").emit, "");
        let step = matcher.push("p lo");
        assert_eq!((step.emit.as_str(), matcher.held_bytes()), ("hellp ", 2));
        let step = matcher.push("ud and more");
        assert_eq!(step, StopStep { emit: String::new(), matched: Some(1) });
        assert_eq!(matcher.push("more"), StopStep { emit: String::new(), matched: Some(1) });
        assert_eq!(matcher.flush(), "");
    }

    /// The first byte position at which any stop string ends, then the longest of them, the first listed of equals.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let ending = |s: &String| text.as_bytes()[..end].ends_with(s.as_bytes());
            let longest = stops.iter().filter(|s| ending(s)).map(String::len).max();
            if let Some(len) = longest {
                let which = stops.iter().position(|s| s.len() == len && ending(s));
                return (text[..end - len].to_string(), which);
            }
        }
        (text.to_string(), None)
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_naive_answer(
            stops in prop::collection::vec("[abé🙂]{1,4}", 0..5),
            pieces in prop::collection::vec("[abé🙂]{0,5}", 0..12),
        ) {
            let text = pieces.concat();
            let mut matcher = StopMatcher::new(&stops);
            let mut shown = String::new();
            for piece in &pieces {
                shown.push_str(&matcher.push(piece).emit);
                if matcher.matched().is_none() {
                    let seen = &text[..shown.len() + matcher.held_bytes()];
                    let holdable = (0..=seen.len()).filter(|&k| stops.iter().any(|s| s.len() > k && seen.as_bytes().ends_with(&s.as_bytes()[..k])));
                    prop_assert_eq!(matcher.held_bytes(), holdable.max().unwrap_or(0), "no more and no less is held");
                }
            }
            shown.push_str(&matcher.flush());
            prop_assert_eq!((shown, matcher.matched()), naive(&stops, &text));
        }
    }
}
