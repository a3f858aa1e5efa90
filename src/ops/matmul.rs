//! Products of f32 activations with quantized weights, and the gated feed-forward half built on them.
//!
//! Summation order is canonical: for one weight row and one activation row an implementation adds in the same order
//! whatever T is, so a sequence's bits do not depend on who shares its batch (DESIGN: the same answer in a crowd).
use crate::gguf::GgmlType;
use crate::quant;

/// Activation rows that one read of the weights serves, at most.
const MAX_ROWS: usize = 8;

/// Which kernels a device gets; chosen once at load, named in stats. The CPU has one family and ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Variant {
    /// One invocation an output, no barriers: software adapters, where a barrier costs about 20 times its worth.
    #[default]
    Serial,
    /// `Serial`, a row at a time: where several rows at once give other bits than one alone.
    SerialRow,
    /// One workgroup an output row with a shared-memory reduction: real GPUs.
    Workgroup,
    /// `Workgroup`, a row at a time.
    WorkgroupRow,
}

impl Variant {
    /// What `EngineInfo.kernels` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::SerialRow => "serial-row",
            Self::Workgroup => "workgroup",
            Self::WorkgroupRow => "workgroup-row",
        }
    }

    /// Whether kernels have no barriers.
    pub fn is_serial(self) -> bool {
        matches!(self, Self::Serial | Self::SerialRow)
    }

    /// The same family, a row at a time; none of what is so already.
    pub fn row_by_row(self) -> Option<Self> {
        match self {
            Self::Serial => Some(Self::SerialRow),
            Self::Workgroup => Some(Self::WorkgroupRow),
            Self::SerialRow | Self::WorkgroupRow => None,
        }
    }

    /// Activation rows that the kernel for `tokens` rows takes at once: rounded up, so that few pipelines serve all.
    pub fn rows(self, tokens: usize) -> usize {
        if self.row_by_row().is_none() { 1 } else { tokens.next_power_of_two().min(MAX_ROWS) }
    }
}

/// Sizes of one `matmul`.
#[derive(Debug, Clone, Copy)]
pub struct MatmulProblem {
    /// Type of the weights.
    pub ty: GgmlType,
    /// T: rows of x and out.
    pub tokens: usize,
    /// K: width of x, a multiple of the type's block.
    pub k: usize,
    /// N: weight rows in this part.
    pub n: usize,
    /// Width of `out`.
    pub out_stride: usize,
    /// Column of `out` that weight row 0 goes to.
    pub out_col: usize,
    /// Add to `out` (residual stream) instead of overwriting.
    pub accumulate: bool,
    /// Whether `bias` (`[N]`) is added.
    pub has_bias: bool,
    /// Kernel family.
    pub variant: Variant,
}

/// Activation of a gated feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// tanh approximation of GELU.
    GeluTanh,
}

impl Activation {
    /// In f64, for references.
    pub fn reference(self, x: f64) -> f64 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh()),
        }
    }
}

/// Sizes of one `gate_up`.
#[derive(Debug, Clone, Copy)]
pub struct GateUpProblem {
    /// Type of both.
    pub ty: GgmlType,
    /// T.
    pub tokens: usize,
    /// K.
    pub k: usize,
    /// F: rows of gate, and of up.
    pub f: usize,
    /// Applied to the gate product.
    pub activation: Activation,
    /// Kernel family.
    pub variant: Variant,
}

/// Sizes of one `gated`.
#[derive(Debug, Clone, Copy)]
pub struct GatedProblem {
    /// T.
    pub tokens: usize,
    /// F.
    pub f: usize,
    /// Applied to the first half.
    pub activation: Activation,
}

/// Scalar reference of `matmul` (f64 accumulation); `w` is the file's bytes, `bias` has N entries or none.
pub fn matmul_reference(x: &[f32], w: &[u8], out: &mut [f32], bias: &[f32], p: &MatmulProblem) -> crate::Result<()> {
    let row_bytes = quant::row_bytes(p.ty, p.k);
    let mut row = vec![0.0; p.k];
    for n in 0..p.n {
        quant::dequantize(p.ty, &w[n * row_bytes..(n + 1) * row_bytes], &mut row)?;
        for t in 0..p.tokens {
            let x = &x[t * p.k..(t + 1) * p.k];
            let mut sum: f64 = x.iter().zip(&row).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            sum += if p.has_bias { f64::from(bias[n]) } else { 0.0 };
            let out = &mut out[t * p.out_stride + p.out_col + n];
            *out = if p.accumulate { (f64::from(*out) + sum) as f32 } else { sum as f32 };
        }
    }
    Ok(())
}

/// Scalar reference of `gate_up`.
pub fn gate_up_reference(x: &[f32], w: &[u8], p: &GateUpProblem) -> crate::Result<Vec<f32>> {
    let (ty, tokens, k, n) = (p.ty, p.tokens, p.k, 2 * p.f);
    let mut both = vec![0.0; tokens * n];
    let inner = MatmulProblem {
        ty,
        tokens,
        k,
        n,
        out_stride: n,
        out_col: 0,
        accumulate: false,
        has_bias: false,
        variant: p.variant,
    };
    matmul_reference(x, w, &mut both, &[], &inner)?;
    Ok(gated_reference(&both, &GatedProblem { tokens, f: p.f, activation: p.activation }))
}

/// Scalar reference of `gated`.
pub fn gated_reference(x: &[f32], p: &GatedProblem) -> Vec<f32> {
    x.chunks_exact(2 * p.f)
        .take(p.tokens)
        .flat_map(|row| {
            let (gate, up) = row.split_at(p.f);
            gate.iter().zip(up).map(|(&g, &u)| (p.activation.reference(f64::from(g)) * f64::from(u)) as f32)
        })
        .collect()
}
