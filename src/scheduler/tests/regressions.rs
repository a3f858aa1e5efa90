//! Mistakes that schedulers make, one test each.
use super::machine::{Driver, prompt, reference};
use crate::ids::{SequenceId, TokenId};
use crate::scheduler::{AbortOutcome, LogMode, NewSequence, Scheduler, SchedulerConfig, StepOutcome};
use crate::sequence::{AbortReason, FinishReason, PreemptReason, SequenceState};

pub fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_running: 8,
        max_queued: 64,
        token_budget: 64,
        prefill_chunk: 16,
        block_size: 4,
        num_blocks: 64,
        watermark_blocks: 0,
        context_length: 200,
        log: LogMode::Whole,
        ..SchedulerConfig::default()
    }
}

pub fn new(len: usize, max_tokens: usize, own: u32) -> NewSequence {
    NewSequence { tokens: prompt(0, 0, len, own), max_tokens: Some(max_tokens), choices: 1, ..NewSequence::default() }
}

/// Submits a request whose choices do not stop before `max_tokens`.
pub fn long(driver: &mut Driver, len: usize, max_tokens: usize, choices: u32) -> SequenceId {
    long_with(driver, len, max_tokens, choices, |_| {})
}

pub fn long_with(
    driver: &mut Driver,
    len: usize,
    max_tokens: usize,
    choices: u32,
    change: impl Fn(&mut NewSequence),
) -> SequenceId {
    for seed in 0..5000 {
        // No two requests have the same prompt.
        let own = 100 * driver.requests.len() as u32 + seed as u32 % 100;
        let mut new = NewSequence { choices, ..new(len, max_tokens, own) };
        change(&mut new);
        let request = super::machine::Request { new: new.clone(), seed };
        let config = driver.scheduler.config().clone();
        if (0..choices).all(|choice| reference(&request, choice, &config).2 == FinishReason::Length) {
            return driver.submit(new, seed).expect("accepted");
        }
    }
    panic!("no seed gives {max_tokens} tokens");
}

#[test]
fn usage_is_the_sequences_own_counts() {
    let mut driver = Driver::new(config());
    let id = long(&mut driver, 9, 5, 1);
    while driver.scheduler.sequence(id).is_some_and(|sequence| sequence.generated().len() < 3) {
        driver.step();
    }
    driver.scheduler.device_lost();
    driver.machine.lose();
    driver.finish();
    // Resumed once: the prompt still counts once, the tokens too.
    let output = &driver.outputs[&id];
    assert_eq!((output.tokens.len(), output.preemptions), (5, 1));
    let stats = driver.scheduler.stats();
    assert_eq!((stats.prompt_tokens, stats.completion_tokens), (9, 5));
    assert_eq!(stats.prefill_tokens_computed, 9 + 12, "prompt, then prompt and three tokens again");
}

#[test]
fn a_resume_is_not_from_the_prompt_alone() {
    let mut driver = Driver::new(config());
    let id = long(&mut driver, 9, 6, 1);
    while driver.scheduler.sequence(id).is_some_and(|sequence| sequence.generated().len() < 3) {
        driver.step();
    }
    driver.scheduler.device_lost();
    driver.machine.lose();
    assert_eq!(driver.scheduler.sequence(id).unwrap().state(), SequenceState::Preempted(PreemptReason::DeviceLost));
    let plan = driver.plan().unwrap();
    assert_eq!((plan.entries[0].start, plan.entries[0].count, plan.entries[0].output_index), (0, 12, 3));
    let (outcome, rows) = driver.execute(&plan);
    driver.commit(plan, outcome, &rows);
    driver.finish();
}

#[test]
fn an_idle_scheduler_has_no_plan_and_no_deadline() {
    let mut driver = Driver::new(config());
    assert!(driver.plan().is_none());
    long(&mut driver, 5, 3, 1);
    driver.finish();
    for _ in 0..10 {
        driver.now += 1000;
        assert!(driver.plan().is_none());
    }
    assert_eq!(driver.scheduler.next_deadline(), None);
}

