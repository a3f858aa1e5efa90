//! Activations in the order of a format's code vectors: permuted, divided by the codes' factors, with group sums.
use super::codes::Codes;
use super::simd::F32x4;

/// Rows of activations ready for a format's kernels.
pub struct Prepared {
    vectors: Vec<[f32; 4]>,
    sums: Vec<[f32; 4]>,
    /// Vectors a row.
    num_vectors: usize,
    /// Vectors of group sums a row; 0 when the format has no offsets.
    num_sums: usize,
}

/// Sizes of a weight row: the format's blocks, the last one possibly padded.
#[derive(Debug, Clone, Copy)]
pub struct RowShape {
    /// Blocks, rounded up.
    pub blocks: usize,
    /// Bytes of the blocks.
    pub bytes: usize,
    /// Groups, rounded up to whole vectors.
    pub group_vectors: usize,
}

impl RowShape {
    /// Sizes for rows of `k` values.
    pub fn of<C: Codes>(k: usize) -> Self {
        let blocks = k.div_ceil(C::BLOCK);
        Self { blocks, bytes: blocks * C::BYTES, group_vectors: (blocks * C::GROUPS).div_ceil(4) }
    }
}

impl Prepared {
    /// Prepares whole rows of `k` values each. Values past `k` are zero.
    pub fn new<C: Codes>(x: &[f32], k: usize) -> Self {
        let shape = RowShape::of::<C>(k);
        let num_vectors = shape.blocks * C::BLOCK / 4;
        let num_sums = if C::OFFSET { shape.group_vectors } else { 0 };
        let places: Vec<(usize, f32)> = (0..C::BLOCK)
            .map(|i| C::place(i / (4 * C::VECTORS), i / 4 % C::VECTORS, i % 4))
            .collect();
        let rows = x.len() / k.max(1);
        let mut prepared = Self {
            vectors: Vec::with_capacity(rows * num_vectors),
            sums: Vec::with_capacity(rows * num_sums),
            num_vectors,
            num_sums,
        };
        for row in x.chunks_exact(k.max(1)) {
            prepared.push_row::<C>(row, &places);
        }
        prepared
    }

    fn push_row<C: Codes>(&mut self, row: &[f32], places: &[(usize, f32)]) {
        let mut padded = Vec::new();
        let blocks = if row.len() % C::BLOCK == 0 {
            row
        } else {
            padded.extend_from_slice(row);
            padded.resize(row.len().next_multiple_of(C::BLOCK), 0.0);
            &padded
        };
        for block in blocks.chunks_exact(C::BLOCK) {
            let lanes = places.as_chunks::<4>().0.iter();
            self.vectors.extend(lanes.map(|four| four.map(|(index, factor)| block[index] * factor)));
        }
        if C::OFFSET {
            let mut sums = vec![[0.0; 4]; self.num_sums];
            let groups = blocks.chunks_exact(C::BLOCK).flat_map(|block| {
                places.chunks_exact(4 * C::GROUP).map(|group| {
                    let lanes = group.as_chunks::<4>().0.iter();
                    lanes.fold(F32x4::splat(0.0), |sum, four| sum.add(F32x4::load(&four.map(|(at, _)| block[at])))).sum()
                })
            });
            for (sum, group) in sums.as_flattened_mut().iter_mut().zip(groups) {
                *sum = group;
            }
            self.sums.extend(sums);
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.vectors.len() / self.num_vectors.max(1)
    }

    /// Vectors of a row, in the order of units.
    pub fn vectors(&self, row: usize) -> &[[f32; 4]] {
        &self.vectors[row * self.num_vectors..][..self.num_vectors]
    }

    /// Group sums of a row, zero-padded; empty when the format has no offsets.
    pub fn sums(&self, row: usize) -> &[[f32; 4]] {
        &self.sums[row * self.num_sums..][..self.num_sums]
    }
}
