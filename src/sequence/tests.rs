//! Tests of the transition table, and the page docs/state-machine.md made from it.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::ids::{SequenceId, TokenId};

const STATES: [SequenceState; 12] = [
    SequenceState::Waiting,
    SequenceState::Prefilling,
    SequenceState::Decoding,
    SequenceState::Preempted(PreemptReason::OutOfBlocks),
    SequenceState::Preempted(PreemptReason::DeviceLost),
    SequenceState::Preempted(PreemptReason::Priority),
    SequenceState::Finished(FinishReason::Eos),
    SequenceState::Finished(FinishReason::Length),
    SequenceState::Aborted(AbortReason::Cancelled),
    SequenceState::Aborted(AbortReason::Deadline),
    SequenceState::Aborted(AbortReason::Disposed),
    SequenceState::Aborted(AbortReason::Failed("some.code")),
];
const KINDS: [StateKind; 6] = [
    StateKind::Waiting,
    StateKind::Prefilling,
    StateKind::Decoding,
    StateKind::Preempted,
    StateKind::Finished,
    StateKind::Aborted,
];
const EVENT_KINDS: [EventKind; 7] = [
    EventKind::Admit,
    EventKind::PrefillAdvanced,
    EventKind::TokenDecoded,
    EventKind::Fork,
    EventKind::Preempt,
    EventKind::Finish,
    EventKind::Abort,
];

fn events() -> Vec<Event> {
    let mut events = vec![
        Event::TokenDecoded { token: TokenId(1), finish: None },
        Event::TokenDecoded { token: TokenId(1), finish: Some(FinishReason::Eos) },
        Event::Finish(FinishReason::Length),
    ];
    events.extend((0..5).map(|cached| Event::Admit { cached }));
    events.extend((0..5).map(|count| Event::PrefillAdvanced { count }));
    events.extend((0..3).map(|children| Event::Fork { children }));
    events.extend([PreemptReason::OutOfBlocks, PreemptReason::DeviceLost, PreemptReason::Priority].map(Event::Preempt));
    events.extend([AbortReason::Cancelled, AbortReason::Failed("some.code")].map(Event::Abort));
    events
}

fn counts() -> Vec<Counts> {
    let mut all = Vec::new();
    for (tokens, computed) in (1..5).flat_map(|tokens| (0..=tokens).map(move |computed| (tokens, computed))) {
        for (forks, generates) in [(false, false), (false, true), (true, false), (true, true)] {
            all.push(Counts { tokens, computed, forks, generates });
        }
    }
    all
}

/// Everything that the table can do, by state and event.
type Cells = BTreeMap<(StateKind, EventKind), BTreeSet<Result<(StateKind, BlockEffect), Refusal>>>;

fn cells() -> Cells {
    let mut cells = Cells::new();
    for state in STATES {
        for event in events() {
            for counts in counts() {
                let result = transition(state, event, counts).map(|change| (change.to.kind(), change.blocks));
                cells.entry((state.kind(), event.kind())).or_default().insert(result);
            }
        }
    }
    cells
}

fn page() -> String {
    let cells = cells();
    let mut page = String::from(
        "# The states of a sequence\n\n\
         Generated from `src/sequence/state.rs` by its tests; `FIRESIDE_BLESS=1 cargo test --lib sequence::` writes it anew.\n\n\
         Each cell lists the states that an event can lead to and what happens to the blocks. *refused* and *ended*: the event changes \
         nothing; *ended* is also the answer to an abort of a sequence that is over. *or refused*: it depends on the counts \
         (`tokens`, `computed`), as `transition()` says.\n\n",
    );
    page.push_str("| from |");
    for event in EVENT_KINDS {
        let _ = write!(page, " {event:?} |");
    }
    page.push_str("\n|---|");
    page.push_str(&"---|".repeat(EVENT_KINDS.len()));
    page.push('\n');
    for state in KINDS {
        let _ = write!(page, "| **{state:?}** |");
        for event in EVENT_KINDS {
            let _ = write!(page, " {} |", cell(&cells[&(state, event)]));
        }
        page.push('\n');
    }
    page.push_str("\n```mermaid\nstateDiagram-v2\n    [*] --> Waiting\n");
    for ((from, event), results) in &cells {
        for (to, _) in results.iter().flatten() {
            let _ = writeln!(page, "    {from:?} --> {to:?}: {event:?}");
        }
    }
    page.push_str("    Finished --> [*]\n    Aborted --> [*]\n```\n");
    page
}

