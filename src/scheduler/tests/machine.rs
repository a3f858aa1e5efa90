//! A scripted executor and the driver around it. Each KV slot holds a number made of all tokens up to its position, read through
//! the block table: the token drawn depends on every slot of the context.
use std::collections::BTreeMap;
use std::ops::Range;

use crate::ids::{SequenceId, TokenId};
use crate::kv::fold;
use crate::scheduler::{Effects, NewSequence, Plan, Scheduler, SchedulerConfig, StepOutcome, TokenSink};
use crate::sequence::{AbortReason, FinishReason, SequenceState};

/// Small, so that end tokens and repeated ones come up often.
pub const VOCABULARY: u64 = 23;
const POISON: u64 = 0xdead_beef_dead_beef;

/// KV memory and a model that is a hash.
#[derive(Debug, Clone)]
pub struct Machine {
    slots: Vec<u64>,
    block_size: usize,
}

impl Machine {
    pub fn new(config: &SchedulerConfig) -> Self {
        Self { slots: vec![POISON; config.num_blocks * config.block_size], block_size: config.block_size }
    }

    /// Runs the forward; one number a row of `logit_rows`.
    pub fn forward(&mut self, plan: &Plan, adapter: impl Fn(SequenceId) -> u64) -> Vec<u64> {
        let batch = &plan.batch;
        assert_eq!(batch.query_start.len(), batch.num_sequences() + 1);
        assert_eq!(batch.query_start.last().copied(), Some(batch.num_tokens() as u32));
        for &(from, to) in &batch.copies {
            let (from, to) = (from as usize * self.block_size, to as usize * self.block_size);
            self.slots.copy_within(from..from + self.block_size, to);
        }
        let mut values = Vec::new();
        for (token, &id) in batch.token_ids.iter().enumerate() {
            let row = batch.seq_of_token[token] as usize;
            let position = batch.positions[token] as usize;
            assert!((batch.query_start[row]..batch.query_start[row + 1]).contains(&(token as u32)));
            assert!(position < batch.context_lens[row] as usize);
            assert_eq!(batch.block_tables[row].len(), (batch.context_lens[row] as usize).div_ceil(self.block_size));
            let slot = |at: usize| {
                batch.block_tables[row][at / self.block_size] as usize * self.block_size + at % self.block_size
            };
            assert_eq!(batch.slot_mapping[token] as usize, slot(position));
            // All of the context is read, so that a wrong block anywhere shows.
            let context = (0..position).fold(adapter(batch.sequences[row]), |sum, at| sum ^ self.slots[slot(at)]);
            let value = fold(fold(context, u64::from(id.0)), position as u64);
            self.slots[slot(position)] = value;
            values.push(value);
        }
        batch.logit_rows.iter().map(|&row| values[row as usize]).collect()
    }

    /// What a failed step leaves: garbage where it wrote and copied to.
    pub fn spoil(&mut self, plan: &Plan) {
        for &slot in &plan.batch.slot_mapping {
            self.slots[slot as usize] = POISON;
        }
        for &(_, to) in &plan.batch.copies {
            self.slots[to as usize * self.block_size..][..self.block_size].fill(POISON);
        }
    }

    pub fn lose(&mut self) {
        self.slots.fill(POISON);
    }
}

pub fn draw(value: u64, seed: u64, choice: u32, index: usize) -> TokenId {
    TokenId((fold(fold(fold(value, seed), u64::from(choice)), index as u64) >> 20) as u32 % VOCABULARY as u32)
}

/// The stop rules of the scripted engine, from the generated tokens alone.
pub fn stop(generated: &[TokenId]) -> Option<FinishReason> {
    match generated {
        [.., TokenId(0)] => Some(FinishReason::Eos),
        [.., TokenId(1), TokenId(2..=6)] => Some(FinishReason::StopString),
        [.., TokenId(7), TokenId(8..=10)] => Some(FinishReason::Grammar),
        _ => None,
    }
}

/// A request and what it must give, whatever happens around it.
#[derive(Debug, Clone)]
pub struct Request {
    pub new: NewSequence,
    pub seed: u64,
}

