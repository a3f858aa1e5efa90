//! What comes out: usage, texts, ends, choices.
use crate::engine::FinishReason;
use crate::engine::testing::{Bench, EOS, NAP, byte, logits_of, small};
use crate::ids::TokenId;

fn bytes(text: &str) -> impl Iterator<Item = TokenId> + '_ {
    text.bytes().map(byte)
}

#[test]
fn greedy_tokens_are_the_logits_best_and_usage_counts_them() {
    let mut bench = Bench::new(small());
    bench.control.cost.set((10.0, 1.0));
    let log = bench.run(r#"{"prompt":"hello world","max_tokens":9,"temperature":0,"seed":5}"#);
    let result = log.result();
    let mut context: Vec<TokenId> = bench.engine.tokenize("hello world", true, true).unwrap();
    let prompt_len = context.len();
    for _ in 0..9 {
        let logits = logits_of(&context, 260);
        let best = (0..260).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        context.push(TokenId(best as u32));
    }
    assert_eq!(result.choices[0].tokens, context[prompt_len..]);
    assert_eq!(result.choices[0].finish_reason, FinishReason::Length);
    assert!(result.choices[0].logprobs.is_none());
    let usage = result.usage;
    assert_eq!(usage.prompt_tokens, prompt_len as u64);
    assert_eq!((usage.completion_tokens, usage.total_tokens), (9, 9 + prompt_len as u64));
    assert_eq!(usage.prompt_tokens_details.cached_tokens, 0);
    let t = result.timings;
    assert_eq!((t.queued, t.seed), (0.0, 5));
    assert_eq!(t.prefill, 10.0 + prompt_len as f64, "one step computed the prompt");
    assert_eq!((t.time_to_first_token, t.decode), (t.prefill, 8.0 * 11.0));
    bench.assert_clean();
}

#[test]
fn a_request_without_a_seed_reports_the_callers() {
    let mut bench = Bench::new(small());
    let drawn = bench.run(r#"{"prompt":"abc","max_tokens":12}"#).result();
    assert_eq!(drawn.timings.seed, 7);
    let named = bench.run(r#"{"prompt":"abc","max_tokens":12,"seed":7}"#).result();
    assert_eq!(named.choices, drawn.choices);
    let other = bench.run(r#"{"prompt":"abc","max_tokens":12,"seed":8}"#).result();
    assert_ne!(other.choices, drawn.choices);
}

#[test]
fn the_end_token_is_counted_and_listed_but_not_shown() {
    let mut bench = Bench::new(small());
    bench.control.say(3, bytes("hi").chain([EOS]));
    let log = bench.run(r#"{"prompt":"abc","max_tokens":50,"temperature":0}"#);
    let result = log.result();
    let choice = &result.choices[0];
    assert_eq!((choice.text.as_str(), choice.finish_reason), ("hi", FinishReason::Stop));
    assert_eq!(choice.tokens, bytes("hi").chain([EOS]).collect::<Vec<_>>());
    assert_eq!(result.usage.completion_tokens, 3);
    assert_eq!(log.tokens()[2].text, "");
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_before_it() {
    let mut bench = Bench::new(small());
    bench.control.say(3, bytes("one END").chain([NAP]).chain(bytes("more")));
    let log = bench.run(r#"{"prompt":"abc","max_tokens":50,"temperature":0,"stop":["ENDna","zz"]}"#);
    let choice = &log.result().choices[0];
    assert_eq!((choice.text.as_str(), choice.finish_reason), ("one ", FinishReason::Stop));
    assert_eq!(choice.tokens.len(), 8, "the stop string's tokens are listed");
    assert_eq!(log.result().usage.completion_tokens, 8);
    let texts: Vec<_> = log.tokens().into_iter().map(|t| t.text).collect();
    assert_eq!(texts, ["o", "n", "e", " ", "", "", "", ""], "what may become a stop string is held back");
}

#[test]
fn text_held_back_for_a_stop_string_is_given_at_the_end() {
    let mut bench = Bench::new(small());
    bench.control.say(3, bytes("abEN"));
    let log = bench.run(r#"{"prompt":"abc","max_tokens":4,"temperature":0,"stop":"END"}"#);
    let choice = &log.result().choices[0];
    assert_eq!((choice.text.as_str(), choice.finish_reason), ("abEN", FinishReason::Length));
    assert_eq!(log.tokens()[3].text, "EN");
}

#[test]
fn characters_split_over_tokens_come_whole() {
    let mut bench = Bench::new(small());
    bench.control.say(3, bytes("é🙂\u{10FFFF}x").chain([EOS]));
    let log = bench.run(r#"{"prompt":"abc","max_tokens":50,"temperature":0}"#);
    assert_eq!(log.result().choices[0].text, "é🙂\u{10FFFF}x");
    let texts: Vec<_> = log.tokens().into_iter().map(|t| t.text).collect();
    assert_eq!(texts, ["", "é", "", "", "", "🙂", "", "", "", "\u{10FFFF}", "x", ""]);

    let log = bench.run(r#"{"prompt":"abc","max_tokens":4,"temperature":0}"#);
    assert_eq!(log.result().choices[0].text, "é\u{FFFD}", "a character cut off by the end is marked");
    assert_eq!(log.tokens()[3].text, "\u{FFFD}");
}

#[test]
fn nothing_to_generate_is_a_result_too() {
    let mut bench = Bench::new(small());
    for n in [1, 3] {
        let log = bench.run(&format!(r#"{{"prompt":"abcdefghijk","max_tokens":0,"n":{n}}}"#));
        let result = log.result();
        assert_eq!(result.choices.len(), n);
        assert!(result.choices.iter().all(|c| c.text.is_empty() && c.tokens.is_empty()));
        assert!(result.choices.iter().all(|c| c.finish_reason == FinishReason::Length));
        assert_eq!((result.usage.prompt_tokens, result.usage.completion_tokens), (11, 0));
    }
    bench.assert_clean();
}

#[test]
fn choices_fork_from_one_prompt_and_the_first_is_as_if_alone() {
    let mut bench = Bench::new(small());
    let alone = bench.run(r#"{"prompt":"abcdefg","max_tokens":20,"seed":3}"#).result();
    let log = bench.run(r#"{"prompt":"abcdefg","max_tokens":20,"seed":3,"n":4}"#);
    let result = log.result();
    assert_eq!(result.choices.len(), 4);
    assert_eq!(result.choices[0], alone.choices[0]);
    for i in 1..4 {
        assert_ne!(result.choices[i].tokens, result.choices[i - 1].tokens);
        assert_eq!(result.choices[i].tokens.len(), 20);
    }
    assert_eq!((result.usage.prompt_tokens, result.usage.completion_tokens), (7, 80));
    assert!(bench.engine.stats().copies_on_write >= 3, "the shared tail was copied before it was written");
    bench.assert_clean();
}

#[test]
fn choices_end_one_by_one() {
    let mut bench = Bench::new(small());
    let log = bench.run(r#"{"prompt":"abcdefg","max_tokens":40,"seed":3,"n":3,"logit_bias":{"2":35}}"#);
    let result = log.result();
    let lengths: Vec<_> = result.choices.iter().map(|c| c.tokens.len()).collect();
    assert!(lengths.iter().any(|&l| l != lengths[0]), "{lengths:?}: the test wants choices of different lengths");
    assert_eq!(result.usage.completion_tokens, lengths.iter().sum::<usize>() as u64);
    assert!(result.choices.iter().all(|c| (c.finish_reason == FinishReason::Stop) == (c.tokens.last() == Some(&EOS))));
}

#[test]
fn logprobs_come_with_events_and_result() {
    let mut bench = Bench::new(small());
    let log = bench.run(r#"{"prompt":"abc","max_tokens":5,"temperature":0,"logprobs":3}"#);
    let listed = log.result().choices[0].logprobs.clone().unwrap();
    assert_eq!(listed, log.tokens());
    for event in &listed {
        let top = event.top.as_ref().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!((top[0].token, Some(top[0].logprob)), (event.token, event.logprob), "greedy takes the likeliest");
        assert!(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob && top[0].logprob < 0.0);
    }
    let none = bench.run(r#"{"prompt":"abc","max_tokens":2,"logprobs":0}"#);
    assert!(none.tokens().iter().all(|t| t.logprob.is_some() && t.top.as_deref() == Some(&[])));
    let several = bench.run(r#"{"prompt":"abc","max_tokens":3,"n":3,"logprobs":1}"#);
    assert!(several.tokens().len() == 9 && several.tokens().iter().all(|t| t.logprob.is_some()));
    several.result();
    let chat_form = bench.run(r#"{"prompt":"abc","max_tokens":2,"logprobs":true,"top_logprobs":2}"#);
    assert!(chat_form.tokens().iter().all(|t| t.top.as_ref().unwrap().len() == 2));
}

#[test]
fn penalties_follow_each_choice() {
    let mut bench = Bench::new(small());
    bench.control.say(3, [NAP; 60]);
    let free = bench.run(r#"{"prompt":"abc","max_tokens":6,"temperature":0}"#).result();
    assert_eq!(free.choices[0].tokens, [NAP; 6]);
    // 20 less 2 a use stays above the hash's 4 for 8 tokens, then falls to it.
    let log = bench.run(r#"{"prompt":"abc","max_tokens":20,"temperature":0,"frequency_penalty":2}"#);
    let tokens = &log.result().choices[0].tokens;
    let run = tokens.iter().take_while(|&&t| t == NAP).count();
    assert!((8..=12).contains(&run), "{run}");
}

#[test]
fn a_repeated_prompt_is_found_in_the_cache() {
    let mut bench = Bench::new(small());
    let prompt = "abcdefghijklmnopqrs";
    let json = format!(r#"{{"prompt":"{prompt}","max_tokens":6,"temperature":0}}"#);
    let first = bench.run(&json).result();
    let second = bench.run(&json).result();
    assert_eq!(first.choices, second.choices);
    assert_eq!(first.usage.prompt_tokens_details.cached_tokens, 0);
    assert_eq!(second.usage.prompt_tokens_details.cached_tokens, 16, "whole blocks, one token left to compute");
    assert_eq!(bench.engine.stats().prefix_cache.hit_tokens, 16);
}

#[test]
fn a_completion_that_fills_the_context_ends_with_length() {
    let mut bench = Bench::new(small());
    let result = bench.run(r#"{"prompt":"abc","temperature":0}"#).result();
    assert_eq!(result.usage.total_tokens, 128, "absent max_tokens is what the context has left");
    assert_eq!(result.choices[0].finish_reason, FinishReason::Length);
    let result = bench.run(r#"{"prompt":"abc","temperature":0,"max_tokens":100000}"#).result();
    assert_eq!(result.usage.total_tokens, 128);
}

#[test]
fn the_last_event_of_a_choice_says_why_it_ended_and_offsets_are_of_the_whole_text() {
    let mut bench = Bench::new(small());
    // Four bytes of one character (two UTF-16 units), then text that is held back for a stop string.
    bench.control.say(3, bytes("h\u{1F600}abcd"));
    let json = r#"{"prompt":"abc","max_tokens":9,"temperature":0,"logprobs":0,"stop":"abx"}"#;
    let events = bench.run(json).tokens();
    let offsets: Vec<_> = events.iter().map(|e| e.offset.unwrap()).collect();
    assert_eq!(offsets, [0, 1, 1, 1, 1, 3, 4, 5, 6]);
    let texts: Vec<_> = events.iter().map(|e| e.text.as_str()).collect();
    assert_eq!(texts, ["h", "", "", "", "\u{1F600}", "", "", "abc", "d"]);
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last.finish_reason, Some(FinishReason::Length));
    assert!(rest.iter().all(|e| e.finish_reason.is_none()));
    bench.control.say(3, bytes("é").take(1).chain(bytes("7")));
    let broken = bench.run(&json.replace("\"max_tokens\":9", "\"max_tokens\":2")).tokens();
    assert_eq!(
        broken.iter().map(|e| (e.text.as_str(), e.offset)).collect::<Vec<_>>(),
        [("", Some(0)), ("\u{fffd}7", Some(1))]
    );
    bench.control.say(3, bytes("h\u{1F600}abcd"));
    let stopped = bench.run(&json.replace("abx", "cd").replace("\"logprobs\":0,", "")).tokens();
    assert_eq!(stopped.last().unwrap().finish_reason, Some(FinishReason::Stop));
    assert!(stopped.iter().all(|e| e.offset.is_none()));
}
