//! An executor without a model: its KV holds token ids, and a row's logits are a hash of all tokens that the row sees through
//! its block table. So a wrong slot, table, copy or shared block changes what is generated.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::FakeHost;
use crate::engine::{
    Executor, ExecutorStats, Fault, SampleRequest, ScoreRequest, StepOutput, sample_full_row, score_full_row,
};
use crate::ids::TokenId;
use crate::sampling::Layout;
use crate::scheduler::SchedulerConfig;
use crate::scheduler::batch::BatchInput;
use crate::{Error, Result};

/// What tests do to the executor, and see of it.
#[derive(Default)]
pub struct Control {
    /// The likeliest token after each position, where it is not the hash's to say.
    pub script: RefCell<BTreeMap<u32, TokenId>>,
    /// Positions whose logits are NaN.
    pub poisoned: RefCell<Vec<u32>>,
    /// Outcomes of the next steps; `None` succeeds.
    pub failures: RefCell<VecDeque<Option<Error>>>,
    /// Give back one row too few.
    pub short: Cell<bool>,
    /// Milliseconds that a step takes, plus so many a token.
    pub cost: Cell<(f64, f64)>,
    /// Steps may be given up where they stand.
    pub can_give_up: Cell<bool>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Tokens of each step.
    pub steps: RefCell<Vec<usize>>,
    pub dropped: Cell<bool>,
}

impl Control {
    /// Steps that begin from now on wait for `open`.
    pub fn close(&self) {
        self.closed.set(true);
    }

    pub fn open(&self) {
        self.closed.set(false);
        self.waker.borrow_mut().take().into_iter().for_each(Waker::wake);
    }

    /// Whether a step waits.
    pub fn is_waiting(&self) -> bool {
        self.waker.borrow().is_some()
    }

    /// Makes `text`, then `last`, the likeliest continuation of a prompt of `prompt_len` tokens.
    pub fn say(&self, prompt_len: usize, tokens: impl IntoIterator<Item = TokenId>) {
        let mut script = self.script.borrow_mut();
        script.extend((prompt_len as u32 - 1..).zip(tokens));
    }
}

/// See the file's first line.
pub struct ScriptedExecutor {
    kv: Vec<Option<TokenId>>,
    block_size: usize,
    vocab: usize,
    control: Rc<Control>,
    host: FakeHost,
    stats: ExecutorStats,
}

impl ScriptedExecutor {
    pub fn new(config: &SchedulerConfig, vocab: usize, control: Rc<Control>, host: FakeHost) -> Self {
        let kv = vec![None; config.num_blocks * config.block_size];
        Self { kv, block_size: config.block_size, vocab, control, host, stats: ExecutorStats::default() }
    }

    fn write(&mut self, batch: &BatchInput) {
        for &(from, to) in &batch.copies {
            let (from, to) = (from as usize * self.block_size, to as usize * self.block_size);
            self.kv.copy_within(from..from + self.block_size, to);
        }
        for (&slot, &token) in batch.slot_mapping.iter().zip(&batch.token_ids) {
            self.kv[slot as usize] = Some(token);
        }
    }

    /// All tokens that batch token `t` sees.
    fn context(&self, batch: &BatchInput, t: usize) -> Vec<TokenId> {
        let table = &batch.block_tables[batch.seq_of_token[t] as usize];
        let slot = |p: usize| table[p / self.block_size] as usize * self.block_size + p % self.block_size;
        (0..=batch.positions[t] as usize).map(|p| self.kv[slot(p)].expect("KV that was never written")).collect()
    }

    fn logits(&self, batch: &BatchInput, row: usize) -> Vec<f32> {
        let t = batch.logit_rows[row] as usize;
        let position = batch.positions[t];
        let mut logits = logits_of(&self.context(batch, t), self.vocab);
        if let Some(token) = self.control.script.borrow().get(&position) {
            logits[token.0 as usize] = 20.0;
        }
        if self.control.poisoned.borrow().contains(&position) {
            logits[5] = f32::NAN;
        }
        logits
    }
}

/// The logits after a context: a hash in [-4, 4), the same wherever and whenever they are computed. The end token is unlikely.
pub fn logits_of(context: &[TokenId], vocab: usize) -> Vec<f32> {
    let mix = |h: u64, x: u64| (h ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let seed = context.iter().fold(17, |h, t| mix(h, u64::from(t.0) + 1));
    let logit = |i: usize| (mix(mix(seed, i as u64), 3) >> 40) as f32 / (1u64 << 24) as f32 * 8.0 - 4.0;
    (0..vocab).map(|i| if i < 3 { -30.0 } else { logit(i) }).collect()
}

impl Executor for ScriptedExecutor {
    async fn execute(
        &mut self,
        batch: &BatchInput,
        samples: &[SampleRequest],
        scores: &[ScoreRequest],
    ) -> Result<StepOutput> {
        poll_fn(|cx| {
            if !self.control.closed.get() {
                return Poll::Ready(());
            }
            *self.control.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.control.steps.borrow_mut().push(batch.num_tokens());
        let (step_ms, token_ms) = self.control.cost.get();
        self.host.advance(step_ms + token_ms * batch.num_tokens() as f64);
        if let Some(Some(error)) = self.control.failures.borrow_mut().pop_front() {
            return Err(error);
        }
        self.write(batch);
        self.stats.dispatches += 10;
        self.stats.readbacks += 1;
        self.stats.weight_bytes += 1000;
        let layout = Layout { vocab: self.vocab, chunk: 256, best: 8 };
        let rows = samples.iter().map(|s| sample_full_row(s, &self.logits(batch, s.row), layout));
        let scores = scores.iter().map(|s| score_full_row(s, &self.logits(batch, s.row)));
        let mut output = StepOutput { rows: rows.collect(), scores: scores.collect() };
        if self.control.short.take() {
            output.rows.pop();
        }
        Ok(output)
    }

    fn stats(&self) -> ExecutorStats {
        self.stats
    }

    fn can_give_up(&self) -> bool {
        self.control.can_give_up.get()
    }

    fn fault(&self, error: &Error) -> Fault {
        match error.code {
            "device.busy" => Fault::Retry,
            "device.lost" => Fault::Engine,
            _ => Fault::Step,
        }
    }
}

impl Drop for ScriptedExecutor {
    fn drop(&mut self) {
        self.control.dropped.set(true);
    }
}
