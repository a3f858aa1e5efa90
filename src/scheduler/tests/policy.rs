//! Who runs, who waits, who gives way; what is shared; what the log keeps.
use super::machine::{Driver, prompt};
use super::regressions::{config, long, long_with, new};
use crate::ids::SequenceId;
use crate::scheduler::{Command, LogMode, NewSequence, SchedulerConfig, replay};
use crate::sequence::{AbortReason, PreemptReason, SequenceState};

#[test]
fn fifty_requests_compute_their_common_prefix_once() {
    let mut driver = Driver::new(SchedulerConfig {
        block_size: 16,
        num_blocks: 256,
        token_budget: 128,
        prefill_chunk: 64,
        context_length: 1000,
        ..config()
    });
    let ids: Vec<_> = (0..50)
        .map(|own| {
            let tokens = prompt(1, 300, 310, own);
            driver.submit(NewSequence { tokens, ..new(0, 8, 0) }, own.into()).unwrap()
        })
        .collect();
    driver.finish();
    let cached: Vec<_> = ids.iter().map(|id| driver.outputs[id].cached_tokens).collect();
    assert_eq!(cached.iter().filter(|&&cached| cached == 0).count(), 1);
    assert_eq!(cached.iter().filter(|&&cached| cached == 288).count(), 49);
    assert_eq!(driver.scheduler.stats().prefill_tokens_computed, 310 + 49 * 22);
}

#[test]
fn those_who_wait_for_a_block_hold_up_nobody() {
    for gives_up in [false, true] {
        let mut driver = Driver::new(SchedulerConfig { token_budget: 30, ..config() });
        let shared = |own| NewSequence { tokens: prompt(1, 40, 44, own), ..new(0, 4, 0) };
        let first = driver.submit(shared(0), 0).unwrap();
        let second = driver.submit(shared(1), 1).unwrap();
        let other = long(&mut driver, 3, 4, 1);
        driver.step();
        let plan = driver.plan().unwrap();
        assert_eq!(driver.scheduler.num_parked(), 1, "7 of 10 shared blocks are there, the 8th is being computed");
        let planned: Vec<_> = plan.entries.iter().map(|entry| (entry.sequence, entry.count)).collect();
        assert_eq!(planned, [(first, 14), (other, 3)]);
        let (outcome, rows) = driver.execute(&plan);
        if gives_up {
            driver.abort(first);
            assert_eq!(driver.scheduler.num_parked(), 0, "nobody computes it any more");
        }
        driver.commit(plan, outcome, &rows);
        assert_eq!(driver.scheduler.num_parked(), 0);
        driver.finish();
        assert_eq!(driver.outputs[&second].cached_tokens, if gives_up { 28 } else { 40 });
    }
}

#[test]
fn nobody_waits_for_a_paused_prefill() {
    let mut driver = Driver::new(SchedulerConfig { prefill_chunk: 4, token_budget: 4, ..config() });
    let shared = |own| NewSequence { tokens: prompt(1, 40, 44, own), ..new(0, 4, 0) };
    let first = driver.submit(shared(0), 0).unwrap();
    let second = driver.submit(shared(1), 1).unwrap();
    driver.step();
    driver.scheduler.set_paused(first, true);
    while driver.step() {}
    assert!(driver.outputs[&second].ended.is_some());
    assert!(driver.outputs[&first].ended.is_none());
    driver.scheduler.set_paused(first, false);
    driver.finish();
}

#[test]
fn a_conversation_hits_its_generated_tokens() {
    let mut driver = Driver::new(config());
    let id = long(&mut driver, 10, 9, 1);
    driver.finish();
    let mut tokens = driver.requests[0].new.tokens.clone();
    tokens.extend(&driver.outputs[&id].tokens);
    tokens.extend(prompt(0, 0, 5, 9));
    let next = driver.submit(NewSequence { tokens, ..new(0, 3, 0) }, 1).unwrap();
    driver.finish();
    // 19 tokens, of which 18 have KV: 4 full blocks.
    assert_eq!(driver.outputs[&next].cached_tokens, 16);
}

#[test]
fn equal_prompts_leave_one_token_to_compute() {
    for (len, cached) in [(16, 12), (17, 16), (1, 0)] {
        let mut driver = Driver::new(config());
        let one = NewSequence { tokens: prompt(1, len, len, 0), ..new(0, 3, 0) };
        driver.submit(one.clone(), 0).unwrap();
        driver.finish();
        let id = driver.submit(one, 0).unwrap();
        driver.finish();
        assert_eq!(driver.outputs[&id].cached_tokens, cached);
    }
}

