//! The forward of a decoder-only transformer over a mixed batch, with its paged KV cache. Families differ by spec only.
use crate::Result;
use crate::backend::{Allocations, Backend, BackendKind, Floats, Words};
use crate::model::linear::Linear;
use crate::model::spec::ModelSpec;
use crate::ops::attention::AttentionProblem;
use crate::ops::call;
use crate::ops::matmul::Variant;
use crate::ops::meta::{self, MetaLayout};
use crate::ops::norm::NormProblem;
use crate::ops::place::CopyBlocksProblem;
use crate::ops::rope_kv::RopeKvProblem;
use crate::scheduler::batch::BatchInput;

/// Logit rows computed at once: bounds the `[R, V]` buffer.
pub const LOGIT_ROWS: usize = 32;

/// Weights of one layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// `[E]`, before attention.
    pub attn_norm: Floats,
    /// `[(H + 2 KV) * D, E]`.
    pub qkv: Linear,
    /// `[E, H * D]`.
    pub attn_output: Linear,
    /// `[E]`, before the feed-forward.
    pub ffn_norm: Floats,
    /// `[2 F, E]`, gate rows then up rows.
    pub gate_up: Linear,
    /// `[E, F]`.
    pub down: Linear,
}

/// All weights of a model.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[V, E]`.
    pub embedding: Linear,
    /// L of them.
    pub layers: Vec<Layer>,
    /// `[E]`.
    pub output_norm: Floats,
    /// `[V, E]`; none when the embedding is the head.
    pub head: Option<Linear>,
}

impl Weights {
    /// The output projection.
    pub fn head(&self) -> &Linear {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes on the device, norms aside.
    pub fn bytes(&self) -> u64 {
        let layers = self.layers.iter().flat_map(|l| [&l.qkv, &l.attn_output, &l.gate_up, &l.down]);
        layers.chain([&self.embedding]).chain(self.head.as_ref()).map(Linear::bytes).sum()
    }
}

/// Paged KV of every layer: `[num_blocks][2][block_size][KV][D]` f32 each.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Floats>,
    /// B.
    pub block_size: usize,
    /// N.
    pub num_blocks: usize,
    block_values: usize,
}

impl KvCache {
    /// Allocates the cache.
    ///
    /// # Errors
    /// `memory.gpu`, `device.failed`, `device.lost`.
    pub async fn new(backend: &Backend, spec: &ModelSpec, block_size: usize, num_blocks: usize) -> Result<Self> {
        let block_values = spec.kv_values_per_token() * block_size;
        let mut allocations = Allocations::default();
        let layer = || backend.empty_floats(block_values * num_blocks);
        let layers = (0..spec.num_layers).map(|_| backend.allocate(&mut allocations, layer)).collect();
        backend.settle(allocations).await?;
        Ok(Self { layers, block_size, num_blocks, block_values })
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> u64 {
        (self.layers.len() * self.block_values * self.num_blocks * 4) as u64
    }

    /// Takes a layer's tensor out, so that an op may change it in place.
    fn take(&mut self, layer: usize, empty: &Floats) -> Floats {
        std::mem::replace(&mut self.layers[layer], empty.clone())
    }
}

/// A loaded model with its cache.
#[derive(Debug)]
pub struct Transformer {
    /// Architecture.
    pub spec: ModelSpec,
    /// Weights.
    pub weights: Weights,
    /// KV.
    pub cache: KvCache,
    backend: Backend,
    variant: Variant,
    nothing: Floats,
}

/// Called within a long step so that a worker can look at its inbox. Work is counted in multiply-adds.
#[allow(async_fn_in_trait, reason = "one thread: futures need not be Send")]
pub trait Checkpoint {
    /// How many rows (1 at least) of `work` each this thread may compute at once, between two pauses.
    fn rows(&self, work: usize) -> usize;

    /// Gives the host a turn when enough time has passed. So much work was done by this thread since the last call.
    async fn pause(&mut self, work: usize);
}

/// Never pauses.
#[derive(Debug, Clone, Copy)]
pub struct NoCheckpoint;

impl Checkpoint for NoCheckpoint {
    fn rows(&self, _work: usize) -> usize {
        usize::MAX
    }

    async fn pause(&mut self, _work: usize) {}
}

/// Tokens that go through a layer together, between two pauses.
struct Tile {
    /// The step's arrays from the tile's first token on.
    layout: MetaLayout,
    rope: Floats,
    /// Multiply-adds of attention in one layer, at most.
    attention_work: usize,
}

impl Transformer {
    /// Puts weights and an empty cache together.
    pub fn new(backend: Backend, variant: Variant, spec: ModelSpec, weights: Weights, cache: KvCache) -> Self {
        let nothing = backend.empty_floats(1);
        Self { spec, weights, cache, backend, variant, nothing }
    }

