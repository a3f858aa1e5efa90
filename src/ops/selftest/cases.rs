//! One small problem for every kernel that a model uses: run on the device, and what the reference says of it.
use super::stream::Stream;
use super::{Answer, Expected, Family, Matrix, Needs};
use crate::backend::{Backend, Words};
use crate::ops::attention::{AttentionProblem, attention_reference};
use crate::ops::embed::{EmbedProblem, embed_reference};
use crate::ops::logits::{AdjustProblem, CandidatesProblem, adjust_reference, candidates_reference, greedy_reference};
use crate::ops::matmul::{
    GateUpProblem, GatedProblem, MatmulProblem, gate_up_reference, gated_reference, matmul_reference,
};
use crate::ops::norm::{NormProblem, rms_norm_reference};
use crate::ops::place::{CopyBlocksProblem, PlaceProblem, copy_blocks_reference, place_reference};
use crate::ops::rope_kv::{RopeKvProblem, rope_kv_reference};
use crate::ops::{call, pack};
use crate::{Result, quant};

/// Activation rows: each number gets a kernel of its own where several rows are computed at once, the last one also more than one
/// tile.
const ROWS: [usize; 4] = [1, 2, 4, 9];
/// Those of a problem with any number of rows.
const MOST_ROWS: usize = ROWS[3];

/// Weight rows of the problems.
const N: usize = 6;

/// One kernel, or two where the second goes on with what the first made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Case {
    Product(Matrix, usize),
    GateUp(Matrix, usize),
    Gated,
    Table(Matrix),
    Norm { gathered: bool },
    Positions,
    Place,
    CopyBlocks,
    Adjust,
    Candidates,
}

impl Case {
    /// All that a model needs.
    pub fn all(needs: &Needs) -> Vec<Self> {
        let rows: Vec<usize> = match needs.variant.row_by_row() {
            Some(_) => ROWS.to_vec(),
            None => vec![1, MOST_ROWS],
        };
        let by_rows = |matrices: &[Matrix], case: fn(Matrix, usize) -> Self| -> Vec<Self> {
            matrices.iter().flat_map(|&m| rows.iter().map(move |&rows| case(m, rows))).collect()
        };
        let mut all = by_rows(&needs.products, Self::Product);
        all.extend(by_rows(&needs.gate_ups, Self::GateUp));
        all.extend(needs.tables.iter().map(|&m| Self::Table(m)));
        all.extend(needs.gated.then_some(Self::Gated));
        all.extend([Self::Norm { gathered: false }, Self::Norm { gathered: true }, Self::Positions]);
        all.extend([Self::Place, Self::CopyBlocks, Self::Adjust, Self::Candidates]);
        all
    }

    /// Runs the problem and awaits its answers.
    pub async fn run(
        &self,
        backend: &Backend,
        needs: &Needs,
        stream: &mut Stream,
        answers: &mut Vec<Answer>,
    ) -> Result<()> {
        match *self {
            // The same numbers for every count of rows: their bits are compared.
            Self::Product(matrix, rows) => {
                answers.push(product(backend, needs, matrix, rows, &mut stream.fork(1)).await?);
            }
            Self::GateUp(matrix, rows) => {
                answers.push(gate_up(backend, needs, matrix, rows, &mut stream.fork(2)).await?);
            }
            Self::Gated => answers.push(gated(backend, needs, stream).await?),
            Self::Table(matrix) => answers.push(table(backend, matrix, stream).await?),
            Self::Norm { gathered } => answers.push(norm(backend, gathered, stream).await?),
            Self::Positions => answers.extend(positions(backend, needs, stream).await?),
            Self::Place => answers.push(place(backend, stream).await?),
            Self::CopyBlocks => answers.push(copy_blocks(backend, stream).await?),
            Self::Adjust => answers.push(adjust(backend, stream).await?),
            Self::Candidates => answers.extend(candidates(backend, stream).await?),
        }
        Ok(())
    }
}

