//! Every architectural choice of a model as a field, read from GGUF metadata. No forward and no tensors here.
use crate::gguf::{Gguf, Metadata};
use crate::ops::matmul::Activation;
use crate::{Error, Result};

/// Rotary position settings; frequencies are final (base, linear scaling and per-dimension factors applied).
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Dimensions of a head that rotate.
    pub dim: usize,
    /// Pairs (2i, 2i + 1) as in llama files; otherwise (i, i + dim / 2).
    pub interleaved: bool,
    /// `[dim / 2]` radians a position.
    pub frequencies: Vec<f64>,
}

impl Rope {
    /// `[T][dim / 2][cos, sin]` for the given positions. Made on the host: WGSL's sin and cos are loose far from zero.
    pub fn table(&self, positions: &[u32]) -> Vec<f32> {
        let angles = positions.iter().flat_map(|&p| self.frequencies.iter().map(move |f| f64::from(p) * f));
        angles.flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect()
    }
}

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: String,
    /// V: rows of the embedding.
    pub vocab: usize,
    /// L.
    pub num_layers: usize,
    /// E.
    pub embedding: usize,
    /// F.
    pub ffn: usize,
    /// H.
    pub num_heads: usize,
    /// KV.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Longest sequence that the model was made for.
    pub context_length: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Positions.
    pub rope: Rope,
    /// On q . k.
    pub attention_scale: f32,
    /// Of the feed-forward gate.
    pub activation: Activation,
    /// On token embeddings.
    pub embedding_scale: f32,
}

/// Bounds on sizes from a file: far above any model that fits in a browser, low enough that products stay in 64 bits.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 12;
/// Longest context that block tables and positions are laid out for.
const MAX_CONTEXT: usize = 1 << 24;
/// Largest head that the attention kernels keep in registers.
const MAX_HEAD_DIM: usize = 256;

impl ModelSpec {
    /// Reads the spec of a supported architecture. `rope_factors` are the values of `rope_freqs.weight`, if the file has it.
    ///
    /// # Errors
    /// `model.unsupported_architecture`, `model.invalid_hyperparameter`, `model.unsupported_feature`, `gguf.missing_key`.
    pub fn from_gguf(gguf: &Gguf, rope_factors: Option<&[f32]>) -> Result<Self> {
        let keys = Keys::new(&gguf.metadata)?;
        let embedding = keys.size("embedding_length", MAX_WIDTH)?;
        let num_heads = keys.size("attention.head_count", MAX_WIDTH)?;
        let num_kv_heads = keys.optional_size("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(num_heads);
        let head_dim = keys.head_dim(embedding, num_heads)?;
        if num_heads % num_kv_heads != 0 {
            return Err(keys.invalid("attention.head_count_kv", num_kv_heads, "a divisor of the head count"));
        }
        keys.refuse_unsupported()?;
        let context_length = keys.size("context_length", usize::MAX)?.min(MAX_CONTEXT);
        let tensor = gguf.tensor("token_embd.weight").ok_or_else(|| super::loader::missing("token_embd.weight"))?;
        Ok(Self {
            vocab: tensor.num_rows(),
            num_layers: keys.size("block_count", MAX_LAYERS)?,
            embedding,
            ffn: keys.size("feed_forward_length", MAX_WIDTH)?,
            num_heads,
            num_kv_heads,
            head_dim,
            context_length,
            norm_eps: keys.norm_eps()?,
            rope: keys.rope(head_dim, rope_factors)?,
            attention_scale: keys.attention_scale(head_dim)?,
            activation: Activation::Silu,
            embedding_scale: 1.0,
            architecture: keys.architecture,
        })
    }

    /// f32 values that one token adds to one layer's cache: K and V.
    pub fn kv_values_per_token(&self) -> usize {
        2 * self.num_kv_heads * self.head_dim
    }

    /// Bytes that one token adds to the whole cache.
    pub fn kv_bytes_per_token(&self) -> u64 {
        (self.kv_values_per_token() * self.num_layers * 4) as u64
    }
}

/// Metadata under the architecture's prefix, with bounds.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: String,
}

