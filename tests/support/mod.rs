//! Shared by the model tests: files, .npy arrays, a loaded model that runs one sequence in chunks.
#![allow(dead_code, reason = "each test binary uses its own part")]
use std::path::{Path, PathBuf};

use fireside::backend::Backend;
use fireside::ids::{SequenceId, TokenId};
use fireside::model::source::FileSource;
use fireside::model::transformer::{KvCache, LOGIT_ROWS, NoCheckpoint};
use fireside::model::{self, Transformer, loader};
use fireside::scheduler::batch::BatchInput;
use serde_json::Value;

pub const BLOCK_SIZE: usize = 16;

pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

pub fn json(path: &str) -> Value {
    let text = std::fs::read_to_string(goldens().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn json_lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(goldens().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// An .npy file of `<f4` or `<f8` in C order: its shape and values.
pub fn npy(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let header_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).expect("header");
    assert!(header.contains("'fortran_order': False"), "{header}");
    let shape = header.split("'shape': (").nth(1).and_then(|s| s.split(')').next()).expect("shape");
    let shape = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let data = &bytes[10 + header_len..];
    let values = if header.contains("<f4") {
        data.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().expect("4"))).collect()
    } else {
        assert!(header.contains("<f8"), "{header}");
        data.chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().expect("8")) as f32).collect()
    };
    (shape, values)
}

/// The default model, wherever the scripts keep it. Tests that need it fail without it when FIRESIDE_REQUIRE_MODEL is set.
pub fn default_model() -> Option<PathBuf> {
    let path = std::env::var_os("FIRESIDE_MODEL").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache/fireside/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    })?;
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("FIRESIDE_REQUIRE_MODEL").is_none(), "the default model is not at {}", path.display());
    eprintln!("SKIPPED: the default model is not at {}", path.display());
    None
}

pub fn load(path: &Path, backend: &Backend, max_tokens: usize) -> fireside::Result<Transformer> {
    pollster::block_on(async {
        let source = FileSource::open(path)?;
        let gguf = loader::read_header(&source).await?;
        let plan = loader::plan(&source, &gguf).await?;
        let weights = model::load(backend, &source, &gguf, &plan, &mut |_, _| {}).await?;
        let blocks = max_tokens.div_ceil(BLOCK_SIZE) + 1;
        let cache = KvCache::new(backend, &plan.spec, BLOCK_SIZE, blocks).await?;
        let [variant, _] = Transformer::variants_of(backend);
        Ok(Transformer::new(backend.clone(), variant, plan.spec, weights, cache))
    })
}

/// A batch of one sequence's tokens `start..end` with its blocks in a scrambled, fixed order.
pub fn batch(tokens: &[u32], start: usize, end: usize, logit_rows: Vec<u32>, num_blocks: usize) -> BatchInput {
    let block = |i: usize| (num_blocks - 1 - i) as u32;
    let slot = |p: usize| block(p / BLOCK_SIZE) * BLOCK_SIZE as u32 + (p % BLOCK_SIZE) as u32;
    BatchInput {
        token_ids: tokens[start..end].iter().map(|&t| TokenId(t)).collect(),
        positions: (start as u32..end as u32).collect(),
        slot_mapping: (start..end).map(slot).collect(),
        seq_of_token: vec![0; end - start],
        query_start: vec![0, (end - start) as u32],
        context_lens: vec![end as u32],
        block_tables: vec![(0..end.div_ceil(BLOCK_SIZE)).map(block).collect()],
        logit_rows,
        copies: Vec::new(),
        sequences: vec![SequenceId(0)],
    }
}

/// Logits at the wanted positions, the sequence being computed `chunk` tokens at a time.
pub fn logits(model: &mut Transformer, tokens: &[u32], wanted: &[usize], chunk: usize) -> Vec<Vec<f32>> {
    let mut out = Vec::new();
    let num_blocks = model.cache.num_blocks;
    for start in (0..tokens.len()).step_by(chunk) {
        let end = (start + chunk).min(tokens.len());
        let rows: Vec<u32> =
            wanted.iter().filter(|&&p| (start..end).contains(&p)).map(|&p| (p - start) as u32).collect();
        let count = rows.len();
        let input = batch(tokens, start, end, rows, num_blocks);
        let hidden = pollster::block_on(model.hidden(&input, &mut NoCheckpoint)).expect("a forward");
        for first in (0..count).step_by(LOGIT_ROWS) {
            let rows = model.logits(&hidden, first..(first + LOGIT_ROWS).min(count));
            let values = pollster::block_on(model.backend().read_floats(rows)).expect("logits");
            out.extend(values.chunks_exact(model.spec.vocab).map(<[f32]>::to_vec));
        }
    }
    out
}

pub fn argmax(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

pub fn log_sum_exp(row: &[f32]) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + row.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}
