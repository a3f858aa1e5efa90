//! Timings beside a plain WGSL kernel on the same device. Run by hand: `cargo test ... gpu::tests::bench -- --ignored
//! --nocapture --test-threads 1`.
#![allow(clippy::single_range_in_vec_init, reason = "burn's slices are arrays of ranges, one a dimension")]
use std::time::Instant;

use burn::backend::wgpu::{CubeTensor, KernelSource, SourceKernel, SourceTemplate};
use burn::backend::{Dispatch, Wgpu};
use burn::tensor::Tensor;
use cubecl::prelude::*;
use cubecl::server::{KernelArguments, MetadataBindingInfo};

use super::*;
use crate::ops::FiresideOps;
use crate::ops::attention::AttentionProblem;
use crate::ops::matmul::{Activation, GateUpProblem, MatmulProblem, Variant};

const Q8: &str = "let a = (id.x * blocks + b) * 9u;
        var s = 0.0;
        for (var j = 0u; j < 8u; j++) { s += dot(q8(w[a + 1u + j]), x[xb + j]); }
        sum += s * unpack2x16float(w[a]).x;";
const Q4: &str = "let a = (id.x * blocks + b) * 5u;
        let dm = unpack2x16float(w[a]);
        var s = 0.0;
        for (var j = 0u; j < 4u; j++) {
            let word = w[a + 1u + j];
            s += dot(low(word) * dm.x + dm.y, x[xb + j]) + dot(low(word >> 4u) * dm.x + dm.y, x[xb + 4u + j]);
        }
        sum += s;";

#[derive(Debug)]
struct Plain(&'static str);

impl KernelSource for Plain {
    fn source(&self) -> SourceTemplate {
        SourceTemplate::new(include_str!("plain.wgsl")).register("body", self.0)
    }
    fn id(&self) -> KernelId {
        KernelId::new::<Self>().info(self.0)
    }
    fn lang(&self) -> &'static str {
        "wgsl"
    }
}

fn plain(
    body: &'static str,
    x: &Tensor<1>,
    w: &Tensor<1, burn::tensor::Int>,
    out: &Tensor<1>,
    blocks: usize,
    n: usize,
) {
    let prim = |t: &Tensor<1>| -> CubeTensor { t.clone().try_into_primitive::<Wgpu>().unwrap() };
    let w: CubeTensor = w.clone().try_into_primitive::<Wgpu>().unwrap();
    let (x, out) = (prim(x), prim(out));
    let client = w.client.clone();
    let arguments = KernelArguments::new()
        .with_buffers(vec![w.handle.binding(), x.handle.binding(), out.handle.binding()])
        .with_info(MetadataBindingInfo::custom(vec![blocks as u64 | ((n as u64) << 32)]));
    let kernel = SourceKernel::new(Plain(body), CubeDim::new_1d(64));
    client.launch(Box::new(kernel), CubeCount::Static(n.div_ceil(64) as u32, 1, 1), arguments);
}

/// Best of several batches, in milliseconds a call; each batch ends with a read of `out`.
fn time(out: &Tensor<1>, mut call: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let calls = 4;
    for _ in 0..6 {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        let _ = read(out.clone().slice([0..1]));
        best = best.min(start.elapsed().as_secs_f64() * 1e3 / f64::from(calls));
    }
    best
}

fn products(ty: GgmlType, body: Option<&'static str>, tokens: usize, k: usize, n: usize, device: &Backend) {
    let mut random = Random(41);
    let w = words(&packed(ty, k, &weights(ty, n, k, &mut random)), device);
    let (x, out) = (floats(&random.floats(tokens * k), device), floats(&vec![0.0; tokens * n], device));
    let hand = body.filter(|_| tokens == 1).map(|body| time(&out, || plain(body, &x, &w, &out, k / 32, n)));
    let mut ours = [0.0; 2];
    for (ours, variant) in ours.iter_mut().zip([Variant::Serial, Variant::Workgroup]) {
        let p =
            MatmulProblem { ty, tokens, k, n, out_stride: n, out_col: 0, accumulate: false, has_bias: false, variant };
        *ours = time(&out, || {
            let (x, w, out) = (x.clone().into_dispatch(), w.clone().into_dispatch(), out.clone().into_dispatch());
            let _ = Dispatch::matmul(x.clone(), w, out, x, p);
        });
    }
    println!("{ty:?} {tokens}x{k}x{n}: plain {hand:?} serial {:.3} workgroup {:.3} ms", ours[0], ours[1]);
}

#[test]
#[ignore = "a measurement"]
fn products_beside_plain_wgsl() {
    let Some(device) = device() else { return };
    for (ty, body) in
        [(GgmlType::Q8_0, Some(Q8)), (GgmlType::Q4_1, Some(Q4)), (GgmlType::Q4_K, None), (GgmlType::Q6_K, None)]
    {
        for (k, n) in [(576, 1536), (1536, 576), (2048, 8192)] {
            if k % ty.block_elems() == 0 {
                products(ty, body, 1, k, n, &device);
            }
        }
    }
    for ty in [GgmlType::Q4_1, GgmlType::Q8_0] {
        for tokens in [2, 4, 8, 32] {
            products(ty, None, tokens, 576, 1536, &device);
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn the_rest_of_a_layer() {
    let Some(device) = device() else { return };
    let mut random = Random(42);
    for variant in [Variant::Serial, Variant::Workgroup] {
        for tokens in [1usize, 32] {
            let (ty, k, f) = (GgmlType::Q4_1, 576, 1536);
            let w = words(&packed(ty, k, &weights(ty, 2 * f, k, &mut random)), &device);
            let x = floats(&random.floats(tokens * k), &device);
            let p = GateUpProblem { ty, tokens, k, f, activation: Activation::Silu, variant };
            let ms = time(&x, || drop(Dispatch::gate_up(x.clone().into_dispatch(), w.clone().into_dispatch(), p)));
            println!("gate_up {variant:?} {tokens}: {ms:.3} ms");
            for context in [64usize, 512, 1024] {
                let blocks = context / 16;
                let kv = floats(&random.floats(blocks * 2 * 16 * 3 * 64), &device);
                let qkv = floats(&random.floats(tokens * 15 * 64), &device);
                let mut meta: Vec<u32> = (0..tokens).map(|t| (context - 1 - t) as u32).collect();
                meta.extend(vec![0; tokens]);
                meta.extend(0..blocks as u32);
                let meta = words(&meta, &device);
                let p = AttentionProblem {
                    tokens,
                    num_heads: 9,
                    num_kv_heads: 3,
                    head_dim: 64,
                    block_size: 16,
                    scale: 0.125,
                    window: 0,
                    softcap: 0.0,
                    positions_offset: 0,
                    seqs_offset: tokens,
                    tables_offset: 2 * tokens,
                    table_stride: blocks,
                    variant,
                };
                let ms = time(&qkv, || {
                    let (q, kv, meta) =
                        (qkv.clone().into_dispatch(), kv.clone().into_dispatch(), meta.clone().into_dispatch());
                    drop(Dispatch::attention(q, kv, meta, p));
                });
                println!("attention {variant:?} {tokens} tokens, context {context}: {ms:.3} ms");
            }
        }
    }
}
