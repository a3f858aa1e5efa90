//! Workgroup variant: one workgroup a (token, head); lanes are positions for the scores, then (position class, dimension)
//! for the mix.
use cubecl::prelude::*;

use super::super::math::{LOWEST, exp_nonpositive};
use super::{SEGMENT, Sizes, finish_score, first_seen, k_index};

#[cube(launch_unchecked)]
pub fn workgroup<N: Size>(
    qkv: &[Vector<f32, N>],
    kv: &[Vector<f32, N>],
    meta: &[u32],
    out: &mut [Vector<f32, N>],
    s: Sizes,
    #[comptime] dv: u32,
) {
    // Lanes beyond a multiple of `dv` mix nothing; heads wider than the workgroup take several vectors a lane.
    let classes = comptime!(if dv >= SEGMENT { 1u32 } else { SEGMENT / dv });
    let columns = comptime!(dv.div_ceil(SEGMENT));
    let mut scores = Shared::<[f32]>::new_slice(SEGMENT as usize);
    let mut weights = Shared::<[f32]>::new_slice(SEGMENT as usize);
    let mut mixes = Shared::<[Vector<f32, N>]>::new_slice(comptime!((classes * dv) as usize));
    let lane = UNIT_POS_X;
    let i = min(CUBE_POS as u32, s.tokens * s.num_heads - 1u32);
    let (t, head) = (i / s.num_heads, i % s.num_heads);
    let position = meta[(s.positions + t) as usize];
    let table = s.tables + meta[(s.seqs + t) as usize] * s.table_stride;
    let kv_head = head / (s.num_heads / s.num_kv_heads);
    let to_v = s.block_size * s.num_kv_heads * dv;
    let q = (t * (s.num_heads + 2u32 * s.num_kv_heads) + head) * dv;
    let class = if comptime!(dv >= SEGMENT) { 0u32.runtime() } else { lane / dv };
    let column = if comptime!(dv >= SEGMENT) { lane } else { lane % dv };
    let mut mix = Array::<Vector<f32, N>>::new(columns as usize);
    #[unroll]
    for c in 0..columns {
        mix[c as usize] = Vector::<f32, N>::new(0.0f32);
    }
    let mut highest = LOWEST.runtime();
    let mut total = 0.0f32;
    let first = first_seen(&s, position);
    let mut start = first / SEGMENT * SEGMENT;
    while start <= position {
        let low = max(first, start) - start;
        let end = min(position + 1u32 - start, SEGMENT);
        let mut score = LOWEST.runtime();
        if lane >= low && lane < end {
            let k = k_index(meta, &s, table, start + lane, kv_head, dv);
            let mut dot = 0.0f32;
            for d in 0..dv {
                dot += qkv[(q + d) as usize].dot(kv[(k + d) as usize]);
            }
            score = finish_score(dot, &s);
        }
        scores[lane as usize] = score;
        sync_cube();
        let mut peak = LOWEST.runtime();
        for j in low..end {
            peak = max(peak, scores[j as usize]);
        }
        weights[lane as usize] = exp_nonpositive(score - peak);
        sync_cube();
        let mut sum = 0.0f32;
        for j in low..end {
            sum += weights[j as usize];
        }
        let higher = max(highest, peak);
        let (old, new) = (exp_nonpositive(highest - higher), exp_nonpositive(peak - higher));
        total = total * old + sum * new;
        highest = higher;
        if class < classes {
            #[unroll]
            for c in 0..columns {
                let d = column + comptime!(c * SEGMENT);
                if d < dv {
                    let mut part = Vector::<f32, N>::new(0.0f32);
                    for j in low..end {
                        if j % classes == class {
                            let v = k_index(meta, &s, table, start + j, kv_head, dv) + to_v + d;
                            part += kv[v as usize] * Vector::<f32, N>::new(weights[j as usize]);
                        }
                    }
                    let c = c as usize;
                    mix[c] = mix[c] * Vector::<f32, N>::new(old) + part * Vector::<f32, N>::new(new);
                }
            }
        }
        start += SEGMENT;
        sync_cube();
    }
    if class < classes {
        #[unroll]
        for c in 0..columns {
            let d = column + comptime!(c * SEGMENT);
            if d < dv {
                mixes[(class * dv + d) as usize] = mix[c as usize];
            }
        }
    }
    sync_cube();
    if class == 0u32 {
        #[unroll]
        for c in 0..columns {
            let d = column + comptime!(c * SEGMENT);
            if d < dv {
                let mut sum = mixes[d as usize];
                #[unroll]
                for k in 1..classes {
                    sum += mixes[(d + comptime!(k * dv)) as usize];
                }
                out[(i * dv + d) as usize] = sum / Vector::<f32, N>::new(total);
            }
        }
    }
}
