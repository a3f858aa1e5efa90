//! What a caller may say about loading, and the geometry that follows: context, KV blocks, steps. Allocates nothing.
use serde::Deserialize;

use crate::backend::{Backend, BackendKind};
use crate::model::spec::ModelSpec;
use crate::scheduler::SchedulerConfig;
use crate::{Error, Result};

/// KV bytes when the caller names no size: a long conversation of a small model, little enough for a phone.
const DEFAULT_KV_BYTES: u64 = 256 << 20;
/// Linear memory is at most 4 GiB and holds weights too.
const MAX_CPU_KV_BYTES: u64 = 2 << 30;
/// Tokens of one step where arithmetic is slow: about two seconds of a small model on one core.
pub const SLOW_TOKEN_BUDGET: usize = 128;
/// The same on a GPU.
const TOKEN_BUDGET: usize = 512;

/// Which backend to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// WebGPU when a hardware adapter passes the self-test, else the CPU.
    #[default]
    Auto,
    /// WebGPU or an error.
    Webgpu,
    /// The CPU.
    Cpu,
}

/// `LoadOptions` as far as they concern the engine.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadSettings {
    /// Which backend.
    #[serde(default)]
    pub backend: BackendChoice,
    /// Longest sequence, in tokens.
    pub context_length: Option<usize>,
    /// KV geometry.
    #[serde(default)]
    pub kv_cache: KvSettings,
    /// Sequences that may run at once.
    pub max_running: Option<usize>,
    /// Requests that may wait.
    pub max_queued: Option<usize>,
    /// Most prompt tokens of one step while others decode.
    pub prefill_chunk: Option<usize>,
    /// Share KV of equal prefixes.
    pub prefix_cache: Option<bool>,
    /// The name that the model answers to.
    pub model_id: Option<String>,
}

/// `LoadOptions.kvCache`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KvSettings {
    /// Tokens a block (16).
    pub block_size: Option<usize>,
    /// Blocks; not together with `bytes`.
    pub blocks: Option<usize>,
    /// Bytes of all blocks.
    pub bytes: Option<u64>,
    /// Only `f32` is there.
    pub dtype: Option<String>,
}

fn invalid(field: &str, expected: &str, got: impl Into<serde_json::Value>) -> Error {
    Error::new("load.invalid", format!("`{field}` must be {expected}"))
        .with("field", field)
        .with("expected", expected)
        .with("got", got)
}

impl LoadSettings {
    /// Reads JSON.
    ///
    /// # Errors
    /// `load.invalid` for text that is no object, unknown fields and wrong types.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| invalid("options", "LoadOptions", e.to_string()))
    }

    /// The scheduler's sizes for a model on a device whose memory has `kv_room` bytes left for the cache.
    ///
    /// # Errors
    /// `load.invalid`, `load.unsupported`, `memory.kv` when what was asked for does not fit.
    pub fn geometry(
        &self,
        spec: &ModelSpec,
        backend: &Backend,
        kv_room: u64,
        fingerprint: u64,
    ) -> Result<SchedulerConfig> {
        if let Some(dtype) = self.kv_cache.dtype.as_deref().filter(|&d| d != "f32") {
            return Err(Error::new(
                "load.unsupported",
                format!("kvCache.dtype \"{dtype}\" is not supported; \"f32\" is"),
            )
            .with("field", "kvCache.dtype")
            .with("got", dtype));
        }
        let block_size = self.kv_cache.block_size.unwrap_or(16);
        if !(1..=1024).contains(&block_size) {
            return Err(invalid("kvCache.blockSize", "1 to 1024", block_size));
        }
        let max_running = at_least_one("maxRunning", self.max_running.unwrap_or(8))?;
        let wanted = at_least_one("contextLength", self.context_length.unwrap_or(spec.context_length))?;
        if wanted > spec.context_length {
            return Err(invalid("contextLength", &format!("at most the model's {}", spec.context_length), wanted));
        }
        let num_blocks = self.num_blocks(spec, backend, kv_room, (block_size, wanted), max_running)?;
        let slow = backend.kind() == BackendKind::Cpu || backend.is_software();
        let token_budget = if slow { SLOW_TOKEN_BUDGET } else { TOKEN_BUDGET };
        let defaults = SchedulerConfig::default();
        let config = SchedulerConfig {
            max_running,
            max_queued: at_least_one("maxQueued", self.max_queued.unwrap_or(defaults.max_queued))?,
            token_budget: token_budget.max(max_running),
            prefill_chunk: at_least_one("prefillChunk", self.prefill_chunk.unwrap_or(token_budget))?,
            block_size,
            num_blocks,
            context_length: wanted.min(num_blocks.saturating_mul(block_size)),
            prefix_cache: self.prefix_cache.unwrap_or(true),
            fingerprint,
            ..defaults
        };
        config.check()?;
        Ok(config)
    }

    fn num_blocks(
        &self,
        spec: &ModelSpec,
        backend: &Backend,
        kv_room: u64,
        (block_size, context): (usize, usize),
        max_running: usize,
    ) -> Result<usize> {
        let block_bytes = spec.kv_bytes_per_token().saturating_mul(block_size as u64);
        let layer_bytes = (block_bytes / spec.num_layers.max(1) as u64).max(1);
        let mut most = (backend.max_binding_bytes() / layer_bytes).min(kv_room / block_bytes.max(1));
        if backend.kind() == BackendKind::Cpu {
            most = most.min(MAX_CPU_KV_BYTES / block_bytes.max(1));
        }
        let kv = &self.kv_cache;
        let one_sequence = context.div_ceil(block_size) as u64;
        let blocks = match (kv.blocks, kv.bytes) {
            (Some(_), Some(_)) => return Err(invalid("kvCache", "given either bytes or blocks", "both")),
            (Some(blocks), None) => blocks as u64,
            (None, Some(bytes)) => bytes / block_bytes.max(1),
            (None, None) => {
                let all = one_sequence.saturating_mul(max_running as u64);
                let affordable = all.min(DEFAULT_KV_BYTES / block_bytes.max(1)).min(most).max(1);
                // A context that was asked for by name is kept when the device can hold it at all.
                if self.context_length.is_some() { affordable.max(one_sequence) } else { affordable }
            }
        };
        if blocks == 0 || blocks > most {
            return Err(Error::new(
                "memory.kv",
                format!("{blocks} KV blocks of {block_bytes} bytes do not fit; 1 to {most} do"),
            )
            .with("expected", most)
            .with("got", blocks)
            .with("blockBytes", block_bytes)
            .with("contextLength", most.saturating_mul(block_size as u64)));
        }
        usize::try_from(blocks).map_err(|_| invalid("kvCache.blocks", "a size of this machine", blocks))
    }
}

fn at_least_one(field: &str, value: usize) -> Result<usize> {
    if value == 0 { Err(invalid(field, "at least 1", value)) } else { Ok(value) }
}
