//! Where the tests' vocabularies and golden rows come from.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use super::super::{Tokenizer, Vocabulary};
use crate::gguf::{Gguf, ParseStep, StrArray};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

pub fn golden(name: &str) -> String {
    let path = goldens().join("tokenizer").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn golden_rows(name: &str) -> Vec<Value> {
    golden(&format!("{name}.jsonl")).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn tiny(file: &str) -> Vec<u8> {
    let path = goldens().join("tiny").join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn cached_tiny(file: &'static str) -> &'static Tokenizer {
    static CACHE: [OnceLock<Tokenizer>; 3] = [const { OnceLock::new() }; 3];
    let slot = ["tiny-llama-f16.gguf", "tiny-qwen2-f16.gguf", "tiny-gemma3-f16.gguf"].iter().position(|f| *f == file);
    CACHE[slot.unwrap()].get_or_init(|| Tokenizer::new(&vocabulary_of(&tiny(file))).unwrap())
}

/// The tokenizer behind a golden file, if its vocabulary is on this machine: SmolLM2's is the default model's
/// (`FIRESIDE_MODEL`, or the user's cache); the others are looked for in the folder `FIRESIDE_VOCABS`.
pub fn tokenizer_for(model: &str) -> Option<Tokenizer> {
    let path = if model == "smollm2" {
        std::env::var_os("FIRESIDE_MODEL").map(PathBuf::from).or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(Path::new(&home).join(".cache/fireside/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
        })
    } else {
        let file = format!("{}{model}.gguf", if model.starts_with("vocab-") { "ggml-" } else { "" });
        std::env::var_os("FIRESIDE_VOCABS").map(|folder| Path::new(&folder).join(file))
    };
    match path.as_deref().map(read_head) {
        Some(Ok(bytes)) => Some(Tokenizer::new(&vocabulary_of(&bytes)).unwrap()),
        other => {
            eprintln!("SKIPPED: the vocabulary of {model} isn't here ({path:?}, {other:?})");
            None
        }
    }
}

/// Enough of the file to hold its metadata.
fn read_head(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(32 << 20).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The vocabulary of a GGUF file whose metadata is at hand.
pub fn vocabulary_of(file: &[u8]) -> Vocabulary {
    let whole = u64::MAX / 2;
    match Gguf::parse(file, whole).unwrap() {
        ParseStep::Done(gguf) => Vocabulary::from_metadata(&gguf.metadata).unwrap(),
        more => panic!("{more:?}"),
    }
}

/// Replaces string `at`, or adds it at the end.
pub fn replaced(strings: &StrArray, at: usize, text: &[u8]) -> StrArray {
    let mut list: Vec<&[u8]> = strings.iter().collect();
    if at < list.len() {
        list[at] = text
    } else {
        list.push(text)
    }
    list.into_iter().collect()
}