#[test]
fn nothing_is_shared_across_adapters_or_without_the_cache() {
    for (prefix_cache, adapter) in [(true, 1), (false, 0)] {
        let mut driver = Driver::new(SchedulerConfig { prefix_cache, ..config() });
        let one = NewSequence { tokens: prompt(1, 20, 20, 0), ..new(0, 3, 0) };
        driver.submit(one.clone(), 0).unwrap();
        driver.finish();
        let id = driver.submit(NewSequence { adapter, ..one }, 0).unwrap();
        driver.finish();
        assert_eq!(driver.outputs[&id].cached_tokens, 0);
    }
}

#[test]
fn prompt_logits_take_no_hits_and_survive_preemption() {
    let mut driver = Driver::new(SchedulerConfig { token_budget: 6, ..config() });
    let one = NewSequence { tokens: prompt(1, 20, 20, 0), prompt_logits: true, ..new(0, 3, 0) };
    let warm = NewSequence { prompt_logits: false, ..one.clone() };
    driver.submit(warm, 0).unwrap();
    driver.finish();
    let id = driver.submit(one, 0).unwrap();
    driver.step();
    driver.step();
    driver.scheduler.device_lost();
    driver.machine.lose();
    driver.finish();
    assert_eq!(driver.outputs[&id].prompt_values.len(), 20);
    assert_eq!(driver.outputs[&id].preemptions, 1);
}

#[test]
fn nothing_to_generate_answers_with_usage_and_warms_the_cache() {
    let mut driver = Driver::new(config());
    let id = driver.submit(NewSequence { choices: 3, ..new(9, 0, 0) }, 0).unwrap();
    driver.finish();
    assert_eq!(driver.outputs.len(), 1);
    assert!(driver.outputs[&id].tokens.is_empty());
    let next = driver.submit(new(9, 2, 0), 0).unwrap();
    driver.finish();
    assert_eq!(driver.outputs[&next].cached_tokens, 8);
}

#[test]
fn decodes_come_first_and_a_mixed_step_takes_one_chunk() {
    let mut driver = Driver::new(SchedulerConfig { prefill_chunk: 8, ..config() });
    let running = long(&mut driver, 4, 12, 1);
    driver.step();
    long(&mut driver, 60, 2, 1);
    let mut mixed = 0;
    loop {
        let plan = driver.plan().unwrap();
        let prefill: usize = plan.entries.iter().filter(|entry| entry.prefill).map(|entry| entry.count).sum();
        if !plan.entries.iter().any(|entry| entry.sequence == running) {
            break;
        }
        assert_eq!(plan.entries[0].sequence, running, "a running stream gets its token in every step");
        assert!(prefill <= 8);
        mixed += usize::from(prefill == 8);
        let (outcome, rows) = driver.execute(&plan);
        driver.commit(plan, outcome, &rows);
        if driver.outputs[&running].ended.is_some() {
            break;
        }
    }
    assert!(mixed >= 7, "{mixed}");
    driver.scheduler.set_prefill_chunk(2);
    driver.finish();
}

fn order_of_admission(driver: &mut Driver) -> Vec<SequenceId> {
    let mut order = Vec::new();
    while let Some(plan) = driver.plan() {
        for entry in &plan.entries {
            if !order.contains(&entry.sequence) {
                order.push(entry.sequence);
            }
        }
        let (outcome, rows) = driver.execute(&plan);
        driver.commit(plan, outcome, &rows);
    }
    driver.verify();
    order
}

#[test]
fn waiting_ones_go_by_priority_then_arrival_with_ageing() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 1, ageing_ms: 100, ..config() });
    let mut submit = |now, priority| {
        driver.now = now;
        long_with(&mut driver, 4, 2, 1, |new| new.priority = priority)
    };
    let old = submit(0, 0);
    let urgent = submit(50, 1);
    let late = submit(60, 0);
    let too_late = submit(150, 1);
    // 150 - 100 > 0: the oldest has aged past the last one, not past the urgent one.
    assert_eq!(order_of_admission(&mut driver), [urgent, old, too_late, late]);
}

#[test]
fn without_ageing_priority_is_strict() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 1, ageing_ms: 0, ..config() });
    let low = long_with(&mut driver, 4, 2, 1, |new| new.priority = -1);
    driver.now = 1_000_000;
    let high = long_with(&mut driver, 4, 2, 1, |new| new.priority = 1);
    assert_eq!(order_of_admission(&mut driver), [high, low]);
}

