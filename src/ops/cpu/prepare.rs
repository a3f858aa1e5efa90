//! Activations in the order of a format's code vectors: permuted, divided by the codes' factors, with group sums.
use super::codes::Codes;
use super::simd::F32x4;

/// Activation rows whose group sums lie side by side.
pub const TILE: usize = 4;

/// Rows of activations ready for a format's kernels.
pub struct Prepared {
    vectors: Vec<[f32; 4]>,
    sums: Vec<[f32; TILE]>,
    /// Vectors a row.
    num_vectors: usize,
    /// Groups a row.
    num_groups: usize,
    /// Vectors a group.
    group: usize,
}

impl Prepared {
    /// Prepares whole rows of `k` values each. Values past `k`, up to the end of a block, are zero.
    pub fn new<C: Codes<B, G, P>, const B: usize, const G: usize, const P: usize>(x: &[f32], k: usize) -> Self {
        let blocks = k.div_ceil(C::BLOCK);
        let (num_vectors, num_groups) = (blocks * C::BLOCK / 4, blocks * C::UNITS * P);
        let rows = x.len() / k.max(1);
        let place = |i: usize| C::place(i / (4 * G * P), i / (4 * G) % P, i / 4 % G, i % 4);
        let places: Vec<(usize, f32)> = (0..C::BLOCK).map(place).collect();
        let mut prepared = Self {
            vectors: Vec::with_capacity(rows * num_vectors),
            sums: vec![[0.0; TILE]; rows.div_ceil(TILE) * num_groups],
            num_vectors,
            num_groups,
            group: G,
        };
        let mut padded = vec![0.0; blocks * C::BLOCK];
        for (t, row) in x.chunks_exact(k.max(1)).enumerate() {
            padded[..k].copy_from_slice(row);
            prepared.push_row(&padded, &places, 4 * G, t, C::OFFSET_FACTOR);
        }
        prepared
    }

    fn push_row(&mut self, row: &[f32], places: &[(usize, f32)], group: usize, t: usize, factor: f32) {
        let mut sums = self.sums[t / TILE * self.num_groups..][..self.num_groups].iter_mut();
        for block in row.chunks_exact(places.len()) {
            for places in places.chunks_exact(group) {
                let mut sum = F32x4::splat(0.0);
                for four in places.as_chunks::<4>().0 {
                    sum = sum.add(F32x4::load(&four.map(|(at, _)| block[at])));
                    self.vectors.push(four.map(|(at, divisor)| block[at] * divisor));
                }
                if let Some(tile) = sums.next() {
                    tile[t % TILE] = sum.sum() * factor;
                }
            }
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.vectors.len() / self.num_vectors.max(1)
    }

    /// Vectors of a group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Vectors of a row, in the order of units, groups and vectors.
    pub fn vectors(&self, row: usize) -> &[[f32; 4]] {
        &self.vectors[row * self.num_vectors..][..self.num_vectors]
    }

    /// Sums of a tile's groups times the format's factor on offsets, one lane a row; lanes without a row are zero.
    pub fn sums(&self, tile: usize) -> &[[f32; TILE]] {
        &self.sums[tile * self.num_groups..][..self.num_groups]
    }
}
