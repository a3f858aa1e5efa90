//! Hostile GGUF files against the reader: every one ends in a typed error or a sound table, within its own size of memory.
//!
//! A binary of its own because it counts what the reader allocates.
#[path = "support/counting.rs"]
mod counting;

use std::sync::LazyLock;

use counting::{Held, counted};
use fireside::chat::{ChatTemplate, LocalTime, RenderInput};
use fireside::gguf::{Array, Gguf, MAX_KEYS, MAX_TENSORS, ParseStep, Value};
use fireside::tokenizer::{Tokenizer, Vocabulary};
use fireside::{Error, Result};
use proptest::prelude::*;

/// Small tables and an error's details; the rest of what is held comes from the file.
const FIXED_BYTES: usize = 32 << 10;

fn check_memory(held: Held, file_bytes: usize) {
    assert!(held.largest <= (2 * file_bytes).max(1 << 10), "{held:?} for a file of {file_bytes}");
    assert!(held.peak <= 2 * file_bytes + FIXED_BYTES, "{held:?} for a file of {file_bytes}");
}

/// Parses whole and as it would arrive; both agree, and memory stays within bounds.
fn parse(file: &[u8]) -> Result<Gguf> {
    let (whole, held) = counted(|| Gguf::from_bytes(file));
    check_memory(held, file.len());
    let mut len = file.len().min(64);
    loop {
        let (step, held) = counted(|| Gguf::parse(&file[..len], file.len() as u64));
        check_memory(held, len);
        match step {
            Ok(ParseStep::NeedMore { at_least }) => {
                assert!(at_least > len as u64 && at_least <= file.len() as u64);
                len = at_least as usize;
            }
            Ok(ParseStep::Done(gguf)) => {
                // NaN metadata is not equal to itself, so text is compared.
                assert_eq!(format!("{gguf:?}"), format!("{:?}", whole.as_ref().unwrap()));
                break;
            }
            Err(error) => {
                assert_eq!(error.code, whole.as_ref().unwrap_err().code);
                break;
            }
        }
    }
    whole
}

fn check(result: &Result<Gguf>, file_bytes: u64) {
    match result {
        Ok(gguf) => {
            let mut end = gguf.data_offset;
            for tensor in &gguf.tensors {
                assert!(tensor.offset >= end && tensor.end() <= file_bytes && tensor.bytes > 0);
                assert_eq!((tensor.offset - gguf.data_offset) % gguf.alignment, 0);
                assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
                let elems = tensor.row_len() as u64 * tensor.num_rows() as u64;
                assert_eq!(tensor.ty.checked_bytes(elems), Some(tensor.bytes));
                end = tensor.end();
            }
            assert_eq!(gguf.metadata.to_json().len(), gguf.metadata.len());
        }
        Err(Error { code, message, .. }) => assert!(code.starts_with("gguf.") && !message.is_empty()),
    }
}

fn golden_dir(folder: &str) -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(folder)
}

