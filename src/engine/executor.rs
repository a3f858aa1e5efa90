//! The seam between the engine and whatever computes: a batch goes in, tokens and log-probabilities come out. Scripted
//! executors implement it in tests, the model's in production; how logits are made is theirs.
use std::rc::Rc;

use serde::Serialize;

use crate::ids::TokenId;
use crate::sampling::{Adjustment, DrawKey, Layout, Readback, SampleInput, Sampled, SamplingParams, TokenLogprob};
use crate::scheduler::batch::BatchInput;
use crate::{Error, Result};

/// Runs forwards. One step at a time; futures are polled on one thread and need not be `Send`.
#[allow(async_fn_in_trait)]
pub trait Executor {
    /// Computes `batch`, samples the rows that `samples` name and scores those that `scores` name.
    ///
    /// The engine holds no borrow while this awaits: requests may be submitted and ended meanwhile. When the engine is
    /// disposed of, the future is dropped where it stands if [`Executor::can_give_up`] says so, else awaited; the executor is dropped
    /// after it.
    ///
    /// # Errors
    /// An error means that nothing of the step counts: the engine rolls the plan back and acts as [`Executor::fault`]
    /// says. A row that fails alone (NaN in its logits) is a [`RowResult::Failed`] instead.
    async fn execute(
        &mut self,
        batch: &BatchInput,
        samples: &[SampleRequest],
        scores: &[ScoreRequest],
    ) -> Result<StepOutput>;

    /// Counters since the executor was made.
    fn stats(&self) -> ExecutorStats;

    /// Whether a step may be given up where it stands, its future dropped: when every sequence of it was aborted meanwhile, and
    /// when the engine is disposed of. Else it is awaited, and what it gives is dropped.
    fn can_give_up(&self) -> bool {
        false
    }

    /// What a failed step means for the engine.
    fn fault(&self, error: &Error) -> Fault {
        match error.code {
            // What a device computes after one of these cannot be trusted.
            "device.lost" | "device.failed" | "memory.gpu" => Fault::Engine,
            _ => Fault::Step,
        }
    }
}

/// What follows from a failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The same work may succeed: plan again, a few times at most.
    Retry,
    /// The sequences of this step cannot go on; others can.
    Step,
    /// Nothing can run any more: every request ends with the error, and so does every later one.
    Engine,
}

/// Counters that only grow, but for the memory figures.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorStats {
    /// Kernels started.
    pub dispatches: u64,
    /// Times the host waited for bytes from the device.
    pub readbacks: u64,
    /// Bytes that came back.
    pub readback_bytes: u64,
    /// Weight bytes that the kernels read.
    pub weight_bytes: u64,
    /// Most device bytes held at once.
    pub peak_device_bytes: u64,
    /// Milliseconds that the host spent in steps other than waiting for the device.
    pub host_ms: f64,
}

impl ExecutorStats {
    /// What was counted since `earlier`; the peak stays as it is.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            dispatches: self.dispatches.saturating_sub(earlier.dispatches),
            readbacks: self.readbacks.saturating_sub(earlier.readbacks),
            readback_bytes: self.readback_bytes.saturating_sub(earlier.readback_bytes),
            weight_bytes: self.weight_bytes.saturating_sub(earlier.weight_bytes),
            peak_device_bytes: self.peak_device_bytes,
            host_ms: (self.host_ms - earlier.host_ms).max(0.0),
        }
    }
}

/// One row of logits to draw from.
#[derive(Debug, Clone)]
pub struct SampleRequest {
    /// Index into the batch's `logit_rows`.
    pub row: usize,
    /// The request's parameters.
    pub params: Rc<SamplingParams>,
    /// Penalties and bias at this token: ascending by token, each token once.
    pub adjustments: Vec<Adjustment>,
    /// One a token wanted: more than one where choices fork off.
    pub draws: Vec<DrawKey>,
}

impl SampleRequest {
    /// The least that the host must see of the row: the greedy record, the candidates (both of the adjusted row), or the
    /// whole row as it was before any adjustment.
    pub fn needs(&self) -> Readback {
        self.params.readback(false)
    }

    /// Penalties and bias, to be applied on the device when [`SampleRequest::needs`] is not the whole row.
    pub fn adjustments(&self) -> &[Adjustment] {
        &self.adjustments
    }

    /// What the sampling functions want for one of the draws.
    pub fn input(&self, key: DrawKey, layout: Layout) -> SampleInput<'_> {
        SampleInput { params: &self.params, adjustments: &self.adjustments, mask: None, key, layout }
    }
}

/// One row of logits to look a given token up in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreRequest {
    /// Index into the batch's `logit_rows`.
    pub row: usize,
    /// The token that follows in the text.
    pub token: TokenId,
    /// How many of the likeliest tokens to list.
    pub num_top: u32,
}

/// What became of a row to sample.
#[derive(Debug, Clone, PartialEq)]
pub enum RowResult {
    /// One a draw.
    Tokens(Vec<Sampled>),
    /// The row is unusable: its sequence ends with this error, the others go on.
    Failed(Error),
}

/// A token's log-probability under a row's unmodified logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Nats.
    pub logprob: f64,
    /// The likeliest tokens, best first.
    pub top: Vec<TokenLogprob>,
}

/// What a step gave.
#[derive(Debug, Clone, Default)]
pub struct StepOutput {
    /// One for each of the sample requests, in their order.
    pub rows: Vec<RowResult>,
    /// One for each of the score requests, in their order.
    pub scores: Vec<Result<Scored>>,
}

impl StepOutput {
    /// Whether every request has its answer and every draw its token.
    ///
    /// # Errors
    /// `engine.bad_step`: the executor broke its contract.
    pub fn check(&self, samples: &[SampleRequest], scores: &[ScoreRequest]) -> Result<()> {
        let complete = |(row, request): (&RowResult, &SampleRequest)| match row {
            RowResult::Tokens(tokens) => tokens.len() == request.draws.len(),
            RowResult::Failed(_) => true,
        };
        if self.rows.len() == samples.len()
            && self.scores.len() == scores.len()
            && self.rows.iter().zip(samples).all(complete)
        {
            return Ok(());
        }
        Err(Error::new(
            "engine.bad_step",
            "the executor gave back another number of rows or tokens than it was asked for",
        )
        .with("expected_rows", samples.len())
        .with("got_rows", self.rows.len())
        .with("expected_scores", scores.len())
        .with("got_scores", self.scores.len()))
    }
}
