//! Random schedules: every event, every allocation able to fail, integrity after each step, replay at the end.
use proptest::prelude::*;

use super::machine::{Driver, prompt};
use crate::scheduler::{LogMode, NewSequence, Plan, SchedulerConfig, StepOutcome, replay};
use crate::sequence::{AbortReason, SequenceState};

#[derive(Debug, Clone)]
enum Op {
    Submit(Submit),
    Step,
    /// A step in the middle of which something happens.
    StepWith(During),
    Abort(usize),
    Pause(usize, bool),
    DeviceLost,
    Chunk(usize),
    Wait(u64),
    /// The n-th take or retain from now on fails.
    Fault(u32),
    /// A plan of the past comes back.
    Stale,
}

#[derive(Debug, Clone)]
enum During {
    Abort(usize),
    Pause(usize),
    DeviceLost,
    NonFinite(usize),
    Rollback,
    /// Cancelled, then the executor fails.
    AbortAndRollback(usize),
    Submit(Submit),
    ShortOutcome,
    /// A plan of the past comes back while another is in flight.
    Stale,
    /// An entry does not come back.
    Tampered(usize),
}

#[derive(Debug, Clone)]
struct Submit {
    family: u32,
    shared: usize,
    len: usize,
    own: u32,
    max_tokens: Option<usize>,
    choices: u32,
    priority: i32,
    deadline: Option<u64>,
    prompt_logits: bool,
    adapter: u64,
}