#[test]
fn every_hostile_file_is_refused_or_is_the_models_to_refuse() {
    // Sound tables of an unsound model: what the metadata means is judged where the model is built.
    const FOR_THE_MODEL: [&str; 2] = ["head_count_zero.gguf", "missing_embedding_length.gguf"];
    let dir = golden_dir("hostile");
    let index = std::fs::read(dir.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_slice(&index).unwrap();
    assert!(index.len() >= 22);
    for entry in index {
        let name = entry["file"].as_str().unwrap();
        let file = std::fs::read(dir.join(name)).unwrap();
        let result = parse(&file);
        check(&result, file.len() as u64);
        let refused = entry["expected"] == "reject" && !FOR_THE_MODEL.contains(&name);
        assert_eq!(result.is_err(), refused, "{name}: {result:?}");
    }
}

#[test]
fn refusals_have_the_code_of_their_fault() {
    for (name, code) in [
        ("empty", "gguf.truncated"),
        ("trunc_magic", "gguf.truncated"),
        ("bad_magic", "gguf.bad_magic"),
        ("version_1", "gguf.unsupported_version"),
        ("version_99", "gguf.unsupported_version"),
        ("trunc_header", "gguf.truncated"),
        ("trunc_kv", "gguf.truncated"),
        ("trunc_tensor_info", "gguf.truncated"),
        ("trunc_data", "gguf.tensor_out_of_bounds"),
        ("tensor_count_huge", "gguf.limit_exceeded"),
        ("kv_count_huge", "gguf.limit_exceeded"),
        ("string_len_overflow", "gguf.truncated"),
        ("unknown_tensor_type", "gguf.unknown_tensor_type"),
        ("duplicate_tensor", "gguf.duplicate_tensor"),
        ("offset_past_eof", "gguf.tensor_out_of_bounds"),
        ("dims_overflow", "gguf.size_overflow"),
    ] {
        let file = std::fs::read(golden_dir("hostile").join(name).with_extension("gguf")).unwrap();
        assert_eq!(parse(&file).unwrap_err().code, code, "{name}");
    }
}

#[test]
fn every_cut_of_a_sound_file_is_refused() {
    let file = std::fs::read(golden_dir("hostile").join("valid_control.gguf")).unwrap();
    let gguf = parse(&file).unwrap();
    let end = gguf.tensors.last().unwrap().end() as usize;
    let header = gguf.data_offset as usize;
    for len in (0..header).chain((header..end).step_by(97)).chain([end - 1]) {
        let code = Gguf::from_bytes(&file[..len]).unwrap_err().code;
        assert!(code == "gguf.truncated" || code == "gguf.tensor_out_of_bounds", "cut at {len}: {code}");
    }
    Gguf::from_bytes(&file[..end]).unwrap();
}

/// As many of the smallest pairs and tensors as are allowed: here tables outgrow the file, up to a fixed sum.
#[test]
fn the_smallest_entries_cost_a_bounded_sum() {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(MAX_TENSORS.to_le_bytes());
    file.extend(MAX_KEYS.to_le_bytes());
    let name = |i: u64| [&3u64.to_le_bytes()[..], &i.to_le_bytes()[..3]].concat().map_ascii();
    for i in 0..MAX_KEYS {
        file.extend(name(i));
        file.extend(&[0, 0, 0, 0, 1]);
    }
    for i in 0..MAX_TENSORS {
        file.extend(name(i));
        file.extend(0u32.to_le_bytes());
        file.extend(24u32.to_le_bytes());
        file.extend((i * 32).to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(32) + MAX_TENSORS as usize * 32, 0);
    let header = file.len() - MAX_TENSORS as usize * 32;
    let (result, Held { peak, .. }) = counted(|| Gguf::parse(&file[..header], file.len() as u64));
    assert!(matches!(result, Ok(ParseStep::Done(gguf)) if gguf.tensors.len() as u64 == MAX_TENSORS));
    println!("{header} bytes of header, {peak} bytes held");
    assert!(peak <= 2 * header + (5 << 20), "{peak}");
}

trait MapAscii {
    fn map_ascii(self) -> Self;
}

impl MapAscii for Vec<u8> {
    /// Spreads the last three bytes over ASCII letters, so that counting gives distinct UTF-8 names.
    fn map_ascii(mut self) -> Self {
        let at = self.len() - 3;
        let number = u32::from(self[at]) | u32::from(self[at + 1]) << 8;
        for (digit, byte) in self[at..].iter_mut().enumerate() {
            *byte = b'0' + (number >> (6 * digit) & 63) as u8;
        }
        self
    }
}

static SOUND_FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let names = ["tiny/tiny-llama-mix32.gguf", "tiny/tiny-lora-llama-f16.gguf", "hostile/valid_control.gguf"];
    names.iter().map(|name| std::fs::read(golden_dir(name)).unwrap()).collect()
});

