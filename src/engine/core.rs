//! The engine's state between awaits: requests, the scheduler, the outbox. Every method is synchronous and none calls out;
//! `shared.rs` delivers what the outbox holds, `run_loop.rs` executes what `begin_step` gives.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use super::choice::GrowingChoice;
use super::ends::cancelled;
use super::event::{Event, RequestId};
use super::executor::{ExecutorStats, Fault, SampleRequest, ScoreRequest, StepOutput};
use super::live::{Generation, Live, Scoring, SharedSink, Times, Work};
use super::meter::{Meter, StepFigures};
use super::pacing::Pacing;
use super::request::{Prepared, RequestOptions, ScoreBody};
use super::resume::Progress;
use super::sink::{EventSink, MAX_UNREAD};
use super::step::{Sorted, Step, StepSink};
use super::text::TextModel;
use crate::ids::SequenceId;
use crate::sampling::{DrawKey, TokenCounts, adjustments};
use crate::scheduler::{NewSequence, Plan, Scheduler, SchedulerConfig};
use crate::sequence::AbortReason;
use crate::{Error, Result};

/// How often a step that failed with [`Fault::Retry`] is tried again before its sequences end.
const MAX_RETRIES: u32 = 3;

/// See the file's first line.
pub struct Core {
    pub scheduler: Scheduler,
    pub text: Rc<TextModel>,
    pub meter: Meter,
    pub outbox: VecDeque<(SharedSink, Event)>,
    pub requests: BTreeMap<RequestId, Live>,
    by_sequence: BTreeMap<SequenceId, (RequestId, u32)>,
    next_request: u64,
    /// Why nothing is accepted any more.
    closed: Option<Error>,
    failures_in_a_row: u32,
    pacing: Pacing,
}

impl Core {
    pub fn new(config: SchedulerConfig, text: Rc<TextModel>) -> Result<Self> {
        Ok(Self {
            pacing: Pacing::new(config.prefill_chunk),
            scheduler: Scheduler::new(config)?,
            text,
            meter: Meter::default(),
            outbox: VecDeque::new(),
            requests: BTreeMap::new(),
            by_sequence: BTreeMap::new(),
            next_request: 0,
            closed: None,
            failures_in_a_row: 0,
        })
    }

    // ---- commands

    pub fn submit_generate(&mut self, prepared: Prepared, sink: SharedSink, now: f64) -> Result<RequestId> {
        let Prepared { tokens, params, seed, options } = prepared;
        let counts = params.counts_tokens().then(|| TokenCounts::new(&tokens));
        let first = GrowingChoice::new(&params.stop, params.logprobs.is_some(), counts);
        let new = NewSequence {
            max_tokens: params.max_tokens.map(|n| n as usize),
            choices: params.n,
            ..new_sequence(tokens, options, now)
        };
        let work = Work::Generate(Generation { params: Rc::new(params), seed, choices: BTreeMap::from([(0, first)]) });
        let prompt_tokens = new.tokens.len();
        self.submit(vec![new], prompt_tokens, work, sink, (Times::submitted_at(now), now))
    }

    /// Takes over a request that another engine ran up to `progress`: only what is still to come is generated and delivered.
    /// Every choice is a sequence of its own from here on.
    pub fn submit_resumed(
        &mut self,
        prepared: Prepared,
        progress: &Progress,
        sink: SharedSink,
        now: f64,
    ) -> Result<RequestId> {
        let Prepared { tokens, params, seed, options } = prepared;
        let max_tokens = params.max_tokens.map(|n| n as usize);
        let longest = self.scheduler.longest_completion(tokens.len(), max_tokens);
        let choices = progress.choices(&tokens, &params, longest, self.text.tokenizer())?;
        let times = progress.times(now);
        let live = choices.iter().filter(|(_, choice)| !choice.has_ended());
        let news = live.map(|(&index, choice)| NewSequence {
            max_tokens,
            choice: index,
            generated: choice.num_tokens(),
            resumed: true,
            ..new_sequence(tokens.iter().chain(choice.tokens()).copied().collect(), options, times.submitted)
        });
        let news = news.collect();
        let work = Work::Generate(Generation { params: Rc::new(params), seed, choices });
        self.submit(news, tokens.len(), work, sink, (times, now))
    }