fn submit() -> impl Strategy<Value = Submit> {
    let shape = (0..2_u32, 0..40_usize, 0..48_usize, 0..4_u32);
    let max_tokens = prop_oneof![1 => Just(None), 1 => Just(Some(0)), 6 => (1..24_usize).prop_map(Some)];
    let rest = (
        max_tokens,
        prop_oneof![4 => Just(1), 2 => 1..5_u32],
        -2..3_i32,
        prop_oneof![6 => Just(None), 1 => (0..40_u64).prop_map(Some)],
        prop::bool::weighted(0.1),
        prop_oneof![5 => Just(0), 1 => Just(1_u64)],
    );
    (shape, rest).prop_map(
        |((family, shared, len, own), (max_tokens, choices, priority, deadline, prompt_logits, adapter))| Submit {
            family,
            shared,
            len,
            own,
            max_tokens,
            choices,
            priority,
            deadline,
            prompt_logits,
            adapter,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let during = prop_oneof![
        3 => any::<usize>().prop_map(During::Abort),
        2 => any::<usize>().prop_map(During::Pause),
        1 => Just(During::DeviceLost),
        2 => any::<usize>().prop_map(During::NonFinite),
        3 => Just(During::Rollback),
        2 => any::<usize>().prop_map(During::AbortAndRollback),
        2 => submit().prop_map(During::Submit),
        1 => Just(During::ShortOutcome),
        1 => Just(During::Stale),
        1 => any::<usize>().prop_map(During::Tampered),
    ];
    prop_oneof![
        8 => submit().prop_map(Op::Submit),
        16 => Just(Op::Step),
        4 => during.prop_map(Op::StepWith),
        2 => any::<usize>().prop_map(Op::Abort),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(nth, paused)| Op::Pause(nth, paused)),
        1 => Just(Op::DeviceLost),
        1 => (1..40_usize).prop_map(Op::Chunk),
        2 => (0..60_u64).prop_map(Op::Wait),
        3 => (0..12_u32).prop_map(Op::Fault),
        1 => Just(Op::Stale),
    ]
}

prop_compose! {
    fn config()(
        max_running in 1..7_usize,
        max_queued in 1..64_usize,
        token_budget in prop_oneof![1..8_usize, 8..64_usize],
        prefill_chunk in 1..32_usize,
        block_size in 1..6_usize,
        num_blocks in prop_oneof![1..16_usize, 8..48_usize],
        watermark_blocks in 0..4_usize,
        context_length in prop_oneof![1 => 1..40_usize, 4 => 40..90_usize],
        prefix_cache in prop::bool::weighted(0.8),
        ageing_ms in prop_oneof![Just(0), Just(10), Just(1000_u64)],
    ) -> SchedulerConfig {
        SchedulerConfig {
            max_running, max_queued, token_budget, prefill_chunk, block_size, num_blocks, watermark_blocks, context_length,
            prefix_cache, fingerprint: 5, ageing_ms, log: LogMode::Whole,
        }
    }
}

struct Run {
    driver: Driver,
    old: Vec<Plan>,
    /// Plans come back changed in this run; what somebody does to them outside is not in the log.
    tampers: bool,
}

impl Run {
    fn submit(&mut self, submit: &Submit) {
        if self.driver.requests.len() >= 64 {
            return;
        }
        let new = NewSequence {
            tokens: prompt(submit.family, submit.shared, submit.len, submit.own),
            generated: 0,
            max_tokens: submit.max_tokens,
            choices: submit.choices,
            choice: 0,
            priority: submit.priority,
            deadline_ms: submit.deadline.map(|ms| self.driver.now + ms),
            prompt_logits: submit.prompt_logits,
            adapter: submit.adapter,
            resumed: self.driver.requests.len() % 7 == 6,
        };
        let seed = self.driver.requests.len() as u64;
        if let Err(error) = self.driver.submit(new, seed) {
            let known = ["request.queue_full", "request.empty_prompt", "request.too_many_choices", "kv.never_fits"];
            assert!(known.contains(&error.code) || error.code == "request.context_exceeded", "{error}");
        }
    }

    fn pick(&self, nth: usize) -> Option<crate::ids::SequenceId> {
        let live = self.driver.live();
        (!live.is_empty()).then(|| live[nth % live.len()])
    }

    fn pause(&mut self, nth: usize, paused: bool) {
        if let Some(id) = self.pick(nth) {
            assert!(self.driver.scheduler.set_paused(id, paused));
            self.driver.check();
        }
    }

    fn abort(&mut self, nth: usize) {
        if let Some(id) = self.pick(nth) {
            self.driver.abort(id);
        }
    }

    fn lose(&mut self) {
        self.driver.scheduler.device_lost();
        self.driver.machine.lose();
        self.driver.check();
        assert_eq!(self.driver.scheduler.stats().blocks_cached, 0);
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Submit(new) => self.submit(new),
            Op::Step => {
                self.step(None);
            }
            Op::StepWith(during) => self.step(Some(during)),
            Op::Abort(nth) => self.abort(*nth),
            Op::Pause(nth, paused) => self.pause(*nth, *paused),
            Op::DeviceLost => self.lose(),
            Op::Chunk(tokens) => self.driver.scheduler.set_prefill_chunk(*tokens),
            Op::Wait(ms) => self.driver.now += ms,
            Op::Fault(after) => self.driver.scheduler.inject_fault(*after),
            Op::Stale => self.stale(self.old.last().cloned()),
        }
    }

    fn stale(&mut self, plan: Option<Plan>) {
        if let Some(plan) = plan {
            let before = self.driver.scheduler.digest();
            self.driver.scheduler.rollback(plan.clone());
            let effects = self.driver.commit(plan, StepOutcome::default(), &[]);
            assert_eq!(effects.committed, 0);
            assert_eq!(before, self.driver.scheduler.digest());
        }
    }

    /// Whether something is live that is not paused: then there must be a plan.
    fn has_work(&self) -> bool {
        self.driver.live().iter().any(|id| !self.driver.scheduler.is_paused(*id))
    }

    fn step(&mut self, during: Option<&During>) {
        let fault = self.driver.scheduler.fault_pending();
        let Some(mut plan) = self.driver.plan() else {
            assert!(fault || !self.has_work(), "there is work and no plan");
            return;
        };
        assert!(self.driver.scheduler.plan(self.driver.now).is_none(), "one plan in flight");
        self.old.push(plan.clone());
        let (mut outcome, rows) = self.driver.execute(&plan);
        match during {
            None => {}
            Some(During::Abort(nth)) => self.abort(*nth),
            Some(During::Pause(nth)) => self.pause(*nth, true),
            Some(During::DeviceLost) => self.lose(),
            Some(During::Submit(new)) => self.submit(new),
            Some(During::Stale) => self.stale(self.old.iter().rev().nth(1).cloned()),
            Some(During::Tampered(_)) if !self.tampers => {}
            Some(During::Tampered(nth)) => {
                let nth = nth % plan.entries.len();
                plan.entries[nth].epoch += 1;
            }
            Some(During::NonFinite(nth)) => outcome.failed.push((nth % plan.entries.len(), "model.non_finite")),
            Some(During::ShortOutcome) => {
                outcome.tokens.pop();
            }
            Some(During::AbortAndRollback(nth)) => {
                self.abort(*nth);
                self.driver.machine.spoil(&plan);
                self.driver.scheduler.rollback(plan);
                return self.driver.check();
            }
            Some(During::Rollback) => {
                self.driver.machine.spoil(&plan);
                self.driver.scheduler.rollback(plan);
                return self.driver.check();
            }
        }
        let entries = plan.entries.len();
        let effects = self.driver.commit(plan, outcome, &rows);
        assert_eq!(effects.committed + effects.dropped, entries);
        let tampered = self.tampers && matches!(during, Some(During::Tampered(_)));
        assert!(!tampered || effects.dropped == 1, "an entry of another epoch took effect");
    }
}