fn answer(op: String, got: Vec<f32>, reference: impl FnOnce() -> Result<Expected> + 'static) -> Answer {
    Answer { op, rows_of: None, got, reference: Box::new(reference) }
}

fn near(values: Vec<f32>, magnitude: f32) -> Result<Expected> {
    Ok(Expected { values, magnitude })
}

fn exact(values: Vec<f32>) -> Result<Expected> {
    near(values, 0.0)
}

fn as_floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&w| f32::from_bits(w)).collect()
}

/// Weights as the file has them, as the device has them, and the largest of their magnitudes.
fn weights(backend: &Backend, m: Matrix, stream: &mut Stream) -> Result<(Vec<u8>, Words, f32)> {
    let bytes = stream.weights(m.ty, N, m.k)?;
    let mut dense = vec![0.0; N * m.k];
    quant::dequantize(m.ty, &bytes, &mut dense)?;
    let largest = dense.iter().fold(0f32, |m, v| m.max(v.abs()));
    let words = backend.words(pack::rows(backend.kind(), m.ty, m.k, &bytes)?);
    Ok((bytes, words, largest))
}

async fn product(
    backend: &Backend,
    needs: &Needs,
    matrix: Matrix,
    tokens: usize,
    stream: &mut Stream,
) -> Result<Answer> {
    let Matrix { ty, k } = matrix;
    let (bytes, words, largest) = weights(backend, matrix, stream)?;
    let (mut x, bias, mut before) = (stream.floats(MOST_ROWS * k), stream.floats(N), stream.floats(MOST_ROWS * N));
    x.truncate(tokens * k);
    before.truncate(tokens * N);
    let problem = MatmulProblem {
        ty,
        tokens,
        k,
        n: N,
        out_stride: N,
        out_col: 0,
        accumulate: true,
        has_bias: true,
        variant: needs.variant,
    };
    let (x_device, bias_device) = (backend.floats(x.clone()), backend.floats(bias.clone()));
    let out = call::matmul(&x_device, &words, backend.floats(before.clone()), Some(&bias_device), problem);
    let got = backend.read_floats(out).await?;
    #[cfg(all(test, feature = "webgpu", not(target_family = "wasm")))]
    let got = crate::ops::gpu::planted::nudged(needs.variant, tokens, got);
    let answer = answer(format!("matmul {} of {tokens} rows", ty.name()), got, move || {
        let mut out = before;
        matmul_reference(&x, &bytes, &mut out, &bias, &problem)?;
        near(out, largest * k as f32 + 2.0)
    });
    Ok(Answer { rows_of: Some(Family { matrix, gate_up: false }), ..answer })
}

async fn gate_up(
    backend: &Backend,
    needs: &Needs,
    matrix: Matrix,
    tokens: usize,
    stream: &mut Stream,
) -> Result<Answer> {
    let Matrix { ty, k } = matrix;
    let (bytes, words, largest) = weights(backend, matrix, stream)?;
    let mut x = stream.floats(MOST_ROWS * k);
    x.truncate(tokens * k);
    let problem = GateUpProblem { ty, tokens, k, f: N / 2, activation: needs.activation, variant: needs.variant };
    let got = backend.read_floats(call::gate_up(&backend.floats(x.clone()), &words, problem)).await?;
    let answer = answer(format!("gate_up {} of {tokens} rows", ty.name()), got, move || {
        let sum = largest * k as f32;
        near(gate_up_reference(&x, &bytes, &problem)?, (sum * sum).max(sum).max(1e-30))
    });
    Ok(Answer { rows_of: Some(Family { matrix, gate_up: true }), ..answer })
}

async fn gated(backend: &Backend, needs: &Needs, stream: &mut Stream) -> Result<Answer> {
    let problem = GatedProblem { tokens: 3, f: 50, activation: needs.activation };
    let x: Vec<f32> = stream.floats(3 * 2 * 50).iter().map(|v| 4.0 * v).collect();
    let got = backend.read_floats(call::gated(&backend.floats(x.clone()), problem)).await?;
    Ok(answer("gated".to_owned(), got, move || near(gated_reference(&x, &problem), 16.0)))
}