impl<'a> Keys<'a> {
    fn new(metadata: &'a Metadata) -> Result<Self> {
        let architecture = metadata.str("general.architecture")?.to_owned();
        if architecture != "llama" {
            return Err(Error::new(
                "model.unsupported_architecture",
                format!("models of architecture '{architecture}' are not supported"),
            )
            .with("architecture", architecture)
            .with("supported", vec!["llama"]));
        }
        Ok(Self { metadata, architecture })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn invalid(&self, name: &str, got: impl Into<serde_json::Value>, expected: &str) -> Error {
        let (key, got) = (self.key(name), got.into());
        Error::new("model.invalid_hyperparameter", format!("{key} is {got}, expected {expected}"))
            .with("key", key)
            .with("got", got)
            .with("expected", expected)
    }

    fn bounded(&self, name: &str, value: u64, max: usize) -> Result<usize> {
        match usize::try_from(value) {
            Ok(size) if (1..=max).contains(&size) => Ok(size),
            _ => Err(self.invalid(name, value, &format!("1 to {max}"))),
        }
    }

    fn optional_size(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let value = self.metadata.opt_u64(&self.key(name))?;
        value.map(|value| self.bounded(name, value, max)).transpose()
    }

    fn size(&self, name: &str, max: usize) -> Result<usize> {
        self.bounded(name, self.metadata.u64(&self.key(name))?, max)
    }

    fn optional_float(&self, name: &str) -> Result<Option<f32>> {
        match self.metadata.opt_f32(&self.key(name))? {
            Some(value) if !value.is_finite() => {
                Err(self.invalid(name, f64::from(value).to_string(), "a finite number"))
            }
            value => Ok(value),
        }
    }

    fn head_dim(&self, embedding: usize, num_heads: usize) -> Result<usize> {
        let head_dim = match self.optional_size("attention.key_length", MAX_HEAD_DIM)? {
            Some(dim) => dim,
            None if embedding.is_multiple_of(num_heads) => embedding / num_heads,
            None => return Err(self.invalid("attention.head_count", num_heads, "a divisor of the embedding length")),
        };
        if head_dim > MAX_HEAD_DIM || head_dim % 4 != 0 {
            return Err(self.invalid("attention.key_length", head_dim, "a multiple of 4 up to 256"));
        }
        match self.optional_size("attention.value_length", MAX_HEAD_DIM)? {
            Some(dim) if dim != head_dim => Err(self.invalid("attention.value_length", dim, "the key length")),
            _ => Ok(head_dim),
        }
    }

    fn norm_eps(&self) -> Result<f32> {
        let name = "attention.layer_norm_rms_epsilon";
        let eps = self.metadata.f32(&self.key(name))?;
        if (0.0..1.0).contains(&eps) { Ok(eps) } else { Err(self.invalid(name, eps.to_string(), "0 to 1")) }
    }

    fn attention_scale(&self, head_dim: usize) -> Result<f32> {
        Ok(self.optional_float("attention.scale")?.unwrap_or((1.0 / (head_dim as f64).sqrt()) as f32))
    }

    fn rope(&self, head_dim: usize, factors: Option<&[f32]>) -> Result<Rope> {
        let dim = self.optional_size("rope.dimension_count", MAX_HEAD_DIM)?.unwrap_or(head_dim);
        if dim > head_dim || dim % 2 != 0 {
            return Err(self.invalid("rope.dimension_count", dim, "an even number up to the head size"));
        }
        let base = f64::from(self.optional_float("rope.freq_base")?.unwrap_or(10_000.0));
        if base < 1.0 {
            return Err(self.invalid("rope.freq_base", base, "at least 1"));
        }
        let linear = f64::from(self.linear_scaling()?);
        let factor = |i: usize| factors.map_or(1.0, |f| f64::from(f[i]));
        if let Some(bad) = factors.filter(|f| f.len() != dim / 2 || f.iter().any(|v| !v.is_finite() || *v == 0.0)) {
            return Err(Error::new(
                "model.invalid_hyperparameter",
                "rope_freqs.weight must hold one finite, non-zero factor a pair",
            )
            .with("got", bad.len())
            .with("expected", dim / 2));
        }
        let frequencies = (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64) / factor(i) / linear).collect();
        Ok(Rope { dim, interleaved: true, frequencies })
    }

    fn linear_scaling(&self) -> Result<f32> {
        let kind = self.metadata.opt_str(&self.key("rope.scaling.type"))?.unwrap_or("none");
        let factor = match kind {
            "none" => self.optional_float("rope.scale_linear")?.unwrap_or(1.0),
            "linear" => self.optional_float("rope.scaling.factor")?.unwrap_or(1.0),
            other => return Err(self.unsupported("rope.scaling.type", other)),
        };
        if factor > 0.0 {
            Ok(factor)
        } else {
            Err(self.invalid("rope.scaling.factor", factor.to_string(), "more than 0"))
        }
    }

    fn unsupported(&self, name: &str, got: impl Into<serde_json::Value>) -> Error {
        let (key, got) = (self.key(name), got.into());
        Error::new("model.unsupported_feature", format!("{key} = {got} is not supported"))
            .with("key", key)
            .with("got", got)
    }

    /// What a llama file may ask for that this forward does not do.
    fn refuse_unsupported(&self) -> Result<()> {
        for name in ["expert_count", "attention.sliding_window"] {
            if let Some(value) = self.metadata.opt_u64(&self.key(name))?.filter(|&value| value > 0) {
                return Err(self.unsupported(name, value));
            }
        }
        for name in
            ["logit_scale", "residual_scale", "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping"]
        {
            if let Some(value) = self.optional_float(name)?.filter(|&value| value != 0.0 && value != 1.0) {
                return Err(self.unsupported(name, f64::from(value)));
            }
        }
        if self.metadata.opt_bool(&self.key("attention.causal"))? == Some(false) {
            return Err(self.unsupported("attention.causal", false));
        }
        Ok(())
    }
}
