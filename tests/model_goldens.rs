//! Whole models against the reference forward: tiny models on both backends, the default model on the CPU and, for a few
//! tokens, on WebGPU. The bounds are those of the design: 5e-3 on logits, the same top token beyond a gap of 0.05.
#![cfg(any(feature = "cpu", feature = "webgpu"))]
mod support;

use fireside::backend::Backend;
use fireside::model::Transformer;
use serde_json::Value;
use support::{argmax, default_model, goldens, ids, json, json_lines, load, log_sum_exp, logits, max_difference, npy};

const BOUND: f32 = 5e-3;
const NEAR_TIE: f64 = 0.05;

fn tiny_llamas(backend: &Backend, bound: f32, chunks: &[usize]) {
    let mut compared = 0;
    for entry in json("tiny/index.json").as_array().expect("a list") {
        if entry["config"]["arch"] != "llama" {
            continue;
        }
        let file = entry["file"].as_str().expect("file");
        let mut model =
            load(&goldens().join("tiny").join(file), backend, 256).unwrap_or_else(|e| panic!("{file}: {e}"));
        for prompt in entry["prompts"].as_array().expect("prompts").iter().filter(|p| p["adapter"].is_null()) {
            let tokens = ids(&prompt["ids"]);
            let all: Vec<usize> = (0..tokens.len()).collect();
            if let Some(name) = prompt["logits_all_positions"].as_str() {
                let (shape, expected) = npy(&goldens().join("tiny").join(name));
                assert_eq!(shape, [tokens.len(), model.spec.vocab]);
                for &chunk in chunks {
                    let got: Vec<f32> = logits(&mut model, &tokens, &all, chunk).concat();
                    let worst = max_difference(&got, &expected);
                    assert!(worst <= bound, "{file} {name} chunk {chunk}: {worst}");
                    compared += 1;
                }
            }
            greedy_steps(&mut model, file, &tokens, &ids(&prompt["greedy_ids_f64"]), |step| {
                prompt["greedy_gaps"][step].as_f64().expect("gap") < NEAR_TIE
            });
        }
    }
    assert!(compared >= 8, "only {compared} comparisons");
}

/// Feeds the reference's own tokens and compares the top token of each step.
fn greedy_steps(
    model: &mut Transformer,
    what: &str,
    prompt: &[u32],
    expected: &[u32],
    near_tie: impl Fn(usize) -> bool,
) {
    let tokens: Vec<u32> = prompt.iter().chain(&expected[..expected.len() - 1]).copied().collect();
    let wanted: Vec<usize> = (prompt.len() - 1..tokens.len()).collect();
    let rows = logits(model, &tokens, &wanted, 128);
    for (step, row) in rows.iter().enumerate().filter(|(step, _)| !near_tie(*step)) {
        assert_eq!(argmax(row) as u32, expected[step], "{what} step {step}");
    }
}

