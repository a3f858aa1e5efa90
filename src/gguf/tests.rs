//! Files written byte by byte: what is read back, and the code of each refusal.
use super::*;

/// Writes GGUF files, sound or not.
#[derive(Clone)]
struct Writer {
    magic: [u8; 4],
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
    alignment: usize,
}

impl Writer {
    fn new() -> Self {
        Self { magic: *b"GGUF", version: 3, pairs: vec![], tensors: vec![], data: 0, alignment: 32 }
    }

    fn pair(mut self, key: &[u8], ty: u32, value: &[u8]) -> Self {
        self.pairs.push([&string(key), &ty.to_le_bytes()[..], value].concat());
        self
    }

    fn array(self, key: &str, ty: u32, len: u64, items: &[u8]) -> Self {
        self.pair(key.as_bytes(), 9, &array(ty, len, items))
    }

    fn tensor(mut self, name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Self {
        let mut entry = string(name);
        entry.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| entry.extend(dim.to_le_bytes()));
        entry.extend(ty.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    fn data(mut self, bytes: usize) -> Self {
        self.data = bytes;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment) + self.data, 0);
        out
    }

    fn parse(&self) -> Result<Gguf> {
        Gguf::from_bytes(&self.bytes())
    }

    #[track_caller]
    fn refused(&self, code: &str) -> Error {
        let error = self.parse().unwrap_err();
        assert_eq!(error.code, code, "{error}");
        error
    }
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

fn array(ty: u32, len: u64, items: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &len.to_le_bytes(), items].concat()
}

fn golden(path: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/goldens/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn golden_json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&golden(path)).unwrap()
}

#[test]
fn every_value_type_is_read_back() {
    let gguf = Writer::new()
        .pair(b"u8", 0, &[200])
        .pair(b"i8", 1, &[0xff])
        .pair(b"u16", 2, &60_000u16.to_le_bytes())
        .pair(b"i16", 3, &(-2i16).to_le_bytes())
        .pair(b"u32", 4, &u32::MAX.to_le_bytes())
        .pair(b"i32", 5, &(-3i32).to_le_bytes())
        .pair(b"f32", 6, &1.5f32.to_le_bytes())
        .pair(b"bool", 7, &[1])
        .pair(b"str", 8, &string("ü".as_bytes()))
        .pair(b"u64", 10, &u64::MAX.to_le_bytes())
        .pair(b"i64", 11, &5i64.to_le_bytes())
        .pair(b"f64", 12, &0.25f64.to_le_bytes())
        .array("strs", 8, 3, &[string(b"a"), string(b""), string(&[0xc3, 0x28])].concat())
        .array("i32s", 5, 2, &[(-1i32).to_le_bytes(), 7i32.to_le_bytes()].concat())
        .array("u8s", 0, 2, &[1, 2])
        .array("f32s", 6, 1, &2.5f32.to_le_bytes())
        .array("bools", 7, 2, &[0, 1])
        .array("none", 4, 0, &[])
        .array("nested", 9, 2, &[array(4, 1, &[0; 4]), array(8, 1, &string(b"x"))].concat())
        .parse()
        .unwrap();
    let meta = &gguf.metadata;
    assert_eq!(meta.len(), 19);
    assert_eq!((meta.u32("u8").unwrap(), meta.u64("u16").unwrap(), meta.usize("i64").unwrap()), (200, 60_000, 5));
    assert_eq!((meta.u32("u32").unwrap(), meta.u64("u64").unwrap()), (u32::MAX, u64::MAX));
    assert_eq!((meta.f32("f32").unwrap(), meta.f32("f64").unwrap(), meta.bool("bool").unwrap()), (1.5, 0.25, true));
    assert_eq!(meta.str("str").unwrap(), "ü");
    let strs: Vec<&[u8]> = meta.strs("strs").unwrap().iter().collect();
    assert_eq!(strs, [&b"a"[..], b"", &[0xc3, 0x28]]);
    assert_eq!(meta.strs("strs").unwrap().get(3), None);
    assert_eq!(*meta.i32s("i32s").unwrap(), [-1, 7]);
    assert_eq!(*meta.i32s("u8s").unwrap(), [1, 2]);
    assert_eq!(*meta.u32s("u8s").unwrap(), [1, 2]);
    assert_eq!(*meta.f32s("f32s").unwrap(), [2.5]);
    assert!(meta.strs("none").unwrap().is_empty() && meta.f32s("none").unwrap().is_empty());
    assert_eq!(meta.raw("bools"), Some(&Value::Array(Array::Bool(vec![false, true]))));
    assert_eq!(meta.raw("nested"), Some(&Value::Array(Array::Nested { len: 2 })));
    assert_eq!(meta.opt_str("absent").unwrap(), None);
    assert_eq!(meta.str("absent").unwrap_err().code, "gguf.missing_key");
    for (error, code) in [
        (meta.u32("i8").unwrap_err(), "gguf.out_of_range"),
        (meta.u32("u64").unwrap_err(), "gguf.out_of_range"),
        (meta.u32s("i32s").map(drop).unwrap_err(), "gguf.out_of_range"),
        (meta.u32("f32").unwrap_err(), "gguf.wrong_type"),
        (meta.bool("u8").unwrap_err(), "gguf.wrong_type"),
        (meta.f32("u8").unwrap_err(), "gguf.wrong_type"),
        (meta.str("strs").map(drop).unwrap_err(), "gguf.wrong_type"),
        (meta.strs("i32s").map(drop).unwrap_err(), "gguf.wrong_type"),
        (meta.i32s("f32s").map(drop).unwrap_err(), "gguf.wrong_type"),
        (meta.f32s("i32s").map(drop).unwrap_err(), "gguf.wrong_type"),
        (meta.opt_u32("str").map(drop).unwrap_err(), "gguf.wrong_type"),
    ] {
        assert_eq!(error.code, code, "{error}");
        assert!(error.details.contains_key("key"), "{error}");
    }
}

