//! From a GGUF file to weights on the device: the plan is checked against the tensor table before any data is read, then
//! tensors arrive in file order through a bounded staging buffer.
use std::collections::BTreeMap;

use crate::backend::{Allocations, Backend, Floats, Words};
use crate::gguf::{GgmlType, Gguf, TensorInfo};
pub use crate::model::header::read_header;
use crate::model::linear::{Linear, Part};
use crate::model::source::ByteSource;
use crate::model::spec::ModelSpec;
use crate::model::transformer::{Layer, Weights};
use crate::ops::call;
use crate::ops::pack;
use crate::ops::place::PlaceProblem;
use crate::quant;
use crate::{Error, Result};

/// Most bytes of the file in memory at once while weights load (the design allows 64 MiB; packing doubles it briefly).
pub const STAGING_BYTES: usize = 16 << 20;

/// Told after every piece: bytes of tensor data so far, and in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The error of an absent tensor.
pub fn missing(name: &str) -> Error {
    Error::new("model.missing_tensor", format!("the file has no tensor '{name}'")).with("tensor", name)
}

/// Everything that can be known of a model before its weights are read.
#[derive(Debug)]
pub struct LoadPlan {
    /// Architecture.
    pub spec: ModelSpec,
    /// Sum of all weight tensors' bytes in the file.
    pub weight_bytes: u64,
    /// Number of parameters.
    pub parameters: u64,
}

/// Checks a file's tensors against its spec: names, shapes and types, without reading data.
///
/// # Errors
/// `model.*`: what is missing, unexpected, misshapen or of a type that is not run.
pub async fn plan(source: &impl ByteSource, gguf: &Gguf) -> Result<LoadPlan> {
    let factors = match gguf.tensor("rope_freqs.weight") {
        Some(tensor) => Some(read_vector(source, tensor).await?),
        None => None,
    };
    let spec = ModelSpec::from_gguf(gguf, factors.as_deref())?;
    check_tensors(gguf, &spec)?;
    let weight_bytes = gguf.tensors.iter().map(|t| t.bytes).sum();
    let parameters = gguf.tensors.iter().map(|t| t.shape.iter().map(|&n| n as u64).product::<u64>()).sum();
    Ok(LoadPlan { spec, weight_bytes, parameters })
}

/// Whether a file has the tensors that its spec needs and no others.
///
/// # Errors
/// As [`plan`].
pub fn check_tensors(gguf: &Gguf, spec: &ModelSpec) -> Result<()> {
    let expected = expected_tensors(gguf, spec);
    for (name, shape) in &expected {
        check(gguf.tensor(name).ok_or_else(|| missing(name))?, shape)?;
    }
    for tensor in &gguf.tensors {
        if tensor.name != "rope_freqs.weight" && !expected.contains_key(tensor.name.as_str()) {
            return Err(Error::new(
                "model.unexpected_tensor",
                format!("tensor '{}' has no place in this architecture", tensor.name),
            )
            .with("tensor", tensor.name.clone()));
        }
    }
    Ok(())
}

fn check(tensor: &TensorInfo, shape: &[usize]) -> Result<()> {
    if tensor.shape != shape {
        return Err(Error::new("model.tensor_shape", format!("tensor '{}' has the wrong shape", tensor.name))
            .with("tensor", tensor.name.clone())
            .with("expected", shape.to_vec())
            .with("got", tensor.shape.clone()));
    }
    if !tensor.ty.is_runnable() {
        return Err(Error::new(
            "model.unsupported_type",
            format!("tensor '{}' is of type {}, which is not supported", tensor.name, tensor.ty.name()),
        )
        .with("tensor", tensor.name.clone())
        .with("type", tensor.ty.name()));
    }
    Ok(())
}

