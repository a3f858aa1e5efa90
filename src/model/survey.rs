//! What a model's header tells without a byte of its weights: contents for listings, and what running it takes in memory.
use serde::Serialize;
use serde_json::{Map, Value};

use crate::backend::BackendKind;
use crate::gguf::Gguf;
use crate::model::loader::{self, STAGING_BYTES};
use crate::model::source::ByteSource;
use crate::model::spec::ModelSpec;
use crate::ops::pack;
use crate::{Error, Result};

/// Linear memory that a 32-bit wasm instance can have.
pub const WASM_LIMIT_BYTES: u64 = 4 << 30;
/// Left alone: allocations that do not fit between others.
const MARGIN_BYTES: u64 = 64 << 20;
/// Pieces of the file in memory at once while weights load: as it came, packed, and on its way to its place.
const STAGED_PIECES: u64 = 4;

/// One tensor of a listing.
#[derive(Debug, Serialize)]
pub struct TensorRow {
    name: String,
    #[serde(rename = "type")]
    ty: &'static str,
    shape: Vec<usize>,
}

/// What a header tells.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    metadata: Map<String, Value>,
    tensors: Vec<TensorRow>,
    weight_bytes: u64,
    /// None when the model is of a kind that is not run; `refused` says why.
    needs: Option<Needs>,
    refused: Option<Value>,
}

/// Memory that a model takes beside its weights, and the least that a device must be able to bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Needs {
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Cache bytes of one token.
    pub kv_bytes_per_token: u64,
    /// Bytes that come and go while weights load and steps run, on the CPU.
    pub scratch_bytes: u64,
    /// Largest piece that cannot be parted: a row of a matrix.
    pub row_bytes: u64,
    /// The model's own limit, in tokens.
    pub context_length: u64,
    /// What linear memory has room for at most, in tokens of cache.
    pub wasm_tokens: u64,
}

/// Reads the headers of a source and nothing else.
///
/// # Errors
/// Those of the source and `gguf.*`; a model that is not run is told in the survey.
pub async fn survey(source: &impl ByteSource) -> Result<Survey> {
    let gguf = loader::read_header(source).await?;
    let spec = ModelSpec::from_gguf(&gguf, None).and_then(|spec| loader::check_tensors(&gguf, &spec).map(|()| spec));
    let (needs, refused) = match spec {
        Ok(spec) => (Some(Needs::of(&gguf, &spec)), None),
        Err(Error { code, message, details }) => {
            (None, Some(serde_json::json!({ "code": code, "message": message, "details": *details })))
        }
    };
    let row = |tensor: &crate::gguf::TensorInfo| TensorRow {
        name: tensor.name.clone(),
        ty: tensor.ty.name(),
        shape: tensor.shape.clone(),
    };
    Ok(Survey {
        metadata: gguf.metadata.to_json(),
        tensors: gguf.tensors.iter().map(row).collect(),
        weight_bytes: weight_bytes(&gguf),
        needs,
        refused,
    })
}

fn weight_bytes(gguf: &Gguf) -> u64 {
    gguf.tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes))
}

impl Needs {
    /// The needs of a model whose tensors fit its spec.
    pub fn of(gguf: &Gguf, spec: &ModelSpec) -> Self {
        let matrices = gguf.tensors.iter().filter(|tensor| tensor.shape.len() > 1);
        let rows = matrices.filter_map(|t| pack::row_bytes(BackendKind::Webgpu, t.ty, t.row_len()).ok());
        let weight_bytes = weight_bytes(gguf);
        let (kv_bytes_per_token, scratch_bytes) = (spec.kv_bytes_per_token(), scratch_bytes(spec));
        let taken = weight_bytes.saturating_add(scratch_bytes).saturating_add(MARGIN_BYTES);
        Self {
            weight_bytes,
            kv_bytes_per_token,
            scratch_bytes,
            row_bytes: rows.max().unwrap_or(0) as u64,
            context_length: spec.context_length as u64,
            wasm_tokens: WASM_LIMIT_BYTES.saturating_sub(taken) / kv_bytes_per_token.max(1),
        }
    }

    /// Bytes of linear memory that are left for the cache when `used` are taken already.
    ///
    /// # Errors
    /// `memory.wasm` when not even one block of `block_size` tokens would fit beside the weights.
    pub fn wasm_room(&self, used: u64, block_size: u64) -> Result<u64> {
        let taken = used.saturating_add(self.weight_bytes).saturating_add(self.scratch_bytes);
        let room = WASM_LIMIT_BYTES.saturating_sub(taken.saturating_add(MARGIN_BYTES));
        if room >= self.kv_bytes_per_token.saturating_mul(block_size) {
            return Ok(room);
        }
        let most =
            WASM_LIMIT_BYTES.saturating_sub(used.saturating_add(self.scratch_bytes).saturating_add(MARGIN_BYTES));
        let message = format!(
            "The weights take {} bytes; the CPU backend's memory has room for {most}. A smaller quantization or model fits, or WebGPU.",
            self.weight_bytes
        );
        Err(Error::new("memory.wasm", message)
            .with("expected", most)
            .with("got", self.weight_bytes)
            .with("weightBytes", self.weight_bytes)
            .with("scratchBytes", self.scratch_bytes)
            .with("limit", WASM_LIMIT_BYTES))
    }
}

/// Activations of the largest step, its logits, and what is staged while weights load.
fn scratch_bytes(spec: &ModelSpec) -> u64 {
    let tokens = super::settings::SLOW_TOKEN_BUDGET as u64;
    let heads = ((spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim) as u64;
    let a_token = 4 * spec.embedding as u64 + 2 * heads + 3 * spec.ffn as u64 + spec.vocab as u64;
    (4 * tokens).saturating_mul(a_token).max(STAGED_PIECES * STAGING_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs {
        weight_bytes: 1 << 30,
        kv_bytes_per_token: 1 << 16,
        scratch_bytes: 64 << 20,
        row_bytes: 4096,
        context_length: 8192,
        wasm_tokens: 0,
    };

    #[test]
    fn room_is_what_weights_scratch_and_margin_leave() {
        let room = NEEDS.wasm_room(100 << 20, 16).expect("it fits");
        assert_eq!(room + (100 << 20) + (1 << 30) + (64 << 20) + MARGIN_BYTES, WASM_LIMIT_BYTES);
    }

    #[test]
    fn weights_beside_which_no_block_fits_are_refused_with_what_would_fit() {
        let most = WASM_LIMIT_BYTES - (64 << 20) - MARGIN_BYTES;
        let block = 16 * NEEDS.kv_bytes_per_token;
        assert_eq!(Needs { weight_bytes: most - block, ..NEEDS }.wasm_room(0, 16), Ok(block));
        let error = Needs { weight_bytes: most - block + 1, ..NEEDS }.wasm_room(0, 16).expect_err("a byte too many");
        assert_eq!(error.code, "memory.wasm");
        assert_eq!(error.details["expected"], most);
        let huge = Needs { weight_bytes: u64::MAX, ..NEEDS };
        assert_eq!(huge.wasm_room(u64::MAX, 16).expect_err("sizes that overflow").code, "memory.wasm");
    }
}
