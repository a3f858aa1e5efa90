//! The room as a whole: truncated against whole views, both against a naive model, and the distribution that comes out.
use proptest::prelude::*;

use super::*;
use crate::ids::TokenId;

/// What the candidates op leaves of a row, written from its specification; `noise` bends the sums as a device may.
fn records(row: &[f32], layout: Layout, temperature: f32, noise: f32) -> Vec<u32> {
    let t = if temperature > 0.0 { temperature } else { 1.0 };
    let mut words = Vec::new();
    for (c, chunk) in row.chunks(layout.chunk).enumerate() {
        let max = chunk.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let bend = 1.0 + noise * [1.0, -1.0, 0.3][c % 3];
        let sum = chunk.iter().map(|l| (l - max).exp()).sum::<f32>() * bend;
        let sum_t = chunk.iter().map(|l| ((l - max) / t).exp()).sum::<f32>() * bend;
        words.extend([max, sum, max / t, sum_t].map(f32::to_bits));
        let mut order: Vec<usize> = (0..chunk.len()).collect();
        // Of zeros some devices rank the positive first, some do not.
        let zero = if noise == 0.0 { 0.0 } else { -0.0 };
        order.sort_by(|&a, &b| (chunk[b] + zero).total_cmp(&(chunk[a] + zero)).then(a.cmp(&b)));
        for i in 0..layout.best {
            let entry =
                order.get(i).map_or((u32::MAX, f32::NEG_INFINITY), |&i| ((c * layout.chunk + i) as u32, chunk[i]));
            words.extend([entry.0, entry.1.to_bits()]);
        }
    }
    words
}

/// The truncated way to a token, reading on as told. The flag says whether the records alone decided.
fn truncated(row: &[f32], input: &SampleInput, noise: f32) -> (Sampled, bool) {
    let layout = input.layout;
    let words = records(row, layout, input.params.temperature, noise);
    let parsed = CandidateRow::parse(&words, layout, input.mask.is_some()).unwrap();
    let whole = resume_row(&parsed, row, input).unwrap();
    let (sampled, decided) = match sample_candidates(&parsed, input).unwrap() {
        CandidateOutcome::Sampled(s) => (s, true),
        CandidateOutcome::NeedRow => (whole.clone(), false),
        CandidateOutcome::NeedChunk(c) => {
            let end = row.len().min((c + 1) * layout.chunk);
            (resume_chunk(&parsed, c, &row[c * layout.chunk..end], input).unwrap(), false)
        }
    };
    assert_eq!(sampled, whole, "truncated and whole view of the same records");
    (sampled, decided)
}

/// The definition, slowly: (token, probability) in the order that draws walk.
fn naive(row: &[f32], params: &SamplingParams, chunk: usize) -> Vec<(u32, f64)> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let mut kept: Vec<(u32, f64)> =
        row.iter().zip(0u32..).map(|(&l, t)| (t, ((l as f64 - max) / params.temperature as f64).exp())).collect();
    let best_first = |v: &mut Vec<(u32, f64)>| v.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let normalize = |v: &mut Vec<(u32, f64)>| {
        let sum: f64 = v.iter().map(|e| e.1).sum();
        v.iter_mut().for_each(|e| e.1 /= sum);
    };
    let until = |v: &mut Vec<(u32, f64)>, share: f64| {
        let mut sum = 0.0;
        let enough = v.iter().position(|e| {
            sum += e.1;
            sum >= share
        });
        v.truncate(enough.map_or(v.len(), |i| i + 1));
    };
    best_first(&mut kept);
    let untruncated = params.top_k.is_none() && params.typical_p == 1.0 && params.top_p == 1.0 && params.min_p == 0.0;
    if untruncated {
        kept.sort_by_key(|e| e.0 as usize / chunk);
    }
    kept.truncate(params.top_k.map_or(usize::MAX, |k| k as usize));
    normalize(&mut kept);
    if params.typical_p < 1.0 {
        let entropy: f64 = kept.iter().filter(|e| e.1 > 0.0).map(|e| -e.1 * e.1.ln()).sum();
        kept.sort_by(|a, b| (-a.1.ln() - entropy).abs().total_cmp(&(-b.1.ln() - entropy).abs()));
        until(&mut kept, params.typical_p);
        best_first(&mut kept);
        normalize(&mut kept);
    }
    if params.top_p < 1.0 {
        until(&mut kept, params.top_p);
        normalize(&mut kept);
    }
    let best = kept.iter().map(|e| e.1).fold(0.0, f64::max);
    kept.retain(|e| e.1 >= params.min_p * best);
    normalize(&mut kept);
    kept
}

