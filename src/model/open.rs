//! From a byte source and settings to a running engine: header, words, plan, device, self-test, weights, cache. The same
//! for pages and native tests; errors come before weights are read wherever they can.
use serde_json::{Map, Value, json};

use crate::backend::{Allocations, Backend, BackendKind};
use crate::chat::ChatTemplate;
use crate::engine::{
    AdapterInfo, Engine, EngineInfo, EngineParts, Host, KvInfo, MemoryInfo, RunLoop, TextModel, Warning,
};
use crate::gguf::Gguf;
use crate::model::executor::ModelExecutor;
use crate::model::kernels;
use crate::model::loader::{self, LoadPlan};
use crate::model::settings::{BackendChoice, LoadSettings};
use crate::model::source::ByteSource;
use crate::model::survey;
use crate::model::transformer::{Checkpoint, KvCache, Transformer, Weights};
use crate::ops::matmul::Variant;
use crate::ops::selftest::{self, Needs, Stage};
use crate::scheduler::SchedulerConfig;
use crate::tokenizer::{Tokenizer, Vocabulary};
use crate::{Error, Result};

/// Linear memory for staging, activations, logits and the words of a model.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Where loading stands (`LoadProgress.phase`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The device makes the kernels, one by one.
    Compile,
    /// What the kernels gave is compared with the references.
    Selftest,
    /// Tensors arrive on the device.
    Upload,
    /// Everything is there.
    Ready,
}

/// Told how far each phase is: (phase, done, total).
pub type OnPhase<'a> = &'a mut dyn FnMut(Phase, u64, u64);

