//! Rows of a quantized table, dequantized: one invocation a step of a part.
use burn::backend::wgpu::CubeTensor;
use cubecl::prelude::*;

use super::dequant::{part_head, part_words, quad, single};
use super::launch;
use super::layout::{Layout, part_quad};
use super::math::F4;
use crate::gguf::GgmlType;
use crate::ops::embed::EmbedProblem;

#[cube(launch_unchecked)]
fn embed_quads(
    table: &[u32],
    meta: &[u32],
    out: &mut [Vector<f32, Const<4>>],
    tokens: u32,
    row_parts: u32,
    row_start: u32,
    rows: u32,
    ids: u32,
    scale: f32,
    #[comptime] l: Layout,
) {
    let i = ABSOLUTE_POS as u32;
    let step = i % comptime!(l.steps);
    let at = i / comptime!(l.steps);
    let t = at / row_parts;
    if t < tokens {
        let row = meta[(ids + t) as usize] - row_start;
        if row < rows {
            let part = at % row_parts;
            let block = part / comptime!(l.parts);
            let part = part % comptime!(l.parts);
            let row_blocks = row_parts / comptime!(l.parts);
            let base = ((row * row_blocks + block) * comptime!(l.block_words)) as usize;
            let head = part_head(table, base, part, l);
            let words = part_words(table, base, part, step, l);
            let first = (t * row_blocks + block) * comptime!(l.block_values / 4) + part_quad(part, l) + step;
            let scale = if comptime!(l.scale_after()) { head.after * scale } else { scale };
            #[unroll]
            for plane in 0..comptime!(l.planes) {
                let values = quad(&words, &head, plane, l);
                out[(first + comptime!(plane * l.plane_quads)) as usize] = values * F4::new(scale);
            }
        }
    }
}

#[cube(launch_unchecked)]
fn embed_singles(
    table: &[u32],
    meta: &[u32],
    out: &mut [f32],
    tokens: u32,
    width: u32,
    row_words: u32,
    row_start: u32,
    rows: u32,
    ids: u32,
    scale: f32,
    #[comptime] ty: GgmlType,
) {
    let i = ABSOLUTE_POS as u32;
    let t = i / width;
    if t < tokens {
        let row = meta[(ids + t) as usize] - row_start;
        if row < rows {
            out[i as usize] = single(table, (row * row_words) as usize, (i % width) as usize, ty) * scale;
        }
    }
}

pub(super) fn embed(table: CubeTensor, meta: CubeTensor, out: CubeTensor, p: &EmbedProblem) -> CubeTensor {
    let l = Layout::of(p.ty);
    let client = &out.client;
    let (tokens, rows, row_start, ids) = (p.tokens as u32, p.rows as u32, p.row_start as u32, p.ids_offset as u32);
    let (table, meta) = (launch::buffer(&table, 1), launch::buffer(&meta, 1));
    let dim = CubeDim::new_1d(64);
    if l.fits(p.width) {
        let row_parts = l.row_parts(p.width);
        let groups = launch::grid((p.tokens * row_parts * l.steps as usize).div_ceil(64));
        let to = launch::buffer(&out, 4);
        launch::launch!(
            embed_quads,
            client,
            groups,
            dim,
            table,
            meta,
            to,
            tokens,
            row_parts as u32,
            row_start,
            rows,
            ids,
            p.scale,
            l,
        );
    } else {
        let groups = launch::grid((p.tokens * p.width).div_ceil(64));
        let (to, row_words) = (launch::buffer(&out, 1), l.row_words(p.width) as u32);
        launch::launch!(
            embed_singles,
            client,
            groups,
            dim,
            table,
            meta,
            to,
            tokens,
            p.width as u32,
            row_words,
            row_start,
            rows,
            ids,
            p.scale,
            p.ty,
        );
    }
    out
}