fn cell(results: &BTreeSet<Result<(StateKind, BlockEffect), Refusal>>) -> String {
    let mut parts: Vec<String> = results
        .iter()
        .flatten()
        .map(|(to, blocks)| match blocks {
            BlockEffect::Reserve => format!("{to:?}, prefix shared, chunk reserved"),
            BlockEffect::Written => format!("{to:?}, reserved blocks written"),
            BlockEffect::Share => format!("{to:?}, every block shared"),
            BlockEffect::Release => format!("{to:?}, blocks released"),
            BlockEffect::None => format!("{to:?}"),
        })
        .collect();
    let refusals: BTreeSet<_> = results.iter().filter_map(|result| result.err()).collect();
    if refusals.contains(&Refusal::Ended) {
        parts.push("*ended*".to_owned());
    } else if !refusals.is_empty() {
        parts.push("*refused*".to_owned());
    }
    parts.join("; or ")
}

#[test]
fn the_page_is_what_the_code_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/state-machine.md");
    let page = page();
    if std::env::var_os("FIRESIDE_BLESS").is_some() {
        std::fs::write(path, &page).expect("docs/ can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "docs/state-machine.md is stale: FIRESIDE_BLESS=1 writes it anew. It should be:\n{page}");
}

#[test]
fn the_samples_reach_every_state_and_event() {
    let cells = cells();
    assert_eq!(cells.len(), KINDS.len() * EVENT_KINDS.len());
}

#[test]
fn the_table_is_the_designs() {
    use EventKind as E;
    use StateKind as S;
    let cells = cells();
    let accepted: BTreeSet<_> = cells
        .iter()
        .flat_map(|(&(from, event), results)| results.iter().flatten().map(move |&(to, _)| (from, event, to)))
        .collect();
    let expected = BTreeSet::from([
        (S::Waiting, E::Admit, S::Prefilling),
        (S::Preempted, E::Admit, S::Prefilling),
        (S::Prefilling, E::PrefillAdvanced, S::Prefilling),
        (S::Prefilling, E::PrefillAdvanced, S::Decoding),
        (S::Decoding, E::TokenDecoded, S::Decoding),
        (S::Decoding, E::TokenDecoded, S::Finished),
        (S::Decoding, E::Fork, S::Decoding),
        (S::Prefilling, E::Preempt, S::Preempted),
        (S::Decoding, E::Preempt, S::Preempted),
        (S::Prefilling, E::Finish, S::Finished),
        (S::Decoding, E::Finish, S::Finished),
        (S::Waiting, E::Abort, S::Aborted),
        (S::Prefilling, E::Abort, S::Aborted),
        (S::Decoding, E::Abort, S::Aborted),
        (S::Preempted, E::Abort, S::Aborted),
    ]);
    assert_eq!(accepted, expected);
}

fn sequence(prompt: usize, max_tokens: usize, choices: u32) -> Sequence {
    Sequence::new(SequenceSpec {
        id: SequenceId(7),
        choice: 0,
        choices,
        tokens: (0..prompt as u32).map(TokenId).collect(),
        prompt_len: prompt,
        max_tokens,
        prompt_logits: false,
    })
}

#[test]
fn a_token_while_prefilling_is_refused() {
    let mut sequence = sequence(4, 4, 1);
    let token = Event::TokenDecoded { token: TokenId(9), finish: None };
    assert_eq!(sequence.apply(token), Err(Refusal::NotInThisState));
    sequence.apply(Event::Admit { cached: 0 }).unwrap();
    assert_eq!(sequence.apply(token), Err(Refusal::NotInThisState));
    sequence.apply(Event::PrefillAdvanced { count: 3 }).unwrap();
    assert_eq!(sequence.apply(token), Err(Refusal::NotInThisState));
    sequence.apply(Event::PrefillAdvanced { count: 1 }).unwrap();
    sequence.apply(token).unwrap();
    assert_eq!((sequence.computed(), sequence.tokens().len(), sequence.generated().len()), (4, 5, 1));
    sequence.apply(token).unwrap();
    assert_eq!((sequence.computed(), sequence.tokens().len(), sequence.generated().len()), (5, 6, 2));
}

#[test]
fn overshoot_and_empty_advances_are_refused() {
    let mut sequence = sequence(4, 4, 1);
    assert_eq!(sequence.apply(Event::Admit { cached: 4 }), Err(Refusal::BadCount));
    sequence.apply(Event::Admit { cached: 2 }).unwrap();
    assert_eq!(sequence.apply(Event::PrefillAdvanced { count: 0 }), Err(Refusal::BadCount));
    assert_eq!(sequence.apply(Event::PrefillAdvanced { count: 3 }), Err(Refusal::BadCount));
    assert_eq!((sequence.computed(), sequence.cached_tokens()), (2, 2));
}

#[test]
fn a_resume_computes_prompt_and_generated_tokens_again_and_counts_the_cache_once() {
    let mut sequence = sequence(3, 4, 1);
    sequence.apply(Event::Admit { cached: 1 }).unwrap();
    sequence.apply(Event::PrefillAdvanced { count: 2 }).unwrap();
    sequence.apply(Event::TokenDecoded { token: TokenId(9), finish: None }).unwrap();
    sequence.apply(Event::Preempt(PreemptReason::OutOfBlocks)).unwrap();
    assert!(!sequence.state().is_terminal(), "a preempted sequence goes on");
    assert_eq!((sequence.computed(), sequence.tokens().len()), (0, 4));
    sequence.apply(Event::Admit { cached: 3 }).unwrap();
    assert_eq!(sequence.cached_tokens(), 1);
    assert_eq!(sequence.apply(Event::PrefillAdvanced { count: 1 }).unwrap().to, SequenceState::Decoding);
    assert_eq!(sequence.generated(), [TokenId(9)]);
}

#[test]
fn nothing_to_generate_finishes_from_prefilling() {
    let mut sequence = sequence(3, 0, 1);
    sequence.apply(Event::Admit { cached: 0 }).unwrap();
    assert_eq!(sequence.apply(Event::Finish(FinishReason::Length)), Err(Refusal::BadCount));
    assert_eq!(sequence.apply(Event::PrefillAdvanced { count: 3 }).unwrap().to, SequenceState::Prefilling);
    sequence.apply(Event::Finish(FinishReason::Length)).unwrap();
    assert_eq!(sequence.state(), SequenceState::Finished(FinishReason::Length));
}

#[test]
fn a_fork_comes_once_and_before_the_first_token() {
    let mut parent = sequence(3, 4, 3);
    parent.apply(Event::Admit { cached: 0 }).unwrap();
    assert_eq!(parent.apply(Event::Fork { children: 2 }), Err(Refusal::NotInThisState));
    assert!(parent.child(SequenceId(8), 1).is_none());
    parent.apply(Event::PrefillAdvanced { count: 3 }).unwrap();
    let token = Event::TokenDecoded { token: TokenId(9), finish: None };
    assert_eq!(parent.apply(token), Err(Refusal::BadCount), "the children would be lost");
    assert_eq!(parent.width(), 3);
    parent.apply(Event::Fork { children: 2 }).unwrap();
    assert_eq!(parent.width(), 1);
    let child = parent.child(SequenceId(8), 1).unwrap();
    assert_eq!((child.id(), child.choice(), child.width(), child.computed()), (SequenceId(8), 1, 1, 3));
    assert_eq!(parent.apply(Event::Fork { children: 2 }), Err(Refusal::BadCount));
    parent.apply(token).unwrap();
    assert!(parent.child(SequenceId(9), 2).is_none(), "too late for a child");
}

fn any_event() -> impl Strategy<Value = Event> {
    let finish = prop_oneof![4 => Just(None), 1 => Just(Some(FinishReason::Eos))];
    prop_oneof![
        3 => (0..6_usize).prop_map(|cached| Event::Admit { cached }),
        6 => (0..4_usize).prop_map(|count| Event::PrefillAdvanced { count }),
        6 => (any::<u32>(), finish)
            .prop_map(|(token, finish)| Event::TokenDecoded { token: TokenId(token), finish }),
        2 => (0..3_u32).prop_map(|children| Event::Fork { children }),
        2 => Just(Event::Preempt(PreemptReason::OutOfBlocks)),
        1 => Just(Event::Finish(FinishReason::Length)),
        1 => Just(Event::Abort(AbortReason::Cancelled)),
    ]
}

proptest! {
    #[test]
    fn refusals_change_nothing_and_ends_absorb(
        (prompt, max_tokens, choices) in (1..6_usize, 0..4_usize, 1..3_u32),
        events in prop::collection::vec(any_event(), 0..60),
    ) {
        let mut sequence = sequence(prompt, max_tokens, choices);
        for event in events {
            let before = sequence.clone();
            let result = sequence.apply(event);
            if result.is_err() {
                prop_assert_eq!(&before, &sequence);
            }
            if before.state().is_terminal() {
                prop_assert_eq!(result, Err(Refusal::Ended));
            }
            prop_assert!(sequence.tokens().starts_with(before.tokens()), "tokens are only added to");
            prop_assert!(sequence.computed() <= sequence.tokens().len());
            let counts = match sequence.state() {
                SequenceState::Prefilling | SequenceState::Decoding => true,
                _ => sequence.computed() == 0,
            };
            prop_assert!(counts);
        }
    }
}