async fn table(backend: &Backend, matrix: Matrix, stream: &mut Stream) -> Result<Answer> {
    let Matrix { ty, k } = matrix;
    let (bytes, words, largest) = weights(backend, matrix, stream)?;
    let meta = [5u32, 0, 3];
    let problem = EmbedProblem { ty, tokens: 3, width: k, row_start: 0, rows: N, ids_offset: 0, scale: 1.0 };
    let out = call::embed(&words, &backend.words(meta.to_vec()), backend.empty_floats(3 * k), problem);
    let got = backend.read_floats(out).await?;
    Ok(answer(format!("embed {}", ty.name()), got, move || {
        let mut expected = vec![0.0; 3 * k];
        embed_reference(&bytes, &meta, &mut expected, &problem)?;
        near(expected, largest.max(1e-30))
    }))
}

async fn norm(backend: &Backend, gathered: bool, stream: &mut Stream) -> Result<Answer> {
    let (width, meta) = (96, [2u32, 0]);
    let (x, weight) = (stream.floats(3 * width), stream.floats(width));
    let problem = NormProblem { rows: 2, width, eps: 1e-5, gather: gathered.then_some(0) };
    let (x_device, weight_device) = (backend.floats(x.clone()), backend.floats(weight.clone()));
    let out = call::rms_norm(&x_device, &weight_device, &backend.words(meta.to_vec()), problem);
    let got = backend.read_floats(out).await?;
    Ok(answer("rms_norm".to_owned(), got, move || near(rms_norm_reference(&x, &weight, &meta, &problem), 4.0)))
}

/// Rotary positions, the cache write and attention, over two sequences whose blocks are out of order.
async fn positions(backend: &Backend, needs: &Needs, stream: &mut Stream) -> Result<[Answer; 2]> {
    let (tokens, b, d) = (needs.block_size + 3, needs.block_size, needs.head_dim);
    let width = (needs.num_heads + 2 * needs.num_kv_heads) * d;
    let mut meta: Vec<u32> = Vec::new();
    // Tokens 0..B + 1 are sequence 0 (blocks 3 and 1), the last two are sequence 1 (block 0).
    let first = b + 1;
    let tables = [[3u32, 1], [0, 0]];
    let position = |t: usize| if t < first { t } else { t - first };
    let seq = |t: usize| usize::from(t >= first);
    meta.extend((0..tokens).map(|t| position(t) as u32));
    meta.extend((0..tokens).map(|t| tables[seq(t)][position(t) / b] * b as u32 + (position(t) % b) as u32));
    meta.extend((0..tokens).map(|t| seq(t) as u32));
    meta.extend(tables.concat());

    let mut qkv = stream.floats(tokens * width);
    let mut kv = stream.floats(4 * 2 * b * needs.num_kv_heads * d);
    let rope: Vec<f32> = stream.floats(tokens * needs.rope_dim / 2).iter().flat_map(|a| [a.cos(), a.sin()]).collect();
    let rope_problem = RopeKvProblem {
        tokens,
        num_heads: needs.num_heads,
        num_kv_heads: needs.num_kv_heads,
        head_dim: d,
        rope_dim: needs.rope_dim,
        interleaved: needs.interleaved,
        block_size: b,
        slots_offset: tokens,
    };
    let device_meta = backend.words(meta.clone());
    let device = (backend.floats(qkv.clone()), backend.floats(kv.clone()), backend.floats(rope.clone()));
    let (qkv_device, kv_device) = call::rope_kv(device.0, device.1, &device.2, &device_meta, rope_problem);
    let cache = backend.read_floats(kv_device.clone()).await?;

    let problem = AttentionProblem {
        tokens,
        num_heads: needs.num_heads,
        num_kv_heads: needs.num_kv_heads,
        head_dim: d,
        block_size: b,
        scale: 0.5,
        window: 0,
        softcap: 0.0,
        positions_offset: 0,
        seqs_offset: 2 * tokens,
        tables_offset: 3 * tokens,
        table_stride: 2,
        variant: needs.variant,
    };
    let mixed = backend.read_floats(call::attention(&qkv_device, &kv_device, &device_meta, problem)).await?;
    rope_kv_reference(&mut qkv, &mut kv, &rope, &meta, &rope_problem);
    let written = kv.clone();
    Ok([
        answer("rope_kv".to_owned(), cache, move || near(written, 2.0)),
        answer("attention".to_owned(), mixed, move || near(attention_reference(&qkv, &kv, &meta, &problem), 2.0)),
    ])
}