/// Loads a model. The engine is idle until the loop is run.
///
/// # Errors
/// `gguf.*`, `tokenizer.*`, `model.*`, `load.*`, `memory.*`, `device.*` and those of the source.
pub async fn open<C: Checkpoint, H: Host + 'static>(
    source: &impl ByteSource,
    settings: &LoadSettings,
    checkpoint: C,
    host: H,
    on_phase: OnPhase<'_>,
) -> Result<(Engine, RunLoop<ModelExecutor<C>, H>)> {
    let gguf = loader::read_header(source).await?;
    let plan = loader::plan(source, &gguf).await?;
    let mut warnings = Vec::new();
    let text = text_model(&gguf, &plan, &mut warnings)?;
    let (backend, variant) = choose(&gguf, &plan, settings, &mut warnings, on_phase).await?;
    let kv_room = kv_room(&gguf, &plan, &backend, settings)?;
    let config = settings.geometry(&plan.spec, &backend, kv_room, fingerprint(&gguf, source.len()))?;

    let placed = place(&backend, source, &gguf, &plan, &config, on_phase).await;
    if placed.is_err() {
        backend.free_unused();
    }
    let (weights, cache) = placed?;
    let memory =
        MemoryInfo { weight_bytes: weights.bytes(), kv_bytes: cache.bytes(), wasm_bytes: linear_memory_bytes() };
    let info = EngineInfo {
        model_id: model_id(&gguf, settings),
        architecture: plan.spec.architecture.clone(),
        parameters: plan.parameters,
        quantization: main_type(&gguf),
        context_length: config.context_length as u64,
        layers: plan.spec.num_layers as u64,
        vocab_size: plan.spec.vocab as u64,
        backend: kind_name(&backend).to_owned(),
        adapter: adapter_info(&backend),
        kernels: (backend.kind() == BackendKind::Webgpu).then(|| variant.name().to_owned()),
        threads: 1,
        memory,
        kv: KvInfo { block_size: config.block_size as u64, blocks: config.num_blocks as u64, dtype: "f32".to_owned() },
        warnings,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let model = Transformer::new(backend, variant, plan.spec, weights, cache);
    on_phase(Phase::Ready, 1, 1);
    Engine::new(EngineParts { info, text, scheduler: config }, ModelExecutor::new(model, checkpoint), host)
}

/// Makes room for everything, then reads the weights into it: what does not fit is known before the first weight is fetched.
async fn place(
    backend: &Backend,
    source: &impl ByteSource,
    gguf: &Gguf,
    plan: &LoadPlan,
    config: &SchedulerConfig,
    on_phase: OnPhase<'_>,
) -> Result<(Weights, KvCache)> {
    let slots = (config.num_blocks * config.block_size) as u64;
    let kv_bytes = plan.spec.kv_bytes_per_token().saturating_mul(slots);
    backend.reserve(plan.weight_bytes.saturating_add(kv_bytes).saturating_add(SCRATCH_BYTES))?;
    let cache = KvCache::new(backend, &plan.spec, config.block_size, config.num_blocks).await?;
    let mut uploaded = |done, total| on_phase(Phase::Upload, done, total);
    let weights = loader::load(backend, source, gguf, plan, &mut uploaded).await?;
    // Uploads allocate too.
    backend.settle(Allocations::default()).await?;
    Ok((weights, cache))
}

/// Bytes that the cache may take. Linear memory has a known end, which is checked before any weight is read; what a GPU has
/// is known to nobody before it is asked for.
fn kv_room(gguf: &Gguf, plan: &LoadPlan, backend: &Backend, settings: &LoadSettings) -> Result<u64> {
    let used = linear_memory_bytes();
    if used == 0 || backend.kind() != BackendKind::Cpu {
        return Ok(u64::MAX);
    }
    let block_size = settings.kv_cache.block_size.unwrap_or(16) as u64;
    survey::Needs::of(gguf, &plan.spec).wasm_room(used, block_size)
}

fn text_model(gguf: &Gguf, plan: &LoadPlan, warnings: &mut Vec<Warning>) -> Result<TextModel> {
    let vocabulary = Vocabulary::from_metadata(&gguf.metadata)?;
    let tokens = vocabulary.tokens.len();
    if tokens > plan.spec.vocab {
        return Err(Error::new("model.vocab_mismatch", "the vocabulary has more tokens than the embedding has rows")
            .with("expected", plan.spec.vocab)
            .with("got", tokens));
    }
    let template = vocabulary.chat_template.clone();
    let tokenizer = Tokenizer::new(&vocabulary)?;
    if tokenizer.pre_tokenizer_assumed() {
        warnings.push(warning(
            "tokenizer.pre_assumed",
            "the file names no pre-tokenizer; 'default' is used",
            json!({}),
        ));
    }
    let special = |id: Option<crate::ids::TokenId>| {
        let bytes = id.and_then(|id| tokenizer.token_bytes(id, true)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let (bos, eos) = (special(tokenizer.bos()), special(tokenizer.eos()));
    let template = match ChatTemplate::new(template.as_deref(), &bos, &eos) {
        Ok(template) => template,
        Err(error) => {
            // Completion works without a template; the warning says why chat does not follow the file.
            warnings.push(error.into());
            ChatTemplate::new(None, &bos, &eos)?
        }
    };
    if template.is_default() {
        warnings.push(warning("chat.no_template", "the file has no usable chat template; ChatML is used", json!({})));
    }
    Ok(TextModel::new(tokenizer, template))
}

fn warning(code: &str, message: &str, details: Value) -> Warning {
    let details = if let Value::Object(details) = details { details } else { Map::new() };
    Warning { code: code.to_owned(), message: message.to_owned(), details }
}

/// The device to use, and the family of its kernels: it must exist and its kernels must pass the self-test.
async fn choose(
    gguf: &Gguf,
    plan: &LoadPlan,
    settings: &LoadSettings,
    warnings: &mut Vec<Warning>,
    on_phase: OnPhase<'_>,
) -> Result<(Backend, Variant)> {
    let choice = settings.backend;
    // The CPU's kernels are one family.
    let cpu = || Backend::cpu().map(|backend| (backend, Variant::Serial));
    if choice == BackendChoice::Cpu {
        return cpu();
    }
    let tried = match Backend::webgpu().await {
        Ok(backend) if choice == BackendChoice::Auto && backend.is_software() => {
            Err(Backend::unavailable("webgpu", "the only adapter is a software one, slower than the CPU backend"))
        }
        Ok(backend) => {
            let block_size = settings.kv_cache.block_size.unwrap_or(16).clamp(1, 1024);
            let limit = backend.max_binding_bytes();
            let needs = |variant| kernels::needs(gguf, &plan.spec, block_size, variant, limit);
            tested(backend, needs, warnings, on_phase).await
        }
        Err(error) => Err(error),
    };
    match tried {
        Err(error) if choice == BackendChoice::Auto => {
            warnings.push(error.into());
            cpu()
        }
        tried => tried,
    }
}

/// The first kernel family that gives right answers on the device, the same for a row in any company; a warning when it is not
/// the best one.
async fn tested(
    mut backend: Backend,
    needs: impl Fn(Variant) -> Needs,
    warnings: &mut Vec<Warning>,
    on_phase: OnPhase<'_>,
) -> Result<(Backend, Variant)> {
    let mut first = None;
    // A second family goes on where the first one ended: progress never goes back.
    let mut before = [0, 0];
    for family in Transformer::variants_of(&backend) {
        let mut next = Some(family);
        while let Some(variant) = next.take() {
            let mut most = before;
            let mut progress = |stage, done: usize, of: usize| {
                let (phase, at) = match stage {
                    Stage::Compile => (Phase::Compile, 0),
                    Stage::Compare => (Phase::Selftest, 1),
                };
                most[at] = before[at] + of as u64;
                on_phase(phase, before[at] + done as u64, most[at]);
            };
            let error = match selftest::run(&backend, &needs(variant), &mut progress).await {
                Ok(_) => {
                    warnings.extend(first.map(Warning::from));
                    return Ok((backend, variant));
                }
                Err(error) => error,
            };
            match error.code {
                selftest::ROWS_DIFFER => next = variant.row_by_row(),
                selftest::MISMATCH | "device.failed" => {}
                _ => return Err(error),
            }
            first.get_or_insert(error.with("kernels", variant.name()));
            before = most;
            // What the device said of this family says nothing of the next one.
            backend.begin();
        }
    }
    Err(first.unwrap_or_else(|| Backend::unavailable("webgpu", "it has no kernels")))
}

fn model_id(gguf: &Gguf, settings: &LoadSettings) -> String {
    let named = || gguf.metadata.opt_str("general.name").ok().flatten().map(str::to_owned);
    settings.model_id.clone().or_else(named).unwrap_or_else(|| "model".to_owned())
}

/// The type that most parameters have.
fn main_type(gguf: &Gguf) -> String {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for tensor in &gguf.tensors {
        *counts.entry(tensor.ty.name()).or_default() += tensor.shape.iter().map(|&n| n as u64).product::<u64>();
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map_or_else(String::new, |(name, _)| name.to_owned())
}

fn kind_name(backend: &Backend) -> &'static str {
    match backend.kind() {
        BackendKind::Webgpu => "webgpu",
        BackendKind::Cpu => "cpu",
    }
}

fn adapter_info(backend: &Backend) -> Option<AdapterInfo> {
    backend.adapter().map(|a| AdapterInfo {
        vendor: a.vendor.clone(),
        architecture: a.architecture.clone(),
        features: a.features.clone(),
        fallback: a.fallback,
    })
}

/// Identifies the weights for prefix sharing: size, names, extents (FNV-1a, Fowler, Noll and Vo).
fn fingerprint(gguf: &Gguf, len: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut eat =
        |bytes: &[u8]| bytes.iter().for_each(|b| hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    eat(&len.to_le_bytes());
    for tensor in &gguf.tensors {
        eat(tensor.name.as_bytes());
        eat(&tensor.offset.to_le_bytes());
    }
    hash
}

/// Bytes of linear memory; 0 natively, where it has no meaning.
pub fn linear_memory_bytes() -> u64 {
    #[cfg(target_arch = "wasm32")]
    return core::arch::wasm32::memory_size(0) as u64 * 65_536;
    #[cfg(not(target_arch = "wasm32"))]
    0
}

#[cfg(all(test, feature = "webgpu", not(target_family = "wasm")))]
mod tests {
    //! Wrong kernels, planted: found before a word is, and replaced.
    use super::*;
    use crate::ops::gpu::{planted, tests::device};
    use crate::ops::selftest::Matrix;

    fn needs(variant: Variant) -> Needs {
        let matrix = Matrix::new(crate::gguf::GgmlType::Q4_1, 576);
        Needs {
            products: vec![matrix],
            gate_ups: vec![matrix],
            gated: true,
            tables: vec![matrix],
            num_heads: 2,
            num_kv_heads: 1,
            head_dim: 32,
            rope_dim: 32,
            interleaved: true,
            block_size: 16,
            activation: crate::ops::matmul::Activation::Silu,
            variant,
        }
    }

    #[test]
    fn a_wrong_kernel_is_replaced_by_the_next_family() {
        let Some(backend) = device() else { return };
        let [best, next] = Transformer::variants_of(&backend);
        let chosen = |wrong: &[Variant]| {
            let _planted = planted::plant(wrong);
            let mut warnings = Vec::new();
            let result = pollster::block_on(tested(backend.clone(), needs, &mut warnings, &mut |_, _, _| {}));
            (result.map(|(_, variant)| variant), warnings)
        };
        let (variant, warnings) = chosen(&[]);
        assert_eq!((variant.unwrap(), warnings.len()), (best, 0));
        let (variant, warnings) = chosen(&[best]);
        assert_eq!(variant.unwrap(), next);
        assert_eq!(warnings[0].code, "device.kernel_mismatch");
        assert_eq!(warnings[0].details["kernels"], best.name());
        let (variant, _) = chosen(&[best, next]);
        assert_eq!(variant.unwrap_err().code, "device.kernel_mismatch");
        assert_eq!(chosen(&[]).0.unwrap(), best, "nothing stays planted");
    }

    #[test]
    fn where_bits_depend_on_the_company_rows_are_computed_one_at_a_time() {
        let Some(backend) = device() else { return };
        let [best, _] = Transformer::variants_of(&backend);
        let _planted = planted::plant_other_bits(&[best]);
        let (mut warnings, mut told) = (Vec::new(), Vec::new());
        let mut on_phase = |phase, done, total| told.push((phase, done, total));
        let (_, variant) = pollster::block_on(tested(backend, needs, &mut warnings, &mut on_phase)).unwrap();
        assert_eq!(Some(variant), best.row_by_row());
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].code, "device.rows_differ");
        for wanted in [Phase::Compile, Phase::Selftest] {
            let events: Vec<_> = told.iter().filter(|(phase, ..)| *phase == wanted).collect();
            assert!(events.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{wanted:?} goes back");
            assert!(events.last().is_some_and(|(_, done, total)| done == total));
        }
    }
}
