//! Speed figures: what the last second's steps did and cost. Measuring is the loop's.
use std::collections::VecDeque;

use serde::Serialize;

use super::executor::ExecutorStats;
use crate::scheduler::Plan;

/// Steps that ended longer ago do not count.
const WINDOW_MS: f64 = 1000.0;
/// Steps remembered at most, however fast they are.
const MAX_STEPS: usize = 4096;

/// One step in numbers. Times are milliseconds on the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepFigures {
    /// Prompt (or resumed) tokens computed.
    pub prefill_tokens: usize,
    /// Tokens of decode entries.
    pub decode_tokens: usize,
    /// When it was planned.
    pub began: f64,
    /// When its results were there.
    pub ended: f64,
}

impl StepFigures {
    /// The figures of a plan executed between two moments.
    pub fn of(plan: &Plan, began: f64, ended: f64) -> Self {
        let tokens = |prefill| plan.entries.iter().filter(|e| e.prefill == prefill).map(|e| e.count).sum();
        Self { prefill_tokens: tokens(true), decode_tokens: tokens(false), began, ended }
    }

    /// How long it took.
    pub fn ms(&self) -> f64 {
        (self.ended - self.began).max(0.0)
    }
}

/// Rates over the last second; 0 where no step of the kind ended in it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Over the steps that computed prompt tokens.
    pub prefill_tokens_per_second: f64,
    /// Over the steps that decoded.
    pub decode_tokens_per_second: f64,
    /// Kernels started in a decode step. This and what follows: the mean over steps that only decoded.
    pub dispatches_per_step: f64,
    /// Times the host waited for device bytes.
    pub readbacks_per_step: f64,
    /// Bytes that came back.
    pub readback_bytes_per_step: f64,
    /// Weight bytes that the kernels read.
    pub weight_bytes_per_step: f64,
    /// The host's own time: planning, encoding, sampling, committing, callbacks.
    pub host_ms_per_step: f64,
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    figures: StepFigures,
    used: ExecutorStats,
    host_ms: f64,
}

/// Remembers the last second.
#[derive(Debug, Default)]
pub struct Meter {
    steps: VecDeque<Cost>,
    /// The executor's counters after the last step.
    pub executor: ExecutorStats,
}

impl Meter {
    /// Notes a step and the executor's counters after it.
    pub fn step(&mut self, figures: StepFigures, after: ExecutorStats) {
        let used = after.since(&self.executor);
        self.executor = after;
        self.forget(figures.ended);
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(Cost { figures, used, host_ms: used.host_ms });
    }

    /// Adds the loop's own time to the last step.
    pub fn host_time(&mut self, ms: f64) {
        if let Some(last) = self.steps.back_mut() {
            last.host_ms += ms.max(0.0);
        }
    }

    fn forget(&mut self, now: f64) {
        while self.steps.front().is_some_and(|s| s.figures.ended < now - WINDOW_MS) {
            self.steps.pop_front();
        }
    }

    /// The rates at `now`.
    pub fn rate(&self, now: f64) -> Rate {
        let recent = || self.steps.iter().filter(|s| s.figures.ended >= now - WINDOW_MS);
        let per_second = |tokens: fn(&StepFigures) -> usize| {
            let steps = recent().map(|s| s.figures).filter(|f| tokens(f) > 0);
            let (sum, ms) = steps.fold((0, 0.0), |(sum, ms), f| (sum + tokens(&f), ms + f.ms()));
            if ms > 0.0 { sum as f64 * 1000.0 / ms } else { 0.0 }
        };
        let decoding = || recent().filter(|s| s.figures.decode_tokens > 0 && s.figures.prefill_tokens == 0);
        let count = decoding().count().max(1) as f64;
        let mean = |value: fn(&Cost) -> f64| decoding().map(value).sum::<f64>() / count;
        Rate {
            prefill_tokens_per_second: per_second(|f| f.prefill_tokens),
            decode_tokens_per_second: per_second(|f| f.decode_tokens),
            dispatches_per_step: mean(|s| s.used.dispatches as f64),
            readbacks_per_step: mean(|s| s.used.readbacks as f64),
            readback_bytes_per_step: mean(|s| s.used.readback_bytes as f64),
            weight_bytes_per_step: mean(|s| s.used.weight_bytes as f64),
            host_ms_per_step: mean(|s| s.host_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_second_and_of_decode_steps() {
        let mut meter = Meter::default();
        let mut total = ExecutorStats::default();
        let mut step = |meter: &mut Meter, prefill, decode, began, ended, dispatches| {
            total.dispatches += dispatches;
            total.weight_bytes += 10;
            meter.step(StepFigures { prefill_tokens: prefill, decode_tokens: decode, began, ended }, total);
        };
        step(&mut meter, 100, 0, 0.0, 200.0, 50);
        step(&mut meter, 0, 2, 200.0, 240.0, 10);
        step(&mut meter, 0, 2, 300.0, 360.0, 20);
        meter.host_time(4.0);
        let rate = meter.rate(400.0);
        assert_eq!(rate.prefill_tokens_per_second, 500.0);
        assert_eq!(rate.decode_tokens_per_second, 40.0);
        assert_eq!((rate.dispatches_per_step, rate.weight_bytes_per_step, rate.host_ms_per_step), (15.0, 10.0, 2.0));
        assert_eq!(meter.rate(1300.0).dispatches_per_step, 20.0, "the older decode step is out of the window");
        assert_eq!(meter.rate(5000.0), Rate::default());
    }
}