#[test]
fn a_fork_writes_into_no_shared_block() {
    for (len, copies) in [(5, 3), (6, 3), (8, 0)] {
        let mut driver = Driver::new(config());
        long(&mut driver, len, 4, 4);
        driver.step();
        assert_eq!(driver.scheduler.stats().decoding, 4);
        assert_eq!(driver.scheduler.stats().blocks_held, len.div_ceil(4), "the children share all blocks");
        let plan = driver.plan().unwrap();
        assert_eq!(plan.batch.copies.len(), copies, "n sharers, n - 1 copies");
        let (outcome, rows) = driver.execute(&plan);
        driver.commit(plan, outcome, &rows);
        driver.finish();
        assert_eq!(driver.scheduler.stats().copies_on_write, copies as u64);
        assert_eq!(driver.scheduler.stats().prefill_tokens_computed, len as u64, "the prompt is computed once");
    }
}

#[test]
fn choice_zero_is_the_same_alone() {
    let mut alone = Driver::new(config());
    let first = alone.submit(new(7, 20, 3), 42).unwrap();
    alone.finish();
    let mut crowd = Driver::new(config());
    let second = crowd.submit(NewSequence { choices: 4, ..new(7, 20, 3) }, 42).unwrap();
    crowd.finish();
    assert_eq!(alone.outputs[&first].tokens, crowd.outputs[&second].tokens);
    assert_eq!(crowd.outputs.len(), 4);
}

#[test]
fn a_fork_that_fails_at_any_block_starts_over_and_loses_nothing() {
    // 9 tokens: 3 blocks, 3 children: 9 retains can fail.
    for after in 0..9 {
        let mut driver = Driver::new(config());
        let id = long(&mut driver, 9, 4, 4);
        let plan = driver.plan().unwrap();
        let (outcome, rows) = driver.execute(&plan);
        driver.scheduler.inject_fault(after);
        driver.commit(plan, outcome, &rows);
        let sequence = driver.scheduler.sequence(id).unwrap();
        assert_eq!(sequence.state(), SequenceState::Preempted(PreemptReason::OutOfBlocks), "fault at {after}");
        assert_eq!(driver.scheduler.stats().blocks_held, 0);
        driver.finish();
        assert_eq!(driver.outputs.len(), 4);
    }
}

#[test]
fn blocks_run_out_for_one_sequence_and_the_other_goes_on() {
    // Two sequences of 6 blocks each in 9: the second gives way, and ends all the same.
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 9, ..config() });
    let first = long(&mut driver, 8, 16, 1);
    let second = long(&mut driver, 8, 16, 1);
    driver.finish();
    assert_eq!(driver.outputs[&first].preemptions, 0, "the head is never preempted");
    assert!(driver.outputs[&second].preemptions > 0);
    assert_eq!(driver.outputs[&second].tokens.len(), 16, "preempted is not finished");
}

#[test]
fn generation_never_outgrows_the_pool() {
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 3, ..config() });
    // 12 slots: 13 tokens at most, the last of which needs no slot.
    assert_eq!(driver.submit(new(5, 9, 0), 0).unwrap_err().code, "kv.never_fits");
    let id = long(&mut driver, 5, 8, 1);
    driver.finish();
    assert_eq!(driver.outputs[&id].tokens.len(), 8);
    // Without max_tokens the pool is the limit.
    let mut ended_at_the_limit = 0;
    for seed in 0..300 {
        let id = driver.submit(NewSequence { max_tokens: None, ..new(5, 0, 1) }, seed).unwrap();
        driver.finish();
        let output = &driver.outputs[&id];
        if output.ended == Some(SequenceState::Finished(FinishReason::Length)) {
            assert_eq!(output.tokens.len(), 8);
            ended_at_the_limit += 1;
        }
    }
    assert!(ended_at_the_limit > 0);
}

#[test]
fn what_never_fits_is_refused_and_blocks_nobody() {
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 4, ..config() });
    assert_eq!(driver.submit(new(17, 1, 0), 0).unwrap_err().code, "kv.never_fits");
    assert_eq!(driver.submit(new(200, 1, 0), 0).unwrap_err().code, "request.context_exceeded");
    assert_eq!(driver.submit(new(0, 1, 0), 0).unwrap_err().code, "request.empty_prompt");
    assert_eq!(
        driver.submit(NewSequence { choices: 9, ..new(4, 1, 0) }, 0).unwrap_err().code,
        "request.too_many_choices"
    );
    // A prompt that fills the pool to the last slot does fit.
    let id = driver.submit(new(16, 1, 0), 0).unwrap();
    driver.finish();
    assert_eq!(driver.outputs[&id].tokens.len(), 1);
}

