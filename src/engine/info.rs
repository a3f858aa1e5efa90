//! `EngineInfo`: what was loaded and where it runs, as the API shapes it. Whoever loads the model fills it in.
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Error;

/// Fixed at load.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineInfo {
    /// The name that the model answers to.
    pub model_id: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Weights, counted.
    pub parameters: u64,
    /// The file's main type, e.g. `Q4_1`.
    pub quantization: String,
    /// Longest sequence, prompt and completion together.
    pub context_length: u64,
    /// Transformer layers.
    pub layers: u64,
    /// Tokens in the vocabulary.
    pub vocab_size: u64,
    /// `webgpu` or `cpu`.
    pub backend: String,
    /// The GPU, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterInfo>,
    /// Threads of the CPU backend.
    pub threads: u32,
    /// Bytes held.
    pub memory: MemoryInfo,
    /// The KV cache's geometry.
    pub kv: KvInfo,
    /// Family of the GPU's kernels: `serial` (no barriers, for software adapters) or `workgroup`. None on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
    /// What was worth saying during load.
    pub warnings: Vec<Warning>,
    /// Of this crate.
    pub version: String,
}

/// A GPU adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdapterInfo {
    /// As the browser names it.
    pub vendor: String,
    /// As the browser names it.
    pub architecture: String,
    /// Features in use.
    pub features: Vec<String>,
    /// A software adapter.
    pub fallback: bool,
}

/// Bytes held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryInfo {
    /// Weights in their final place.
    pub weight_bytes: u64,
    /// The KV cache.
    pub kv_bytes: u64,
    /// Linear memory.
    pub wasm_bytes: u64,
}

/// The KV cache's geometry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KvInfo {
    /// Tokens a block.
    pub block_size: u64,
    /// Blocks.
    pub blocks: u64,
    /// `f32`, `f16` or `q8_0`.
    pub dtype: String,
}

/// Something worth saying that is no error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// Stable, documented like error codes.
    pub code: String,
    /// One sentence for people.
    pub message: String,
    /// The same facts for programs.
    pub details: Map<String, Value>,
}

impl From<Error> for Warning {
    fn from(error: Error) -> Self {
        Self { code: error.code.to_owned(), message: error.message, details: *error.details }
    }
}
