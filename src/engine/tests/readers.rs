//! Queues: a reader that does not keep up pauses its request; one that leaves ends it.
use crate::engine::testing::{Bench, Task, small};
use crate::engine::{Event, EventQueue, GenerateRequest, GenerateResult, MAX_UNREAD};

const LONG: &str = r#"{"prompt":"abc","max_tokens":120,"seed":4}"#;

fn queued(bench: &Bench, json: &str) -> EventQueue {
    bench.engine.generate_queued(GenerateRequest::from_json(json).unwrap(), 1).unwrap().1
}

fn drain(bench: &mut Bench, queue: &mut EventQueue) -> (usize, GenerateResult) {
    let mut tokens = 0;
    loop {
        match queue.try_next() {
            Some(Event::Token(_)) => tokens += 1,
            Some(Event::Done(result)) => return (tokens, result),
            Some(other) => panic!("{other:?}"),
            None => {
                let ticks = bench.engine.stats().ticks;
                bench.task.run_until_parked();
                assert!(bench.engine.stats().ticks > ticks, "the loop does not go on");
            }
        }
    }
}

#[test]
fn a_slow_reader_pauses_its_request_and_holds_nobody_up() {
    let mut bench = Bench::new(small());
    let expected = bench.run(LONG).result();
    for n in [1, 3] {
        let json = LONG.replace("\"seed\"", &format!("\"n\":{n},\"seed\""));
        let mut slow = queued(&bench, &json);
        let other = bench.submit(LONG);
        bench.task.run_until_parked();
        assert_eq!(other.result().choices, expected.choices);
        assert!((MAX_UNREAD..MAX_UNREAD + n).contains(&slow.len()), "{}", slow.len());
        let ticks = bench.engine.stats().ticks;
        bench.host.advance(60_000.0);
        bench.task.run_until_parked();
        assert_eq!(bench.engine.stats().ticks, ticks, "a paused request costs nothing");
        let (tokens, result) = drain(&mut bench, &mut slow);
        assert_eq!((tokens, &result.choices[0]), (120 * n, &expected.choices[0]));
        assert!(slow.try_next().is_none());
        bench.assert_clean();
    }
}

#[test]
fn a_paused_request_still_has_its_deadline() {
    let mut bench = Bench::new(small());
    let mut slow = queued(&bench, r#"{"prompt":"abc","max_tokens":120,"timeout":5000}"#);
    bench.task.run_until_parked();
    assert!(bench.host.sleeping() && slow.len() == MAX_UNREAD);
    bench.host.advance(4999.0);
    bench.task.run_until_parked();
    assert_eq!(slow.len(), MAX_UNREAD);
    bench.host.advance(1.0);
    bench.task.run_until_parked();
    let last = std::iter::from_fn(|| slow.try_next()).last();
    assert!(matches!(last, Some(Event::Error(e)) if e.code == "request.deadline"));
    bench.assert_clean();
}

#[test]
fn a_paused_request_gives_its_blocks_to_those_that_run() {
    let config = crate::scheduler::SchedulerConfig { num_blocks: 34, ..small() };
    let mut bench = Bench::new(config);
    let expected = Bench::new(small()).run(LONG).result();
    let mut slow = queued(&bench, LONG);
    bench.task.run_until_parked();
    let other = bench.run(r#"{"prompt":"xyz","max_tokens":120,"seed":9}"#);
    assert_eq!(other.result().usage.completion_tokens, 120);
    assert_eq!(bench.engine.stats().preemptions, 1);
    assert_eq!(drain(&mut bench, &mut slow).1.choices, expected.choices, "it resumes where it was");
}

#[test]
fn dropping_the_queue_cancels() {
    let mut bench = Bench::new(small());
    let queue = queued(&bench, LONG);
    for _ in 0..4 {
        bench.task.poll();
    }
    drop(queue);
    bench.task.run_until_parked();
    assert!(bench.engine.stats().tokens.completion < 10);
    assert_eq!(bench.engine.stats().sequences.aborted, 1);
    bench.assert_clean();
}

#[test]
fn a_reader_that_waits_is_woken() {
    let mut bench = Bench::new(small());
    let mut queue = queued(&bench, r#"{"prompt":"abc","max_tokens":7}"#);
    let seen = std::rc::Rc::new(std::cell::Cell::new((0, false)));
    let count = std::rc::Rc::clone(&seen);
    let mut reader = Task::new(async move {
        while let Some(event) = queue.next().await {
            count.set((count.get().0 + 1, event.is_terminal()));
        }
    });
    while bench.task.poll() || reader.poll() {}
    assert!(reader.is_over());
    assert_eq!(seen.get(), (8, true));
}

#[test]
fn a_callback_with_credit_is_paced_like_a_queue() {
    use std::cell::RefCell;
    use std::rc::Rc;
    let mut bench = Bench::new(small());
    let expected = bench.run(LONG).result();
    let events: Rc<RefCell<Vec<Event>>> = Rc::default();
    let sink = Rc::clone(&events);
    let request = GenerateRequest::from_json(LONG).unwrap();
    let (_, credit) =
        bench.engine.generate_paced(request, 1, move |event: Event| sink.borrow_mut().push(event)).unwrap();
    let other = bench.submit(LONG);
    bench.task.run_until_parked();
    assert_eq!(other.result().choices, expected.choices, "nobody waits for it");
    assert_eq!(events.borrow().len(), MAX_UNREAD);
    for (read, delivered) in [(1, MAX_UNREAD + 1), (10, MAX_UNREAD + 11), (0, MAX_UNREAD + 11)] {
        credit.read(read);
        bench.task.run_until_parked();
        assert_eq!(events.borrow().len(), delivered);
    }
    credit.read(1000);
    bench.task.run_until_parked();
    let events = events.borrow();
    let Some(Event::Done(result)) = events.last() else { panic!("{:?}", events.last()) };
    assert_eq!((events.len(), &result.choices), (121, &expected.choices));
    bench.assert_clean();
}
