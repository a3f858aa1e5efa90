//! Penalties, candidates and the greedy fold.
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

use super::*;
use crate::ops::FiresideOps;
use crate::ops::logits::{
    AdjustProblem, CHUNK, CHUNK_WORDS, CandidatesProblem, adjust_reference, candidates_reference, greedy_reference,
};

fn candidates(logits: &[f32], temperatures: &[f32], p: CandidatesProblem, device: &Backend) -> Tensor<1, Int> {
    let (logits, temperatures) = (floats(logits, device), floats(temperatures, device));
    Tensor::from_dispatch(Dispatch::candidates(logits.into_dispatch(), temperatures.into_dispatch(), p))
}

#[test]
fn entries_change_their_logits() {
    let Some(device) = device() else { return };
    let mut random = Random(21);
    let (rows, vocab) = (3, 1000);
    let logits: Vec<f32> = random.floats(rows * vocab).iter().map(|v| v * 10.0).collect();
    let entries: Vec<u32> = (0..70)
        .flat_map(|i| [i % 3, i * 13 + 5, (1.0 + (i % 4) as f32 * 0.25).to_bits(), (i as f32 - 30.0).to_bits()])
        .collect();
    let p = AdjustProblem { num_entries: 67, vocab };
    let mut want = logits.clone();
    adjust_reference(&mut want, &entries, &p);
    let out =
        Dispatch::adjust_logits(floats(&logits, &device).into_dispatch(), words(&entries, &device).into_dispatch(), p);
    let got = read(Tensor::<1>::from_dispatch(out));
    assert_close(&got, &want, &[10.0], "adjust");
    assert_eq!(
        got.iter().zip(&logits).filter(|(g, l)| g != l).count(),
        want.iter().zip(&logits).filter(|(w, l)| w != l).count()
    );
}

/// Sums approximately, everything else exactly.
fn compare(got: &[u32], want: &[u32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.chunks(CHUNK_WORDS).zip(want.chunks(CHUNK_WORDS)).enumerate() {
        for word in [1, 3] {
            let (g, w) = (f32::from_bits(got[word]), f32::from_bits(want[word]));
            let ok = if w.is_nan() { g.is_nan() } else { (g - w).abs() <= 1e-5 * w.abs() };
            assert!(ok, "{what}: chunk {i} word {word}: {g} is not {w}");
        }
        let (g, w) = (f32::from_bits(got[2]), f32::from_bits(want[2]));
        assert!(g == w || (g - w).abs() <= 1e-5 * w.abs(), "{what}: chunk {i}: {g} is not {w}");
        assert_eq!((got[0], &got[4..]), (want[0], &want[4..]), "{what}: chunk {i}");
    }
}

#[test]
fn best_entries_and_sums_of_every_chunk() {
    let Some(device) = device() else { return };
    let mut random = Random(22);
    for (rows, vocab) in [(1, 1), (2, 5), (1, 256), (3, 257), (2, 1000), (1, 49_152)] {
        let logits: Vec<f32> = random.floats(rows * vocab).iter().map(|v| (v * 40.0).round() * 0.5).collect();
        let temperatures: Vec<f32> = (0..rows).map(|r| [0.0, 0.7, 2.0][r % 3]).collect();
        let p = CandidatesProblem { rows, vocab };
        let got = read_words(candidates(&logits, &temperatures, p, &device));
        compare(&got, &candidates_reference(&logits, &temperatures, &p), &format!("{p:?}"));
    }
}

#[test]
fn not_a_number_spoils_only_its_chunk() {
    let Some(device) = device() else { return };
    let mut logits = Random(23).floats(4 * CHUNK);
    logits[CHUNK + 17] = f32::NAN;
    logits[2 * CHUNK + 3] = f32::NEG_INFINITY;
    let p = CandidatesProblem { rows: 1, vocab: 4 * CHUNK };
    let got = read_words(candidates(&logits, &[0.0], p, &device));
    let sums: Vec<bool> =
        got.chunks(CHUNK_WORDS).map(|c| f32::from_bits(c[1]).is_nan() && f32::from_bits(c[3]).is_nan()).collect();
    assert_eq!(sums, [false, true, false, false]);
    let want = candidates_reference(&logits, &[0.0], &p);
    compare(&got[2 * CHUNK_WORDS..], &want[2 * CHUNK_WORDS..], "chunks after");
    let fold = read_words(Tensor::<1, Int>::from_dispatch(Dispatch::greedy(words(&got, &device).into_dispatch(), p)));
    assert!(f32::from_bits(fold[3]).is_nan(), "a NaN anywhere must reach the row's record");
}

#[test]
fn a_wholly_masked_chunk_weighs_nothing() {
    let Some(device) = device() else { return };
    let mut logits = Random(24).floats(3 * CHUNK);
    logits[CHUNK..2 * CHUNK].fill(f32::NEG_INFINITY);
    let p = CandidatesProblem { rows: 1, vocab: 3 * CHUNK };
    let got = candidates(&logits, &[0.5], p, &device);
    let record = read_words(got.clone());
    assert_eq!(f32::from_bits(record[CHUNK_WORDS]), f32::NEG_INFINITY);
    assert_eq!((f32::from_bits(record[CHUNK_WORDS + 1]), f32::from_bits(record[CHUNK_WORDS + 3])), (0.0, 0.0));
    let fold = read_words(Tensor::<1, Int>::from_dispatch(Dispatch::greedy(got.into_dispatch(), p)));
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let want: f32 = logits.iter().map(|l| (l - max).exp()).sum();
    assert_eq!(f32::from_bits(fold[1]), max);
    assert!((f32::from_bits(fold[3]) - want).abs() < 1e-3 * want);
}

#[test]
fn greedy_takes_the_lowest_of_equal_tokens() {
    let Some(device) = device() else { return };
    let mut random = Random(25);
    let (rows, vocab) = (70, 1300);
    let logits: Vec<f32> = random.floats(rows * vocab).iter().map(|v| (v * 20.0).round()).collect();
    let p = CandidatesProblem { rows, vocab };
    let record = candidates(&logits, &vec![1.0; rows], p, &device);
    let want = greedy_reference(&read_words(record.clone()), &p);
    let got = read_words(Tensor::<1, Int>::from_dispatch(Dispatch::greedy(record.into_dispatch(), p)));
    for (r, (got, want)) in got.chunks(4).zip(want.chunks(4)).enumerate() {
        assert_eq!(got[..3], want[..3], "row {r}");
        let row = &logits[r * vocab..][..vocab];
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(got[0] as usize, row.iter().position(|&l| l == best).unwrap(), "row {r}");
        let (g, w) = (f32::from_bits(got[3]), f32::from_bits(want[3]));
        assert!((g - w).abs() <= 1e-5 * w, "row {r}: {g} is not {w}");
    }
}

#[test]
fn greedy_takes_zeros_of_both_signs_as_equal() {
    let Some(device) = device() else { return };
    let mut logits = vec![-1.0; 40 * CHUNK];
    logits[5 * CHUNK + 3] = -0.0;
    logits[37 * CHUNK] = 0.0;
    let p = CandidatesProblem { rows: 1, vocab: logits.len() };
    let record = candidates(&logits, &[0.0], p, &device);
    let fold = read_words(Tensor::<1, Int>::from_dispatch(Dispatch::greedy(record.into_dispatch(), p)));
    assert_eq!(fold[0] as usize, 5 * CHUNK + 3);
}