fn lands_on(dist: &[(u32, f64)], token: TokenId, u: f64, tolerance: f64) -> bool {
    let mut before = 0.0;
    dist.iter().any(|&(t, p)| {
        let hit = t == token.0 && u >= before - tolerance && u <= before + p + tolerance;
        before += p;
        hit
    })
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let share = || prop_oneof![Just(1.0), 0.05..0.999f64];
    (
        prop_oneof![Just(1.0f32), 0.1..3.0f32],
        prop_oneof![Just(None), (1..50u32).prop_map(Some)],
        share(),
        prop_oneof![3 => Just(1.0), 1 => 0.05..0.999f64],
        prop_oneof![Just(0.0), 0.001..0.9f64],
        prop_oneof![Just(None), (0..6u32).prop_map(Some)],
    )
        .prop_map(|(temperature, top_k, top_p, typical_p, min_p, logprobs)| SamplingParams {
            temperature,
            top_k,
            top_p,
            typical_p,
            min_p,
            logprobs,
            ..Default::default()
        })
}

/// Rows with ties, and rows without.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec((-12..12i32).prop_map(|x| x as f32 * 0.5), 1..70),
        prop::collection::vec(prop_oneof![Just(0.0f32), Just(-0.0f32), -1.0..1.0f32], 1..70),
        prop::collection::vec(-8.0..8.0f32, 1..70),
    ]
}

fn layout_of(row: &[f32], chunk: usize, best: usize) -> Layout {
    Layout { vocab: row.len(), chunk, best }
}

