//! Many requests, few blocks.
use proptest::prelude::*;

use crate::engine::GenerateResult;
use crate::engine::testing::{Bench, EventLog, small};
use crate::scheduler::SchedulerConfig;

fn request(i: usize) -> String {
    let prompt: String = (0..3 + i * 7 % 23).map(|k| char::from(b'a' + ((i * 5 + k * k) % 26) as u8)).collect();
    let n = 1 + usize::from(i.is_multiple_of(5));
    format!(r#"{{"prompt":"{prompt}","max_tokens":{},"seed":{i},"n":{n}}}"#, 1 + i * 11 % 17)
}

fn alone(i: usize) -> GenerateResult {
    Bench::new(small()).run(&request(i)).result()
}

#[test]
fn two_hundred_requests_queue_or_are_refused() {
    let mut bench = Bench::new(small());
    let logs: Vec<_> = (0..200).map(|i| bench.try_submit(&request(i))).collect();
    let full: Vec<_> = logs.iter().filter_map(|l| l.as_ref().err()).collect();
    assert_eq!(full.len(), 200 - 64);
    for error in full {
        assert_eq!((error.code, error.details["max_queued"].as_u64()), ("request.queue_full", Some(64)));
    }
    bench.task.run_until_parked();
    for (i, log) in logs.iter().enumerate().filter_map(|(i, l)| Some((i, l.as_ref().ok()?))) {
        assert_eq!(log.result().choices, alone(i).choices, "request {i}");
    }
    bench.assert_clean();
    assert_eq!(bench.engine.stats().sequences.waiting, 0);
    assert!(bench.try_submit(&request(0)).is_ok(), "there is room again");
}

#[test]
fn preempted_requests_give_the_tokens_that_they_give_alone() {
    let config = SchedulerConfig { num_blocks: 14, context_length: 48, watermark_blocks: 0, ..small() };
    let mut bench = Bench::new(config);
    let logs: Vec<_> = (0..40).map(|i| bench.submit(&request(i))).collect();
    bench.task.run_until_parked();
    for (i, log) in logs.iter().enumerate() {
        let (got, want) = (log.result(), alone(i));
        assert_eq!(got.choices, want.choices, "request {i}");
        assert_eq!(got.usage.completion_tokens, want.usage.completion_tokens);
    }
    let stats = bench.engine.stats();
    assert!(stats.preemptions > 0, "the pool was meant to be too small: {stats:?}");
    bench.assert_clean();
}

#[test]
fn mixed_steps_shrink_when_prefill_is_slow() {
    let mut bench = Bench::new(SchedulerConfig { prefill_chunk: 32, ..small() });
    bench.control.cost.set((1.0, 1.0));
    let decoding = bench.submit(r#"{"prompt":"abc","max_tokens":100,"temperature":0}"#);
    for _ in 0..6 {
        bench.task.poll();
    }
    let long = bench.submit(&format!(r#"{{"prompt":"{}","max_tokens":2}}"#, "y".repeat(100)));
    let longer = bench.submit(&format!(r#"{{"prompt":"{}","max_tokens":2}}"#, "z".repeat(100)));
    bench.control.steps.borrow_mut().clear();
    bench.task.run_until_parked();
    for log in [decoding, long, longer] {
        log.result();
    }
    let steps = bench.control.steps.borrow();
    let mixed: Vec<_> = steps.iter().filter(|&&tokens| tokens > 3).collect();
    // A decode step takes 2 ms and a prompt token 1 ms: 7 x 2 prompt tokens fit beside a decode step.
    assert!(mixed.iter().skip(2).all(|&&tokens| tokens <= 18), "{mixed:?}");
}

#[test]
fn stats_and_trace_say_what_happened() {
    let mut bench = Bench::new(small());
    bench.control.cost.set((10.0, 0.0));
    bench.run(r#"{"prompt":"abcdefgh","max_tokens":11,"temperature":0}"#).result();
    let stats = bench.engine.stats();
    assert_eq!((stats.steps, stats.tokens.prompt, stats.tokens.completion), (11, 8, 11));
    assert_eq!((stats.sequences.finished, stats.executor.dispatches), (1, 110));
    assert_eq!((stats.rate.dispatches_per_step, stats.rate.readbacks_per_step), (10.0, 1.0));
    assert_eq!((stats.rate.decode_tokens_per_second, stats.rate.prefill_tokens_per_second), (100.0, 800.0));
    let json = serde_json::to_value(stats).unwrap();
    for field in ["sequences", "blocks", "steps", "preemptions", "copiesOnWrite", "prefixCache", "tokens", "rate"] {
        assert!(json.get(field).is_some(), "{field}");
    }
    assert!(
        json["blocks"]["blockSize"] == 4
            && json["prefixCache"]["hitTokens"] == 0
            && json["rate"]["hostMsPerStep"].is_number()
    );
    let trace = bench.engine.trace(3);
    assert_eq!(trace.iter().map(|t| t.step).collect::<Vec<_>>(), [8, 9, 10]);
    assert_eq!((trace[0].planned[0].state, trace[0].planned[0].tokens), ("decoding", 1));
    assert_eq!(trace[2].transitions.last().unwrap().to, "finished");
    assert_eq!(bench.engine.trace(usize::MAX).len(), 11);
}

#[derive(Debug, Clone)]
enum Op {
    Submit(usize),
    Cancel(usize),
    Poll(usize),
    Close,
    Open,
    Advance(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..40).prop_map(Op::Submit),
        2 => (0usize..30).prop_map(Op::Cancel),
        6 => (1usize..6).prop_map(Op::Poll),
        1 => Just(Op::Close),
        2 => Just(Op::Open),
        1 => any::<u8>().prop_map(Op::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_order_of_commands_ends_every_request_once(
        ops in prop::collection::vec(op(), 1..60), blocks in 12usize..40, running in 2usize..6, budget in 1usize..20,
    ) {
        let config = SchedulerConfig {
            num_blocks: blocks, context_length: 44, max_running: running, token_budget: budget, max_queued: 6, ..small()
        };
        let mut bench = Bench::new(config);
        let mut logs: Vec<(usize, EventLog)> = Vec::new();
        bench.control.can_give_up.set(ops.len() % 2 == 0);
        for op in ops {
            match op {
                Op::Submit(i) => match bench.try_submit(&request(i)) {
                    Ok(log) => logs.push((i, log)),
                    Err(e) => prop_assert_eq!(e.code, "request.queue_full"),
                },
                Op::Cancel(k) => {
                    if let Some((_, log)) = logs.get(k) {
                        let live = !log.ended();
                        prop_assert_eq!(bench.engine.cancel(log.id()), live);
                        prop_assert!(log.ended());
                    }
                }
                Op::Poll(n) => (0..n).for_each(|_| { bench.task.poll(); }),
                Op::Close => bench.control.close(),
                Op::Open => bench.control.open(),
                Op::Advance(ms) => bench.host.advance(ms.into()),
            }
            bench.engine.check();
        }
        bench.control.open();
        bench.task.run_until_parked();
        for (i, log) in logs {
            match log.outcome() {
                Ok(result) => prop_assert_eq!(result.choices, alone(i).choices),
                Err(error) => prop_assert_eq!(error.code, "request.cancelled"),
            }
        }
        bench.assert_clean();
    }
}
