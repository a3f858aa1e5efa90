//! Which kernels a model will use, from its file's tensor table: what the device is to make and prove before weights arrive.
use crate::gguf::{Gguf, TensorInfo};
use crate::model::loader::stacks;
use crate::model::spec::ModelSpec;
use crate::ops::matmul::Variant;
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

/// Whether the loader will lay gate and up into one buffer. A little room is left for padding of blocks on the device: beside
/// the bound both ways of a feed-forward may be needed, and the rarer one is made at its first use.
fn in_one_buffer(gguf: &Gguf, tensors: &[&TensorInfo], max_binding_bytes: u64) -> bool {
    let plain = |t: &&TensorInfo| gguf.tensor(&t.name.replace(".weight", ".bias")).is_none();
    let one_type = tensors.windows(2).all(|pair| pair[0].ty == pair[1].ty);
    let bytes: u64 = tensors.iter().map(|t| t.bytes).sum();
    one_type && tensors.iter().all(plain) && bytes.saturating_add(bytes / 8) <= max_binding_bytes
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