fn key(seed: u64, index: u64) -> DrawKey {
    DrawKey { seed, choice: 0, index }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_view_gives_the_naive_token(
        row in any_row(), params in any_params(), chunk in 1..12usize, best in 1..5usize, seed in any::<u32>(), noisy in any::<bool>(),
    ) {
        let input = |index| SampleInput {
            params: &params, adjustments: &[], mask: None, key: key(seed.into(), index), layout: layout_of(&row, chunk, best),
        };
        let dist = naive(&row, &params, chunk);
        for index in 0..8 {
            let input = input(index);
            let whole = sample_row(&row, &input).unwrap();
            let u = input.key.uniform();
            prop_assert!(lands_on(&dist, whole.token, u, 1e-9), "u {} gave {:?} of {:?}", u, whole.token, dist);
            let (sampled, _) = truncated(&row, &input, if noisy { 3e-4 } else { 0.0 });
            // Exact sums differ from f32 ones in the last bits: only a draw on a boundary (of a token, or of top-p) may move.
            if !noisy && sampled.token != whole.token {
                let moved = [-1e-5, 1e-5].map(|e| SamplingParams { top_p: (params.top_p + e).min(1.0 - 1e-12), ..params.clone() });
                let near = lands_on(&dist, sampled.token, u, 1e-5)
                    || params.top_p < 1.0 && moved.iter().any(|p| lands_on(&naive(&row, p, chunk), sampled.token, u, 1e-5));
                prop_assert!(near, "u {} gave {:?} of {:?}", u, sampled.token, dist);
            }
            if let (Some(a), Some(b)) = (whole.logprob, sampled.logprob) {
                prop_assert!(sampled.token != whole.token || (a - b).abs() < 1e-3);
                prop_assert_eq!(whole.top.len(), row.len().min(params.logprobs.unwrap() as usize));
            }
        }
    }

    #[test]
    fn a_masked_row_gives_allowed_tokens_only(
        row in any_row(), mut params in any_params(), chunk in 1..12usize, best in 1..5usize, seed in any::<u32>(), allowed in any::<u64>(),
    ) {
        params.logprobs = None;
        let mut mask = TokenMask::none(row.len());
        (0..row.len()).filter(|t| allowed >> (t % 61) & 1 == 1).for_each(|t| mask.allow(TokenId(t as u32)));
        let input = SampleInput {
            params: &params, adjustments: &[], mask: Some(&mask), key: key(seed.into(), 0), layout: layout_of(&row, chunk, best),
        };
        let any = (0..row.len()).any(|t| mask.allows(TokenId(t as u32)));
        let whole = sample_row(&row, &input);
        prop_assert_eq!(whole.is_ok(), any);
        if let Ok(whole) = whole {
            prop_assert!(mask.allows(whole.token));
            let masked: Vec<f32> =
                row.iter().zip(0..).map(|(&l, t)| if mask.allows(TokenId(t)) { l } else { f32::NEG_INFINITY }).collect();
            let (sampled, _) = truncated(&masked, &input, 0.0);
            prop_assert!(mask.allows(sampled.token));
        } else {
            prop_assert_eq!(whole.unwrap_err().code, "sampling.nothing_allowed");
        }
    }

    /// Penalties by their definitions, one at a time, against the one-step form.
    #[test]
    fn adjustments_are_the_penalties(
        row in any_row(), prompt in prop::collection::vec(0..70u32, 0..20), output in prop::collection::vec(0..70u32, 0..20),
        (repetition, presence, frequency) in (0.5..2.0f32, -2.0..2.0f64, -2.0..2.0f64), bias in prop::collection::btree_map(0..70u32, -100.0..100.0f32, 0..9),
    ) {
        let inside = |t: &u32| (*t as usize) < row.len();
        let [prompt, output] = [prompt, output].map(|v| v.into_iter().filter(inside).collect::<Vec<_>>());
        let params = SamplingParams {
            temperature: 0.0, repetition_penalty: repetition, presence_penalty: presence, frequency_penalty: frequency,
            logit_bias: bias.into_iter().filter(|(t, _)| inside(t)).map(|(t, b)| (TokenId(t), b)).collect(), ..Default::default()
        };
        let mut counts = TokenCounts::new(&prompt.iter().map(|&t| TokenId(t)).collect::<Vec<_>>());
        output.iter().for_each(|&t| counts.push(TokenId(t)));
        let list = adjustments(&params, &counts);
        prop_assert!(list.windows(2).all(|w| w[0].token < w[1].token));
        let mut got = row.clone();
        processors::adjust(&mut got, &list, None).unwrap();
        for (t, (&l, &g)) in row.iter().zip(&got).enumerate() {
            let mut x = f64::from(l);
            let n = output.iter().filter(|&&o| o as usize == t).count();
            if n > 0 || prompt.contains(&(t as u32)) {
                x = if x > 0.0 { x / f64::from(repetition) } else { x * f64::from(repetition) };
            }
            x -= if n > 0 { presence } else { 0.0 } + frequency * n as f64;
            x += params.logit_bias.iter().find(|b| b.0.0 as usize == t).map_or(0.0, |b| f64::from(b.1));
            prop_assert!((x - f64::from(g)).abs() <= 1e-5 * (1.0 + x.abs() + f64::from(l).abs()), "token {}: {} {}", t, x, g);
        }
        let input = SampleInput { params: &params, adjustments: &list, mask: None, key: key(0, 0), layout: layout_of(&row, 7, 2) };
        let best = (0..got.len()).rev().max_by(|&a, &b| got[a].total_cmp(&(got[b] + 0.0))).unwrap();
        let chosen = sample_row(&row, &input).unwrap().token.0 as usize;
        prop_assert!(got[chosen] == got[best] && got[..chosen].iter().all(|&l| l < got[chosen]));
        prop_assert_eq!(truncated(&got, &input, 0.0).0.token.0 as usize, chosen);
    }

    /// No words, however wrong, do worse than an error.
    #[test]
    fn wild_records_are_refused_or_sampled(
        row in prop::collection::vec(-4.0..4.0f32, 11..12), hits in prop::collection::vec((0..30usize, any::<u32>(), 0..4u8), 0..3),
        masked in any::<bool>(), params in any_params(),
    ) {
        let layout = Layout { vocab: 11, chunk: 4, best: 3 };
        let mut words = records(&row, layout, params.temperature, 0.0);
        for (at, bits, how) in hits {
            words[at] = match how {
                0 => bits,
                1 => bits % 12,
                2 => f32::NEG_INFINITY.to_bits(),
                _ => (f32::from_bits(words[at]) * 1.5).to_bits(),
            };
        }
        if let Ok(parsed) = CandidateRow::parse(&words, layout, masked) {
            let params = SamplingParams { logprobs: None, ..params };
            let mask = TokenMask::none(11);
            let mask = masked.then_some(&mask);
            let input = SampleInput { params: &params, adjustments: &[], mask, key: key(1, 2), layout };
            let outcome = sample_candidates(&parsed, &input).unwrap();
            if let CandidateOutcome::Sampled(s) = outcome {
                prop_assert!(s.token.0 < 11);
            }
            let _ = resume_row(&parsed, &row, &input);
        }
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals_in_every_view() {
    let params = SamplingParams { temperature: 0.0, logprobs: Some(2), ..Default::default() };
    let row = [1.0, 3.0, -0.0, 3.0, 0.0, 2.0f32];
    let input =
        SampleInput { params: &params, adjustments: &[], mask: None, key: key(1, 1), layout: layout_of(&row, 2, 2) };
    let whole = sample_row(&row, &input).unwrap();
    assert_eq!((whole.token, whole.top[0].token, whole.top[1].token), (TokenId(1), TokenId(1), TokenId(3)));
    let (sampled, decided) = truncated(&row, &input, 0.0);
    assert!(decided && sampled.token == TokenId(1));
    let sum: f32 = row.iter().map(|l| (l - 3.0).exp()).sum();
    let params = SamplingParams { logprobs: Some(0), ..params.clone() };
    let record = [1, 3f32.to_bits(), 3f32.to_bits(), sum.to_bits()];
    let greedy = sample_greedy(record, &SampleInput { params: &params, ..input }).unwrap();
    assert_eq!(greedy.token, TokenId(1));
    assert!((greedy.logprob.unwrap() - whole.logprob.unwrap()).abs() < 1e-6);
}

#[test]
fn what_is_not_finite_is_refused() {
    let params = SamplingParams::default();
    let mut row = vec![0.5f32; 10];
    let layout = layout_of(&row, 4, 2);
    let input = SampleInput { params: &params, adjustments: &[], mask: None, key: key(1, 1), layout };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        row[6] = bad;
        let error = sample_row(&row, &input).unwrap_err();
        assert_eq!((error.code, &error.details["token"]), ("model.non_finite", &6.into()));
        assert_eq!(logprob_of(&row, TokenId(0)).unwrap_err().code, "model.non_finite");
        assert_eq!(top_logprobs(&row, 3).unwrap_err().code, "model.non_finite");
        if bad != f32::NEG_INFINITY {
            let words = records(&row, layout, 1.0, 0.0);
            assert_eq!(CandidateRow::parse(&words, layout, false).unwrap_err().code, "model.non_finite");
        }
    }
    for [logit, sum] in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0]] {
        let record = [3, logit.to_bits(), logit.to_bits(), sum.to_bits()];
        assert_eq!(sample_greedy(record, &input).unwrap_err().code, "model.non_finite");
    }
    let overflow = [Adjustment { token: TokenId(1), factor: 0.01, addend: 0.0 }];
    let row = [0.0, f32::MAX, 0.0];
    let input = SampleInput { adjustments: &overflow, layout: layout_of(&row, 4, 2), ..input };
    assert_eq!(sample_row(&row, &input).unwrap_err().code, "model.non_finite");
    assert_eq!(sample_row(&[], &input).unwrap_err().code, "sampling.bad_row");
}

