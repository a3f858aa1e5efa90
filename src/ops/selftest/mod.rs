//! The kernels of a device against the scalar references, once at load: a wrong kernel is found before a wrong word is.
//!
//! Every pipeline that a model uses is made here, one by one, each awaited: no request waits for a compiler later. Problems are
//! small; what to do about a failure is the caller's decision.
mod cases;
mod stream;

use super::matmul::{Activation, Variant};
use crate::backend::Backend;
use crate::gguf::GgmlType;
use crate::{Error, Result};
use cases::Case;
use stream::Stream;

/// The code of a kernel that gives wrong numbers.
pub const MISMATCH: &str = "device.kernel_mismatch";

/// The code of a family whose kernels of several rows give other bits than the kernel of one row.
pub const ROWS_DIFFER: &str = "device.rows_differ";

/// Relative to the sum of magnitudes that a result was added from.
const TOLERANCE: f32 = 1e-4;

/// Weights of one type, in rows of one width. Kernels differ by type, and by whether a row can be read in quads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Type.
    pub ty: GgmlType,
    /// K of the problem that stands for all that the kernel serves.
    pub k: usize,
}

impl Matrix {
    /// A problem for the kernel that serves rows of `k` values of a type.
    pub fn new(ty: GgmlType, k: usize) -> Self {
        // Two of the largest blocks, unless the width itself is what makes the kernel another.
        let whole = k.is_multiple_of(ty.block_elems().max(32));
        Self { ty, k: if whole { 512 } else { k } }
    }
}

/// What a model needs of the kernels. Lists hold each matrix once.
#[derive(Debug, Clone)]
pub struct Needs {
    /// Matrices that are multiplied with.
    pub products: Vec<Matrix>,
    /// Gate and up in one buffer.
    pub gate_ups: Vec<Matrix>,
    /// Some gate and up lie apart.
    pub gated: bool,
    /// Tables of embeddings.
    pub tables: Vec<Matrix>,
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

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Pipelines are made, and each is run once.
    Compile,
    /// What they gave is compared.
    Compare,
}

/// A kernel's answer, yet to be compared with the reference's.
struct Answer {
    op: String,
    /// Answers of one family of rows are neighbours; each begins with the rows of the one before it.
    rows_of: Option<Family>,
    got: Vec<f32>,
    reference: Box<dyn FnOnce() -> Result<Expected>>,
}

/// Products of one kind of weights, by numbers of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Family {
    matrix: Matrix,
    gate_up: bool,
}

/// What the reference says.
struct Expected {
    values: Vec<f32>,
    /// Sum of magnitudes that a value was added from; 0 asks for the same bits.
    magnitude: f32,
}

/// Makes and runs every kernel once, then compares. Gives the number of comparisons. `progress` is told (stage, done, of).
///
/// # Errors
/// `device.kernel_mismatch` naming the op, `device.failed` when a kernel cannot be made: another family may do. `device.rows_differ`:
/// the family may do a row at a time. Other errors of the device.
pub async fn run(backend: &Backend, needs: &Needs, progress: &mut dyn FnMut(Stage, usize, usize)) -> Result<usize> {
    let mut stream = Stream::default();
    let cases = Case::all(needs);
    let mut answers = Vec::new();
    for (done, case) in cases.iter().enumerate() {
        progress(Stage::Compile, done, cases.len());
        // Reading awaits the pipeline, and gives the host a turn. What the device cannot make, it has said by then.
        case.run(backend, needs, &mut stream, &mut answers).await?;
        backend.check()?;
    }
    progress(Stage::Compile, cases.len(), cases.len());
    let total = answers.len();
    // Looked at last: numbers that are wrong are the worse news.
    let same = same_bits(&answers);
    for (done, answer) in answers.into_iter().enumerate() {
        progress(Stage::Compare, done, total);
        answer.compare()?;
    }
    progress(Stage::Compare, total, total);
    same.map(|()| total)
}

/// A sequence's bits must not depend on how many others share its step.
fn same_bits(answers: &[Answer]) -> Result<()> {
    for pair in answers.windows(2) {
        let (few, many) = (&pair[0], &pair[1]);
        let related = few.rows_of.is_some() && few.rows_of == many.rows_of;
        let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if related && few.got.iter().zip(&many.got).any(differ) {
            let message = format!(
                "'{}' gives other bits than '{}' on this device: rows are computed one at a time",
                many.op, few.op
            );
            return Err(Error::new(ROWS_DIFFER, message).with("op", many.op.clone()));
        }
    }
    Ok(())
}

impl Answer {
    fn compare(self) -> Result<()> {
        let Expected { values, magnitude } = (self.reference)()?;
        if magnitude == 0.0 {
            let same = self.got.len() == values.len()
                && self.got.iter().zip(&values).all(|(got, expected)| got.to_bits() == expected.to_bits());
            return if same { Ok(()) } else { Err(mismatch(&self.op)) };
        }
        let worst = self
            .got
            .iter()
            .zip(&values)
            .map(|(got, expected)| (got - expected).abs())
            .fold(0.0, |worst, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) });
        let bound = TOLERANCE * magnitude;
        if self.got.len() == values.len() && worst <= bound {
            return Ok(());
        }
        Err(mismatch(&self.op).with("difference", f64::from(worst).to_string()).with("bound", f64::from(bound)))
    }
}

fn mismatch(op: &str) -> Error {
    Error::new(MISMATCH, format!("the kernel of '{op}' gives wrong numbers on this device")).with("op", op)
}
