//! Paged attention: the reference's values, and bits that no chunking, batch, block size or placement changes.
use super::close;
use crate::ops::attention::*;
use crate::ops::cpu::attention::attention;
use crate::ops::cpu::testing::{Random, bits, check, digest};
use crate::ops::matmul::Variant;
use crate::ops::rope_kv::kv_index;

/// One sequence of `len` positions with its K and V, not yet laid out in blocks.
struct Sequence {
    /// `[len][(H + 2 KV) D]`.
    qkv: Vec<f32>,
    len: usize,
}

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    block: usize,
    window: usize,
    softcap: f32,
}

const SMALL: Sizes = Sizes { heads: 3, kv_heads: 1, dim: 8, block: 16, window: 0, softcap: 0.0 };

impl Sizes {
    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    fn sequence(&self, len: usize, random: &mut Random) -> Sequence {
        Sequence { qkv: (0..len * self.width()).map(|_| random.unit() * 2.0).collect(), len }
    }
}

/// A batch over sequences: which positions of which, with the caches in shuffled blocks.
struct Batch {
    qkv: Vec<f32>,
    kv: Vec<f32>,
    meta: Vec<u32>,
    p: AttentionProblem,
}

/// Lays out every position of the sequences in the cache and asks for `queries` (sequence, position).
fn batch(sizes: &Sizes, sequences: &[Sequence], queries: &[(usize, usize)], random: &mut Random) -> Batch {
    let blocks_of = |s: &Sequence| s.len.div_ceil(sizes.block);
    let total: usize = sequences.iter().map(blocks_of).sum();
    let mut ids: Vec<u32> = (0..total as u32 + 3).collect();
    for i in (1..ids.len()).rev() {
        ids.swap(i, random.below(i + 1));
    }
    let stride = sequences.iter().map(blocks_of).max().unwrap_or(0) + 1;
    let block_values = 2 * sizes.block * sizes.kv_heads * sizes.dim;
    // What nobody wrote must not matter, whatever it is.
    let mut kv = vec![f32::NAN; ids.len() * block_values];
    let mut tables = vec![0; sequences.len() * stride];
    let mut taken = ids.into_iter();
    for (s, sequence) in sequences.iter().enumerate() {
        for (entry, id) in tables[s * stride..][..blocks_of(sequence)].iter_mut().zip(&mut taken) {
            *entry = id;
        }
        for position in 0..sequence.len {
            let slot = tables[s * stride + position / sizes.block] as usize * sizes.block + position % sizes.block;
            let row = &sequence.qkv[position * sizes.width()..][..sizes.width()];
            let (k, v) = row[sizes.heads * sizes.dim..].split_at(sizes.kv_heads * sizes.dim);
            for (is_v, source) in [(false, k), (true, v)] {
                let at = kv_index(slot, is_v, 0, sizes.block, sizes.kv_heads, sizes.dim);
                kv[at..][..source.len()].copy_from_slice(source);
            }
        }
    }
    let row = |&(s, position): &(usize, usize)| &sequences[s].qkv[position * sizes.width()..][..sizes.width()];
    let mut meta: Vec<u32> = queries.iter().map(|q| q.1 as u32).chain(queries.iter().map(|q| q.0 as u32)).collect();
    meta.extend(tables);
    let p = AttentionProblem {
        tokens: queries.len(),
        num_heads: sizes.heads,
        num_kv_heads: sizes.kv_heads,
        head_dim: sizes.dim,
        block_size: sizes.block,
        scale: 1.0 / (sizes.dim as f32).sqrt(),
        window: sizes.window,
        softcap: sizes.softcap,
        positions_offset: 0,
        seqs_offset: queries.len(),
        tables_offset: 2 * queries.len(),
        table_stride: stride,
        variant: Variant::Serial,
    };
    Batch { qkv: queries.iter().flat_map(row).copied().collect(), kv, meta, p }
}