/// One change to a file.
#[derive(Debug, Clone)]
enum Mutation {
    Flip { at: usize, bit: u8 },
    Set { at: usize, bytes: Vec<u8> },
    Cut { at: usize },
    Remove { at: usize, len: usize },
    Repeat { from: usize, len: usize, to: usize },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Headers are the first few thousand bytes; data is not read.
    let at = 0usize..12_000;
    let loud = prop_oneof![
        Just(u64::MAX.to_le_bytes().to_vec()),
        Just((1u64 << 63).to_le_bytes().to_vec()),
        Just((1u64 << 32).to_le_bytes().to_vec()),
        Just(0u64.to_le_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 1..12),
    ];
    prop_oneof![
        (at.clone(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip { at, bit }),
        (at.clone(), loud).prop_map(|(at, bytes)| Mutation::Set { at, bytes }),
        at.clone().prop_map(|at| Mutation::Cut { at }),
        (at.clone(), 1usize..64).prop_map(|(at, len)| Mutation::Remove { at, len }),
        (at.clone(), 1usize..600, at).prop_map(|(from, len, to)| Mutation::Repeat { from, len, to }),
    ]
}

fn mutate(file: &mut Vec<u8>, mutation: &Mutation) {
    let clamp = |at: usize| at.min(file.len().saturating_sub(1));
    match mutation {
        _ if file.is_empty() => {}
        Mutation::Flip { at, bit } => {
            let at = clamp(*at);
            file[at] ^= 1 << bit;
        }
        Mutation::Set { at, bytes } => {
            let at = clamp(*at);
            let len = bytes.len().min(file.len() - at);
            file[at..at + len].copy_from_slice(&bytes[..len]);
        }
        Mutation::Cut { at } => file.truncate(*at),
        Mutation::Remove { at, len } => {
            let at = clamp(*at);
            file.drain(at..(at + len).min(file.len()));
        }
        Mutation::Repeat { from, len, to } => {
            let (from, to) = (clamp(*from), clamp(*to));
            let piece = file[from..(from + len).min(file.len())].to_vec();
            file.splice(to..to, piece);
        }
    }
}

fn use_words(gguf: &Gguf, text: &str) {
    let vocabulary = match Vocabulary::from_metadata(&gguf.metadata) {
        Ok(vocabulary) => vocabulary,
        Err(error) => return assert!(error.code.starts_with("gguf."), "{error}"),
    };
    match Tokenizer::new(&vocabulary) {
        Ok(tokenizer) => match tokenizer.encode(text, true, true) {
            Ok(ids) => drop(tokenizer.decode(&ids, true).unwrap()),
            Err(error) => assert!(error.code.starts_with("tokenizer."), "{error}"),
        },
        Err(error) => assert!(error.code.starts_with("tokenizer."), "{error}"),
    }
    let messages = serde_json::json!([{"role": "user", "content": text}]);
    let now = LocalTime { year: 2024, month: 1, day: 1, hour: 0, minute: 0, second: 0 };
    let input = RenderInput { messages: &messages, tools: None, add_generation_prompt: true, template_args: None, now };
    let template = ChatTemplate::new(vocabulary.chat_template.as_deref(), "<s>", "</s>");
    if let Err(error) = template.and_then(|template| template.render(&input)) {
        assert!(error.code.starts_with("chat."), "{error}");
    }
}

/// Inputs in all: `FIRESIDE_FUZZ_INPUTS`, which `npm run soak` sets to a million.
fn num_inputs() -> u32 {
    let set = std::env::var("FIRESIDE_FUZZ_INPUTS").ok();
    set.map_or(20_000, |text| text.parse().expect("FIRESIDE_FUZZ_INPUTS is a number"))
}

/// Four properties share the inputs, most of them mutations of sound files.
fn share(eighths: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(num_inputs() / 8 * eighths) }
}

proptest! {
    #![proptest_config(share(5))]

    #[test]
    fn mutated_files_neither_panic_nor_allocate(index in 0usize..3, changes in proptest::collection::vec(mutation(), 1..4)) {
        let mut file = SOUND_FILES[index].clone();
        changes.iter().for_each(|change| mutate(&mut file, change));
        let result = parse(&file);
        check(&result, file.len() as u64);
    }
}

proptest! {
    #![proptest_config(share(1))]

    #[test]
    fn random_bytes_behind_a_sound_start_are_handled(counts in any::<[u8; 2]>(), tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(u64::from(counts[0] % 4).to_le_bytes());
        file.extend(u64::from(counts[1] % 4).to_le_bytes());
        file.extend(tail);
        check(&parse(&file), file.len() as u64);
    }

    /// What a damaged header says of words and chat is refused or used, never trusted.
    #[test]
    fn tokenizers_and_templates_of_mutated_files_are_built_or_refused(index in 0usize..3, changes in proptest::collection::vec(mutation(), 1..4), text in "\\PC{0,40}") {
        let mut file = SOUND_FILES[index].clone();
        changes.iter().for_each(|change| mutate(&mut file, change));
        if let Ok(gguf) = Gguf::from_bytes(&file) {
            use_words(&gguf, &text);
        }
    }

    #[test]
    fn arrays_of_every_type_are_read_or_refused(ty in 0u32..14, len in 0u64..64, tail in proptest::collection::vec(0u8..4, 0..600)) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(0u64.to_le_bytes());
        file.extend(1u64.to_le_bytes());
        file.extend(1u64.to_le_bytes());
        file.extend(b"k\x09\0\0\0");
        file.extend(ty.to_le_bytes());
        file.extend(len.to_le_bytes());
        file.extend(tail);
        let result = parse(&file);
        check(&result, file.len() as u64);
        if let Ok(gguf) = result {
            let Some(Value::Array(array)) = gguf.metadata.raw("k") else { panic!("not an array") };
            prop_assert_eq!(array.len(), len);
            if let Array::Str(strings) = array {
                prop_assert_eq!(strings.iter().count() as u64, len);
            }
        }
    }
}
