//! Rotation of q and k, and the write of k and v into the paged cache.
use crate::ops::rope_kv::{RopeKvProblem, kv_index};

/// `rope_kv` of the trait on slices.
pub fn rope_kv(qkv: &mut [f32], kv: &mut [f32], rope: &[f32], meta: &[u32], p: &RopeKvProblem) {
    let (d, half) = (p.head_dim, p.rope_dim / 2);
    let width = (p.num_heads + 2 * p.num_kv_heads) * d;
    for (t, row) in qkv[..p.tokens * width].chunks_exact_mut(width.max(1)).enumerate() {
        let angles = rope[t * half * 2..][..half * 2].as_chunks::<2>().0;
        let (rotated, _) = row.split_at_mut((p.num_heads + p.num_kv_heads) * d);
        for head in rotated.chunks_exact_mut(d.max(1)) {
            rotate(&mut head[..p.rope_dim], angles, p.interleaved);
        }
        let slot = meta[p.slots_offset + t] as usize;
        let (k, v) = row[p.num_heads * d..].split_at(p.num_kv_heads * d);
        for (is_v, source) in [(false, k), (true, v)] {
            let at = kv_index(slot, is_v, 0, p.block_size, p.num_kv_heads, d);
            kv[at..][..source.len()].copy_from_slice(source);
        }
    }
}

/// Rotates the pairs of one head by `[cos, sin]`.
fn rotate(head: &mut [f32], angles: &[[f32; 2]], interleaved: bool) {
    let turn = |a: &mut f32, b: &mut f32, &[cos, sin]: &[f32; 2]| (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    if interleaved {
        head.as_chunks_mut::<2>().0.iter_mut().zip(angles).for_each(|([a, b], angle)| turn(a, b, angle));
    } else {
        let (first, second) = head.split_at_mut(angles.len());
        first.iter_mut().zip(second).zip(angles).for_each(|((a, b), angle)| turn(a, b, angle));
    }
}