    /// The kernel families for a device, the quickest one first.
    pub fn variants_of(backend: &Backend) -> [Variant; 2] {
        if backend.is_software() {
            [Variant::Serial, Variant::Workgroup]
        } else {
            [Variant::Workgroup, Variant::Serial]
        }
    }

    /// The device that this model is on.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Kernel family in use.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// One forward: writes the KV of every token, gives the residual stream of the last layer and the step's arrays.
    /// The batch's sizes are the scheduler's responsibility; its ids are below V (checked at submission).
    ///
    /// # Errors
    /// `device.readback`.
    pub async fn hidden(&mut self, batch: &BatchInput, checkpoint: &mut impl Checkpoint) -> Result<Hidden> {
        let (words, layout) = meta::pack(batch);
        let meta = self.backend.words(words);
        self.copy_blocks(&meta, &layout);
        let mut size = self.tile_size(batch, checkpoint);
        let mut tiles = self.tiles(batch, &layout, size);
        let (embedding, scale) = (&self.weights.embedding, self.spec.embedding_scale);
        let embed = |t: &Tile| embedding.embed(&self.backend, &meta, t.layout.ids, t.layout.num_tokens, scale);
        let mut streams: Vec<Floats> = tiles.iter().map(embed).collect();
        for layer in 0..self.spec.num_layers {
            // A tile attends to those before it through the cache, which this layer has filled by then.
            for (tile, x) in tiles.iter().zip(&mut streams) {
                let stream = std::mem::replace(x, self.nothing.clone());
                *x = self.layer(layer, stream, tile, &meta, checkpoint).await;
            }
            let now = self.tile_size(batch, checkpoint);
            if now >= 2 * size || size >= 2 * now {
                size = now;
                tiles = self.tiles(batch, &layout, size);
                streams = self.split(streams, layout.num_tokens, size).await?;
            }
        }
        let x = self
            .split(streams, layout.num_tokens, layout.num_tokens)
            .await?
            .pop()
            .unwrap_or_else(|| self.nothing.clone());
        Ok(Hidden { x, meta, layout })
    }

    /// Tokens of a tile: all on a GPU; on the CPU, which this thread is, as many as may be computed without a pause. Bits do not
    /// depend on it.
    fn tile_size(&self, batch: &BatchInput, checkpoint: &impl Checkpoint) -> usize {
        let all = batch.num_tokens().max(1);
        match self.backend.kind() {
            BackendKind::Cpu => checkpoint.rows(self.largest_work().max(self.attention_work(batch))).clamp(1, all),
            BackendKind::Webgpu => all,
        }
    }

    /// Multiply-adds of attention in one layer for a token, at most.
    fn attention_work(&self, batch: &BatchInput) -> usize {
        let context = batch.positions.iter().copied().max().unwrap_or(0) as usize + 1;
        2 * context * self.spec.num_heads * self.spec.head_dim
    }

    fn tiles(&self, batch: &BatchInput, layout: &MetaLayout, size: usize) -> Vec<Tile> {
        let (tokens, attention_work) = (layout.num_tokens, self.attention_work(batch));
        let tile = |first: usize| {
            let count = size.min(tokens - first);
            let layout = MetaLayout {
                num_tokens: count,
                ids: layout.ids + first,
                positions: layout.positions + first,
                slots: layout.slots + first,
                seqs: layout.seqs + first,
                ..*layout
            };
            let rope = self.backend.floats(self.spec.rope.table(&batch.positions[first..first + count]));
            Tile { layout, rope, attention_work: attention_work * count }
        };
        (0..tokens).step_by(size).map(tile).collect()
    }

    /// Multiply-adds of a token in the largest matrix of a layer.
    fn largest_work(&self) -> usize {
        let matrices = |l: &Layer| [&l.qkv, &l.attn_output, &l.gate_up, &l.down].map(Linear::work);
        self.weights.layers.first().into_iter().flat_map(matrices).max().unwrap_or(0)
    }

    /// Multiply-adds of one row of logits.
    pub fn head_work(&self) -> usize {
        self.weights.head().work()
    }

