//! House rules that a machine can check: the import table, a first line in every file, file lengths, a scalar reference
//! for each op, and a paragraph for each error code. Formatting and lints are left to rustfmt and clippy.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Room -> rooms it may import. `error` and `ids` are open to all.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("ids", &[]),
    ("gguf", &[]),
    ("quant", &["gguf"]),
    ("tokenizer", &["gguf"]),
    ("chat", &["tokenizer"]),
    ("sampling", &[]),
    ("kv", &[]),
    ("sequence", &["sampling"]),
    ("scheduler", &["kv", "sequence"]),
    ("backend", &[]),
    // The step's index arrays are packed here, next to the ops that read them.
    ("ops", &["backend", "quant", "gguf", "scheduler"]),
    // `model/executor` fits a model under the engine and `model/open` loads one into it.
    ("model", &["ops", "backend", "quant", "gguf", "scheduler", "engine", "sampling", "tokenizer", "chat"]),
    ("engine", &["gguf", "quant", "tokenizer", "chat", "sampling", "kv", "sequence", "scheduler"]),
    (
        "web",
        &[
            "engine",
            "model",
            "backend",
            "gguf",
            "quant",
            "tokenizer",
            "chat",
            "sampling",
            "kv",
            "sequence",
            "scheduler",
            "ops",
        ],
    ),
];

/// Only these rooms may name burn, CubeCL or wgpu.
const NAMES_BURN: &[&str] = &["backend", "ops"];
const MAX_LINES: usize = 600;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &Path, extensions: &[&str], out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|e| e.expect("readable folder").path()) {
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !["node_modules", "goldens", "contract", "dist", "fixtures", "target"].contains(&name.as_str()) {
                files(&path, extensions, out);
            }
        } else if path.extension().is_some_and(|e| extensions.contains(&e.to_string_lossy().as_ref())) {
            out.push(path);
        }
    }
    out.sort();
}

fn rust_sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    files(&root().join("src"), &["rs"], &mut paths);
    assert!(paths.len() > 20, "the sources were not found");
    paths.into_iter().map(|p| (p.clone(), fs::read_to_string(&p).expect("utf-8 source"))).collect()
}

fn room(path: &Path) -> String {
    let relative = path.strip_prefix(root().join("src")).expect("a source");
    let first = relative.components().next().expect("a name").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The part of a source before its test module: tests may reach for anything.
fn production(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|c| {
        let name = c.as_os_str().to_string_lossy();
        name == "tests"
            || name == "tests.rs"
            || name == "testing"
            || name == "testing.rs"
            || name.ends_with("_tests.rs")
    })
}