impl Batch {
    fn run(&self) -> Vec<f32> {
        attention(&self.qkv, &self.kv, &self.meta, &self.p)
    }
}

check!(
    fn attention_follows_the_reference() {
        let mut random = Random::new(1);
        let shapes = [(9, 3, 64), (4, 4, 16), (4, 2, 80), (2, 1, 6), (3, 1, 3), (8, 1, 256)];
        for (heads, kv_heads, dim) in shapes {
            for (window, softcap) in [(0, 0.0), (5, 0.0), (64, 3.0), (100, 0.0), (0, 2.5)] {
                for block in [16, 5, 1] {
                    let sizes = Sizes { heads, kv_heads, dim, block, window, softcap };
                    let sequences = [sizes.sequence(1, &mut random), sizes.sequence(150, &mut random)];
                    let queries = [(0, 0), (1, 0), (1, 3), (1, 62), (1, 63), (1, 64), (1, 65), (1, 127), (1, 149)];
                    let batch = batch(&sizes, &sequences, &queries, &mut random);
                    let want = attention_reference(&batch.qkv, &batch.kv, &batch.meta, &batch.p);
                    let what = format!("heads {heads}/{kv_heads} D {dim} block {block} window {window} cap {softcap}");
                    close(&batch.run(), &want, 2e-6, &what);
                }
            }
        }
    }
);

check!(
    fn bits_do_not_depend_on_chunking_batch_or_placement() {
        let mut random = Random::new(2);
        for window in [0, 200] {
            let sizes = Sizes { window, ..SMALL };
            let long = sizes.sequence(1100, &mut random);
            let everything: Vec<(usize, usize)> = (0..1100).map(|position| (0, position)).collect();
            let sequences = [long];
            let want = batch(&sizes, &sequences, &everything, &mut random).run();
            let row = sizes.heads * sizes.dim;
            let [long] = sequences;
            // Random chunks, each beside tokens of another sequence, in blocks of another size and other places.
            let sequences = [sizes.sequence(90, &mut random), long];
            let mut at = 0;
            while at < 1100 {
                let chunk = (1 + random.below(130)).min(1100 - at);
                let sizes = Sizes { block: [16, 8, 32, 7][random.below(4)], ..sizes };
                let mut queries: Vec<(usize, usize)> = vec![(0, random.below(90)); random.below(3)];
                let before = queries.len();
                queries.extend((at..at + chunk).map(|position| (1, position)));
                let got = batch(&sizes, &sequences, &queries, &mut random).run();
                assert_eq!(
                    bits(&got[before * row..]),
                    bits(&want[at * row..][..chunk * row]),
                    "{chunk} positions from {at}"
                );
                at += chunk;
            }
        }
    }
);

check!(
    fn extreme_scores_do_not_break_the_sum() {
        let mut random = Random::new(3);
        let mut sequence = SMALL.sequence(200, &mut random);
        // Scores of +-1e4: all the weight on few positions, exponentials far below the smallest float elsewhere.
        sequence.qkv.iter_mut().for_each(|v| *v *= 100.0);
        let batch = batch(&SMALL, &[sequence], &[(0, 199), (0, 64)], &mut random);
        let want = attention_reference(&batch.qkv, &batch.kv, &batch.meta, &batch.p);
        close(&batch.run(), &want, 1e-2, "huge scores");
        assert!(batch.run().iter().all(|v| v.is_finite()));
    }
);

check!(
    fn bits_are_those_of_every_target() {
        let mut random = Random::new(4);
        let sizes = Sizes { heads: 4, kv_heads: 2, dim: 18, softcap: 5.0, ..SMALL };
        let sequences = [sizes.sequence(170, &mut random)];
        let queries = [(0, 0), (0, 66), (0, 127), (0, 169)];
        let out = batch(&sizes, &sequences, &queries, &mut random).run();
        assert_eq!(digest(&out), 0xe8b1_0422_1f26_39e7, "digest {:#018x}", digest(&out));
    }
);
