//! Which kernels a model will use, from its file's tensor table: what the device is to make and prove before weights arrive.
use crate::Result;
use crate::backend::BackendKind;
use crate::gguf::{Gguf, TensorInfo};
use crate::model::loader::stacks;
use crate::model::spec::ModelSpec;
use crate::ops::matmul::Variant;
use crate::ops::pack;
use crate::ops::selftest::{Matrix, Needs};

/// The kernels of a family that a model needs on a device whose largest binding is so many bytes.
pub fn needs(gguf: &Gguf, spec: &ModelSpec, block_size: usize, variant: Variant, max_binding_bytes: u64) -> Needs {
    let matrix = |name: &String| gguf.tensor(name).map(|t| Matrix::new(t.ty, t.row_len()));
    let (mut products, mut gate_ups, mut gated) = (Vec::new(), Vec::new(), false);
    for layer in 0..spec.num_layers {
        let [qkv, output, pair, down] = stacks(layer);
        products.extend([qkv, output, down].iter().flatten().filter_map(matrix));
        match pair.iter().map(|name| gguf.tensor(name)).collect::<Option<Vec<_>>>() {
            Some(tensors) if in_one_buffer(gguf, &tensors, max_binding_bytes) => {
                gate_ups.extend(pair.iter().filter_map(matrix));
            }
            _ => {
                products.extend(pair.iter().filter_map(matrix));
                gated = true;
            }
        }
    }
    let embedding = "token_embd.weight".to_owned();
    let head = Some("output.weight".to_owned()).filter(|name| gguf.tensor(name).is_some());
    products.extend(matrix(head.as_ref().unwrap_or(&embedding)));
    Needs {
        products: distinct(products),
        gate_ups: distinct(gate_ups),
        gated,
        tables: matrix(&embedding).into_iter().collect(),
        num_heads: spec.num_heads,
        num_kv_heads: spec.num_kv_heads,
        head_dim: spec.head_dim,
        rope_dim: spec.rope.dim,
        interleaved: spec.rope.interleaved,
        block_size,
        activation: spec.activation,
        variant,
    }
}

/// Whether the loader lays gate and up into one buffer: neighbours of one type without biases that one binding holds.
fn in_one_buffer(gguf: &Gguf, tensors: &[&TensorInfo], max_binding_bytes: u64) -> bool {
    let plain = |t: &&TensorInfo| gguf.tensor(&t.name.replace(".weight", ".bias")).is_none();
    let one_type = tensors.windows(2).all(|pair| pair[0].ty == pair[1].ty);
    let bytes = |t: &&TensorInfo| {
        pack::row_bytes(BackendKind::Webgpu, t.ty, t.row_len()).map(|row| row as u64 * t.num_rows() as u64)
    };
    let fits = tensors.iter().map(bytes).sum::<Result<u64>>().is_ok_and(|bytes| bytes <= max_binding_bytes);
    one_type && tensors.iter().all(plain) && fits
}

fn distinct(matrices: Vec<Matrix>) -> Vec<Matrix> {
    let mut kept: Vec<Matrix> = Vec::new();
    for matrix in matrices {
        if !kept.contains(&matrix) {
            kept.push(matrix);
        }
    }
    kept
}
