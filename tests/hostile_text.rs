//! Texts and vocabularies made to be slow: tokenizing takes time and memory in proportion to the text, whatever it is made of.
//!
//! A binary of its own because it counts what tokenizing allocates. The thread's own CPU time is compared between a text and
//! one four times as long, in one run: linear work gives a ratio near four, quadratic work sixteen.
#[path = "support/counting.rs"]
mod counting;

use std::sync::LazyLock;
use std::time::Instant;

use counting::counted;
use fireside::gguf::StrArray;
use fireside::tokenizer::{Tokenizer, Vocabulary};

/// Between a text and one four times as long. The rest above four is for caches and sorting.
const MOST_RATIO: f64 = 10.0;
/// Least seconds that the shorter text must take: the system counts in steps of some milliseconds.
const LEAST_SECONDS: f64 = 0.02;
/// Bytes held for each byte of the longest single word.
const MOST_BYTES_A_BYTE: usize = 140;

/// GPT-2's stand-in for a byte, as the format defines it.
fn stand_in(byte: u8) -> char {
    let itself = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if itself(byte) {
        char::from(byte)
    } else {
        char::from_u32(0x100 + (0..byte).filter(|&b| !itself(b)).count() as u32).unwrap()
    }
}

/// Every byte, and doublings of `a`, `b`, newline and space up to `1 << levels` of them.
fn byte_level(pre: &str, levels: u32) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|byte| stand_in(byte).to_string()).collect();
    let mut merges = Vec::new();
    for level in 0..levels {
        for byte in [b'a', b'b', b'\n', b' '] {
            let half = stand_in(byte).to_string().repeat(1 << level);
            tokens.push(half.repeat(2));
            merges.push(format!("{half} {half}"));
        }
    }
    let vocabulary = Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: tokens.iter().collect(),
        merges: merges.iter().collect(),
        add_bos: Some(false),
        ..Vocabulary::default()
    };
    Tokenizer::new(&vocabulary).unwrap()
}

/// A SentencePiece vocabulary with runs of `a` of every length up to `longest`, the longer the better.
fn sentence_piece(longest: usize) -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend((1..=longest).map(|length| "a".repeat(length)));
    tokens.extend(["b", "\u{2581}", "\u{2581}\u{2581}", "ab"].map(str::to_owned));
    let scores = (0..tokens.len()).map(|id| id as f32).collect();
    let types = (0..tokens.len())
        .map(|id| {
            if id < 3 {
                3
            } else if id < 259 {
                6
            } else {
                1
            }
        })
        .collect();
    let vocabulary = Vocabulary {
        model: "llama".to_owned(),
        tokens: tokens.iter().collect(),
        scores,
        token_types: types,
        ..Vocabulary::default()
    };
    Tokenizer::new(&vocabulary).unwrap()
}

/// A vocabulary whose special tokens are `texts`.
fn with_specials(texts: &[String]) -> fireside::Result<Tokenizer> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| stand_in(byte).to_string()).collect();
    tokens.push("Zz".to_owned());
    let plain = tokens.len();
    tokens.extend(texts.iter().cloned());
    Tokenizer::new(&Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        token_types: (0..tokens.len()).map(|id| if id < plain { 1 } else { 3 }).collect(),
        tokens: tokens.iter().collect(),
        merges: StrArray::from_iter(["Z z"]),
        ..Vocabulary::default()
    })
}

/// Seconds of CPU that this thread has had, where the system tells; else of the clock.
fn cpu_seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| START.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// Seconds of CPU that tokenizing `text` takes.
fn time(tokenizer: &Tokenizer, text: &str) -> f64 {
    let started = cpu_seconds();
    assert!(!tokenizer.encode(text, false, true).unwrap().is_empty());
    cpu_seconds() - started
}

