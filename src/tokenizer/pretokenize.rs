//! The pre-tokenizers: how text is cut into the words that byte-pair merging never crosses.
//!
//! Each is published as a regular expression. They are written here as scanners over character classes: one pass, no
//! backtracking (the published `\s+(?!\S)` costs a state a character in a backtracking engine), no regex tables in wasm.
use super::unicode::{Class, class, is_punctuation};
use crate::{Error, Result};

/// A way to cut text into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every `\p{N}` alone, then [`PreTokenizer::Gpt2`] on what lies between.
    Digits,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Cl100k {
        /// `n` above: the most digits in a word.
        max_digits: usize,
    },
    /// Runs of `[\p{P}$+<=>^~|]`, then [`PreTokenizer::Gpt2`], then runs of `\p{N}`, then `[0-9][0-9][0-9]`, each on
    /// the pieces of the one before.
    Default,
}

/// What a pre-tokenizer's name says of the vocabulary besides how it splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreTokenizerSpec {
    pub splitter: PreTokenizer,
    /// A word that is a token as a whole is that token, whatever the merges would make of it.
    pub ignore_merges: bool,
    /// Whether the start token is added when the file doesn't say.
    pub add_bos: bool,
}

const LLAMA3: PreTokenizer = PreTokenizer::Cl100k { max_digits: 3 };
const QWEN2: PreTokenizer = PreTokenizer::Cl100k { max_digits: 1 };

impl PreTokenizerSpec {
    /// The meaning of a `tokenizer.ggml.pre` value.
    ///
    /// # Errors
    /// `tokenizer.unknown_pre` for a name we don't know: a wrong split gives wrong ids in silence.
    pub fn from_name(name: &str) -> Result<Self> {
        let plain = |splitter| Self { splitter, ignore_merges: false, add_bos: false };
        Ok(match name {
            "default" => plain(PreTokenizer::Default),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" | "gigachat"
            | "mellum" | "a.x-4.0" => plain(PreTokenizer::Gpt2),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
                plain(PreTokenizer::Digits)
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
                Self { splitter: LLAMA3, ignore_merges: true, add_bos: true }
            }
            "dbrx" | "smaug-bpe" => plain(LLAMA3),
            "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "solar-open" | "grok-2" | "kormo" => {
                plain(QWEN2)
            }
            _ => {
                return Err(Error::new(
                    "tokenizer.unknown_pre",
                    format!(
                        "The pre-tokenizer '{name}' isn't one this engine knows; guessing would give wrong tokens."
                    ),
                )
                .with("key", "tokenizer.ggml.pre")
                .with("got", name));
            }
        })
    }
}

impl PreTokenizer {
    /// Calls `word` with each word of `text`, in order; together they are `text`.
    pub fn split<'t>(self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        match self {
            Self::Gpt2 => split_with(text, gpt2_word, word),
            Self::Cl100k { max_digits } => split_with(text, |rest| cl100k_word(rest, max_digits), word),
            Self::Digits => split_runs(text, is_number, Some(1), &mut |piece, matched| {
                if matched { word(piece) } else { split_with(piece, gpt2_word, word) }
            }),
            Self::Default => split_default(text, word),
        }
    }
}

fn is_number(c: char) -> bool {
    class(c) == Class::Number
}

/// Repeats `next` (the byte length of the first word, at least one character) until the text is used up.
fn split_with<'t>(text: &'t str, next: impl Fn(&str) -> usize, word: &mut impl FnMut(&'t str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(next(rest));
        word(head);
        rest = tail;
    }
}

/// Cuts `text` into runs of characters that satisfy `wanted` (at most `longest` characters each, if given) and what
/// lies between them.
fn split_runs<'t>(
    text: &'t str,
    wanted: impl Fn(char) -> bool,
    longest: Option<usize>,
    piece: &mut impl FnMut(&'t str, bool),
) {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let matched = wanted(first);
        let limit = if matched { longest.unwrap_or(usize::MAX) } else { usize::MAX };
        let end = run(rest, limit, |c| wanted(c) == matched);
        let (head, tail) = rest.split_at(end);
        piece(head, matched);
        rest = tail;
    }
}

