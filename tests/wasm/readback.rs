//! Readbacks from a real device, one after another and beside each other, each compared with what must be there: a wrong or stale
//! one is a wrong token somewhere, which no later check would explain.
use fireside::backend::{Backend, Floats, Words};
use fireside::ops::call;
use fireside::ops::logits::AdjustProblem;
use fireside::ops::place::PlaceProblem;
use futures_util::future::join;

/// Logits that live on the device throughout, and change a little before each look at them.
const ROWS: usize = 8;
const VOCAB: usize = 1009;
/// Entries of one change, and words of the largest tensor that is read.
const MOST_ENTRIES: u32 = 40;
const MOST_WORDS: u32 = 60_000;

/// Small numbers from a seed (Knuth's 64-bit linear congruential generator).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn below(&mut self, end: u32) -> u32 {
        self.word() % end
    }

    fn words(&mut self, most: u32) -> Vec<u32> {
        let count = 1 + self.below(most);
        (0..count).map(|_| self.word()).collect()
    }
}

/// `count` readbacks on WebGPU: of logits that a kernel has just changed in place, of words that a kernel has just put together, of
/// floats as they were sent; every third time two of them at once.
pub async fn readbacks_are_right(count: usize) {
    let backend = Backend::webgpu().await.expect("an adapter");
    let mut random = Random(20_261_130);
    let mut expected: Vec<f32> = (0..ROWS * VOCAB).map(|i| (i % 97) as f32).collect();
    let mut logits = backend.floats(expected.clone());
    let mut done = 0;
    while done < count {
        logits = change(&backend, &mut random, logits, &mut expected);
        let (placed, words) = put_together(&backend, &mut random);
        match done % 3 {
            0 => same_floats(&backend.read_floats(logits.clone()).await.expect("logits"), &expected, done),
            1 => assert_eq!(backend.read_words(placed).await.expect("words"), words, "readback {done}"),
            _ => {
                let sent: Vec<f32> = random.words(MOST_WORDS).iter().map(|&word| word as i32 as f32).collect();
                let fresh = backend.read_floats(backend.floats(sent.clone()));
                let (fresh, changed) = join(fresh, backend.read_floats(logits.clone())).await;
                same_floats(&fresh.expect("floats"), &sent, done);
                same_floats(&changed.expect("logits"), &expected, done + 1);
                done += 1;
            }
        }
        done += 1;
    }
    backend.check().expect("no error that nobody awaited");
}

/// Adds whole numbers to some of the logits, on the device and here: in f32 both are exact.
fn change(backend: &Backend, random: &mut Random, logits: Floats, expected: &mut [f32]) -> Floats {
    let num_entries = 1 + random.below(MOST_ENTRIES) as usize;
    let stride = expected.len() / num_entries;
    let mut entries = Vec::new();
    for i in 0..num_entries {
        // One in each stretch: no entry is named twice.
        let at = i * stride + random.below(stride as u32) as usize;
        let addend = random.below(1000) as f32 - 500.0;
        expected[at] += addend;
        entries.extend([(at / VOCAB) as u32, (at % VOCAB) as u32, 1f32.to_bits(), addend.to_bits()]);
    }
    call::adjust_logits(logits, &backend.words(entries), AdjustProblem { num_entries, vocab: VOCAB })
}

/// Words, a stretch of which a kernel replaces by others.
fn put_together(backend: &Backend, random: &mut Random) -> (Words, Vec<u32>) {
    let mut words = random.words(MOST_WORDS);
    let mut piece = random.words(words.len() as u32);
    piece.truncate(words.len());
    let offset = random.below((words.len() - piece.len() + 1) as u32) as usize;
    let problem = PlaceProblem { offset_bytes: 4 * offset, len_bytes: 4 * piece.len() };
    let placed = call::place(backend.words(words.clone()), backend.words(piece.clone()), problem);
    words[offset..offset + piece.len()].copy_from_slice(&piece);
    (placed, words)
}

fn same_floats(got: &[f32], expected: &[f32], number: usize) {
    assert_eq!(got.len(), expected.len(), "readback {number}");
    let wrong = got.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(wrong, None, "readback {number}: {:?}", wrong.map(|at| (got[at], expected[at])));
}