#[test]
fn a_prompt_of_the_whole_context_can_be_scored_but_not_continued() {
    let mut driver = Driver::new(config());
    assert_eq!(driver.submit(new(200, 0, 0), 0).unwrap_err().code, "request.context_exceeded");
    let id = driver.submit(NewSequence { prompt_logits: true, ..new(200, 0, 0) }, 0).unwrap();
    driver.finish();
    assert_eq!(driver.outputs[&id].prompt_values.len(), 200);
}

#[test]
fn completion_and_context_are_two_limits() {
    let mut driver = Driver::new(SchedulerConfig { context_length: 12, ..config() });
    let id = long_with(&mut driver, 9, 3, 1, |new| new.max_tokens = Some(100));
    driver.finish();
    assert_eq!(driver.outputs[&id].tokens.len(), 3, "the context ends it");
    assert_eq!(driver.outputs[&id].ended, Some(SequenceState::Finished(FinishReason::Length)));
}

#[test]
fn the_queue_is_bounded_and_says_so() {
    let mut driver = Driver::new(SchedulerConfig { max_queued: 3, ..config() });
    for own in 0..3 {
        driver.submit(new(4, 2, own), 0).unwrap();
    }
    assert_eq!(driver.submit(new(4, 2, 3), 0).unwrap_err().code, "request.queue_full");
    driver.step();
    driver.submit(new(4, 2, 3), 0).unwrap();
    driver.finish();
}

#[test]
fn an_event_after_the_end_changes_nothing() {
    let mut driver = Driver::new(config());
    let id = driver.submit(new(5, 2, 0), 0).unwrap();
    driver.finish();
    let before = driver.scheduler.digest();
    assert_eq!(driver.scheduler.abort(id, AbortReason::Cancelled), AbortOutcome::AlreadyEnded);
    assert_eq!(driver.scheduler.abort(SequenceId(99), AbortReason::Cancelled), AbortOutcome::Unknown);
    assert!(!driver.scheduler.set_paused(id, true));
    assert_eq!(before, driver.scheduler.digest());
    assert!(driver.scheduler.reap().is_empty());
    assert!(driver.scheduler.sequence(id).is_none(), "reaped sequences are forgotten");
}

#[test]
fn a_finished_sequence_is_kept_until_reaped() {
    let config = config();
    let mut scheduler = Scheduler::new(config).unwrap();
    let id = scheduler.submit(new(5, 2, 0), 0).unwrap();
    scheduler.abort(id, AbortReason::Disposed);
    assert_eq!(scheduler.sequence(id).unwrap().state(), SequenceState::Aborted(AbortReason::Disposed));
    assert_eq!(scheduler.abort(id, AbortReason::Cancelled), AbortOutcome::AlreadyEnded);
    let ended = scheduler.reap();
    assert_eq!((ended.len(), ended[0].id()), (1, id));
    assert_eq!(ended[0].state(), SequenceState::Aborted(AbortReason::Disposed), "the first reason stays");
}

#[test]
fn cancelled_while_the_executor_works() {
    let mut driver = Driver::new(config());
    let first = long(&mut driver, 6, 5, 1);
    let second = long(&mut driver, 6, 5, 1);
    driver.step();
    let plan = driver.plan().unwrap();
    let (outcome, rows) = driver.execute(&plan);
    driver.abort(first);
    let effects = driver.commit(plan, outcome, &rows);
    assert_eq!((effects.committed, effects.dropped), (1, 1), "nothing of the other is lost");
    assert_eq!(driver.scheduler.sequence(second).unwrap().generated().len(), 2);
    driver.finish();
    assert_eq!(driver.outputs[&first].tokens.len(), 1);
}

