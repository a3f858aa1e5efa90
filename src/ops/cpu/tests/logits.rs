//! Adjustments, candidates and the greedy fold.
use super::close;
use crate::ops::cpu::logits::{adjust, candidates, greedy};
use crate::ops::cpu::testing::{Random, bits, check};
use crate::ops::logits::*;

/// Compares records: sums closely, all else exactly.
fn same_records(got: &[u32], want: &[u32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (c, (got, want)) in got.chunks(CHUNK_WORDS).zip(want.chunks(CHUNK_WORDS)).enumerate() {
        for i in [0, 1, 2, 3] {
            let (got, want) = (f32::from_bits(got[i]), f32::from_bits(want[i]));
            let same = got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= 1e-5 * want.abs();
            assert!(same, "{what} chunk {c} word {i}: {got}, expected {want}");
        }
        assert_eq!(got[4..], want[4..], "{what} chunk {c}");
    }
}

check!(
    fn candidates_follow_the_reference() {
        let mut random = Random::new(1);
        for vocab in [1, 3, 7, 8, 255, 256, 257, 1000, 49_152] {
            let rows = if vocab > 10_000 { 1 } else { 3 };
            let p = CandidatesProblem { rows, vocab };
            let logits: Vec<f32> = (0..rows * vocab).map(|_| random.unit() * 20.0).collect();
            let temperatures = [0.7, 0.0, 1.0];
            let got = candidates(&logits, &temperatures, &p);
            same_records(&got, &candidates_reference(&logits, &temperatures, &p), &format!("V {vocab}"));
            // Ties, in abundance.
            let logits: Vec<f32> = logits.iter().map(|l| l.round() / 4.0).collect();
            let got = candidates(&logits, &temperatures, &p);
            same_records(&got, &candidates_reference(&logits, &temperatures, &p), &format!("V {vocab} with ties"));
        }
    }
);

check!(
    fn candidates_order_what_is_not_finite() {
        let p = CandidatesProblem { rows: 1, vocab: 300 };
        let mut logits: Vec<f32> = Random::new(2).activations(300);
        logits[..4].copy_from_slice(&[f32::NEG_INFINITY, -0.0, 0.0, f32::NEG_INFINITY]);
        logits[290] = f32::NAN;
        logits[291] = -f32::NAN;
        same_records(&candidates(&logits, &[1.0], &p), &candidates_reference(&logits, &[1.0], &p), "NaN");
        logits[7] = f32::INFINITY;
        same_records(&candidates(&logits, &[0.5], &p), &candidates_reference(&logits, &[0.5], &p), "infinity");
    }
);

check!(
    fn masked_chunks_weigh_nothing() {
        let p = CandidatesProblem { rows: 1, vocab: 600 };
        let mut logits = vec![f32::NEG_INFINITY; 600];
        logits[300] = 2.0;
        let got = candidates(&logits, &[0.5], &p);
        same_records(&got, &candidates_reference(&logits, &[0.5], &p), "masked");
        assert_eq!(f32::from_bits(got[1]), 0.0);
        let record = greedy(&got, &p);
        assert_eq!((record[0], f32::from_bits(record[1]), f32::from_bits(record[3])), (300, 2.0, 1.0));
        assert_eq!(record[..3], greedy_reference(&got, &p)[..3]);
    }
);

check!(
    fn greedy_follows_the_reference() {
        let mut random = Random::new(3);
        for vocab in [1, 256, 1000, 5000] {
            let p = CandidatesProblem { rows: 3, vocab };
            let logits: Vec<f32> = (0..3 * vocab).map(|_| (random.unit() * 40.0).round() * 0.5).collect();
            let records = candidates(&logits, &[1.0; 3], &p);
            let (got, want) = (greedy(&records, &p), greedy_reference(&records, &p));
            for (row, (got, want)) in got.chunks(4).zip(want.chunks(4)).enumerate() {
                assert_eq!(got[..3], want[..3], "V {vocab} row {row}");
                close(&[f32::from_bits(got[3])], &[f32::from_bits(want[3])], 1e-5, "sum");
                let best = &logits[row * vocab..][..vocab];
                let max = best.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(got[0] as usize, best.iter().position(|&l| l == max).expect("there is one"));
            }
        }
    }
);

check!(
    fn rows_have_the_same_bits_alone() {
        let mut random = Random::new(4);
        let p = CandidatesProblem { rows: 4, vocab: 777 };
        let logits: Vec<f32> = (0..4 * 777).map(|_| random.unit() * 9.0).collect();
        let temperatures = [0.3, 1.0, 2.0, 0.0];
        let together = candidates(&logits, &temperatures, &p);
        let apart: Vec<u32> = logits
            .chunks(777)
            .zip(temperatures)
            .flat_map(|(row, temperature)| candidates(row, &[temperature], &CandidatesProblem { rows: 1, ..p }))
            .collect();
        assert_eq!(together, apart);
    }
);

check!(
    fn adjust_follows_the_reference() {
        let mut random = Random::new(5);
        let (rows, vocab, num_entries) = (3, 50, 20);
        let logits: Vec<f32> = random.activations(rows * vocab);
        let mut entries = Vec::new();
        for i in 0..num_entries + 2 {
            let (factor, addend) =
                (1.0 + random.unit().abs(), if i % 5 == 0 { f32::NEG_INFINITY } else { random.unit() });
            entries.extend([(i % rows) as u32, (i * 2) as u32, factor.to_bits(), addend.to_bits()]);
        }
        let p = AdjustProblem { num_entries, vocab };
        let (mut got, mut want) = (logits.clone(), logits);
        adjust(&mut got, &entries, &p);
        adjust_reference(&mut want, &entries, &p);
        assert_eq!(bits(&got), bits(&want));
    }
);
