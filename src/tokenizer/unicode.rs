//! Character classes of the pre-tokenizers and the GPT-2 byte alphabet. Splitting itself is `pretokenize`'s.
use std::sync::LazyLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// The classes that the pre-tokenizers tell apart; every character is in exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// `\s`: the Unicode property White_Space.
    Space,
    /// `\p{L}`.
    Letter,
    /// `\p{N}`.
    Number,
    /// Everything else, unassigned code points included.
    Other,
}

type Ranges = Vec<(char, char)>;

static LETTERS: LazyLock<Ranges> = LazyLock::new(|| ranges_of(r"\p{L}"));
static NUMBERS: LazyLock<Ranges> = LazyLock::new(|| ranges_of(r"\p{N}"));
static PUNCTUATION: LazyLock<Ranges> = LazyLock::new(|| ranges_of(r"\p{P}"));

/// The sorted ranges of a class pattern; empty if the pattern weren't a class, which the tests rule out.
fn ranges_of(pattern: &str) -> Ranges {
    match regex_syntax::parse(pattern).map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(HirClass::Unicode(class))) => class.ranges().iter().map(|r| (r.start(), r.end())).collect(),
        _ => Ranges::new(),
    }
}

fn within(ranges: &[(char, char)], c: char) -> bool {
    let after = ranges.partition_point(|r| r.0 <= c);
    after.checked_sub(1).and_then(|at| ranges.get(at)).is_some_and(|r| c <= r.1)
}

/// The class of `c`.
pub(super) fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        _ if c.is_whitespace() => Class::Space,
        _ if c.is_ascii() => Class::Other,
        _ if within(&LETTERS, c) => Class::Letter,
        _ if within(&NUMBERS, c) => Class::Number,
        _ => Class::Other,
    }
}

/// Whether `c` is in `\p{P}`.
pub(super) fn is_punctuation(c: char) -> bool {
    within(&PUNCTUATION, c)
}

/// GPT-2's printable stand-in for each byte: printable Latin-1 stands for itself, the rest is moved to U+0100 and up.
static BYTE_CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut chars = ['\0'; 256];
    let mut moved = 0u32;
    for (byte, slot) in (0u8..=255).zip(chars.iter_mut()) {
        *slot = if stands_for_itself(byte) {
            char::from(byte)
        } else {
            moved += 1;
            char::from_u32(0x100 + moved - 1).unwrap_or('\0')
        };
    }
    chars
});

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The stand-in of `byte`.
pub(super) fn byte_to_char(byte: u8) -> char {
    BYTE_CHARS[usize::from(byte)]
}

/// The byte that `c` stands for, if it is a stand-in.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    static MOVED: LazyLock<Vec<u8>> = LazyLock::new(|| (0u8..=255).filter(|&b| !stands_for_itself(b)).collect());
    match u32::from(c) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|&b| stands_for_itself(b)),
        code => MOVED.get(usize::try_from(code - 0x100).ok()?).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_unicode() {
        assert!(LETTERS.len() > 500 && NUMBERS.len() > 100 && PUNCTUATION.len() > 100);
        for (c, want) in [
            ('a', Class::Letter),
            ('é', Class::Letter),
            ('ª', Class::Letter),
            ('漢', Class::Letter),
            ('5', Class::Number),
            ('²', Class::Number),
            ('Ⅷ', Class::Number),
            ('٣', Class::Number),
            ('\u{a0}', Class::Space),
            ('\u{85}', Class::Space),
            ('\u{3000}', Class::Space),
            ('\u{200b}', Class::Other),
            ('\u{301}', Class::Other),
            ('\u{e000}', Class::Other),
            ('😀', Class::Other),
            ('_', Class::Other),
            ('\0', Class::Other),
        ] {
            assert_eq!(class(c), want, "{c:?}");
        }
        assert!(is_punctuation('_') && is_punctuation('。') && !is_punctuation('$') && !is_punctuation('a'));
    }

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0u8..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
            assert!(!byte_to_char(byte).is_whitespace());
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(char_to_byte(' '), None);
        assert_eq!(char_to_byte('漢'), None);
    }
}
