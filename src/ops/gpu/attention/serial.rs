//! Serial variant: one invocation a (token, head), everything in private memory, no barriers.
use cubecl::prelude::*;

use super::super::math::{LOWEST, exp_nonpositive};
use super::{SEGMENT, Sizes, finish_score, first_seen, k_index};

/// Few invocations a workgroup: software adapters spread workgroups over cores, and there are few (token, head) pairs.
pub const LANES: u32 = 4;

/// Vectors of a head up to which its loops are unrolled.
const MAX_UNROLLED: u32 = 32;

#[cube(launch_unchecked)]
pub fn serial<N: Size>(
    qkv: &[Vector<f32, N>],
    kv: &[Vector<f32, N>],
    meta: &[u32],
    out: &mut [Vector<f32, N>],
    s: Sizes,
    #[comptime] dv: u32,
) {
    // Constant indices keep private arrays in registers; wide heads would make the code too long.
    let unroll = comptime!(dv <= MAX_UNROLLED);
    let i = ABSOLUTE_POS as u32;
    let (t, head) = (i / s.num_heads, i % s.num_heads);
    if t < s.tokens {
        let position = meta[(s.positions + t) as usize];
        let table = s.tables + meta[(s.seqs + t) as usize] * s.table_stride;
        let kv_head = head / (s.num_heads / s.num_kv_heads);
        let to_v = s.block_size * s.num_kv_heads * dv;
        let q = (t * (s.num_heads + 2u32 * s.num_kv_heads) + head) * dv;
        let mut query = Array::<Vector<f32, N>>::new(dv as usize);
        let mut mix = Array::<Vector<f32, N>>::new(dv as usize);
        let mut part = Array::<Vector<f32, N>>::new(dv as usize);
        let mut scores = Array::<f32>::new(SEGMENT as usize);
        #[unroll(unroll)]
        for d in 0..dv {
            query[d as usize] = qkv[(q + d) as usize];
            mix[d as usize] = Vector::<f32, N>::new(0.0f32);
        }
        let mut highest = LOWEST.runtime();
        let mut total = 0.0f32;
        let mut low = first_seen(&s, position);
        while low <= position {
            let start = low / SEGMENT * SEGMENT;
            let end = min(position + 1u32, start + SEGMENT);
            let mut peak = LOWEST.runtime();
            for j in low..end {
                let k = k_index(meta, &s, table, j, kv_head, dv);
                let mut dot = 0.0f32;
                #[unroll(unroll)]
                for d in 0..dv {
                    dot += query[d as usize].dot(kv[(k + d) as usize]);
                }
                let score = finish_score(dot, &s);
                scores[(j - start) as usize] = score;
                peak = max(peak, score);
            }
            let mut sum = 0.0f32;
            #[unroll(unroll)]
            for d in 0..dv {
                part[d as usize] = Vector::<f32, N>::new(0.0f32);
            }
            for j in low..end {
                let weight = exp_nonpositive(scores[(j - start) as usize] - peak);
                sum += weight;
                let v = k_index(meta, &s, table, j, kv_head, dv) + to_v;
                #[unroll(unroll)]
                for d in 0..dv {
                    part[d as usize] += kv[(v + d) as usize] * Vector::<f32, N>::new(weight);
                }
            }
            let higher = max(highest, peak);
            let (old, new) = (exp_nonpositive(highest - higher), exp_nonpositive(peak - higher));
            total = total * old + sum * new;
            #[unroll(unroll)]
            for d in 0..dv {
                let d = d as usize;
                mix[d] = mix[d] * Vector::<f32, N>::new(old) + part[d] * Vector::<f32, N>::new(new);
            }
            highest = higher;
            low = start + SEGMENT;
        }
        #[unroll(unroll)]
        for d in 0..dv {
            out[(i * dv + d) as usize] = mix[d as usize] / Vector::<f32, N>::new(total);
        }
    }
}