fn split_default<'t>(text: &'t str, word: &mut impl FnMut(&'t str)) {
    let separates = |c: char| is_punctuation(c) || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|');
    split_runs(text, separates, None, &mut |piece, matched| {
        // Punctuation runs hold neither letters nor numbers nor spaces: the later stages leave them whole.
        if matched {
            word(piece);
            return;
        }
        split_with(piece, gpt2_word, &mut |piece| {
            split_runs(piece, is_number, None, &mut |piece, matched| {
                if matched { split_triples(piece, word) } else { word(piece) }
            });
        });
    });
}

/// Cuts a run of numbers at each leftmost three ASCII digits.
fn split_triples<'t>(text: &'t str, word: &mut impl FnMut(&'t str)) {
    let bytes = text.as_bytes();
    let (mut start, mut at) = (0, 0);
    while at + 3 <= bytes.len() {
        if bytes[at..at + 3].iter().all(u8::is_ascii_digit) {
            if start < at {
                word(&text[start..at]);
            }
            word(&text[at..at + 3]);
            at += 3;
            start = at;
        } else {
            at += 1;
        }
    }
    if start < text.len() {
        word(&text[start..]);
    }
}

/// Bytes of the leading run of at most `limit` characters that satisfy `wanted`.
fn run(text: &str, limit: usize, wanted: impl Fn(char) -> bool) -> usize {
    let mut end = 0;
    for c in text.chars().take(limit) {
        if !wanted(c) {
            break;
        }
        end += c.len_utf8();
    }
    end
}

fn class_run(text: &str, wanted: Class) -> usize {
    run(text, usize::MAX, |c| class(c) == wanted)
}

/// Bytes of a leading English contraction, or 0.
fn contraction(text: &str, any_case: bool) -> usize {
    let Some(after) = text.strip_prefix('\'') else { return 0 };
    let after = after.as_bytes();
    let begins = |suffix: &[u8]| match after.get(..suffix.len()) {
        Some(head) if any_case => head.eq_ignore_ascii_case(suffix),
        Some(head) => head == suffix,
        None => false,
    };
    [&b"s"[..], b"t", b"re", b"ve", b"m", b"ll", b"d"].iter().find(|s| begins(s)).map_or(0, |s| 1 + s.len())
}

/// Bytes of leading whitespace that form one word: all of it at the end of the text, all but the last character
/// before anything else (that one may join the word that follows), never less than one character.
fn whitespace_word(text: &str) -> usize {
    let end = class_run(text, Class::Space);
    if end == text.len() {
        return end;
    }
    let last = text[..end].char_indices().next_back().map_or(0, |(at, _)| at);
    if last == 0 { end } else { last }
}

fn gpt2_word(rest: &str) -> usize {
    let short = contraction(rest, false);
    if short > 0 {
        return short;
    }
    let body = rest.strip_prefix(' ').unwrap_or(rest);
    match body.chars().next().map(class) {
        None | Some(Class::Space) => whitespace_word(rest),
        Some(kind) => rest.len() - body.len() + class_run(body, kind),
    }
}