/// Runs one schedule to its end. Returns what it exercised, for the coverage check.
fn run(config: SchedulerConfig, ops: &[Op], tampers: bool) -> Run {
    let mut run = Run { driver: Driver::new(config.clone()), old: Vec::new(), tampers };
    for op in ops {
        run.op(op);
    }
    for id in run.driver.live() {
        run.driver.scheduler.set_paused(id, false);
    }
    run.driver.scheduler.inject_fault(u32::MAX);
    run.driver.finish();
    if !tampers {
        let again = replay(config, run.driver.scheduler.steps()).expect("the log replays to the same digests");
        assert_eq!(again.steps(), run.driver.scheduler.steps());
    }
    run
}

fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("FIRESIDE_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    ProptestConfig { cases, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn any_schedule_keeps_every_invariant(
        config in config(),
        ops in prop::collection::vec(op(), 1..160),
        tampers in prop::bool::weighted(0.1),
    ) {
        run(config, &ops, tampers);
    }
}

#[test]
fn the_schedules_reach_what_they_are_for() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (config(), prop::collection::vec(op(), 100..160));
    let mut seen = std::collections::BTreeMap::<&str, u64>::new();
    for _ in 0..60 {
        let (config, ops) = strategy.new_tree(&mut runner).expect("a schedule").current();
        let run = run(config, &ops, false);
        let stats = run.driver.scheduler.stats();
        let ended = |wanted: fn(&SequenceState) -> bool| {
            run.driver.outputs.values().filter(|output| output.ended.as_ref().is_some_and(wanted)).count() as u64
        };
        let figures = [
            ("preemptions", stats.preemptions),
            ("copies", stats.copies_on_write),
            ("hits", stats.prefix_hits),
            ("evictions", stats.evictions),
            ("rollbacks", stats.rollbacks),
            ("finished", ended(|state| matches!(state, SequenceState::Finished(_)))),
            ("deadlines", ended(|state| *state == SequenceState::Aborted(AbortReason::Deadline))),
            ("cancelled", ended(|state| *state == SequenceState::Aborted(AbortReason::Cancelled))),
            ("failed", ended(|state| matches!(state, SequenceState::Aborted(AbortReason::Failed(_))))),
            ("forks", run.driver.outputs.values().filter(|output| output.choice > 0).count() as u64),
        ];
        for (name, figure) in figures {
            *seen.entry(name).or_default() += figure;
        }
    }
    for (name, figure) in seen {
        assert!(figure >= 30, "{name}: only {figure}");
    }
}
