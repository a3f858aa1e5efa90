//! `score`: each token's log-probability given those before it.
use crate::engine::testing::{Bench, EventLog, byte, logits_of, small};
use crate::engine::{RequestOptions, ScoreBody};
use crate::ids::TokenId;
use crate::sampling::{logprob_of, top_logprobs};

fn score(bench: &mut Bench, tokens: &[TokenId], top_logprobs: Option<u32>) -> EventLog {
    let log = EventLog::default();
    let body = ScoreBody { tokens: tokens.to_vec(), top_logprobs, options: RequestOptions::default() };
    bench.engine.score(body, log.sink()).unwrap();
    bench.task.run_until_parked();
    log
}

#[test]
fn scores_are_the_logprobs_of_the_text_whatever_the_chunking() {
    let tokens: Vec<TokenId> = "the quick brown fox jumps over the lazy dog, twice over".bytes().map(byte).collect();
    for budget in [1, 3, 7, 32, 64] {
        let mut bench = Bench::new(crate::scheduler::SchedulerConfig { token_budget: budget, ..small() });
        for _ in 0..2 {
            let result = score(&mut bench, &tokens, Some(2)).score();
            assert_eq!(result.logprobs.len(), tokens.len());
            assert!(result.logprobs[0].is_nan());
            let top = result.top.unwrap();
            assert!(top[0].is_empty());
            for i in 1..tokens.len() {
                let logits = logits_of(&tokens[..i], 260);
                assert_eq!(result.logprobs[i], logprob_of(&logits, tokens[i]).unwrap() as f32, "{budget} {i}");
                let best = top_logprobs(&logits, 2).unwrap();
                assert_eq!(top[i].iter().map(|t| t.token).collect::<Vec<_>>(), [best[0].token, best[1].token]);
            }
        }
        bench.assert_clean();
    }
}

#[test]
fn a_text_may_fill_the_context_and_one_token_scores_nothing() {
    let mut bench = Bench::new(small());
    let full = score(&mut bench, &[byte(b'a'); 128], None).score();
    assert!(full.logprobs[1..].iter().all(|p| p.is_finite()) && full.top.is_none());
    let one = score(&mut bench, &[byte(b'a')], Some(1)).score();
    assert!(one.logprobs.len() == 1 && one.logprobs[0].is_nan());
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let bench = Bench::new(small());
    let code = |tokens: &[TokenId], top| {
        let body = ScoreBody { tokens: tokens.to_vec(), top_logprobs: top, options: RequestOptions::default() };
        bench.engine.score(body, |_| panic!("no events")).unwrap_err().code
    };
    assert_eq!(code(&[], None), "request.empty_prompt");
    assert_eq!(code(&[TokenId(260)], None), "request.invalid");
    assert_eq!(code(&[byte(1)], Some(21)), "request.invalid");
    assert_eq!(code(&[byte(1); 129], None), "request.context_exceeded");
}

#[test]
fn nan_in_a_scored_row_ends_the_scoring_alone() {
    let mut bench = Bench::new(small());
    bench.control.poisoned.borrow_mut().push(20);
    let other = bench.submit(r#"{"prompt":"abc","max_tokens":10}"#);
    let log = score(&mut bench, &[byte(b'a'); 30], None);
    assert_eq!(log.code(), "model.non_finite");
    assert_eq!(other.result().usage.completion_tokens, 10);
    bench.assert_clean();
}