    pub fn submit_score(&mut self, body: ScoreBody, sink: SharedSink, now: f64) -> Result<RequestId> {
        body.check(self.text.vocab_size())?;
        let prompt_tokens = body.tokens.len();
        let new = NewSequence {
            max_tokens: Some(0),
            prompt_logits: true,
            ..new_sequence(body.tokens.clone(), body.options, now)
        };
        let work = Work::Score(Scoring::new(body.tokens, body.top_logprobs));
        self.submit(vec![new], prompt_tokens, work, sink, (Times::submitted_at(now), now))
    }

    /// Queues a request's sequences, all or none.
    fn submit(
        &mut self,
        news: Vec<NewSequence>,
        prompt_tokens: usize,
        work: Work,
        sink: SharedSink,
        (times, now): (Times, f64),
    ) -> Result<RequestId> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let mut sequences = BTreeMap::new();
        for new in news {
            let choice = new.choice;
            match self.scheduler.submit(new, now as u64) {
                Ok(sequence) => sequences.insert(sequence, choice),
                Err(error) => {
                    for sequence in sequences.into_keys() {
                        self.scheduler.abort(sequence, AbortReason::Failed(error.code));
                    }
                    self.settle(now);
                    return Err(error);
                }
            };
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.by_sequence.extend(sequences.iter().map(|(&sequence, &choice)| (sequence, (id, choice))));
        let live = Live {
            sink,
            work,
            sequences: sequences.into_keys().collect(),
            times,
            prompt_tokens,
            cached_tokens: 0,
            paused: false,
            failure: None,
        };
        self.requests.insert(id, live);
        // One whose choices had all ended has nothing left but its result.
        self.conclude(BTreeSet::from([id]), now);
        Ok(id)
    }

    /// The prompt of a live request, as tokens.
    pub fn prompt(&self, id: RequestId) -> Option<Vec<crate::ids::TokenId>> {
        let live = self.requests.get(&id)?;
        let sequence = self.scheduler.sequence(*live.sequences.first()?)?;
        Some(sequence.tokens().iter().take(live.prompt_tokens).copied().collect())
    }

    /// Ends a live request with `error`, whatever it is doing. False when it is not live.
    pub fn cancel(&mut self, id: RequestId, error: Error, reason: AbortReason, now: f64) -> bool {
        let Some(live) = self.requests.get_mut(&id) else { return false };
        live.failure.get_or_insert(error);
        for sequence in live.sequences.clone() {
            self.scheduler.abort(sequence, reason);
        }
        self.settle(now);
        true
    }