/// Compares a text of at least `bytes` with one four times as long. A ratio that is out of bounds is measured again before it counts.
fn check_linear(name: &str, tokenizer: &Tokenizer, unit: &str, bytes: usize) {
    let mut text = unit.repeat(bytes / unit.len());
    while time(tokenizer, &text) < LEAST_SECONDS && text.len() < 1 << 20 {
        text = text.repeat(2);
    }
    let bytes = text.len();
    let mut ratios = Vec::new();
    for _ in 0..4 {
        let (once, fourfold) = (time(tokenizer, &text), time(tokenizer, &text.repeat(4)));
        let ratio = fourfold / once.max(1e-9);
        if ratio < MOST_RATIO {
            println!("{name}, {:?}: {bytes} bytes in {:.2} ms, ratio {ratio:.2}", short(unit), once * 1e3);
            return;
        }
        ratios.push(ratio);
    }
    panic!("{name}, {:?}: four times the text takes {ratios:?} times as long", short(unit));
}

fn short(text: &str) -> String {
    text.chars().take(12).collect()
}

/// What backtracks in the published expressions, merges at length, or is at the edge of Unicode.
const UNITS: &[&str] = &[
    "a",
    "ab",
    "\n",
    "\r\n ",
    "1",
    "!'s",
    "  1",
    "\u{3000}",
    "\u{feff}\u{200d}",
    "\u{1f468}\u{200d}\u{1f469}",
    "\u{10ffff}\u{0}",
    "e\u{301}\u{301}\u{301}\u{202e}",
];

#[test]
fn byte_level_words_of_any_length_take_linear_time() {
    for pre in ["llama-bpe", "default"] {
        let tokenizer = byte_level(pre, 10);
        for unit in UNITS {
            check_linear(pre, &tokenizer, unit, 16 << 10);
        }
    }
}

#[test]
fn a_megabyte_of_one_letter_is_linear_in_time_and_memory() {
    let bytes = 1 << 20;
    for tokenizer in [byte_level("llama-bpe", 10), sentence_piece(64)] {
        check_linear("up to 1 MiB", &tokenizer, "a", bytes / 4);
        let text = "a".repeat(bytes);
        let (ids, held) = counted(|| tokenizer.encode(&text, false, true).unwrap());
        println!("{tokenizer:?}: {} ids, {} bytes held for a byte", ids.len(), held.peak / bytes);
        assert!(held.peak <= MOST_BYTES_A_BYTE * bytes, "{} bytes held", held.peak);
        assert_eq!(tokenizer.decode(&ids, false).unwrap().trim_start(), text);
    }
}

#[test]
fn sentence_piece_takes_linear_time() {
    let tokenizer = sentence_piece(1024);
    for unit in UNITS {
        check_linear("llama", &tokenizer, unit, 16 << 10);
    }
}

/// Very many special tokens that all occur: not a pass over the text for each.
#[test]
fn special_tokens_by_the_thousand_take_linear_time() {
    let letters = b"abcdefghijklmnopqrstuvwxyz";
    let name =
        |i: usize| -> String { [i / 676 % 26, i / 26 % 26, i % 26].map(|at| char::from(letters[at])).iter().collect() };
    let all: Vec<String> = (0..26 * 26 * 26).map(name).collect();
    let unit: String = (0..26 * 26 * 26).map(|i| name(i * 7919) + "-").collect();
    check_linear("17,576 specials", &with_specials(&all).unwrap(), &unit, unit.len());
    // Each is the beginning of the next, and of the text everywhere.
    let runs: Vec<String> = (2..=200).map(|length| "x".repeat(length)).collect();
    check_linear("runs", &with_specials(&runs).unwrap(), "x", 16 << 10);
    let almost: Vec<String> = (1..=200).map(|length| "x".repeat(length) + "y").collect();
    check_linear("almost", &with_specials(&almost).unwrap(), "x", 16 << 10);
}

#[test]
fn tokens_and_texts_beyond_bounds_are_refused() {
    let code = |texts: &[String]| with_specials(texts).unwrap_err().code;
    assert_eq!(code(&["x".repeat(257)]), "tokenizer.token_too_long");
    with_specials(&["x".repeat(256)]).unwrap();
    let long = Vocabulary {
        model: "llama".to_owned(),
        tokens: StrArray::from_iter(["<unk>".to_owned(), "a".repeat(4097)]),
        scores: vec![0.0; 2],
        ..Vocabulary::default()
    };
    assert_eq!(Tokenizer::new(&long).unwrap_err().code, "tokenizer.token_too_long");
    let text = " ".repeat((16 << 20) + 1);
    assert_eq!(sentence_piece(2).encode(&text, false, false).unwrap_err().code, "tokenizer.text_too_long");
}
