//! Weight matrices on the device, in parts that a kernel can bind, and their products.
use crate::backend::{Backend, Floats, Words};
use crate::gguf::GgmlType;
use crate::ops::call;
use crate::ops::embed::EmbedProblem;
use crate::ops::matmul::{Activation, GateUpProblem, GatedProblem, MatmulProblem, Variant};

/// Rows of one type in one buffer.
#[derive(Debug, Clone)]
pub struct Part {
    /// Packed words (GPU) or the file's bytes (CPU).
    pub words: Words,
    /// Type of every row.
    pub ty: GgmlType,
    /// Rows.
    pub rows: usize,
    /// Output column of the first row.
    pub col: usize,
    /// `[rows]`, when the matrix has one.
    pub bias: Option<Floats>,
    /// Bytes on the device.
    pub bytes: u64,
}

/// A matrix `[N, K]`, one or several tensors of the file stacked by rows.
#[derive(Debug, Clone)]
pub struct Linear {
    /// K.
    pub k: usize,
    /// N.
    pub n: usize,
    /// In ascending column order; together they cover `0..n`.
    pub parts: Vec<Part>,
}

impl Linear {
    /// `x [T, K] -> [T, N]`.
    pub fn forward(&self, backend: &Backend, x: &Floats, tokens: usize, variant: Variant) -> Floats {
        self.run(x, backend.empty_floats(tokens * self.n), tokens, false, variant)
    }

    /// `out [T, N] += x [T, K] . W`.
    pub fn add_to(&self, x: &Floats, out: Floats, tokens: usize, variant: Variant) -> Floats {
        self.run(x, out, tokens, true, variant)
    }

    fn run(&self, x: &Floats, mut out: Floats, tokens: usize, accumulate: bool, variant: Variant) -> Floats {
        for part in &self.parts {
            let problem = MatmulProblem {
                ty: part.ty,
                tokens,
                k: self.k,
                n: part.rows,
                out_stride: self.n,
                out_col: part.col,
                accumulate,
                has_bias: part.bias.is_some(),
                variant,
            };
            out = call::matmul(x, &part.words, out, part.bias.as_ref(), problem);
        }
        out
    }

    /// `act(x . gate) * (x . up)`, this matrix being gate rows stacked on up rows: one dispatch when both lie in one part.
    pub fn gate_up(
        &self,
        backend: &Backend,
        x: &Floats,
        tokens: usize,
        activation: Activation,
        variant: Variant,
    ) -> Floats {
        let f = self.n / 2;
        match self.parts.as_slice() {
            [part] if part.bias.is_none() => {
                let problem = GateUpProblem { ty: part.ty, tokens, k: self.k, f, activation, variant };
                call::gate_up(x, &part.words, problem)
            }
            _ => call::gated(&self.forward(backend, x, tokens, variant), GatedProblem { tokens, f, activation }),
        }
    }

    /// Rows of this matrix as token embeddings: `[T, K]`.
    pub fn embed(&self, backend: &Backend, meta: &Words, ids_offset: usize, tokens: usize, scale: f32) -> Floats {
        let mut out = backend.empty_floats(tokens * self.k);
        for part in &self.parts {
            let problem = EmbedProblem {
                ty: part.ty,
                tokens,
                width: self.k,
                row_start: part.col,
                rows: part.rows,
                ids_offset,
                scale,
            };
            out = call::embed(&part.words, meta, out, problem);
        }
        out
    }

    /// Multiply-adds for one row of `x`.
    pub fn work(&self) -> usize {
        self.n * self.k
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}
