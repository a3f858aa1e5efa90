//! Where the tests' vocabularies and golden rows come from.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use super::super::{Tokenizer, Vocabulary};

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
    CACHE[slot.unwrap()].get_or_init(|| Tokenizer::new(vocabulary_of(&tiny(file))).unwrap())
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
        Some(Ok(bytes)) => Some(Tokenizer::new(vocabulary_of(&bytes)).unwrap()),
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

// --- TEMPORARY reader until gguf::Metadata lands ---
struct R<'a>(&'a [u8], usize);
impl<'a> R<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let s = &self.0[self.1..self.1 + n];
        self.1 += n;
        s
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }
    fn u64(&mut self) -> usize {
        usize::try_from(u64::from_le_bytes(self.take(8).try_into().unwrap())).unwrap()
    }
    fn str(&mut self) -> String {
        let n = self.u64();
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }
    fn value(&mut self, ty: u32) -> Value {
        match ty {
            0 | 7 => self.take(1)[0].into(),
            1 => (self.take(1)[0] as i8).into(),
            2 | 3 => self.take(2)[0].into(),
            4 => self.u32().into(),
            5 => (self.u32() as i32).into(),
            6 => f32::from_bits(self.u32()).into(),
            8 => self.str().into(),
            9 => {
                let (t, n) = (self.u32(), self.u64());
                Value::Array((0..n).map(|_| self.value(t)).collect())
            }
            _ => self.u64().into(),
        }
    }
}

pub fn vocabulary_of(file: &[u8]) -> Vocabulary {
    let mut r = R(file, 16);
    let n = r.u64();
    let mut m = std::collections::HashMap::new();
    for _ in 0..n {
        let key = r.str();
        let ty = r.u32();
        let v = r.value(ty);
        m.insert(key, v);
    }
    let get = |k: &str| m.get(&format!("tokenizer.{k}"));
    let s = |k: &str| get(k).and_then(|v| v.as_str()).map(str::to_owned);
    let id = |k: &str| get(&format!("ggml.{k}_token_id")).and_then(|v| v.as_u64()).map(|v| v as u32);
    let b = |k: &str| get(&format!("ggml.{k}")).and_then(|v| v.as_u64()).map(|v| v != 0);
    let list = |k: &str| get(&format!("ggml.{k}")).and_then(|v| v.as_array()).cloned().unwrap_or_default();
    Vocabulary {
        name: m.get("general.name").and_then(|v| v.as_str()).map(str::to_owned),
        model: s("ggml.model").unwrap(),
        pre: s("ggml.pre"),
        tokens: list("tokens").iter().map(|v| v.as_str().unwrap().to_owned()).collect(),
        scores: list("scores").iter().map(|v| v.as_f64().unwrap() as f32).collect(),
        token_types: list("token_type").iter().map(|v| v.as_i64().unwrap() as i32).collect(),
        merges: list("merges").iter().map(|v| v.as_str().unwrap().to_owned()).collect(),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        eom: id("eom"),
        unk: id("unknown"),
        pad: id("padding"),
        fim_pad: id("fim_pad"),
        fim_rep: id("fim_rep"),
        fim_sep: id("fim_sep"),
        add_bos: b("add_bos_token"),
        add_eos: b("add_eos_token"),
        add_space_prefix: b("add_space_prefix"),
        chat_template: s("chat_template"),
    }
}