#[test]
fn a_cancelled_sequence_keeps_no_slot() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 1, ..config() });
    let first = long(&mut driver, 6, 5, 1);
    let second = long(&mut driver, 6, 5, 1);
    let plan = driver.plan().unwrap();
    let (outcome, rows) = driver.execute(&plan);
    driver.abort(first);
    driver.commit(plan.clone(), outcome.clone(), &rows);
    // The same plan once more, and its rollback: stale, harmless.
    let before = driver.scheduler.digest();
    driver.commit(plan.clone(), outcome, &rows);
    driver.scheduler.rollback(plan);
    assert_eq!(before, driver.scheduler.digest());
    let plan = driver.plan().unwrap();
    assert_eq!(plan.entries[0].sequence, second, "the next request does not starve");
    let (outcome, rows) = driver.execute(&plan);
    driver.commit(plan, outcome, &rows);
    driver.finish();
}

#[test]
fn two_run_and_the_third_waits_its_turn() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 2, ..config() });
    let ids: Vec<_> = (0..3).map(|_| long(&mut driver, 6, 5, 1)).collect();
    let mut planned = std::collections::BTreeMap::<_, usize>::new();
    while let Some(plan) = driver.plan() {
        assert!(plan.entries.len() <= 2);
        for entry in &plan.entries {
            // Positions are computed once each, in order: no prompt is prefilled again in mid-decode.
            let next = planned.entry(entry.sequence).or_default();
            assert_eq!(entry.start, *next);
            *next += entry.count;
        }
        let (outcome, rows) = driver.execute(&plan);
        driver.commit(plan, outcome, &rows);
    }
    driver.verify();
    assert_eq!(ids.iter().map(|id| planned[id]).collect::<Vec<_>>(), [10, 10, 10]);
}

#[test]
fn a_rollback_is_as_if_the_plan_had_never_been_made() {
    let mut driver = Driver::new(config());
    long(&mut driver, 6, 5, 3);
    driver.step();
    long(&mut driver, 20, 5, 1);
    let before = (driver.scheduler.digest(), driver.scheduler.stats());
    let plan = driver.plan().unwrap();
    assert!(!plan.batch.copies.is_empty() && plan.entries.iter().any(|entry| entry.prefill));
    assert_ne!(before.0, driver.scheduler.digest());
    driver.machine.forward(&plan, |_| 0);
    driver.machine.spoil(&plan);
    driver.scheduler.rollback(plan.clone());
    driver.check();
    let mut stats = driver.scheduler.stats();
    assert_eq!(std::mem::take(&mut stats.rollbacks), 1);
    assert_eq!(before, (driver.scheduler.digest(), stats));
    let again = driver.plan().unwrap();
    assert_eq!((&again.entries, &again.batch), (&plan.entries, &plan.batch), "the same blocks in the same order");
    let (outcome, rows) = driver.execute(&again);
    driver.commit(again, outcome, &rows);
    driver.finish();
}

#[test]
fn a_failed_row_ends_its_request_alone_and_its_blocks_are_never_hit() {
    let mut driver = Driver::new(config());
    let shared = |own| NewSequence { tokens: prompt(1, 12, 14, own), ..new(14, 6, 0) };
    let bad = driver.submit(shared(1), 1).unwrap();
    let plan = driver.plan().unwrap();
    let (outcome, rows) = driver.execute(&plan);
    driver.commit(plan, outcome, &rows);
    let good = long(&mut driver, 6, 5, 1);
    let plan = driver.plan().unwrap();
    let place = plan.entries.iter().position(|entry| entry.sequence == bad).unwrap();
    let (mut outcome, rows) = driver.execute(&plan);
    outcome.failed = vec![(place, "model.non_finite")];
    driver.commit(plan, outcome, &rows);
    assert_eq!(driver.outputs[&bad].ended, Some(SequenceState::Aborted(AbortReason::Failed("model.non_finite"))));
    let next = driver.submit(shared(2), 2).unwrap();
    driver.finish();
    assert_eq!(driver.outputs[&next].cached_tokens, 0);
    assert_eq!(driver.outputs[&good].tokens.len(), 5);
    let after = driver.submit(shared(3), 3).unwrap();
    driver.finish();
    assert_eq!(driver.outputs[&after].cached_tokens, 12, "those of a sound one are");
}