#[test]
fn the_victim_is_the_lowest_priority_then_the_newest() {
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 12, ..config() });
    let low = long_with(&mut driver, 8, 16, 1, |new| new.priority = -1);
    let old = long_with(&mut driver, 8, 16, 1, |_| {});
    let new = long_with(&mut driver, 8, 16, 1, |_| {});
    driver.finish();
    let preemptions = [low, old, new].map(|id| driver.outputs[&id].preemptions);
    assert!(preemptions[0] > 0 && preemptions[1] == 0, "{preemptions:?}");
}

#[test]
fn a_higher_priority_displaces_a_lower_one_but_never_the_head() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 2, ..config() });
    let head = long(&mut driver, 4, 12, 1);
    let tail = long(&mut driver, 4, 12, 1);
    driver.step();
    let urgent = long_with(&mut driver, 4, 6, 1, |new| new.priority = 5);
    driver.step();
    let state = |driver: &Driver, id| driver.scheduler.sequence(id).unwrap().state();
    assert_eq!(state(&driver, tail), SequenceState::Preempted(PreemptReason::Priority));
    assert_eq!(state(&driver, urgent), SequenceState::Decoding);
    assert_eq!(state(&driver, head), SequenceState::Decoding);
    driver.finish();
    let mut alone = Driver::new(SchedulerConfig { max_running: 1, ..config() });
    let head = long(&mut alone, 4, 12, 1);
    alone.step();
    long_with(&mut alone, 4, 6, 1, |new| new.priority = 5);
    alone.step();
    assert_eq!(state(&alone, head), SequenceState::Decoding);
    alone.finish();
}

#[test]
fn a_higher_priority_does_not_displace_one_that_has_aged_past_it() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 2, ageing_ms: 100, ..config() });
    long_with(&mut driver, 4, 12, 1, |new| new.priority = 5);
    let old = long(&mut driver, 4, 12, 1);
    driver.step();
    driver.now = 1000;
    let newer = long_with(&mut driver, 4, 6, 1, |new| new.priority = 1);
    driver.step();
    assert_eq!(driver.scheduler.sequence(newer).unwrap().state(), SequenceState::Waiting);
    assert_eq!(driver.scheduler.sequence(old).unwrap().state(), SequenceState::Decoding);
    driver.finish();
}

#[test]
fn the_last_gives_up_its_own_blocks_when_it_needs_one() {
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 5, ..config() });
    let first = long(&mut driver, 9, 3, 1);
    let last = long(&mut driver, 8, 4, 1);
    driver.step();
    assert_eq!(driver.scheduler.stats().blocks_held, 5);
    driver.step();
    let state = driver.scheduler.sequence(last).unwrap().state();
    assert_eq!(state, SequenceState::Preempted(PreemptReason::OutOfBlocks));
    assert_eq!(driver.scheduler.sequence(first).unwrap().generated().len(), 2);
    driver.finish();
}

#[test]
fn children_of_a_paused_sequence_are_born_paused() {
    let mut driver = Driver::new(config());
    let id = long(&mut driver, 6, 5, 3);
    let plan = driver.plan().unwrap();
    let (outcome, rows) = driver.execute(&plan);
    driver.scheduler.set_paused(id, true);
    driver.commit(plan, outcome, &rows);
    assert_eq!(driver.scheduler.stats().decoding, 3);
    assert!(!driver.step());
    for id in driver.live() {
        driver.scheduler.set_paused(id, false);
    }
    driver.finish();
}

#[test]
fn an_admission_leaves_the_watermark_free_unless_nothing_runs() {
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 8, watermark_blocks: 3, ..config() });
    let first = long(&mut driver, 8, 8, 1);
    let second = long(&mut driver, 16, 4, 1);
    driver.step();
    // 2 held, 6 left, 4 needed: that would leave 2.
    assert_eq!(driver.scheduler.sequence(second).unwrap().state(), SequenceState::Waiting);
    while driver.outputs[&first].ended.is_none() {
        driver.step();
    }
    driver.finish();
    let mut driver = Driver::new(SchedulerConfig { num_blocks: 4, watermark_blocks: 100, ..config() });
    long(&mut driver, 8, 8, 1);
    driver.finish();
}