/// The numbers of all positions and the tokens of a choice, computed with nothing but a list.
pub fn reference(request: &Request, choice: u32, config: &SchedulerConfig) -> (Vec<u64>, Vec<TokenId>, FinishReason) {
    let mut tokens = request.new.tokens.clone();
    let prompt = tokens.len();
    let limit = request.new.max_tokens.map_or(config.capacity(), |max| prompt + max).min(config.context_length);
    let (mut values, mut sum) = (Vec::new(), request.new.adapter);
    loop {
        while values.len() < tokens.len() {
            let value = fold(fold(sum, u64::from(tokens[values.len()].0)), values.len() as u64);
            sum ^= value;
            values.push(value);
        }
        if tokens.len() >= limit {
            values.truncate(prompt);
            return (values, tokens.split_off(prompt), FinishReason::Length);
        }
        let index = tokens.len() - prompt;
        tokens.push(draw(values[tokens.len() - 1], request.seed, choice, index));
        if let Some(reason) = stop(&tokens[prompt..]) {
            values.truncate(prompt);
            return (values, tokens.split_off(prompt), reason);
        }
    }
}

/// What a choice has given so far.
#[derive(Debug, Clone, Default)]
pub struct Output {
    pub request: usize,
    pub choice: u32,
    pub tokens: Vec<TokenId>,
    pub prompt_values: Vec<u64>,
    pub ended: Option<SequenceState>,
    pub cached_tokens: usize,
    pub preemptions: u32,
}

/// Scheduler, machine, requests and what came of them.
#[derive(Debug)]
pub struct Driver {
    pub scheduler: Scheduler,
    pub machine: Machine,
    pub requests: Vec<Request>,
    pub outputs: BTreeMap<SequenceId, Output>,
    pub now: u64,
    pub entries: usize,
}

struct Sink<'a> {
    outputs: &'a mut BTreeMap<SequenceId, Output>,
    rows: &'a [u64],
    told: BTreeMap<SequenceId, usize>,
}

impl TokenSink for Sink<'_> {
    fn token(&mut self, sequence: SequenceId, index: usize, token: TokenId) -> Option<FinishReason> {
        let output = self.outputs.get_mut(&sequence).expect("tokens come from known sequences");
        assert_eq!(index, output.tokens.len(), "sequence {sequence} emitted a token twice or lost one");
        assert_eq!(output.ended, None, "sequence {sequence} went on after its end");
        let told = self.told.entry(sequence).or_default();
        *told += 1;
        assert_eq!(*told, 1, "sequence {sequence} got two tokens in one step");
        output.tokens.push(token);
        stop(&output.tokens)
    }

    fn forked(&mut self, parent: SequenceId, child: SequenceId, choice: u32) {
        let output = Output { choice, ..self.outputs[&parent].clone() };
        assert!(output.tokens.is_empty(), "a fork comes before any token");
        assert!(self.outputs.insert(child, output).is_none(), "ids are never reused");
    }

    fn prompt_rows(&mut self, sequence: SequenceId, first: usize, rows: Range<usize>) {
        let output = self.outputs.get_mut(&sequence).expect("rows come from known sequences");
        assert_eq!(first, output.prompt_values.len(), "prompt rows of sequence {sequence} came twice or were lost");
        output.prompt_values.extend_from_slice(&self.rows[rows]);
    }
}