    /// The residual streams of all tiles, cut anew into tiles of `size`.
    async fn split(&self, streams: Vec<Floats>, tokens: usize, size: usize) -> Result<Vec<Floats>> {
        let width = self.spec.embedding;
        if streams.len() <= 1 && size >= tokens {
            return Ok(streams);
        }
        let mut values = Vec::new();
        for stream in streams {
            values.extend(self.backend.read_floats(stream).await?);
        }
        Ok(values.chunks((size * width).max(1)).map(|tile| self.backend.floats(tile.to_vec())).collect())
    }

    fn copy_blocks(&mut self, meta: &Words, layout: &MetaLayout) {
        if layout.num_copies == 0 {
            return;
        }
        let problem = CopyBlocksProblem {
            num_pairs: layout.num_copies,
            pairs_offset: layout.copies,
            block_values: self.cache.block_values,
        };
        for layer in 0..self.spec.num_layers {
            let kv = self.cache.take(layer, &self.nothing);
            self.cache.layers[layer] = call::copy_blocks(kv, meta, problem);
        }
    }

    /// One layer of one tile, with a pause after each op that takes its time. The cache is whole at every pause: the step may end
    /// there.
    async fn layer(
        &mut self,
        index: usize,
        x: Floats,
        tile: &Tile,
        meta: &Words,
        checkpoint: &mut impl Checkpoint,
    ) -> Floats {
        let (layout, variant) = (&tile.layout, self.variant);
        let tokens = layout.num_tokens;
        let norm = NormProblem { rows: tokens, width: self.spec.embedding, eps: self.spec.norm_eps, gather: None };

        let layer = &self.weights.layers[index];
        let h = call::rms_norm(&x, &layer.attn_norm, meta, norm);
        let qkv = layer.qkv.forward(&self.backend, &h, tokens, variant);
        checkpoint.pause(tokens * layer.qkv.work()).await;
        let kv = self.cache.take(index, &self.nothing);
        let (qkv, kv) = call::rope_kv(qkv, kv, &tile.rope, meta, self.rope_problem(layout));
        let mixed = call::attention(&qkv, &kv, meta, self.attention_problem(layout));
        self.cache.layers[index] = kv;
        checkpoint.pause(tile.attention_work).await;
        let layer = &self.weights.layers[index];
        let x = layer.attn_output.add_to(&mixed, x, tokens, variant);
        checkpoint.pause(tokens * layer.attn_output.work()).await;

        let h = call::rms_norm(&x, &layer.ffn_norm, meta, norm);
        let h = layer.gate_up.gate_up(&self.backend, &h, tokens, self.spec.activation, variant);
        checkpoint.pause(tokens * layer.gate_up.work()).await;
        let x = layer.down.add_to(&h, x, tokens, variant);
        checkpoint.pause(tokens * layer.down.work()).await;
        x
    }

    fn rope_problem(&self, layout: &MetaLayout) -> RopeKvProblem {
        RopeKvProblem {
            tokens: layout.num_tokens,
            num_heads: self.spec.num_heads,
            num_kv_heads: self.spec.num_kv_heads,
            head_dim: self.spec.head_dim,
            rope_dim: self.spec.rope.dim,
            interleaved: self.spec.rope.interleaved,
            block_size: self.cache.block_size,
            slots_offset: layout.slots,
        }
    }

    fn attention_problem(&self, layout: &MetaLayout) -> AttentionProblem {
        AttentionProblem {
            tokens: layout.num_tokens,
            num_heads: self.spec.num_heads,
            num_kv_heads: self.spec.num_kv_heads,
            head_dim: self.spec.head_dim,
            block_size: self.cache.block_size,
            scale: self.spec.attention_scale,
            window: 0,
            softcap: 0.0,
            positions_offset: layout.positions,
            seqs_offset: layout.seqs,
            tables_offset: layout.tables,
            table_stride: layout.table_stride,
            variant: self.variant,
        }
    }

    /// Logits `[rows.len(), V]` of some of the batch's logit rows (indices into them, at most [`LOGIT_ROWS`]).
    pub fn logits(&self, hidden: &Hidden, rows: std::ops::Range<usize>) -> Floats {
        let count = rows.len();
        let norm = NormProblem {
            rows: count,
            width: self.spec.embedding,
            eps: self.spec.norm_eps,
            gather: Some(hidden.layout.rows + rows.start),
        };
        let h = call::rms_norm(&hidden.x, &self.weights.output_norm, &hidden.meta, norm);
        self.weights.head().forward(&self.backend, &h, count, self.variant)
    }
}

/// What a forward leaves for the head.
#[derive(Debug)]
pub struct Hidden {
    /// `[T, E]`, before the output norm.
    pub x: Floats,
    /// The step's index arrays.
    pub meta: Words,
    /// Where they lie.
    pub layout: MetaLayout,
}
