//! Any list of strings as a vocabulary, with any scores, kinds and merges, and any text: ids that decode, or a typed error.
#![no_main]
use fireside::tokenizer::{Tokenizer, Vocabulary};
use libfuzzer_sys::fuzz_target;

type Input = (bool, Vec<(Vec<u8>, f32, i8)>, Vec<String>, String);

fuzz_target!(|input: Input| {
    let (byte_level, tokens, merges, text) = input;
    let vocabulary = Vocabulary {
        model: if byte_level { "gpt2" } else { "llama" }.to_owned(),
        scores: tokens.iter().map(|token| token.1).collect(),
        token_types: tokens.iter().map(|token| i32::from(token.2)).collect(),
        tokens: tokens.into_iter().map(|token| token.0).collect(),
        merges: merges.into_iter().collect(),
        add_bos: Some(false),
        ..Vocabulary::default()
    };
    let result = Tokenizer::new(&vocabulary).and_then(|tokenizer| {
        let ids = tokenizer.encode(&text, true, true)?;
        tokenizer.decode(&ids, true)
    });
    if let Err(error) = result {
        assert!(error.code.starts_with("tokenizer."));
    }
});