    /// Ends every request with `error`, and refuses later ones with it. The first call counts.
    pub fn close(&mut self, error: Error, reason: AbortReason, now: f64) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(error.clone());
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            self.cancel(id, error.clone(), reason, now);
        }
    }

    pub fn closed(&self) -> Option<&Error> {
        self.closed.as_ref()
    }

    // ---- steps

    /// The next step, or `None` when there is nothing to do now. Requests past their deadline end here.
    pub fn begin_step(&mut self, now: f64) -> Option<Step> {
        if self.closed.is_some() {
            return None;
        }
        self.look_at_readers(now);
        let plan = self.scheduler.plan(now as u64);
        self.settle(now);
        let plan = plan?;
        for entry in &plan.entries {
            if let Some(live) = self.by_sequence.get(&entry.sequence).and_then(|(id, _)| self.requests.get_mut(id)) {
                live.times.first_run.get_or_insert(now);
            }
        }
        let samples = plan.entries.iter().filter(|e| e.samples > 0).map(|e| self.sample_request(&plan, e)).collect();
        let scores = self.score_requests(&plan);
        Some(Step { plan, samples, scores, began: now })
    }

    /// Pauses requests whose readers do not keep up, lets them go on when they do, ends those that nobody reads.
    fn look_at_readers(&mut self, now: f64) {
        let mut left = Vec::new();
        for (&id, live) in &mut self.requests {
            let Ok(sink) = live.sink.try_borrow() else { continue };
            if sink.abandoned() {
                left.push(id);
            }
            let paused = sink.unread() >= MAX_UNREAD;
            if paused != live.paused {
                live.paused = paused;
                for &sequence in &live.sequences {
                    self.scheduler.set_paused(sequence, paused);
                }
            }
        }
        for id in left {
            self.cancel(id, cancelled(), AbortReason::Cancelled, now);
        }
    }

    fn sample_request(&self, plan: &Plan, entry: &crate::scheduler::PlanEntry) -> SampleRequest {
        let generation =
            self.by_sequence.get(&entry.sequence).and_then(|(id, choice)| match &self.requests.get(id)?.work {
                Work::Generate(generation) => Some((generation, generation.choices.get(choice)?)),
                Work::Score(_) => None,
            });
        debug_assert!(generation.is_some() && entry.rows.end <= plan.batch.logit_rows.len());
        let (params, seed, counts) = match generation {
            Some((generation, choice)) => (Rc::clone(&generation.params), generation.seed, choice.counts()),
            None => (Rc::default(), 0, None),
        };
        let none = TokenCounts::default();
        let key = |i| DrawKey { seed, choice: entry.choice.saturating_add(i), index: entry.output_index as u64 };
        SampleRequest {
            row: entry.rows.end.saturating_sub(1),
            adjustments: adjustments(&params, counts.unwrap_or(&none)),
            params,
            draws: (0..entry.samples).map(key).collect(),
        }
    }

    fn score_requests(&self, plan: &Plan) -> Vec<(usize, ScoreRequest)> {
        let mut out = Vec::new();
        for (i, entry) in plan.entries.iter().enumerate() {
            let live = self.by_sequence.get(&entry.sequence).and_then(|(id, _)| self.requests.get(id));
            let Some(Work::Score(scoring)) = live.map(|l| &l.work) else { continue };
            for row in entry.rows.clone().take(entry.prompt_rows) {
                let token_row = plan.batch.logit_rows.get(row).map(|&t| t as usize);
                let position = token_row.and_then(|t| plan.batch.positions.get(t));
                if let Some(token) = position.and_then(|&p| scoring.target(p as usize)) {
                    out.push((i, ScoreRequest { row, token, num_top: scoring.num_top.unwrap_or(0) }));
                }
            }
        }
        out
    }

    /// Commits what the executor gave for `step`.
    pub fn finish_step(
        &mut self,
        step: Step,
        output: Result<StepOutput>,
        fault: Fault,
        now: f64,
        stats: ExecutorStats,
    ) {
        let output = output.and_then(|output| {
            let scores: Vec<_> = step.scores.iter().map(|(_, request)| *request).collect();
            output.check(&step.samples, &scores).map(|()| output)
        });
        let output = match output {
            Ok(output) => output,
            Err(error) => return self.fail_step(step.plan, error, fault, now),
        };
        self.failures_in_a_row = 0;
        let figures = StepFigures::of(&step.plan, step.began, now);
        let Sorted { outcome, drawn, scored, errors } = Sorted::new(&step, output);
        for (sequence, error) in errors {
            if let Some(live) = self.by_sequence.get(&sequence).and_then(|(id, _)| self.requests.get_mut(id)) {
                live.failure.get_or_insert(error);
            }
        }
        let mut sink = StepSink {
            requests: &mut self.requests,
            by_sequence: &mut self.by_sequence,
            text: &self.text,
            drawn,
            scored,
            touched: Vec::new(),
            now,
        };
        self.scheduler.commit(step.plan, outcome, &mut sink);
        let touched = sink.touched;
        let ended = self.retire(now);
        self.send_tokens(&touched);
        self.conclude(ended, now);
        self.meter.step(figures, stats);
        if let Some(chunk) = self.pacing.step(&figures) {
            self.scheduler.set_prefill_chunk(chunk);
        }
    }

    /// Nobody is left in a step: what it reserved is given up, and whatever it computed is forgotten.
    pub fn give_up_step(&mut self, step: Step) {
        self.scheduler.rollback(step.plan);
    }

    fn fail_step(&mut self, plan: Plan, error: Error, fault: Fault, now: f64) {
        let sequences: Vec<SequenceId> = plan.entries.iter().map(|e| e.sequence).collect();
        self.scheduler.rollback(plan);
        self.failures_in_a_row += 1;
        match fault {
            Fault::Retry if self.failures_in_a_row <= MAX_RETRIES => {}
            Fault::Retry | Fault::Step => {
                self.failures_in_a_row = 0;
                for sequence in sequences {
                    if let Some((id, _)) = self.by_sequence.get(&sequence).copied() {
                        self.cancel(id, error.clone(), AbortReason::Failed(error.code), now);
                    }
                }
            }
            Fault::Engine => {
                let code = error.code;
                self.close(error, AbortReason::Failed(code), now);
            }
        }
    }

    // ---- ends

    fn send_tokens(&mut self, touched: &[(RequestId, u32)]) {
        for (id, choice) in touched {
            let Some(live) = self.requests.get_mut(id) else { continue };
            let Work::Generate(generation) = &mut live.work else { continue };
            if let Some(event) = generation.choices.get_mut(choice).and_then(GrowingChoice::take_event) {
                self.outbox.push_back((Rc::clone(&live.sink), Event::Token(event)));
            }
        }
    }

    fn settle(&mut self, now: f64) {
        let ended = self.retire(now);
        self.conclude(ended, now);
    }

    /// Takes the ended sequences from the scheduler; gives the requests that lost one. A request that failed loses all.
    fn retire(&mut self, now: f64) -> BTreeSet<RequestId> {
        let mut requests = BTreeSet::new();
        loop {
            let reaped = self.scheduler.reap();
            if reaped.is_empty() {
                return requests;
            }
            for sequence in reaped {
                let Some((id, choice)) = self.by_sequence.remove(&sequence.id()) else { continue };
                let Some(live) = self.requests.get_mut(&id) else { continue };
                live.end_sequence(choice, &sequence, now);
                requests.insert(id);
                if live.failure.is_some() {
                    for &other in &live.sequences {
                        self.scheduler.abort(other, AbortReason::Cancelled);
                    }
                }
            }
        }
    }

    fn conclude(&mut self, requests: BTreeSet<RequestId>, now: f64) {
        for id in requests {
            if self.requests.get(&id).is_some_and(|live| live.sequences.is_empty())
                && let Some(live) = self.requests.remove(&id)
            {
                let sink = Rc::clone(&live.sink);
                self.outbox.push_back((sink, live.finish(now)));
            }
        }
    }
}

/// What both kinds of request have in common.
fn new_sequence(tokens: Vec<crate::ids::TokenId>, options: RequestOptions, now: f64) -> NewSequence {
    NewSequence {
        tokens,
        choices: 1,
        priority: options.priority,
        // Rounded up: a deadline is never early.
        deadline_ms: options.timeout_ms.map(|timeout| (now + timeout).ceil() as u64),
        ..NewSequence::default()
    }
}

/// A sink that can be shared.
pub fn shared_sink(sink: impl EventSink + 'static) -> SharedSink {
    Rc::new(RefCell::new(sink))
}