#[test]
fn logprobs_are_of_the_unmodified_row() {
    let row = [2.0f32, 1.0, 0.5, -3.0];
    let params = SamplingParams {
        temperature: 0.2,
        logprobs: Some(2),
        logit_bias: vec![(TokenId(3), 100.0)],
        ..Default::default()
    };
    let list = adjustments(&params, &TokenCounts::default());
    let input =
        SampleInput { params: &params, adjustments: &list, mask: None, key: key(0, 0), layout: layout_of(&row, 4, 2) };
    let sampled = sample_row(&row, &input).unwrap();
    let log_sum = row.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
    assert_eq!(sampled.token, TokenId(3));
    assert!((sampled.logprob.unwrap() - (-3.0 - log_sum)).abs() < 1e-12);
    assert_eq!(sampled.top.iter().map(|t| t.token.0).collect::<Vec<_>>(), [0, 1]);
    assert!((sampled.top[0].logprob - (2.0 - log_sum)).abs() < 1e-12);
    assert!((logprob_of(&row, TokenId(1)).unwrap() - (1.0 - log_sum)).abs() < 1e-12);
    let total: f64 = top_logprobs(&row, 10).unwrap().iter().map(|t| t.logprob.exp()).sum();
    assert!((total - 1.0).abs() < 1e-12);
}

