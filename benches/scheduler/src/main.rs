//! Cost of the scheduler alone: plan + commit of decoding sequences, and a simulation of a long queue. No model.
use std::ops::Range;

use divan::{Bencher, black_box};
use fireside::ids::{SequenceId, TokenId};
use fireside::scheduler::{LogMode, NewSequence, Scheduler, SchedulerConfig, StepOutcome, TokenSink};
use fireside::sequence::FinishReason;

fn main() {
    divan::main();
}

struct Silent;

impl TokenSink for Silent {
    fn token(&mut self, _: SequenceId, _: usize, _: TokenId) -> Option<FinishReason> {
        None
    }

    fn forked(&mut self, _: SequenceId, _: SequenceId, _: u32) {}

    fn prompt_rows(&mut self, _: SequenceId, _: usize, _: Range<usize>) {}
}

fn config(running: usize, num_blocks: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_running: running,
        max_queued: 1_000_000,
        token_budget: 512,
        prefill_chunk: 256,
        num_blocks,
        context_length: 4096,
        log: LogMode::Ring(1024),
        ..SchedulerConfig::default()
    }
}

fn submit(scheduler: &mut Scheduler, nth: u32, len: u32, max_tokens: usize) {
    let tokens = (0..len).map(|at| TokenId(nth.wrapping_mul(31).wrapping_add(at) % 50_000)).collect();
    let new = NewSequence { tokens, max_tokens: Some(max_tokens), choices: 1, ..NewSequence::default() };
    scheduler.submit(new, u64::from(nth)).expect("the queue is long enough");
}

/// Plan, commit with any token, reap. False: nothing to do.
fn step(scheduler: &mut Scheduler) -> bool {
    let Some(plan) = scheduler.plan(0) else { return false };
    let drawn: u32 = plan.entries.iter().map(|entry| entry.samples).sum();
    let outcome = StepOutcome { tokens: vec![TokenId(1); drawn as usize], failed: Vec::new() };
    black_box(scheduler.commit(plan, outcome, &mut Silent));
    black_box(scheduler.reap());
    true
}

/// All running sequences are decoding at about `context` tokens.
fn decoding(running: usize, num_blocks: usize, context: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(config(running, num_blocks)).expect("a sound config");
    for nth in 0..running as u32 {
        submit(&mut scheduler, nth, context, 3000);
    }
    while scheduler.stats().decoding < running {
        step(&mut scheduler);
    }
    scheduler
}

/// Microseconds grow with what runs.
#[divan::bench(args = [1, 8, 32, 64, 128, 256], sample_count = 400)]
fn decode_step(bencher: Bencher, running: usize) {
    let mut scheduler = decoding(running, 65_536, 200);
    bencher.bench_local(|| step(&mut scheduler));
}

/// And not with the pool.
#[divan::bench(args = [4_096, 65_536, 1_000_000], sample_count = 400)]
fn decode_step_of_64_by_blocks(bencher: Bencher, num_blocks: usize) {
    let mut scheduler = decoding(64, num_blocks, 200);
    bencher.bench_local(|| step(&mut scheduler));
}

/// Nor with what waits.
#[divan::bench(args = [0, 100, 10_000], sample_count = 400)]
fn decode_step_of_64_by_queue(bencher: Bencher, queued: u32) {
    let mut scheduler = decoding(64, 65_536, 200);
    for nth in 0..queued {
        submit(&mut scheduler, 1000 + nth, 100, 50);
    }
    bencher.bench_local(|| step(&mut scheduler));
}

/// A queue of requests over a million blocks, from the first admission to the last token.
#[divan::bench(args = [100, 1_000, 10_000], sample_count = 3, sample_size = 1)]
fn simulation(bencher: Bencher, requests: u32) {
    let filled = || {
        let mut scheduler = Scheduler::new(config(256, 1_000_000)).expect("a sound config");
        for nth in 0..requests {
            submit(&mut scheduler, nth, 100 + nth % 400, 50);
        }
        scheduler
    };
    bencher.with_inputs(filled).bench_local_values(|mut scheduler| while step(&mut scheduler) {});
}
