//! Ends from outside, at every point, and rest: parked loops, deadlines, disposal.
use std::cell::RefCell;
use std::rc::Rc;

use crate::Error;
use crate::engine::testing::{Bench, EventLog, Task, small};
use crate::engine::{Engine, Event, GenerateRequest};
use crate::scheduler::SchedulerConfig;

#[test]
fn an_idle_engine_takes_no_ticks() {
    let mut bench = Bench::new(small());
    bench.task.run_until_parked();
    bench.run(r#"{"prompt":"abc","max_tokens":5}"#).result();
    let (ticks, polls, yields) = (bench.engine.stats().ticks, bench.task.polls, bench.host.yields());
    assert!(ticks >= 5);
    for _ in 0..1000 {
        bench.host.advance(1000.0);
        bench.task.run_until_parked();
        bench.engine.stats();
    }
    assert_eq!((bench.engine.stats().ticks, bench.task.polls, bench.host.yields()), (ticks, polls, yields));
    assert!(!bench.host.sleeping(), "no timer runs");
    bench.run(r#"{"prompt":"abc","max_tokens":5}"#).result();
}

#[test]
fn the_loop_gives_the_turn_away_after_each_step() {
    let mut bench = Bench::new(small());
    bench.run(r#"{"prompt":"abc","max_tokens":5}"#).result();
    assert_eq!(bench.host.yields(), bench.engine.stats().steps);
}

/// A request that passes through every phase: queued behind another, prefilled in chunks, forked, decoded.
const VICTIM: &str =
    r#"{"prompt":"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz","max_tokens":12,"n":2,"seed":1}"#;
const BYSTANDER: &str = r#"{"prompt":"zyxwvut","max_tokens":16,"seed":2}"#;

fn crowded() -> SchedulerConfig {
    SchedulerConfig { max_running: 2, token_budget: 8, prefill_chunk: 8, ..small() }
}

#[test]
fn a_cancel_is_heard_at_every_point() {
    let alone = Bench::new(crowded()).run(BYSTANDER).result();
    let mut phases = std::collections::BTreeSet::new();
    for polls in 0.. {
        let mut bench = Bench::new(crowded());
        let first = bench.submit(BYSTANDER);
        let victim = bench.submit(VICTIM);
        for _ in 0..polls {
            bench.task.poll();
        }
        if victim.ended() {
            break;
        }
        let sequences = bench.engine.stats().sequences;
        phases.insert((sequences.waiting, sequences.prefilling, sequences.decoding));
        assert!(bench.engine.cancel(victim.id()));
        assert_eq!(victim.code(), "request.cancelled", "at once");
        assert!(!bench.engine.cancel(victim.id()));
        bench.engine.check();
        bench.task.run_until_parked();
        assert_eq!(first.result().choices, alone.choices, "the other goes on as if alone");
        bench.assert_clean();
    }
    assert!(
        phases.iter().any(|p| p.0 == 1) && phases.iter().any(|p| p.1 == 1) && phases.iter().any(|p| p.2 >= 2),
        "{phases:?}"
    );
}

#[test]
fn a_cancel_while_the_executor_works_frees_the_blocks_at_once() {
    for steps in 0.. {
        let mut bench = Bench::new(crowded());
        let victim = bench.submit(VICTIM);
        for _ in 0..steps {
            bench.task.poll();
        }
        if victim.ended() {
            assert!(steps > 10);
            break;
        }
        bench.control.close();
        bench.task.run_until_parked();
        assert!(bench.control.is_waiting());
        bench.engine.cancel(victim.id());
        assert_eq!(victim.code(), "request.cancelled");
        assert_eq!(bench.engine.stats().blocks.held, 0);
        let next = bench.submit(BYSTANDER);
        bench.control.open();
        bench.task.run_until_parked();
        assert_eq!(next.result().usage.completion_tokens, 16);
        bench.assert_clean();
    }
}

#[test]
fn a_step_that_nobody_waits_for_any_more_is_given_up_where_it_stands() {
    let mut bench = Bench::new(small());
    bench.control.can_give_up.set(true);
    let (first, second) = (bench.submit(BYSTANDER), bench.submit(r#"{"prompt":"abc","max_tokens":4}"#));
    bench.control.close();
    bench.task.run_until_parked();
    assert!(bench.control.is_waiting());
    let free = bench.engine.stats().blocks.free;
    bench.engine.cancel(first.id());
    bench.task.run_until_parked();
    assert_eq!(bench.engine.stats().steps, 0);
    let ticks = bench.engine.stats().ticks;
    assert_eq!(ticks, 1, "somebody is left in the step");
    bench.engine.cancel(second.id());
    assert_eq!(bench.engine.stats().blocks.held, 0, "at once");
    assert!(bench.engine.stats().blocks.free > free);
    bench.task.run_until_parked();
    assert!(bench.engine.stats().ticks > ticks, "the loop does not wait for the executor");
    assert!(bench.control.steps.borrow().is_empty());
    bench.engine.check();
    // What such a step may have written is never taken for anything.
    bench.control.open();
    let expected = Bench::new(small()).run(BYSTANDER).result();
    assert_eq!(bench.run(BYSTANDER).result().choices, expected.choices);
    bench.assert_clean();
}

#[test]
fn deadlines_end_requests_in_every_phase() {
    for (timeout, phase) in [(5.0, "queued"), (35.0, "prefill"), (200.0, "decode")] {
        let mut bench = Bench::new(SchedulerConfig { max_running: 1, token_budget: 8, ..small() });
        bench.control.cost.set((10.0, 0.0));
        let first = (phase == "queued").then(|| bench.submit(r#"{"prompt":"abc","max_tokens":10}"#));
        let late = bench.submit(&format!(r#"{{"prompt":"{}","max_tokens":90,"timeout":{timeout}}}"#, "x".repeat(35)));
        bench.task.run_until_parked();
        assert_eq!(late.code(), "request.deadline", "{phase}");
        let elapsed = late.outcome().unwrap_err().details["elapsed_ms"].as_f64().unwrap();
        assert!(elapsed >= timeout && elapsed <= timeout + 10.0, "{phase}: {elapsed}");
        assert_eq!(late.tokens().is_empty(), phase != "decode");
        first.into_iter().for_each(|f| assert_eq!(f.result().usage.completion_tokens, 10));
        bench.assert_clean();
    }
}

#[test]
fn a_deadline_during_a_step_is_seen_when_the_step_ends() {
    let mut bench = Bench::new(small());
    let log = bench.submit(r#"{"prompt":"abc","max_tokens":10,"timeout":50}"#);
    bench.control.close();
    bench.task.run_until_parked();
    bench.host.advance(100.0);
    bench.control.open();
    bench.task.run_until_parked();
    assert_eq!(log.code(), "request.deadline");
}

#[test]
fn dispose_ends_everything_even_while_the_executor_hangs() {
    let mut bench = Bench::new(SchedulerConfig { max_running: 1, ..small() });
    let running = bench.submit(VICTIM.replace("\"n\":2", "\"n\":1").as_str());
    bench.control.can_give_up.set(true);
    let queued = bench.submit(BYSTANDER);
    bench.task.poll();
    bench.control.close();
    bench.task.run_until_parked();
    assert!(bench.control.is_waiting() && !bench.control.dropped.get());
    let done = Rc::new(RefCell::new(false));
    let (end, flag) = (bench.engine.dispose(), Rc::clone(&done));
    let mut waiter = Task::new(async move {
        end.await;
        *flag.borrow_mut() = true;
    });
    assert_eq!((running.code(), queued.code()), ("engine.disposed", "engine.disposed"));
    waiter.run_until_parked();
    assert!(!*done.borrow(), "the executor is still there");
    bench.task.run_until_parked();
    assert!(bench.task.is_over() && bench.control.dropped.get());
    waiter.run_until_parked();
    assert!(*done.borrow());
    bench.assert_clean();
    assert_eq!(bench.try_submit(BYSTANDER).unwrap_err().code, "engine.disposed");
    assert!(!bench.engine.cancel(running.id()));
    let mut again = Task::new(bench.engine.dispose());
    again.run_until_parked();
    assert!(again.is_over(), "dispose is idempotent");
}

#[test]
fn an_idle_engine_can_be_disposed_of() {
    let mut bench = Bench::new(small());
    bench.task.run_until_parked();
    let mut end = Task::new(bench.engine.dispose());
    bench.task.run_until_parked();
    end.run_until_parked();
    assert!(bench.task.is_over() && end.is_over());
}

#[test]
fn a_loop_that_is_dropped_ends_its_requests() {
    let mut bench = Bench::new(small());
    let log = bench.submit(BYSTANDER);
    bench.task.poll();
    bench.task.drop_future();
    assert_eq!(log.code(), "engine.disposed");
    assert_eq!(bench.try_submit(BYSTANDER).unwrap_err().code, "engine.disposed");
    let mut end = Task::new(bench.engine.dispose());
    end.run_until_parked();
    assert!(end.is_over());
}

#[test]
fn dispose_awaits_a_step_that_cannot_be_given_up() {
    let mut bench = Bench::new(small());
    let running = bench.submit(BYSTANDER);
    bench.task.poll();
    bench.control.close();
    bench.task.run_until_parked();
    let done = Rc::new(RefCell::new(false));
    let (end, flag) = (bench.engine.dispose(), Rc::clone(&done));
    let mut waiter = Task::new(async move {
        end.await;
        *flag.borrow_mut() = true;
    });
    assert_eq!(running.code(), "engine.disposed", "the request ends at once");
    bench.task.run_until_parked();
    waiter.run_until_parked();
    assert!(!*done.borrow() && !bench.control.dropped.get(), "the device is still at work");
    bench.control.open();
    bench.task.run_until_parked();
    waiter.run_until_parked();
    assert!(*done.borrow() && bench.task.is_over() && bench.control.dropped.get());
    bench.assert_clean();
}

#[test]
fn the_last_handle_takes_the_engine_along() {
    let mut bench = Bench::new(small());
    let log = bench.submit(BYSTANDER);
    let other: Engine = bench.engine.clone();
    let Bench { engine, task, .. } = &mut bench;
    drop(std::mem::replace(engine, other));
    task.poll();
    assert!(!log.ended(), "a handle is left");
    drop(bench.engine);
    bench.task.run_until_parked();
    assert!(bench.task.is_over());
    assert_eq!(log.code(), "engine.disposed");
}

#[test]
fn callbacks_may_call_the_engine() {
    let mut bench = Bench::new(small());
    let chained = EventLog::default();
    let log = EventLog::default();
    let (engine, mut sink, next) = (bench.engine.clone(), log.sink(), chained.clone());
    let id = bench
        .engine
        .generate(GenerateRequest::from_json(BYSTANDER).unwrap(), 1, move |event: Event| {
            if let Event::Token(token) = &event {
                assert!(engine.stats().sequences.decoding >= 1);
                match token.position {
                    2 => {
                        let request = GenerateRequest::from_json(r#"{"prompt":"xyz","max_tokens":3}"#).unwrap();
                        engine.generate(request, 1, next.sink()).unwrap();
                    }
                    4 => assert!(engine.cancel(crate::engine::RequestId(0)), "the request cancels itself"),
                    _ => {}
                }
            }
            sink(event);
        })
        .unwrap();
    assert_eq!(id, crate::engine::RequestId(0));
    bench.task.run_until_parked();
    assert_eq!((log.tokens().len(), log.code()), (5, "request.cancelled"));
    assert_eq!(chained.result().usage.completion_tokens, 3);
    bench.assert_clean();
}

#[test]
fn a_callback_may_dispose_of_the_engine() {
    let mut bench = Bench::new(small());
    let log = EventLog::default();
    let other = bench.submit(BYSTANDER);
    let (engine, mut sink) = (bench.engine.clone(), log.sink());
    let sink = move |event: Event| {
        if matches!(&event, Event::Token(t) if t.position == 1) {
            drop(engine.dispose());
        }
        sink(event);
    };
    bench.engine.generate(GenerateRequest::from_json(BYSTANDER).unwrap(), 1, sink).unwrap();
    bench.task.run_until_parked();
    assert!(bench.task.is_over());
    assert_eq!((log.tokens().len(), log.code(), other.code()), (2, "engine.disposed", "engine.disposed"));
}

#[test]
fn failures_of_the_executor_end_what_they_must() {
    let error = |code: &'static str| Some(Error::new(code, "a step failed"));
    // The whole step: its sequences end, later ones run.
    let mut bench = Bench::new(small());
    bench.control.failures.borrow_mut().extend([None, None, error("device.out_of_memory")]);
    let (a, b) = (bench.submit(BYSTANDER), bench.submit(VICTIM));
    bench.task.run_until_parked();
    assert_eq!((a.code(), b.code()), ("device.out_of_memory", "device.out_of_memory"));
    bench.assert_clean();
    assert_eq!(bench.run(BYSTANDER).result().usage.completion_tokens, 16);

    // A passing failure: the same tokens, as if nothing had been.
    let expected = bench.run(VICTIM).result();
    bench.control.failures.borrow_mut().extend([
        error("device.busy"),
        error("device.busy"),
        None,
        None,
        error("device.busy"),
    ]);
    assert_eq!(bench.run(VICTIM).result().choices, expected.choices);
    bench.control.failures.borrow_mut().extend([(); 4].map(|()| error("device.busy")));
    assert_eq!(bench.run(VICTIM).code(), "device.busy", "not for ever");
    bench.assert_clean();

    // A broken contract is a failed step.
    bench.control.short.set(true);
    assert_eq!(bench.run(BYSTANDER).code(), "engine.bad_step");

    // Nothing can run any more.
    bench.control.failures.borrow_mut().extend([None, error("device.lost")]);
    let (a, b) = (bench.submit(BYSTANDER), bench.submit(VICTIM));
    bench.task.run_until_parked();
    assert_eq!((a.code(), b.code()), ("device.lost", "device.lost"));
    assert!(bench.task.is_over() && bench.control.dropped.get());
    assert_eq!(bench.try_submit(BYSTANDER).unwrap_err().code, "device.lost");
    bench.assert_clean();
}

#[test]
fn a_row_that_fails_ends_its_request_alone() {
    let mut bench = Bench::new(small());
    bench.control.poisoned.borrow_mut().push(56);
    let (a, b) = (bench.submit(VICTIM), bench.submit(BYSTANDER));
    bench.task.run_until_parked();
    assert_eq!(a.code(), "model.non_finite");
    assert_eq!(b.result().usage.completion_tokens, 16);
    bench.assert_clean();
}
