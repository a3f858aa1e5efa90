//! Paged attention: against the reference, and equal bits for any chunking of a context.
use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::*;
use crate::ops::FiresideOps;
use crate::ops::attention::{AttentionProblem, attention_reference};
use crate::ops::matmul::Variant;

const VARIANTS: [Variant; 2] = [Variant::Serial, Variant::Workgroup];

/// One layer's cache with sequences of the given lengths on shuffled blocks.
struct Cache {
    kv: Vec<f32>,
    tables: Vec<Vec<u32>>,
    p: AttentionProblem,
}

impl Cache {
    fn new(lengths: &[usize], p: AttentionProblem, random: &mut Random) -> Self {
        let needed: usize = lengths.iter().map(|len| len.div_ceil(p.block_size)).sum();
        let total = needed + 3;
        let mut free: Vec<u32> = (0..total as u32).collect();
        let tables = lengths
            .iter()
            .map(|len| (0..len.div_ceil(p.block_size)).map(|_| free.swap_remove(random.below(free.len()))).collect())
            .collect();
        Self { kv: random.floats(total * 2 * p.block_size * p.num_kv_heads * p.head_dim), tables, p }
    }

    /// Meta and problem for tokens given as (sequence, position).
    fn step(&self, tokens: &[(usize, usize)], variant: Variant) -> (Vec<u32>, AttentionProblem) {
        let stride = self.tables.iter().map(Vec::len).max().unwrap();
        let mut meta = vec![77; 3];
        meta.extend(tokens.iter().map(|t| t.1 as u32));
        meta.extend(tokens.iter().map(|t| t.0 as u32));
        for table in &self.tables {
            meta.extend(table);
            meta.resize(meta.len() + stride - table.len(), 0);
        }
        let t = tokens.len();
        let p = AttentionProblem {
            tokens: t,
            positions_offset: 3,
            seqs_offset: 3 + t,
            tables_offset: 3 + 2 * t,
            table_stride: stride,
            variant,
            ..self.p
        };
        (meta, p)
    }

    fn run(
        &self,
        kv: &Tensor<1>,
        qkv: &[f32],
        tokens: &[(usize, usize)],
        variant: Variant,
        device: &Backend,
    ) -> Vec<f32> {
        let (meta, p) = self.step(tokens, variant);
        let qkv = floats(qkv, device).into_dispatch();
        let out = Dispatch::attention(qkv, kv.clone().into_dispatch(), words(&meta, device).into_dispatch(), p);
        read(Tensor::<1>::from_dispatch(out))
    }
}

fn problem(num_heads: usize, num_kv_heads: usize, head_dim: usize, block_size: usize) -> AttentionProblem {
    AttentionProblem {
        tokens: 0,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: 0,
        softcap: 0.0,
        positions_offset: 0,
        seqs_offset: 0,
        tables_offset: 0,
        table_stride: 0,
        variant: Variant::Serial,
    }
}

#[test]
fn follows_the_reference() {
    let Some(device) = device() else { return };
    let mut random = Random(11);
    let shapes = [
        (problem(9, 3, 64, 16), 0, 0.0),
        (problem(4, 1, 256, 16), 70, 0.0),
        (problem(2, 2, 80, 8), 0, 3.0),
        (problem(4, 2, 6, 5), 9, 1.5),
        (problem(3, 3, 5, 16), 0, 0.0),
        (problem(8, 4, 128, 32), 64, 0.0),
        (problem(2, 1, 512, 16), 0, 0.0),
    ];
    for (shape, window, softcap) in shapes {
        let p = AttentionProblem { window, softcap, ..shape };
        let cache = Cache::new(&[1, 64, 65, 200, 130], p, &mut random);
        let tokens = [(0, 0), (1, 63), (2, 63), (2, 64), (3, 10), (3, 199), (4, 127), (4, 128), (4, 129)];
        let qkv = random.floats(tokens.len() * (p.num_heads + 2 * p.num_kv_heads) * p.head_dim);
        let kv = floats(&cache.kv, &device);
        for variant in VARIANTS {
            let (meta, p) = cache.step(&tokens, variant);
            let want = attention_reference(&qkv, &cache.kv, &meta, &p);
            assert_close(&cache.run(&kv, &qkv, &tokens, variant, &device), &want, &[1.0], &format!("{p:?}"));
        }
    }
}

#[test]
fn large_scores_stay_finite() {
    let Some(device) = device() else { return };
    let mut random = Random(12);
    for softcap in [0.0, 50.0] {
        let p = AttentionProblem { scale: 500.0, softcap, ..problem(2, 1, 8, 16) };
        let cache = Cache::new(&[150], p, &mut random);
        let (tokens, qkv) = ([(0, 149)], random.floats(4 * 8));
        let kv = floats(&cache.kv, &device);
        for variant in VARIANTS {
            let (meta, p) = cache.step(&tokens, variant);
            let want = attention_reference(&qkv, &cache.kv, &meta, &p);
            assert_close(&cache.run(&kv, &qkv, &tokens, variant, &device), &want, &[200.0], &format!("{p:?}"));
        }
    }
}

#[test]
fn any_chunking_gives_equal_bits() {
    let Some(device) = device() else { return };
    let mut random = Random(13);
    for window in [0, 300] {
        let p = AttentionProblem { window, ..problem(3, 1, 64, 16) };
        let (len, width) = (1100, 5 * 64);
        let cache = Cache::new(&[len], p, &mut random);
        let qkv = random.floats(len * width);
        let kv = floats(&cache.kv, &device);
        for variant in VARIANTS {
            let all: Vec<(usize, usize)> = (0..len).map(|position| (0, position)).collect();
            let whole = cache.run(&kv, &qkv, &all, variant, &device);
            let mut at = 0;
            while at < len {
                let most = [3, 40, 200][random.below(3)];
                let chunk = (1 + random.below(most)).min(len - at);
                let part = cache.run(&kv, &qkv[at * width..][..chunk * width], &all[at..at + chunk], variant, &device);
                assert_eq!(bits(&part), bits(&whole[at * 192..][..chunk * 192]), "{variant:?} {at}+{chunk}");
                at += chunk;
            }
        }
    }
}

#[test]
fn neighbours_and_block_placement_do_not_matter() {
    let Some(device) = device() else { return };
    let mut random = Random(14);
    let p = problem(4, 2, 32, 16);
    let cache = Cache::new(&[90, 300, 7], p, &mut random);
    let tokens = [(0, 89), (1, 250), (1, 251), (2, 6)];
    let qkv = random.floats(4 * 8 * 32);
    let kv = floats(&cache.kv, &device);
    for variant in VARIANTS {
        let together = cache.run(&kv, &qkv, &tokens, variant, &device);
        for (i, &token) in tokens.iter().enumerate() {
            let alone = cache.run(&kv, &qkv[i * 256..][..256], &[token], variant, &device);
            assert_eq!(bits(&alone), bits(&together[i * 128..][..128]), "{variant:?} {token:?}");
        }
    }
}