fn default_logits(model: &mut Transformer, chosen: impl Fn(&str) -> bool) {
    let mut compared = 0;
    for case in json("logits/smollm2.json").as_array().expect("a list") {
        let name = case["name"].as_str().expect("name");
        if !chosen(name) {
            continue;
        }
        compared += 1;
        let tokens = ids(&case["ids"]);
        let positions = case["positions"].as_array().expect("positions");
        let at = |position: &Value| position.as_u64().expect("a position") as usize;
        let full = case["full_logits_positions"].as_array().expect("positions");
        let mut wanted: Vec<usize> = positions.iter().map(|p| at(&p["pos"])).chain(full.iter().map(at)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let rows = logits(model, &tokens, &wanted, 128);
        let row = |position: usize| &rows[wanted.binary_search(&position).expect("a wanted position")];
        let mut worst = 0f64;
        for position in positions {
            let row = row(at(&position["pos"]));
            worst = worst.max((log_sum_exp(row) - position["logsumexp"].as_f64().expect("lse")).abs());
            let top = position["top20"].as_array().expect("top");
            for pair in top {
                let (id, logit) = (at(&pair[0]), pair[1].as_f64().expect("logit"));
                worst = worst.max((f64::from(row[id]) - logit).abs());
            }
            let gap = top[0][1].as_f64().expect("logit") - top[1][1].as_f64().expect("logit");
            assert!(gap < NEAR_TIE || argmax(row) == at(&top[0][0]), "{name}: top token");
        }
        for position in full.iter().map(at) {
            let (_, expected) = npy(&goldens().join(format!("logits/smollm2.{name}.pos{position}.npy")));
            worst = worst.max(f64::from(max_difference(row(position), &expected)));
        }
        println!("logits {name}: largest difference {worst:.2e}");
        assert!(worst <= f64::from(BOUND), "{name}: {worst}");
    }
    assert!(compared > 0, "no prompt has such a name");
}

fn default_greedy(model: &mut Transformer, chosen: impl Fn(&str) -> bool) {
    let mut compared = 0;
    for case in json_lines("greedy/smollm2.jsonl") {
        let name = case["name"].as_str().expect("name");
        if !chosen(name) {
            continue;
        }
        compared += 1;
        let ties: Vec<u32> = ids(&case["near_tie_steps"]);
        greedy_steps(model, name, &ids(&case["prompt_ids"]), &ids(&case["ids"]), |step| ties.contains(&(step as u32)));
    }
    assert!(compared > 0, "no prompt has such a name");
}

#[cfg(feature = "cpu")]
mod cpu {
    use super::*;

    fn backend() -> Backend {
        Backend::cpu().expect("the CPU backend")
    }

    #[test]
    fn tiny_models_agree_at_all_positions_in_any_chunks() {
        tiny_llamas(&backend(), BOUND, &[1, 3, 128]);
    }

    #[test]
    fn chunking_does_not_change_a_bit() {
        let mut model = load(&goldens().join("tiny/tiny-llama-mix32.gguf"), &backend(), 256).expect("a model");
        let tokens: Vec<u32> = (0..130).map(|i| (i * 7 + 3) % 200).collect();
        let all: Vec<usize> = (0..tokens.len()).collect();
        let once = logits(&mut model, &tokens, &all, 130);
        for chunk in [1, 2, 5, 8, 9, 33, 64] {
            assert!(logits(&mut model, &tokens, &all, chunk) == once, "chunk {chunk}");
        }
    }

    /// Prompts whose steps take half of the time: two tests run beside each other.
    const LONG: [&str; 2] = ["c_long", "decl_700"];

    #[test]
    fn the_default_model_agrees() {
        let Some(path) = default_model() else { return };
        let mut model = load(&path, &backend(), 2048).expect("the default model");
        default_logits(&mut model, |_| true);
        default_greedy(&mut model, |name| !LONG.contains(&name));
    }

    #[test]
    fn the_default_model_agrees_on_long_prompts() {
        let Some(path) = default_model() else { return };
        let mut model = load(&path, &backend(), 2048).expect("the default model");
        default_greedy(&mut model, |name| LONG.contains(&name));
    }
}

#[cfg(feature = "webgpu")]
mod webgpu {
    use super::*;

    fn backend() -> Option<Backend> {
        match pollster::block_on(Backend::webgpu()) {
            Ok(backend) => Some(backend),
            Err(error) => {
                assert!(std::env::var_os("FIRESIDE_REQUIRE_GPU").is_none(), "{error}");
                eprintln!("SKIPPED: {error}");
                None
            }
        }
    }

    #[test]
    fn tiny_models_agree_at_all_positions() {
        let Some(backend) = backend() else { return };
        tiny_llamas(&backend, BOUND, &[3, 128]);
    }

    #[test]
    fn chunking_does_not_change_a_bit() {
        let Some(backend) = backend() else { return };
        let mut model = load(&goldens().join("tiny/tiny-llama-mix32.gguf"), &backend, 256).expect("a model");
        let tokens: Vec<u32> = (0..70).map(|i| (i * 7 + 3) % 200).collect();
        let all: Vec<usize> = (0..tokens.len()).collect();
        let once = logits(&mut model, &tokens, &all, 70);
        for chunk in [1, 3, 8, 9, 33] {
            assert!(logits(&mut model, &tokens, &all, chunk) == once, "chunk {chunk}");
        }
    }

    #[test]
    fn the_default_model_agrees_on_the_shortest_prompts() {
        let (Some(backend), Some(path)) = (backend(), default_model()) else { return };
        let mut model = load(&path, &backend, 128).expect("the default model");
        default_logits(&mut model, |name| name == "capital");
        default_greedy(&mut model, |name| ["one", "capital"].contains(&name));
    }
}
