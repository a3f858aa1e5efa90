//! The kernels of a device against the scalar references, once at load: a wrong kernel is found before a wrong word is.
//!
//! Problems are small and made here; what to do about a failure is the caller's decision.
use super::attention::{AttentionProblem, attention_reference};
use super::call;
use super::embed::{EmbedProblem, embed_reference};
use super::logits::{CandidatesProblem, candidates_reference, greedy_reference};
use super::matmul::{Activation, GateUpProblem, MatmulProblem, Variant, gate_up_reference, matmul_reference};
use super::norm::{NormProblem, rms_norm_reference};
use super::pack;
use super::rope_kv::{RopeKvProblem, rope_kv_reference};
use crate::backend::Backend;
use crate::gguf::GgmlType;
use crate::{Error, Result, quant};

/// The code of a kernel that gives wrong numbers.
pub const MISMATCH: &str = "device.kernel_mismatch";

/// Relative to the sum of magnitudes that a result was added from.
const TOLERANCE: f32 = 1e-4;

/// A fixed stream of numbers (SplitMix64, Steele et al. 2014).
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
    }

    /// `rows` rows of `k` values of any type: random blocks, drawn again while a value is huge or not finite.
    fn weights(&mut self, ty: GgmlType, rows: usize, k: usize) -> Result<Vec<u8>> {
        let (elems, size) = (ty.block_elems(), ty.block_bytes());
        let mut bytes = Vec::with_capacity(rows * quant::row_bytes(ty, k));
        let (mut block, mut values) = (vec![0; size], vec![0.0; elems]);
        for _ in 0..rows * k / elems {
            loop {
                block.iter_mut().for_each(|b| *b = (self.next() >> 56) as u8);
                quant::dequantize(ty, &block, &mut values)?;
                if values.iter().all(|v: &f32| v.is_finite() && v.abs() < 1e3) {
                    break;
                }
            }
            bytes.extend_from_slice(&block);
        }
        Ok(bytes)
    }
}

/// What a model needs of the kernels.
#[derive(Debug, Clone)]
pub struct Needs {
    /// Every type among its matrices.
    pub types: Vec<GgmlType>,
    /// Heads and sizes of attention.
    pub num_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Rotating dimensions.
    pub rope_dim: usize,
    /// Pairing of dimensions.
    pub interleaved: bool,
    /// B.
    pub block_size: usize,
    /// Of the feed-forward.
    pub activation: Activation,
    /// Kernel family to test.
    pub variant: Variant,
}

/// Runs every op once and compares. Gives the number of comparisons.
///
/// # Errors
/// `device.kernel_mismatch` naming the op; errors of the device.
pub async fn run(backend: &Backend, needs: &Needs) -> Result<usize> {
    let mut stream = Stream(0x00F1_2E51_DE00);
    let mut compared = 0;
    for &ty in &needs.types {
        compared += matrices(backend, needs, ty, &mut stream).await?;
    }
    norm(backend, &mut stream).await?;
    positions(backend, needs, &mut stream).await?;
    logits(backend, &mut stream).await?;
    Ok(compared + 4)
}

fn compare(op: &str, got: &[f32], expected: &[f32], magnitude: f32) -> Result<()> {
    let worst = got
        .iter()
        .zip(expected)
        .map(|(g, e)| (g - e).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) });
    if got.len() == expected.len() && worst <= TOLERANCE * magnitude.max(1e-30) {
        return Ok(());
    }
    Err(Error::new("device.kernel_mismatch", format!("the kernel of '{op}' gives wrong numbers on this device"))
        .with("op", op)
        .with("difference", f64::from(worst).to_string())
        .with("bound", f64::from(TOLERANCE * magnitude)))
}