/// An odd number of bytes into the middle of a buffer, whose other bytes stay.
async fn place(backend: &Backend, stream: &mut Stream) -> Result<Answer> {
    let (before, new) = (stream.words(300), stream.words(150));
    let problem = PlaceProblem { offset_bytes: 40, len_bytes: 4 * 149 + 3 };
    let out = call::place(backend.words(before.clone()), backend.words(new.clone()), problem);
    let got = as_floats(&backend.read_words(out).await?);
    Ok(answer("place".to_owned(), got, move || {
        let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let mut dst = bytes(&before);
        place_reference(&mut dst, &bytes(&new), &problem);
        exact(dst.as_chunks::<4>().0.iter().map(|&c| f32::from_le_bytes(c)).collect())
    }))
}

async fn copy_blocks(backend: &Backend, stream: &mut Stream) -> Result<Answer> {
    let mut kv = stream.floats(5 * 48);
    let meta = [9u32, 1, 4, 0, 2];
    let problem = CopyBlocksProblem { num_pairs: 2, pairs_offset: 1, block_values: 48 };
    let out = call::copy_blocks(backend.floats(kv.clone()), &backend.words(meta.to_vec()), problem);
    let got = backend.read_floats(out).await?;
    Ok(answer("copy_blocks".to_owned(), got, move || {
        copy_blocks_reference(&mut kv, &meta, &problem);
        exact(kv)
    }))
}

async fn adjust(backend: &Backend, stream: &mut Stream) -> Result<Answer> {
    let mut logits = stream.floats(2 * 90);
    let entry = |row: u32, token: u32, factor: f32, addend: f32| [row, token, factor.to_bits(), addend.to_bits()];
    let entries = [entry(0, 3, 1.25, -0.5), entry(1, 89, 0.5, 0.25), entry(1, 0, 2.0, 0.0)].concat();
    let problem = AdjustProblem { num_entries: 3, vocab: 90 };
    let out = call::adjust_logits(backend.floats(logits.clone()), &backend.words(entries.clone()), problem);
    let got = backend.read_floats(out).await?;
    Ok(answer("adjust_logits".to_owned(), got, move || {
        adjust_reference(&mut logits, &entries, &problem);
        near(logits, 4.0)
    }))
}

async fn candidates(backend: &Backend, stream: &mut Stream) -> Result<Vec<Answer>> {
    let (rows, vocab) = (2, 700);
    let problem = CandidatesProblem { rows, vocab };
    let values: Vec<f32> = stream.floats(rows * vocab).iter().map(|v| v * 20.0).collect();
    let expected = greedy_reference(&candidates_reference(&values, &[0.0, 0.7], &problem), &problem);
    let candidates = call::candidates(&backend.floats(values), &backend.floats(vec![0.0, 0.7]), problem);
    let got = backend.read_words(call::greedy(&candidates, problem)).await?;
    let mut answers = Vec::new();
    for (got, expected) in got.chunks_exact(4).zip(expected.chunks_exact(4)) {
        let ((token, logit), (got_token, got_logit)) =
            ((as_floats(&expected[..1]), as_floats(&expected[1..])), (as_floats(&got[..1]), as_floats(&got[1..])));
        answers.push(answer("greedy".to_owned(), got_token, move || exact(token)));
        answers.push(answer("candidates".to_owned(), got_logit, move || near(logit, 20.0)));
    }
    Ok(answers)
}