#[test]
fn nothing_cached_survives_a_lost_device() {
    let mut driver = Driver::new(config());
    driver.submit(new(14, 3, 0), 1).unwrap();
    driver.finish();
    assert!(driver.scheduler.stats().blocks_cached > 0);
    driver.scheduler.device_lost();
    driver.machine.lose();
    assert_eq!(driver.scheduler.stats().blocks_cached, 0);
    let again = driver.submit(new(14, 3, 0), 1).unwrap();
    driver.finish();
    assert_eq!(driver.outputs[&again].cached_tokens, 0);
}

#[test]
fn a_device_lost_while_the_executor_works_leaves_a_stale_plan() {
    let mut driver = Driver::new(config());
    let id = long(&mut driver, 6, 5, 2);
    driver.step();
    let plan = driver.plan().unwrap();
    assert_eq!(plan.batch.copies.len(), 1);
    let (outcome, rows) = driver.execute(&plan);
    driver.scheduler.device_lost();
    driver.machine.lose();
    driver.check();
    assert_eq!(driver.commit(plan, outcome, &rows).dropped, 2);
    assert_eq!(driver.scheduler.sequence(id).unwrap().generated().len(), 1);
    driver.finish();
}

#[test]
fn an_admission_that_was_undone_does_not_count_as_the_first() {
    let mut driver = Driver::new(config());
    driver.submit(new(14, 3, 0), 1).unwrap();
    driver.finish();
    let again = driver.submit(new(14, 3, 0), 1).unwrap();
    let plan = driver.plan().unwrap();
    assert_eq!(plan.entries[0].start, 12);
    driver.scheduler.device_lost();
    driver.machine.lose();
    driver.finish();
    assert_eq!(driver.outputs[&again].cached_tokens, 0, "it computed all of its prompt");
    assert_eq!(driver.scheduler.stats().prefix_hits, 0);
}

#[test]
fn a_short_outcome_ends_the_requests_it_is_short_of() {
    let mut driver = Driver::new(config());
    let first = long(&mut driver, 6, 5, 1);
    let second = long(&mut driver, 6, 5, 1);
    let plan = driver.plan().unwrap();
    let (mut outcome, rows) = driver.execute(&plan);
    outcome.tokens.truncate(1);
    driver.commit(plan, outcome, &rows);
    let failed = SequenceState::Aborted(AbortReason::Failed("scheduler.short_outcome"));
    assert_eq!(driver.outputs[&second].ended, Some(failed));
    driver.finish();
    assert_eq!(driver.outputs[&first].tokens.len(), 5);
}

#[test]
fn a_sequence_goes_on_in_another_scheduler() {
    let mut driver = Driver::new(config());
    let id = long(&mut driver, 7, 9, 1);
    for _ in 0..4 {
        driver.step();
    }
    let sequence = driver.scheduler.sequence(id).unwrap().clone();
    let taken_over = NewSequence {
        tokens: sequence.tokens().to_vec(),
        generated: sequence.generated().len(),
        max_tokens: Some(9),
        choices: 1,
        ..NewSequence::default()
    };
    driver.finish();
    let mut fresh = Scheduler::new(config()).unwrap();
    let id = fresh.submit(taken_over, 0).unwrap();
    let plan = fresh.plan(0).unwrap();
    assert_eq!((plan.entries[0].count, plan.entries[0].output_index), (11, 4));
    struct Sink(Vec<usize>);
    impl crate::scheduler::TokenSink for Sink {
        fn token(&mut self, _: SequenceId, index: usize, _: TokenId) -> Option<FinishReason> {
            self.0.push(index);
            None
        }
        fn forked(&mut self, _: SequenceId, _: SequenceId, _: u32) {}
        fn prompt_rows(&mut self, _: SequenceId, _: usize, _: std::ops::Range<usize>) {}
    }
    let mut sink = Sink(Vec::new());
    fresh.commit(plan, StepOutcome { tokens: vec![TokenId(3)], failed: Vec::new() }, &mut sink);
    while let Some(plan) = fresh.plan(0) {
        fresh.commit(plan, StepOutcome { tokens: vec![TokenId(3)], failed: Vec::new() }, &mut sink);
    }
    let ended = fresh.reap().remove(0);
    assert_eq!((ended.id(), ended.prompt_len(), ended.generated().len()), (id, 7, 9));
    assert_eq!(sink.0, [4, 5, 6, 7, 8]);
}