fn cl100k_word(rest: &str, max_digits: usize) -> usize {
    let short = contraction(rest, true);
    if short > 0 {
        return short;
    }
    let mut chars = rest.chars();
    let Some(first) = chars.next() else { return 0 };
    let kind = class(first);
    let second = chars.next().map(class);
    if kind == Class::Letter {
        return class_run(rest, Class::Letter);
    }
    if kind == Class::Number {
        return run(rest, max_digits, is_number);
    }
    if second == Some(Class::Letter) && first != '\r' && first != '\n' {
        return first.len_utf8() + class_run(&rest[first.len_utf8()..], Class::Letter);
    }
    if kind == Class::Other || (first == ' ' && second == Some(Class::Other)) {
        let lead = usize::from(first == ' ');
        let end = lead + class_run(&rest[lead..], Class::Other);
        return end + run(&rest[end..], usize::MAX, |c| c == '\r' || c == '\n');
    }
    let spaces = &rest[..class_run(rest, Class::Space)];
    match spaces.rfind(['\r', '\n']) {
        Some(newline) => newline + 1,
        None => whitespace_word(rest),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;
    use tokenizers::tokenizer::pattern::Pattern;
    use tokenizers::utils::SysRegex;

    fn words(splitter: PreTokenizer, text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        splitter.split(text, &mut |w| out.push(w));
        out
    }

    #[test]
    fn gpt2_keeps_one_space_for_the_next_word() {
        assert_eq!(
            words(PreTokenizer::Gpt2, "it's  a 42nd\n\n test!? "),
            ["it", "'s", " ", " a", " 42", "nd", "\n\n", " test", "!?", " "]
        );
        assert_eq!(words(PreTokenizer::Gpt2, "I'LL we'll"), ["I", "'", "LL", " we", "'ll"]);
    }

    #[test]
    fn digits_stand_alone_and_end_the_whitespace_before_them() {
        assert_eq!(words(PreTokenizer::Digits, "a  12 x"), ["a", "  ", "1", "2", " x"]);
        assert_eq!(words(PreTokenizer::Digits, "a  x"), ["a", " ", " x"]);
    }

    #[test]
    fn cl100k_takes_a_leading_symbol_newlines_and_three_digits() {
        assert_eq!(
            words(LLAMA3, "We'LL(go) 12345 \n\n  x!\r\n"),
            ["We", "'LL", "(go", ")", " ", "123", "45", " \n\n", " ", " x", "!\r\n"]
        );
        assert_eq!(words(QWEN2, "12 3"), ["1", "2", " ", "3"]);
        assert_eq!(words(LLAMA3, "\n\ta"), ["\n", "\ta"]);
    }

    #[test]
    fn default_splits_in_four_stages() {
        assert_eq!(words(PreTokenizer::Default, "x= 12345, a`b"), ["x", "=", " ", "123", "45", ",", " a", "`", "b"]);
        assert_eq!(words(PreTokenizer::Default, "1٣234567"), ["1٣", "234", "567"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_names_it() {
        let error = PreTokenizerSpec::from_name("no-such").unwrap_err();
        assert_eq!(error.code, "tokenizer.unknown_pre");
        assert!(error.message.contains("no-such"));
    }

    /// The published expressions, for a backtracking engine.
    struct Published {
        gpt2: SysRegex,
        llama3: SysRegex,
        qwen2: SysRegex,
        number: SysRegex,
        default: [SysRegex; 4],
    }

    static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
        let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        let llama3 = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let compile = |pattern: &str| SysRegex::new(pattern).unwrap();
        Published {
            gpt2: compile(gpt2),
            llama3: compile(llama3),
            qwen2: compile(&llama3.replace("{1,3}", "")),
            number: compile(r"\p{N}"),
            default: [r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", "[0-9][0-9][0-9]"].map(compile),
        }
    });

    /// Matches and what lies between them.
    fn pieces(regex: &SysRegex, text: &str) -> Vec<String> {
        let found = regex.find_matches(text).unwrap().into_iter();
        found.map(|((from, to), _)| text[from..to].to_owned()).filter(|piece| !piece.is_empty()).collect()
    }

    fn refined(regex: &SysRegex, words: &[String]) -> Vec<String> {
        words.iter().flat_map(|word| pieces(regex, word)).collect()
    }

    proptest! {
        #[test]
        fn scanners_equal_the_published_expressions(text in r"([ \t\r\n\u{a0}']{0,3}([a-cSTMDLlsré漢]{0,3}|[0-9٣²]{0,5}|[!.$<_`\u{301}😀]{0,3}|\PC)){0,12}") {
            let published = &*PUBLISHED;
            prop_assert_eq!(words(PreTokenizer::Gpt2, &text), pieces(&published.gpt2, &text));
            prop_assert_eq!(words(LLAMA3, &text), pieces(&published.llama3, &text));
            prop_assert_eq!(words(QWEN2, &text), pieces(&published.qwen2, &text));
            let staged = published.default.iter().fold(vec![text.clone()], |words, stage| refined(stage, &words));
            prop_assert_eq!(words(PreTokenizer::Default, &text), staged);
            let staged = refined(&published.gpt2, &pieces(&published.number, &text));
            prop_assert_eq!(words(PreTokenizer::Digits, &text), staged);
        }
    }

    #[test]
    fn long_runs_take_one_pass() {
        for unit in [" ", "a", "1", "\n", "! ", "'s", "\u{3000}"] {
            let text = unit.repeat(1 << 20);
            for splitter in [PreTokenizer::Gpt2, PreTokenizer::Digits, LLAMA3, QWEN2, PreTokenizer::Default] {
                let mut bytes = 0;
                splitter.split(&text, &mut |w| bytes += w.len());
                assert_eq!(bytes, text.len());
            }
        }
    }
}