impl Driver {
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            machine: Machine::new(&config),
            scheduler: Scheduler::new(config).expect("a sound config"),
            requests: Vec::new(),
            outputs: BTreeMap::new(),
            now: 0,
            entries: 0,
        }
    }

    pub fn submit(&mut self, new: NewSequence, seed: u64) -> crate::Result<SequenceId> {
        let before = self.scheduler.digest();
        match self.scheduler.submit(new.clone(), self.now) {
            Ok(id) => {
                self.outputs.insert(id, Output { request: self.requests.len(), ..Output::default() });
                self.requests.push(Request { new, seed });
                Ok(id)
            }
            Err(error) => {
                assert_eq!(before, self.scheduler.digest(), "a refused submission changed something");
                Err(error)
            }
        }
    }

    pub fn plan(&mut self) -> Option<Plan> {
        let plan = self.scheduler.plan(self.now);
        self.reap();
        self.check();
        if let Some(plan) = &plan {
            self.scheduler.check_plan(plan).expect("the plan is sound");
            let config = self.scheduler.config();
            assert!(plan.batch.num_tokens() <= config.token_budget, "over budget");
            self.entries += plan.entries.len();
        }
        plan
    }

    /// Forward and draws.
    pub fn execute(&mut self, plan: &Plan) -> (StepOutcome, Vec<u64>) {
        let (outputs, requests) = (&self.outputs, &self.requests);
        let rows = self.machine.forward(plan, |id| requests[outputs[&id].request].new.adapter);
        let mut tokens = Vec::new();
        for entry in &plan.entries {
            let seed = requests[outputs[&entry.sequence].request].seed;
            for nth in 0..entry.samples {
                tokens.push(draw(rows[entry.rows.end - 1], seed, entry.choice + nth, entry.output_index));
            }
        }
        (StepOutcome { tokens, failed: Vec::new() }, rows)
    }

    pub fn commit(&mut self, plan: Plan, outcome: StepOutcome, rows: &[u64]) -> Effects {
        let mut sink = Sink { outputs: &mut self.outputs, rows, told: BTreeMap::new() };
        let effects = self.scheduler.commit(plan, outcome, &mut sink);
        self.reap();
        self.check();
        effects
    }

    /// Plan, execute, commit. False: nothing to do.
    pub fn step(&mut self) -> bool {
        let Some(plan) = self.plan() else { return false };
        let (outcome, rows) = self.execute(&plan);
        self.commit(plan, outcome, &rows);
        true
    }

    pub fn reap(&mut self) {
        for sequence in self.scheduler.reap() {
            let output = self.outputs.get_mut(&sequence.id()).expect("known");
            assert!(output.ended.is_none(), "one terminal event a sequence");
            output.ended = Some(sequence.state());
            output.cached_tokens = sequence.cached_tokens();
            output.preemptions = sequence.preemptions();
            assert_eq!(sequence.generated(), output.tokens, "usage is what was emitted");
            assert_eq!(sequence.prompt_len(), self.requests[output.request].new.tokens.len());
        }
    }

    pub fn check(&self) {
        self.scheduler.check_integrity().expect("integrity");
    }

    /// Runs until nothing is left to do, and checks every output.
    pub fn finish(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "no end in sight");
        }
        self.verify();
    }

    pub fn verify(&self) {
        for (id, output) in &self.outputs {
            let request = &self.requests[output.request];
            let (values, tokens, reason) = reference(request, output.choice, self.scheduler.config());
            match output.ended {
                Some(SequenceState::Finished(ended)) => {
                    assert_eq!(output.tokens, tokens, "tokens of sequence {id}");
                    assert_eq!(ended, reason, "reason of sequence {id}");
                    if request.new.prompt_logits {
                        assert_eq!(output.prompt_values, values, "prompt rows of sequence {id}");
                        assert_eq!(output.cached_tokens, 0);
                    }
                }
                Some(SequenceState::Aborted(_)) => {
                    assert!(tokens.starts_with(&output.tokens), "tokens of aborted sequence {id}");
                    assert!(values.starts_with(&output.prompt_values));
                }
                other => panic!("sequence {id} has not ended: {other:?}"),
            }
        }
        let stats = self.scheduler.stats();
        assert_eq!(stats.blocks_held, 0);
        assert_eq!(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
        assert_eq!((stats.waiting, stats.prefilling, stats.decoding, stats.preempted), (0, 0, 0, 0));
    }

    /// Ids that have not ended, in order.
    pub fn live(&self) -> Vec<SequenceId> {
        self.outputs.iter().filter(|(_, output)| output.ended.is_none()).map(|(&id, _)| id).collect()
    }

    pub fn abort(&mut self, id: SequenceId) {
        self.scheduler.abort(id, AbortReason::Cancelled);
        self.reap();
        self.check();
    }
}

/// A prompt of `len` tokens: the first `shared` of them are those of every prompt of the same `family`.
pub fn prompt(family: u32, shared: usize, len: usize, own: u32) -> Vec<TokenId> {
    let token =
        |at: usize| if at < shared { fold(family.into(), at as u64) } else { fold(u64::from(own) + 1000, at as u64) };
    (0..len).map(|at| TokenId((token(at) >> 9) as u32 % VOCABULARY as u32)).collect()
}