#[test]
fn a_deadline_ends_in_any_state_and_is_announced() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 1, ..config() });
    let running = long_with(&mut driver, 4, 30, 1, |new| new.deadline_ms = Some(20));
    let waiting = long_with(&mut driver, 4, 30, 1, |new| new.deadline_ms = Some(10));
    assert_eq!(driver.scheduler.next_deadline(), Some(10));
    driver.step();
    driver.now = 10;
    driver.step();
    let deadline = Some(SequenceState::Aborted(AbortReason::Deadline));
    assert_eq!(driver.outputs[&waiting].ended, deadline);
    assert_eq!(driver.scheduler.next_deadline(), Some(20));
    driver.now = 25;
    assert!(!driver.step());
    assert_eq!(driver.outputs[&running].ended, deadline);
    assert_eq!(driver.outputs[&running].tokens.len(), 2);
    assert_eq!(driver.scheduler.next_deadline(), None);
    driver.verify();
}

#[test]
fn a_paused_sequence_waits_and_gives_way() {
    let mut driver = Driver::new(SchedulerConfig { max_running: 1, ..config() });
    let slow = long(&mut driver, 4, 12, 1);
    driver.step();
    driver.scheduler.set_paused(slow, true);
    assert!(!driver.step(), "nothing to do but wait for its reader");
    assert_eq!(driver.scheduler.stats().decoding, 1, "it keeps its blocks while nobody needs them");
    let next = long(&mut driver, 4, 12, 1);
    while driver.step() {}
    assert_eq!(driver.outputs[&next].tokens.len(), 12);
    assert_eq!(driver.outputs[&slow].tokens.len(), 1);
    driver.scheduler.set_paused(slow, false);
    driver.finish();
    assert_eq!(driver.outputs[&slow].preemptions, 1);
}

#[test]
fn outputs_do_not_depend_on_cache_chunks_budgets_or_pool() {
    let mut outputs = Vec::new();
    let mut preempted = 0;
    for prefix_cache in [true, false] {
        for (token_budget, prefill_chunk) in [(1, 1), (7, 3), (64, 64), (256, 16)] {
            for num_blocks in [12, 20, 400] {
                let config = SchedulerConfig { prefix_cache, token_budget, prefill_chunk, num_blocks, ..config() };
                let mut driver = Driver::new(config);
                for own in 0..6 {
                    let tokens = prompt(1, 10, 14 + own as usize, own);
                    let choices = 1 + own % 3;
                    driver.submit(NewSequence { tokens, choices, ..new(0, 20, 0) }, own.into()).unwrap();
                }
                driver.finish();
                preempted += driver.scheduler.stats().preemptions;
                let of = |output: &super::machine::Output| (output.request, output.choice, output.tokens.clone());
                let mut all: Vec<_> = driver.outputs.values().map(of).collect();
                all.sort();
                outputs.push(all);
            }
        }
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(preempted > 10);
}

#[test]
fn a_ring_keeps_the_last_steps_and_no_prompts() {
    let mut driver = Driver::new(SchedulerConfig { log: LogMode::Ring(5), ..config() });
    long(&mut driver, 6, 12, 2);
    driver.step();
    assert!(
        driver.scheduler.steps()[0]
            .commands
            .iter()
            .any(|command| matches!(command, Command::Submit { new, num_tokens: 6, .. } if new.tokens.is_empty()))
    );
    driver.finish();
    let steps = driver.scheduler.steps();
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().zip(steps.iter().skip(1)).all(|(one, next)| one.step + 1 == next.step));
    assert!(replay(driver.scheduler.config().clone(), steps).is_err(), "a ring is no whole log");
}

#[test]
fn the_trace_tells_what_a_step_did() {
    let mut driver = Driver::new(config());
    long(&mut driver, 6, 4, 2);
    driver.step();
    driver.step();
    let steps = driver.scheduler.steps();
    assert_eq!(steps[0].blocks.allocated.len(), 2);
    assert_eq!(steps[0].planned.len(), 1);
    assert_eq!(steps[0].transitions.len(), 5, "admitted, prefilled, forked, two tokens");
    assert_eq!((steps[1].copied.len(), steps[1].planned.len()), (1, 2));
}

#[test]
fn a_log_that_was_changed_does_not_replay() {
    let mut driver = Driver::new(config());
    long(&mut driver, 6, 4, 2);
    driver.finish();
    let config = driver.scheduler.config().clone();
    let mut steps = driver.scheduler.steps().clone();
    replay(config.clone(), &steps).unwrap();
    for command in &mut steps[2].commands {
        if let Command::Commit { outcome, .. } = command {
            outcome.tokens[0].0 ^= 1;
        }
    }
    assert_eq!(replay(config, &steps).unwrap_err().step, 2);
}
