//! The tokenizer against the goldens, bad vocabularies, and long inputs. Vocabularies come from GGUF files.
mod fixtures;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::gguf::StrArray;
use fixtures::{golden_rows, replaced, tiny, tokenizer_for, vocabulary_of};

fn ids(row: &Value, key: &str) -> Vec<TokenId> {
    let list = row[key].as_array().unwrap_or_else(|| panic!("no {key} in {row}"));
    list.iter().map(|id| TokenId(u32::try_from(id.as_u64().unwrap()).unwrap())).collect()
}

/// Runs a file of golden rows; returns how many were compared.
fn check_rows(file: &str, tokenizer: &Tokenizer) -> usize {
    let rows = golden_rows(file);
    let mut wrong = Vec::new();
    for row in &rows {
        let text = row["text"].as_str().unwrap();
        let flag = |key: &str| row[key].as_bool().unwrap();
        let got = tokenizer.encode(text, flag("add_special"), flag("parse_special")).unwrap();
        if got != ids(row, "ids") {
            wrong.push(format!("{row}\n got {got:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{file}: {} of {} rows differ\n{}",
        wrong.len(),
        rows.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
    rows.len()
}

#[test]
fn tiny_vocabularies_match_the_goldens() {
    for file in ["tiny-bpe-smollm", "tiny-bpe-qwen2", "tiny-spm"] {
        let model = golden_rows(file)[0]["model"].as_str().unwrap().to_owned();
        let tokenizer = Tokenizer::new(&vocabulary_of(&tiny(&model))).unwrap();
        assert_eq!(check_rows(file, &tokenizer), 686);
    }
}

#[test]
fn real_vocabularies_match_the_goldens() {
    for file in ["smollm2", "gemma3", "vocab-gpt-2", "vocab-llama-bpe", "vocab-llama-spm", "vocab-phi-3", "vocab-qwen2"]
    {
        if let Some(tokenizer) = tokenizer_for(file) {
            assert!(check_rows(file, &tokenizer) >= 698);
        }
    }
}

#[test]
fn special_ids_match_the_facts() {
    let facts: Value = serde_json::from_str(&fixtures::golden("vocab_facts.json")).unwrap();
    for (model, fact) in facts.as_object().unwrap() {
        let Some(tokenizer) = tokenizer_for(model) else { continue };
        let optional = |id: Option<TokenId>| id.map_or(-1, |id| i64::from(id.0));
        assert_eq!(tokenizer.vocab_size() as u64, fact["n_vocab"].as_u64().unwrap());
        assert_eq!(optional(tokenizer.bos()), fact["bos"].as_i64().unwrap());
        assert_eq!(optional(tokenizer.eos()), fact["eos"].as_i64().unwrap());
        assert_eq!(tokenizer.adds_bos(), fact["add_bos"].as_bool().unwrap());
        assert_eq!(tokenizer.end_of_generation().collect::<Vec<_>>(), ids(fact, "eog"), "{model}");
    }
}

#[test]
fn streams_match_the_goldens() {
    let rows = golden_rows("detok_stream");
    let mut compared = 0;
    for model in ["smollm2", "gemma3"] {
        let Some(tokenizer) = tokenizer_for(model) else { continue };
        for row in rows.iter().filter(|row| row["model"] == model) {
            for (special, key) in [(true, ""), (false, "_nospecial")] {
                let mut stream = Detokenizer::new(special);
                let tokens = ids(row, "ids");
                let mut chunks: Vec<String> = tokens.iter().map(|&id| stream.push(&tokenizer, id)).collect();
                chunks.push(stream.flush());
                let want: Vec<&str> =
                    row[format!("chunks{key}")].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
                assert_eq!(chunks, want, "{row}");
                assert_eq!(tokenizer.decode(&tokens, special).unwrap(), row[format!("text{key}")].as_str().unwrap());
            }
            compared += 1;
        }
    }
    println!("{compared} streams compared");
}

fn bad(change: impl FnOnce(&mut Vocabulary), file: &str) -> &'static str {
    let mut vocabulary = vocabulary_of(&tiny(file));
    change(&mut vocabulary);
    match Tokenizer::new(&vocabulary) {
        Ok(_) => "accepted",
        Err(error) => error.code,
    }
}

#[test]
fn bad_vocabularies_are_refused_by_name() {
    let bpe = "tiny-llama-f16.gguf";
    assert_eq!(bad(|_| {}, bpe), "accepted");
    assert_eq!(bad(|v| v.model = "t5".into(), bpe), "tokenizer.unsupported_model");
    assert_eq!(bad(|v| v.pre = Some("zz".into()), bpe), "tokenizer.unknown_pre");
    assert_eq!(bad(|v| v.tokens = StrArray::new(), bpe), "tokenizer.no_tokens");
    assert_eq!(bad(|v| v.ids.eos = Some(1 << 30), bpe), "tokenizer.id_out_of_range");
    assert_eq!(bad(|v| v.ids.pad = Some(1 << 30), bpe), "accepted");
    assert_eq!(bad(|v| v.token_types.truncate(7), bpe), "tokenizer.bad_length");
    assert_eq!(bad(|v| v.tokens = replaced(&v.tokens, 5, v.tokens.get(6).unwrap()), bpe), "tokenizer.duplicate_token");
    assert_eq!(bad(|v| v.merges = StrArray::new(), bpe), "tokenizer.no_merges");
    assert_eq!(bad(|v| v.merges = replaced(&v.merges, 3, b"nospace"), bpe), "tokenizer.bad_merge");
    assert_eq!(bad(|v| v.merges = replaced(&v.merges, 3, b""), bpe), "tokenizer.bad_merge");
    assert_eq!(bad(|v| v.merges = replaced(&v.merges, 3, b"\xff a"), bpe), "tokenizer.bad_merge");
    assert_eq!(
        bad(|v| v.merges = replaced(&v.merges, 3, &format!("a {}", "b".repeat(500)).into_bytes()), bpe),
        "tokenizer.bad_merge"
    );
    assert_eq!(bad(|v| v.merges = replaced(&v.merges, 3, b"z q"), bpe), "tokenizer.bad_merge");
    assert_eq!(bad(|v| (v.add_bos, v.ids.bos) = (Some(true), None), bpe), "tokenizer.no_special_id");
    let spm = "tiny-gemma3-f16.gguf";
    assert_eq!(bad(|_| {}, spm), "accepted");
    assert_eq!(bad(|v| v.scores.clear(), spm), "tokenizer.no_scores");
    assert_eq!(bad(|v| v.scores[4] = f32::NAN, spm), "tokenizer.bad_score");
    assert_eq!(bad(|v| v.token_types.iter_mut().for_each(|t| *t = 6), spm), "tokenizer.bad_byte_token");
    assert_eq!(bad(|v| v.scores.push(0.0), spm), "tokenizer.bad_length");
}

#[test]
fn a_missing_pre_tokenizer_is_the_default_one_and_said_so() {
    let mut vocabulary = vocabulary_of(&tiny("tiny-llama-f16.gguf"));
    assert!(!Tokenizer::new(&vocabulary).unwrap().pre_tokenizer_assumed());
    vocabulary.pre = None;
    assert!(Tokenizer::new(&vocabulary).unwrap().pre_tokenizer_assumed());
}

#[test]
fn ids_beyond_the_vocabulary_are_refused_but_never_break_a_stream() {
    let tokenizer = Tokenizer::new(&vocabulary_of(&tiny("tiny-llama-f16.gguf"))).unwrap();
    let beyond = TokenId(u32::try_from(tokenizer.vocab_size()).unwrap());
    assert_eq!(tokenizer.token_bytes(beyond, true), None);
    assert_eq!(tokenizer.decode(&[beyond], true).unwrap_err().code, "tokenizer.unknown_token");
    assert_eq!(Detokenizer::new(true).push(&tokenizer, beyond), "");
}

#[test]
fn a_megabyte_of_one_character_is_no_trouble() {
    for file in ["tiny-llama-f16.gguf", "tiny-qwen2-f16.gguf", "tiny-gemma3-f16.gguf"] {
        let tokenizer = Tokenizer::new(&vocabulary_of(&tiny(file))).unwrap();
        for unit in [" ", "a", "\n", "漢", "<|im_end|>"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = Instant::now();
            let tokens = tokenizer.encode(&text, false, true).unwrap();
            // Linear work takes well under a second here; quadratic work would take hours.
            assert!(start.elapsed() < Duration::from_secs(20), "{file} {unit:?}: {:?}", start.elapsed());
            assert_eq!(tokenizer.decode(&tokens, true).unwrap(), text);
        }
    }
}

proptest! {
    #[test]
    fn text_survives_the_round_trip(text in r"(\PC|[ \n\r\tabc'0-9]){0,40}", parse: bool) {
        for file in ["tiny-llama-f16.gguf", "tiny-qwen2-f16.gguf", "tiny-gemma3-f16.gguf"] {
            let tokenizer = fixtures::cached_tiny(file);
            let tokens = tokenizer.encode(&text, false, parse).unwrap();
            // SentencePiece writes U+2581 for a space: the two can't be told apart afterwards.
            let want = if file.contains("gemma") { text.replace('\u{2581}', " ") } else { text.clone() };
            prop_assert_eq!(tokenizer.decode(&tokens, true).unwrap(), want);
        }
    }

    #[test]
    fn a_stream_is_the_lossy_decoding_of_its_bytes(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xf0), Just(0x9f)], 0..40), cuts in proptest::collection::vec(0usize..5, 0..20)) {
        let mut stream = Detokenizer::new(false);
        let (mut text, mut rest) = (String::new(), &bytes[..]);
        for cut in cuts {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            // A fork goes on as the original would.
            let mut fork = stream.clone();
            let delta = stream.push_bytes(head);
            prop_assert_eq!(fork.push_bytes(head), delta.clone());
            text.push_str(&delta);
            rest = tail;
        }
        text.push_str(&stream.push_bytes(rest));
        text.push_str(&stream.flush());
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }
}