#[test]
fn tensors_come_in_file_order_and_by_name() {
    let gguf = Writer::new()
        .tensor(b"second", &[256, 2], 12, 64)
        .tensor(b"first", &[8], 0, 0)
        .tensor(b"scalar", &[], 0, 352)
        .data(356)
        .parse()
        .unwrap();
    let names: Vec<&str> = gguf.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["first", "second", "scalar"]);
    let second = gguf.tensor("second").unwrap();
    assert_eq!((second.ty, &second.shape[..], second.bytes), (GgmlType::Q4_K, &[256, 2][..], 288));
    assert_eq!((second.offset, second.row_len(), second.num_rows()), (gguf.data_offset + 64, 256, 2));
    assert_eq!(gguf.tensor("scalar").unwrap().shape, [1]);
    assert!(gguf.tensor("third").is_none());
    assert_eq!((gguf.version, gguf.alignment, gguf.data_offset % 32), (3, 32, 0));
}

#[test]
fn header_faults_have_their_codes() {
    let sound = Writer::new();
    Writer { version: 2, ..sound.clone() }.parse().unwrap();
    Writer { magic: *b"GGML", ..sound.clone() }.refused("gguf.bad_magic");
    Writer { magic: *b"FUGG", ..sound.clone() }.refused("gguf.big_endian");
    Writer { version: 3u32.swap_bytes(), ..sound.clone() }.refused("gguf.big_endian");
    for version in [0, 1, 4, 99] {
        Writer { version, ..sound.clone() }.refused("gguf.unsupported_version");
    }
    for len in 0..24 {
        assert_eq!(Gguf::from_bytes(&sound.bytes()[..len]).unwrap_err().code, "gguf.truncated");
    }
    let mut counts = sound.bytes();
    counts[8..16].copy_from_slice(&(MAX_TENSORS + 1).to_le_bytes());
    assert_eq!(Gguf::from_bytes(&counts).unwrap_err().code, "gguf.limit_exceeded");
    counts[8..16].copy_from_slice(&MAX_TENSORS.to_le_bytes());
    assert_eq!(Gguf::from_bytes(&counts).unwrap_err().code, "gguf.truncated");
    counts[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(Gguf::from_bytes(&counts).unwrap_err().code, "gguf.limit_exceeded");
}

#[test]
fn metadata_faults_have_their_codes() {
    let sound = Writer::new();
    sound.clone().pair(b"a", 7, &[2]).refused("gguf.bad_bool");
    sound.clone().array("a", 7, 1, &[3]).refused("gguf.bad_bool");
    sound.clone().pair(b"a", 13, &[0; 8]).refused("gguf.unknown_value_type");
    sound.clone().array("a", 99, 0, &[]).refused("gguf.unknown_value_type");
    sound.clone().pair(b"", 0, &[1]).refused("gguf.empty_key");
    sound.clone().pair(&[0xff], 0, &[1]).refused("gguf.bad_utf8");
    sound.clone().pair(b"a", 0, &[1]).pair(b"b", 0, &[1]).pair(b"a", 4, &[0; 4]).refused("gguf.duplicate_key");
    sound.clone().pair(b"a", 8, &u64::MAX.to_le_bytes()).refused("gguf.truncated");
    for ty in 0..=12 {
        sound.clone().array("a", ty, u64::MAX / 2, &[0; 64]).refused("gguf.truncated");
        sound.clone().array("a", ty, 1 << 61, &[0; 64]).refused("gguf.truncated");
        sound.clone().array("a", ty, 1000, &[0; 64]).refused("gguf.truncated");
    }
    let error = sound.clone().pair(b"long", 8, &1000u64.to_le_bytes()).refused("gguf.truncated");
    assert_eq!((&error.details["key"], &error.details["got_bytes"]), (&"long".into(), &16.into()));
    let broken = sound.clone().pair(b"a", 8, &string(&[0xff])).parse().unwrap();
    assert_eq!(broken.metadata.str("a").unwrap_err().code, "gguf.bad_utf8");
    let nested = |depth| (1..depth).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
    sound.clone().pair(b"a", 9, &nested(MAX_NESTING)).parse().unwrap();
    sound.clone().pair(b"a", 9, &nested(MAX_NESTING + 1)).refused("gguf.nesting_too_deep");
    sound.clone().pair(b"a", 9, &nested(10_000)).refused("gguf.nesting_too_deep");
    for (alignment, code) in [(0u32, "gguf.bad_alignment"), (48, "gguf.bad_alignment")] {
        sound.clone().pair(b"general.alignment", 4, &alignment.to_le_bytes()).refused(code);
    }
    sound.clone().pair(b"general.alignment", 8, &string(b"32")).refused("gguf.wrong_type");
}

#[test]
fn tensor_faults_have_their_codes() {
    let sound = Writer::new().data(4096);
    let with = |dims: &[u64], ty, offset| sound.clone().tensor(b"t", dims, ty, offset);
    with(&[32, 2], 8, 32).parse().unwrap();
    with(&[1, 1, 1, 1, 1], 0, 0).refused("gguf.too_many_dims");
    with(&[4, 0], 0, 0).refused("gguf.zero_dim");
    with(&[48], 8, 0).refused("gguf.bad_row_length");
    with(&[1 << 40, 1 << 40], 0, 0).refused("gguf.size_overflow");
    with(&[1 << 62, 1], 0, 0).refused("gguf.size_overflow");
    with(&[(1 << 42) + 1, 1 << 22], 0, 0).refused("gguf.size_overflow");
    with(&[u64::MAX], 24, 0).refused("gguf.tensor_out_of_bounds");
    with(&[32], 250, 0).refused("gguf.unknown_tensor_type");
    with(&[32], 4, 0).refused("gguf.unknown_tensor_type");
    with(&[32], 0, 4).refused("gguf.misaligned_tensor");
    with(&[1], 0, 4096).refused("gguf.tensor_out_of_bounds");
    with(&[32], 0, !31).refused("gguf.tensor_out_of_bounds");
    sound.clone().tensor(&[0xff], &[1], 0, 0).refused("gguf.bad_utf8");
    let two = with(&[16], 0, 0);
    two.clone().tensor(b"u", &[16], 0, 64).parse().unwrap();
    two.clone().tensor(b"u", &[16], 0, 32).refused("gguf.overlapping_tensors");
    two.clone().tensor(b"u", &[16], 0, 0).refused("gguf.overlapping_tensors");
    two.clone().tensor(b"t", &[16], 0, 64).refused("gguf.duplicate_tensor");
}

#[test]
fn alignment_of_the_file_counts() {
    let file = Writer { alignment: 128, ..Writer::new().pair(b"general.alignment", 4, &128u32.to_le_bytes()) };
    let gguf = file.clone().tensor(b"t", &[4], 0, 128).data(144).parse().unwrap();
    assert_eq!((gguf.alignment, gguf.data_offset % 128), (128, 0));
    file.clone().tensor(b"t", &[4], 0, 32).data(144).refused("gguf.misaligned_tensor");
}

/// Feeds a file as it would arrive, from `first` bytes on; the result and the number of tries.
fn feed(file: &[u8], first: usize) -> (Gguf, u32) {
    let mut len = first;
    for tries in 1.. {
        match Gguf::parse(&file[..len], file.len() as u64).unwrap() {
            ParseStep::Done(gguf) => return (gguf, tries),
            ParseStep::NeedMore { at_least } => {
                assert!(at_least > len as u64 && at_least <= file.len() as u64);
                assert!(at_least >= (2 * len as u64).min(file.len() as u64), "each try doubles what is read");
                len = at_least as usize;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_growing_prefix_gives_the_same_header() {
    for name in ["llama-f16", "llama-mix32", "llama-kq", "llama-freqs", "qwen2-f16", "gemma3-f16", "lora-llama-f16"] {
        let file = golden(&format!("tiny/tiny-{name}.gguf"));
        let whole = Gguf::from_bytes(&file).unwrap();
        for first in [0, 1, 24, 1000, 1001, 4096] {
            let (gguf, tries) = feed(&file, first);
            assert_eq!(gguf, whole);
            assert!(tries < 20);
        }
        // Enough is exactly the header: what lies behind it is never asked for.
        let done = |len: usize| matches!(Gguf::parse(&file[..len], file.len() as u64).unwrap(), ParseStep::Done(gguf) if gguf == whole);
        let (mut short, mut enough) = (0, file.len());
        while enough - short > 1 {
            let middle = usize::midpoint(short, enough);
            if done(middle) { enough = middle } else { short = middle }
        }
        assert_eq!((enough as u64).next_multiple_of(whole.alignment), whole.data_offset, "{name}");
    }
}

#[test]
fn a_long_header_is_refused_before_it_is_fetched() {
    let file = Writer::new().array("a", 0, MAX_HEADER_BYTES, &[]).bytes();
    let error = Gguf::parse(&file, 1 << 40).unwrap_err();
    assert_eq!(error.code, "gguf.limit_exceeded");
}

#[test]
fn a_cut_file_is_known_from_its_first_bytes() {
    let file = golden("tiny/tiny-llama-kq.gguf");
    let header = Gguf::from_bytes(&file).unwrap().data_offset as usize;
    let cut = file.len() as u64 - 1;
    assert_eq!(Gguf::parse(&file[..header], cut).unwrap_err().code, "gguf.tensor_out_of_bounds");
}

#[test]
fn json_summary_matches_what_it_summarizes() {
    let long: Vec<u8> = (0..100u32).flat_map(u32::to_le_bytes).collect();
    let gguf = Writer::new()
        .array("long", 4, 100, &long)
        .array("short", 0, 3, &[1, 2, 3])
        .pair(b"nan", 6, &f32::NAN.to_le_bytes())
        .pair(b"text", 8, &string(&[b'x'; 70_000]))
        .pair(b"bad", 8, &string(&[b'a', 0xff]))
        .parse()
        .unwrap();
    let json = serde_json::Value::Object(gguf.metadata.to_json());
    assert_eq!(
        json["long"],
        serde_json::json!({"type": "u32", "len": 100, "first": [0, 1, 2, 3, 4, 5, 6, 7],
        "last": [96, 97, 98, 99]})
    );
    assert_eq!(json["short"], serde_json::json!([1, 2, 3]));
    assert_eq!(json["nan"], "NaN");
    assert_eq!((&json["text"]["bytes"], json["text"]["first"].as_str().unwrap().len()), (&70_000.into(), 1024));
    assert_eq!(json["bad"], "a\u{fffd}");
}

#[test]
fn the_default_model_has_the_golden_metadata() {
    let path = std::env::var("FIRESIDE_MODEL").map(std::path::PathBuf::from).unwrap_or_else(|_| {
        let home = std::env::var("HOME").unwrap_or_default();
        std::path::Path::new(&home).join(".cache/fireside/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    let golden = golden_json("meta/smollm2.json");
    if path.file_name().and_then(|name| name.to_str()) != golden["file"].as_str() || !path.exists() {
        eprintln!("SKIPPED: the default model is not at {}; see the README for how to fetch it", path.display());
        return;
    }
    let (gguf, _) = feed(&std::fs::read(path).unwrap(), 64 << 10);
    let got = gguf.metadata.to_json();
    let expected = golden["metadata"].as_object().unwrap();
    assert_eq!(got.len() + 3, expected.len(), "the golden file counts the three header fields too");
    for (key, got) in &got {
        let want = &expected[key];
        match want.get("len") {
            Some(len) => {
                assert_eq!((&got["len"], &got["first"], &got["last"]), (len, &want["first"], &want["last"]), "{key}");
            }
            None => assert_eq!(got, want, "{key}"),
        }
    }
    let tensors = golden["tensors"].as_array().unwrap();
    assert_eq!(gguf.tensors.len(), tensors.len());
    for want in tensors {
        let got = gguf.tensor(want["name"].as_str().unwrap()).unwrap();
        assert_eq!((got.ty.name(), serde_json::json!(got.shape)), (want["type"].as_str().unwrap(), want["ne"].clone()));
    }
}

/// Part `no` of `count` with one tensor, `tensors` in all.
fn part(no: u16, count: u16, tensors: u32, name: &[u8]) -> Gguf {
    let writer = Writer::new()
        .pair(b"split.no", 2, &no.to_le_bytes())
        .pair(b"split.count", 2, &count.to_le_bytes())
        .pair(b"split.tensors.count", 5, &tensors.to_le_bytes());
    let writer = if no == 0 { writer.pair(b"general.architecture", 8, &string(b"llama")) } else { writer };
    writer.tensor(name, &[32], 0, 0).data(128).parse().unwrap()
}

#[test]
fn parts_join_in_any_order_and_offsets_count_from_the_source() {
    let base = 5 << 30;
    let (first, second) = (part(0, 2, 2, b"a"), part(1, 2, 2, b"b"));
    let own = second.tensor("b").unwrap().offset;
    let joined = Gguf::join(vec![(second.clone(), base), (first.clone(), 0)]).unwrap();
    assert_eq!(joined.metadata.str("general.architecture").unwrap(), "llama", "part 0's metadata");
    assert_eq!(joined.tensor("a").unwrap().offset, first.tensor("a").unwrap().offset);
    assert_eq!(joined.tensor("b").unwrap().offset, base + own, "beyond 4 GiB");
    assert_eq!(joined.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let whole = Writer::new().tensor(b"a", &[32], 0, 0).data(128).parse().unwrap();
    assert_eq!(Gguf::join(vec![(whole.clone(), 0)]).unwrap(), whole, "one whole file is itself");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let code = |files: &[&Gguf]| Gguf::join(files.iter().map(|&f| (f.clone(), 0)).collect()).unwrap_err().code;
    let whole = Writer::new().tensor(b"w", &[32], 0, 0).data(128).parse().unwrap();
    let (zero, one) = (part(0, 2, 2, b"a"), part(1, 2, 2, b"b"));
    assert_eq!(code(&[]), "gguf.split_missing");
    assert_eq!(code(&[&zero]), "gguf.split_missing");
    assert_eq!(code(&[&zero, &one, &one]), "gguf.split_missing");
    assert_eq!(code(&[&zero, &whole]), "gguf.split_mismatch", "a whole file among parts");
    assert_eq!(code(&[&zero, &zero]), "gguf.split_mismatch", "a part twice");
    assert_eq!(code(&[&zero, &part(2, 2, 2, b"b")]), "gguf.split_mismatch", "a number too high");
    assert_eq!(code(&[&part(0, 2, 9, b"a"), &one]), "gguf.split_mismatch", "tensors are missing");
    assert_eq!(code(&[&zero, &part(1, 2, 2, b"a")]), "gguf.duplicate_tensor");
}