/// Fixed seeds, so that it never flickers; 30 tokens give at most 29 degrees of freedom, 99.9 % below 59.
#[test]
fn draws_follow_the_distribution() {
    let row: Vec<f32> = (0..30).map(|i| ((i * 7 % 13) as f32) * 0.4).collect();
    for params in [
        SamplingParams::default(),
        SamplingParams { temperature: 0.7, top_k: Some(12), ..Default::default() },
        SamplingParams { temperature: 1.3, top_p: 0.8, ..Default::default() },
        SamplingParams { min_p: 0.1, ..Default::default() },
        SamplingParams { typical_p: 0.7, top_k: Some(25), ..Default::default() },
    ] {
        const DRAWS: u64 = 20_000;
        let mut seen = [0u32; 30];
        for index in 0..DRAWS {
            let input = SampleInput {
                params: &params,
                adjustments: &[],
                mask: None,
                key: key(42, index),
                layout: layout_of(&row, 8, 4),
            };
            seen[truncated(&row, &input, 0.0).0.token.0 as usize] += 1;
        }
        let dist = naive(&row, &params, 8);
        let chi2: f64 = dist
            .iter()
            .map(|&(t, p)| (f64::from(seen[t as usize]) - p * DRAWS as f64).powi(2) / (p * DRAWS as f64))
            .sum();
        assert!(chi2 < 59.0, "{params:?}: chi2 {chi2}");
        let kept: u32 = dist.iter().map(|&(t, _)| seen[t as usize]).sum();
        assert_eq!(u64::from(kept), DRAWS, "nothing outside what is kept: {params:?}");
    }
}

fn golden(name: &str) -> Vec<f32> {
    let path = format!("{}/tests/goldens/logits/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[start..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Against the reference's own log-sum-exp and best tokens of the same rows.
#[test]
fn logprobs_match_the_goldens() {
    let path = format!("{}/tests/goldens/logits/smollm2.json", env!("CARGO_MANIFEST_DIR"));
    let cases: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for (name, pos) in [("capital", 4), ("chat_hi", 35), ("prose_long", 512), ("prose_long", 784)] {
        let row = golden(&format!("smollm2.{name}.pos{pos}.npy"));
        let case = cases.as_array().unwrap().iter().find(|c| c["name"] == name).unwrap();
        let at = case["positions"].as_array().unwrap().iter().find(|p| p["pos"] == pos).unwrap();
        let log_sum = at["logsumexp"].as_f64().unwrap();
        let expected = at["top20"].as_array().unwrap();
        assert_eq!(expected.len(), 20);
        for (got, want) in top_logprobs(&row, 20).unwrap().iter().zip(expected) {
            assert_eq!(u64::from(got.token.0), want[0].as_u64().unwrap());
            assert!((got.logprob - (want[1].as_f64().unwrap() - log_sum)).abs() < 1e-4);
        }
    }
}

/// On real rows the truncated view must be worth having: most draws are decided by the records, and none differently.
#[test]
fn records_decide_most_draws_of_a_real_model() {
    let settings = [
        ("plain", SamplingParams::default(), 0.65),
        ("t 0.7", SamplingParams { temperature: 0.7, ..Default::default() }, 0.8),
        ("t 0.7, top_p 0.95", SamplingParams { temperature: 0.7, top_p: 0.95, ..Default::default() }, 0.6),
        ("top_k 40", SamplingParams { top_k: Some(40), ..Default::default() }, 0.5),
        (
            "t 0.8, top_k 40, top_p 0.95, min_p 0.05",
            SamplingParams { temperature: 0.8, top_k: Some(40), top_p: 0.95, min_p: 0.05, ..Default::default() },
            0.8,
        ),
        ("min_p 0.1", SamplingParams { min_p: 0.1, ..Default::default() }, 0.9),
    ];
    let rows = ["smollm2.capital.pos4", "smollm2.chat_hi.pos35", "smollm2.prose_long.pos512"]
        .map(|n| golden(&format!("{n}.npy")));
    for (name, params, least) in settings {
        let (mut decided, mut draws) = (0, 0);
        for row in &rows {
            assert!(row.len() > 40_000);
            let layout = layout_of(row, 256, 8);
            let parsed = CandidateRow::parse(&records(row, layout, params.temperature, 0.0), layout, false).unwrap();
            for index in 0..200 {
                let input = SampleInput { params: &params, adjustments: &[], mask: None, key: key(9, index), layout };
                let outcome = sample_candidates(&parsed, &input).unwrap();
                draws += 1;
                decided += u32::from(matches!(outcome, CandidateOutcome::Sampled(_)));
                if index < 20 {
                    let whole = resume_row(&parsed, row, &input).unwrap();
                    assert_eq!(sample_row(row, &input).unwrap().token, whole.token);
                    if let CandidateOutcome::Sampled(s) = outcome {
                        assert_eq!(s, whole);
                    }
                }
            }
        }
        let share = f64::from(decided) / f64::from(draws);
        println!("{name}: {share:.3} of draws decided by the records");
        assert!(share >= least, "{name}: {share}");
    }
}