#[test]
fn rooms_import_only_rooms_below() {
    let table: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for (path, text) in rust_sources().iter().filter(|(p, _)| !is_test_file(p)) {
        let room = room(path);
        if room == "lib" {
            continue;
        }
        let allowed = table.get(room.as_str()).unwrap_or_else(|| panic!("room {room} is not in the table"));
        for (number, line) in production(text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for after in code.split("crate::").skip(1) {
                let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let known = table.contains_key(name.as_str());
                if known
                    && name != room
                    && !["error", "ids"].contains(&name.as_str())
                    && !allowed.contains(&name.as_str())
                {
                    wrong.push(format!("{}:{} {room} imports {name}", path.display(), number + 1));
                }
            }
            let burn = ["burn::", "cubecl::", "wgpu::"].iter().any(|c| code.contains(c)) && !code.contains("webgpu::");
            if burn && !NAMES_BURN.contains(&room.as_str()) {
                wrong.push(format!("{}:{} {room} names burn", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_file_says_what_it_is_for_and_is_short() {
    let mut paths = Vec::new();
    for dir in ["src", "tests", "benches", "js", "www", "scripts"] {
        files(&root().join(dir), &["rs", "ts", "mjs", "js"], &mut paths);
    }
    let mut wrong = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).expect("utf-8 source");
        let mut lines = text.lines().skip_while(|l| l.starts_with("#!/"));
        let first = lines.next().unwrap_or_default();
        let good = if path.extension().is_some_and(|e| e == "rs") {
            first.starts_with("//!")
        } else {
            first.starts_with("/**")
        };
        if !good {
            wrong.push(format!("{} opens without a line on its purpose", path.display()));
        }
        if text.lines().count() > MAX_LINES {
            wrong.push(format!("{} has more than {MAX_LINES} lines", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Files that may allow unsafe code, each with a reason; docs/security.md names them.
const MAY_BE_UNSAFE: &[&str] =
    &["src/backend/webgpu.rs", "src/ops/cpu/simd_wasm.rs", "src/ops/gpu/launch.rs", "src/web/alloc.rs"];

#[test]
fn unsafe_code_is_only_where_it_is_named() {
    let security = fs::read_to_string(root().join("docs/security.md")).expect("docs/security.md");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    for (path, text) in rust_sources() {
        let name = path.strip_prefix(root()).expect("a source").to_string_lossy().replace('\\', "/");
        let is_unsafe = text
            .lines()
            .filter(is_code)
            .any(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe"));
        let allowed = text.matches("allow(unsafe_code").count();
        assert_eq!(is_unsafe, MAY_BE_UNSAFE.contains(&name.as_str()), "{name}");
        assert_eq!(
            allowed,
            text.matches("allow(unsafe_code, reason = ").count(),
            "{name}: an allowance without a reason"
        );
        assert!(is_unsafe || allowed == 0, "{name}");
        assert!(
            !is_unsafe || security.contains(name.trim_start_matches("src/")),
            "docs/security.md does not name {name}"
        );
    }
}

#[test]
fn every_op_has_a_scalar_reference() {
    let trait_text = fs::read_to_string(root().join("src/ops/mod.rs")).expect("ops/mod.rs");
    let body = trait_text.split("pub trait FiresideOps").nth(1).expect("the trait");
    let ops: Vec<&str> = body.split("\n    fn ").skip(1).map(|f| f.split('(').next().unwrap_or_default()).collect();
    assert!(ops.len() >= 12, "{ops:?}");
    let all: String = rust_sources().into_iter().filter(|(p, _)| room(p) == "ops").map(|(_, t)| t).collect();
    for op in ops {
        let short = op.trim_end_matches("_logits");
        assert!(
            all.contains(&format!("pub fn {op}_reference(")) || all.contains(&format!("pub fn {short}_reference(")),
            "{op} has no reference"
        );
    }
}

/// Codes are written as string literals in `Error::new("room.what"` (Rust) and `FiresideError("room.what"` (TypeScript).
fn codes_in(text: &str) -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for opening in ["Error::new(", "FiresideError("] {
        for after in text.split(opening).skip(1) {
            let after = after.trim_start();
            if let Some(code) = after.strip_prefix('"').and_then(|a| a.split('"').next()) {
                codes.insert(code.to_owned());
            }
        }
    }
    codes
}

#[test]
fn every_error_code_is_documented() {
    let docs = fs::read_to_string(root().join("docs/errors.md")).expect("docs/errors.md");
    let mut codes = BTreeSet::new();
    for (path, text) in rust_sources() {
        if !is_test_file(&path) {
            codes.extend(codes_in(production(&text)));
        }
    }
    let mut scripts = Vec::new();
    files(&root().join("js"), &["ts"], &mut scripts);
    for path in scripts.iter().filter(|p| !p.to_string_lossy().ends_with(".test.ts")) {
        codes.extend(codes_in(&fs::read_to_string(path).expect("utf-8")));
    }
    assert!(codes.len() > 20, "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|c| !docs.contains(&format!("### `{c}`"))).collect();
    assert!(missing.is_empty(), "codes without a paragraph in docs/errors.md: {missing:#?}");
    let shapeless: Vec<_> = codes.iter().filter(|c| c.split('.').count() != 2).collect();
    assert!(shapeless.is_empty(), "codes are room.what: {shapeless:#?}");
}