/// Tensors of a layer's four matrices; those of one matrix are stacked by rows, in this order.
pub(super) fn stacks(layer: usize) -> [Vec<String>; 4] {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    [
        vec![name("attn_q"), name("attn_k"), name("attn_v")],
        vec![name("attn_output")],
        vec![name("ffn_gate"), name("ffn_up")],
        vec![name("ffn_down")],
    ]
}

/// Every tensor that a llama file must or may have, with its ggml shape.
fn expected_tensors(gguf: &Gguf, spec: &ModelSpec) -> BTreeMap<String, Vec<usize>> {
    let (e, q, kv) = (spec.embedding, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim);
    let mut all = BTreeMap::new();
    all.insert("token_embd.weight".to_owned(), vec![e, spec.vocab]);
    all.insert("output_norm.weight".to_owned(), vec![e]);
    if gguf.tensor("output.weight").is_some() {
        all.insert("output.weight".to_owned(), vec![e, spec.vocab]);
    }
    for layer in 0..spec.num_layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        for (part, shape) in [
            ("attn_q", [e, q]),
            ("attn_k", [e, kv]),
            ("attn_v", [e, kv]),
            ("attn_output", [q, e]),
            ("ffn_gate", [e, spec.ffn]),
            ("ffn_up", [e, spec.ffn]),
            ("ffn_down", [spec.ffn, e]),
        ] {
            all.insert(name(part) + ".weight", shape.to_vec());
            let bias = name(part) + ".bias";
            if gguf.tensor(&bias).is_some() {
                all.insert(bias, vec![shape[1]]);
            }
        }
        all.insert(name("attn_norm.weight"), vec![e]);
        all.insert(name("ffn_norm.weight"), vec![e]);
    }
    all
}

/// Where a tensor's rows go: which part buffer, and from which row of it.
struct Slot {
    part: usize,
    first_row: usize,
    rows: std::ops::Range<usize>,
}

/// A part being filled.
struct Filling {
    words: Option<Words>,
    ty: GgmlType,
    k: usize,
    rows: usize,
    col: usize,
    bytes: u64,
}

struct Loader<'a, S> {
    backend: &'a Backend,
    source: &'a S,
    gguf: &'a Gguf,
    parts: Vec<Filling>,
    slots: BTreeMap<String, Vec<Slot>>,
    vectors: BTreeMap<String, Vec<f32>>,
}

/// Reads every tensor once, in file order, into its place on the device.
///
/// # Errors
/// Those of [`plan`] and of the source.
pub async fn load(
    backend: &Backend,
    source: &impl ByteSource,
    gguf: &Gguf,
    plan: &LoadPlan,
    progress: Progress<'_>,
) -> Result<Weights> {
    let mut loader =
        Loader { backend, source, gguf, parts: Vec::new(), slots: BTreeMap::new(), vectors: BTreeMap::new() };
    let layout = loader.lay_out(&plan.spec)?;
    loader.fill(progress, plan.weight_bytes).await?;
    loader.assemble(layout)
}

/// Indices of the parts of each matrix.
struct LinearLayout {
    k: usize,
    n: usize,
    parts: Vec<usize>,
    /// For each part: which rows of which bias it adds.
    biases: Vec<Option<(String, std::ops::Range<usize>)>>,
}

struct Layout {
    embedding: LinearLayout,
    head: Option<LinearLayout>,
    layers: Vec<[LinearLayout; 4]>,
}

