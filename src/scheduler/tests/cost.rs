//! What a step costs, by ratio: linear in what runs, independent of blocks, of what waits and of what has ended.
use std::ops::Range;
use std::time::Instant;

use super::regressions::{config, new};
use crate::ids::{SequenceId, TokenId};
use crate::scheduler::{LogMode, Scheduler, SchedulerConfig, StepOutcome, TokenSink};
use crate::sequence::FinishReason;

struct Silent;

impl TokenSink for Silent {
    fn token(&mut self, _: SequenceId, _: usize, _: TokenId) -> Option<FinishReason> {
        None
    }
    fn forked(&mut self, _: SequenceId, _: SequenceId, _: u32) {}
    fn prompt_rows(&mut self, _: SequenceId, _: usize, _: Range<usize>) {}
}

fn step(scheduler: &mut Scheduler) {
    let plan = scheduler.plan(0).expect("something runs");
    let drawn: u32 = plan.entries.iter().map(|entry| entry.samples).sum();
    let outcome = StepOutcome { tokens: vec![TokenId(1); drawn as usize], failed: Vec::new() };
    scheduler.commit(plan, outcome, &mut Silent);
    scheduler.reap();
}

/// Shortest step of many, in nanoseconds: what the machine does besides only adds.
fn cost(running: usize, num_blocks: usize, ended: u32, waiting: u32) -> f64 {
    let config = SchedulerConfig {
        max_running: running,
        max_queued: 100_000,
        token_budget: 4096,
        prefill_chunk: 4096,
        num_blocks,
        context_length: 4000,
        log: LogMode::Ring(64),
        ..config()
    };
    let mut scheduler = Scheduler::new(config).unwrap();
    for nth in 0..ended {
        scheduler.submit(new(4, 1, nth), 0).unwrap();
        while scheduler.stats().waiting > 0 {
            step(&mut scheduler);
        }
    }
    for nth in 0..running as u32 {
        scheduler.submit(new(40, 3000, 100_000 + nth), 0).unwrap();
    }
    while scheduler.stats().decoding < running {
        step(&mut scheduler);
    }
    for nth in 0..waiting {
        scheduler.submit(new(4, 1, nth), 0).unwrap();
    }
    let timed = |_| {
        let start = Instant::now();
        step(&mut scheduler);
        start.elapsed().as_nanos() as f64
    };
    (0..600).map(timed).fold(f64::INFINITY, f64::min)
}

#[test]
fn a_step_is_linear_in_what_runs_and_independent_of_the_rest() {
    let base = cost(64, 16_384, 0, 0);
    let double = cost(128, 32_768, 0, 0);
    let blocks = cost(64, 262_144, 0, 0);
    let ended = cost(64, 16_384, 20_000, 0);
    let waiting = cost(64, 16_384, 0, 20_000);
    println!(
        "64 running: {base:.0} ns, 128: {double:.0}, 16x blocks: {blocks:.0}, 20,000 ended: {ended:.0}, waiting: {waiting:.0}"
    );
    assert!(double < base * 2.6, "twice the sequences: {base} -> {double}");
    for (what, cost) in [("blocks", blocks), ("ended", ended), ("waiting", waiting)] {
        assert!(cost < base * 1.6, "{what}: {base} -> {cost}");
    }
}