async fn matrices(backend: &Backend, needs: &Needs, ty: GgmlType, stream: &mut Stream) -> Result<usize> {
    let (k, n) = (512, 6);
    let bytes = stream.weights(ty, n, k)?;
    let mut dense = vec![0.0; n * k];
    quant::dequantize(ty, &bytes, &mut dense)?;
    let largest = dense.iter().fold(0f32, |m, v| m.max(v.abs()));
    let words = backend.words(pack::rows(backend.kind(), ty, k, &bytes)?);
    // One row, and more rows than one read of the weights serves.
    for tokens in [1, 9] {
        let x = stream.floats(tokens * k);
        let problem = MatmulProblem {
            ty,
            tokens,
            k,
            n,
            out_stride: n,
            out_col: 0,
            accumulate: false,
            has_bias: false,
            variant: needs.variant,
        };
        let mut expected = vec![0.0; tokens * n];
        matmul_reference(&x, &bytes, &mut expected, &[], &problem)?;
        let x_device = backend.floats(x.clone());
        let out = call::matmul(&x_device, &words, backend.empty_floats(tokens * n), None, problem);
        compare(&format!("matmul {}", ty.name()), &backend.read_floats(out).await?, &expected, largest * k as f32)?;

        let problem = GateUpProblem { ty, tokens, k, f: n / 2, activation: needs.activation, variant: needs.variant };
        let expected = gate_up_reference(&x, &bytes, &problem)?;
        let out = call::gate_up(&x_device, &words, problem);
        let magnitude = (largest * k as f32).powi(2).max(largest * k as f32);
        compare(&format!("gate_up {}", ty.name()), &backend.read_floats(out).await?, &expected, magnitude)?;
    }
    let meta = [5u32, 0, 3];
    let problem = EmbedProblem { ty, tokens: 3, width: k, row_start: 0, rows: n, ids_offset: 0, scale: 1.0 };
    let mut expected = vec![0.0; 3 * k];
    embed_reference(&bytes, &meta, &mut expected, &problem)?;
    let out = call::embed(&words, &backend.words(meta.to_vec()), backend.empty_floats(3 * k), problem);
    compare(&format!("embed {}", ty.name()), &backend.read_floats(out).await?, &expected, largest)?;
    Ok(5)
}

async fn norm(backend: &Backend, stream: &mut Stream) -> Result<()> {
    let (width, meta) = (96, [2u32, 0]);
    let (x, weight) = (stream.floats(3 * width), stream.floats(width));
    let problem = NormProblem { rows: 2, width, eps: 1e-5, gather: Some(0) };
    let expected = rms_norm_reference(&x, &weight, &meta, &problem);
    let out = call::rms_norm(&backend.floats(x), &backend.floats(weight), &backend.words(meta.to_vec()), problem);
    compare("rms_norm", &backend.read_floats(out).await?, &expected, 4.0)
}

/// Rotary positions, the cache write and attention, over two sequences whose blocks are out of order.
async fn positions(backend: &Backend, needs: &Needs, stream: &mut Stream) -> Result<()> {
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
    let problem = RopeKvProblem {
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
    let (qkv_device, kv_device) = call::rope_kv(device.0, device.1, &device.2, &device_meta, problem);
    rope_kv_reference(&mut qkv, &mut kv, &rope, &meta, &problem);
    compare("rope_kv", &backend.read_floats(kv_device.clone()).await?, &kv, 2.0)?;

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
    let expected = attention_reference(&qkv, &kv, &meta, &problem);
    let out = call::attention(&qkv_device, &kv_device, &device_meta, problem);
    compare("attention", &backend.read_floats(out).await?, &expected, 2.0)
}

async fn logits(backend: &Backend, stream: &mut Stream) -> Result<()> {
    let (rows, vocab) = (2, 700);
    let problem = CandidatesProblem { rows, vocab };
    let values: Vec<f32> = stream.floats(rows * vocab).iter().map(|v| v * 20.0).collect();
    let expected = greedy_reference(&candidates_reference(&values, &[0.0, 0.7], &problem), &problem);
    let candidates = call::candidates(&backend.floats(values), &backend.floats(vec![0.0, 0.7]), problem);
    let got = backend.read_words(call::greedy(&candidates, problem)).await?;
    for (got, expected) in got.chunks_exact(4).zip(expected.chunks_exact(4)) {
        let floats = |words: &[u32]| words[1..].iter().map(|&w| f32::from_bits(w)).collect::<Vec<f32>>();
        compare("greedy", &[got[0] as f32], &[expected[0] as f32], 0.0)?;
        compare("candidates", &floats(got), &floats(expected), 20.0)?;
    }
    Ok(())
}