impl<S: ByteSource> Loader<'_, S> {
    fn lay_out(&mut self, spec: &ModelSpec) -> Result<Layout> {
        let embedding = self.lay_out_linear(&["token_embd.weight".to_owned()])?;
        let head = match self.gguf.tensor("output.weight") {
            Some(_) => Some(self.lay_out_linear(&["output.weight".to_owned()])?),
            None => None,
        };
        let mut layers = Vec::with_capacity(spec.num_layers);
        for layer in 0..spec.num_layers {
            let [qkv, output, gate_up, down] = stacks(layer);
            layers.push([
                self.lay_out_linear(&qkv)?,
                self.lay_out_linear(&output)?,
                self.lay_out_linear(&gate_up)?,
                self.lay_out_linear(&down)?,
            ]);
        }
        Ok(Layout { embedding, head, layers })
    }

    /// Stacks tensors by rows: neighbours of one type without biases share a buffer while it stays bindable.
    fn lay_out_linear(&mut self, names: &[String]) -> Result<LinearLayout> {
        let mut layout = LinearLayout { k: 0, n: 0, parts: Vec::new(), biases: Vec::new() };
        for name in names {
            let tensor = self.gguf.tensor(name).ok_or_else(|| missing(name))?;
            let (k, n) = (tensor.row_len(), tensor.num_rows());
            let bias = name.replace(".weight", ".bias");
            let has_bias = self.gguf.tensor(&bias).is_some();
            let row_bytes = self.row_bytes(tensor.ty, k)? as u64;
            let max_rows = (self.backend.max_binding_bytes() / row_bytes) as usize;
            if max_rows == 0 {
                return Err(Error::new(
                    "memory.gpu",
                    format!("one row of '{name}' exceeds the device's largest binding"),
                )
                .with("expected", self.backend.max_binding_bytes())
                .with("got", row_bytes));
            }
            layout.k = k;
            let mut taken = 0;
            while taken < n {
                let part = self.open_part(&layout, tensor.ty, k, max_rows, has_bias);
                let filling = &mut self.parts[part];
                let rows = (n - taken).min(max_rows - filling.rows);
                let slot = Slot { part, first_row: filling.rows, rows: taken..taken + rows };
                filling.rows += rows;
                filling.bytes = filling.rows as u64 * row_bytes;
                self.slots.entry(name.clone()).or_default().push(slot);
                if layout.parts.last() != Some(&part) {
                    layout.parts.push(part);
                    layout.biases.push(has_bias.then(|| (bias.clone(), taken..taken + rows)));
                }
                taken += rows;
                layout.n += rows;
            }
        }
        Ok(layout)
    }

    /// The part that the next rows go to: the last one when it may take them, else a new one.
    fn open_part(&mut self, layout: &LinearLayout, ty: GgmlType, k: usize, max_rows: usize, alone: bool) -> usize {
        if let (Some(&last), Some(bias)) = (layout.parts.last(), layout.biases.last()) {
            let part = &self.parts[last];
            if !alone && bias.is_none() && part.ty == ty && part.rows < max_rows {
                return last;
            }
        }
        self.parts.push(Filling { words: None, ty, k, rows: 0, col: layout.n, bytes: 0 });
        self.parts.len() - 1
    }

    fn row_bytes(&self, ty: GgmlType, k: usize) -> Result<usize> {
        pack::row_bytes(self.backend.kind(), ty, k)
    }

    async fn fill(&mut self, progress: Progress<'_>, total: u64) -> Result<()> {
        let mut allocations = Allocations::default();
        for part in &mut self.parts {
            let words = part.bytes.div_ceil(4) as usize;
            part.words = Some(self.backend.allocate(&mut allocations, || self.backend.empty_words(words)));
        }
        self.backend.settle(allocations).await?;
        let mut order: Vec<&TensorInfo> = self.gguf.tensors.iter().collect();
        order.sort_by_key(|t| t.offset);
        let mut done = 0;
        for tensor in order {
            if let Some(slots) = self.slots.remove(&tensor.name) {
                for slot in &slots {
                    self.fill_slot(tensor, slot, done, &mut *progress, total).await?;
                }
            } else {
                let values = read_vector(self.source, tensor).await?;
                self.vectors.insert(tensor.name.clone(), values);
            }
            done += tensor.bytes;
            progress(done, total);
        }
        Ok(())
    }

    async fn fill_slot(
        &mut self,
        tensor: &TensorInfo,
        slot: &Slot,
        done: u64,
        progress: Progress<'_>,
        total: u64,
    ) -> Result<()> {
        let (ty, k) = (self.parts[slot.part].ty, self.parts[slot.part].k);
        let (file_row, device_row) = (quant::row_bytes(ty, k), self.row_bytes(ty, k)?);
        // Whole words a piece on the CPU, whose rows need not be: four rows always are.
        let step = (STAGING_BYTES / device_row.max(file_row)).max(4) / 4 * 4;
        let mut row = slot.rows.start;
        while row < slot.rows.end {
            let rows = step.min(slot.rows.end - row);
            // 64 bits: one tensor may be larger than the 4 GiB that a size of this machine can say.
            let offset = tensor.offset + row as u64 * file_row as u64;
            let bytes = self.source.read(offset, rows * file_row).await?;
            let words = pack::rows(self.backend.kind(), ty, k, &bytes)?;
            drop(bytes);
            let at = slot.first_row + row - slot.rows.start;
            let problem = PlaceProblem { offset_bytes: at * device_row, len_bytes: rows * device_row };
            let part = &mut self.parts[slot.part];
            part.words = part.words.take().map(|dst| call::place(dst, self.backend.words(words), problem));
            row += rows;
            progress(done + row as u64 * file_row as u64, total);
        }
        Ok(())
    }

    fn assemble(&mut self, layout: Layout) -> Result<Weights> {
        let embedding = self.linear(&layout.embedding)?;
        let head = layout.head.map(|head| self.linear(&head)).transpose()?;
        let mut layers = Vec::with_capacity(layout.layers.len());
        for (index, [qkv, output, gate_up, down]) in layout.layers.iter().enumerate() {
            layers.push(Layer {
                attn_norm: self.vector(&format!("blk.{index}.attn_norm.weight"))?,
                qkv: self.linear(qkv)?,
                attn_output: self.linear(output)?,
                ffn_norm: self.vector(&format!("blk.{index}.ffn_norm.weight"))?,
                gate_up: self.linear(gate_up)?,
                down: self.linear(down)?,
            });
        }
        Ok(Weights { embedding, layers, output_norm: self.vector("output_norm.weight")?, head })
    }

    fn vector(&mut self, name: &str) -> Result<Floats> {
        self.vectors.remove(name).map(|values| self.backend.floats(values)).ok_or_else(|| missing(name))
    }

    fn linear(&mut self, layout: &LinearLayout) -> Result<Linear> {
        let mut parts = Vec::with_capacity(layout.parts.len());
        for (&index, bias) in layout.parts.iter().zip(&layout.biases) {
            let bias = match bias {
                Some((name, rows)) => {
                    let values =
                        self.vectors.get(name).and_then(|v| v.get(rows.clone())).ok_or_else(|| missing(name))?;
                    Some(self.backend.floats(values.to_vec()))
                }
                None => None,
            };
            let part = &mut self.parts[index];
            let words = part.words.take().ok_or_else(|| missing("a part of a weight"))?;
            parts.push(Part { words, ty: part.ty, rows: part.rows, col: part.col, bias, bytes: part.bytes });
        }
        Ok(Linear { k: layout.k, n: layout.n, parts })
    }
}

/// A small tensor (norm, bias, factors) as f32 values.
async fn read_vector(source: &impl ByteSource, tensor: &TensorInfo) -> Result<Vec<f32>> {
    let too_large = || {
        Error::new("model.tensor_shape", format!("tensor '{}' is too large for a vector", tensor.name))
            .with("tensor", tensor.name.clone())
    };
    if tensor.bytes > STAGING_BYTES as u64 {
        return Err(too_large());
    }
    let bytes = source.read(tensor.offset, tensor.bytes as usize).await?;
    let mut out = vec![0.0; tensor.shape.iter().product()];
    quant::dequantize(tensor.ty, &bytes, &mut out)?;
    Ok(out)
}
