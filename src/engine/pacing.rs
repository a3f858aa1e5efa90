//! How many prompt tokens a step may compute while other sequences decode, learned from how long steps take. Which
//! sequences run is the scheduler's choice; results do not depend on the chunking.
use super::meter::StepFigures;

/// A mixed step may take as long as eight decode steps; it is sized for less, since times are estimates.
const DECODE_STEPS: f64 = 6.5;
/// Fewer tokens a step would never end a long prompt.
const LEAST: usize = 8;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.25;

/// Moving averages of step times.
#[derive(Debug, Clone)]
pub struct Pacing {
    most: usize,
    now: usize,
    decode_ms: Option<f64>,
    prefill_ms_per_token: Option<f64>,
}

fn average(old: &mut Option<f64>, new: f64) {
    *old = Some(old.map_or(new, |old| old + NEWEST * (new - old)));
}

impl Pacing {
    /// Starts at the most that is allowed.
    pub fn new(most: usize) -> Self {
        Self { most, now: most, decode_ms: None, prefill_ms_per_token: None }
    }

    /// Learns from a step. The new chunk, when it changed enough to matter.
    pub fn step(&mut self, step: &StepFigures) -> Option<usize> {
        let ms = step.ms();
        if step.prefill_tokens == 0 {
            average(&mut self.decode_ms, ms);
        } else {
            let decode = if step.decode_tokens > 0 { self.decode_ms.unwrap_or(0.0) } else { 0.0 };
            average(&mut self.prefill_ms_per_token, (ms - decode).max(0.0) / step.prefill_tokens as f64);
        }
        let (decode_ms, per_token) = (self.decode_ms?, self.prefill_ms_per_token?);
        let fits = (DECODE_STEPS - 1.0) * decode_ms / per_token;
        // A clock too coarse to see either says nothing.
        let wanted = if fits.is_finite() && fits > 0.0 {
            (fits as usize).clamp(LEAST.min(self.most), self.most)
        } else {
            self.now
        };
        let settled = wanted != self.most && wanted.abs_diff(self.now) * 8 <= self.now;
        if settled || wanted == self.now {
            return None;
        }
        self.now = wanted;
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(prefill: usize, decode: usize, ms: f64) -> StepFigures {
        StepFigures { prefill_tokens: prefill, decode_tokens: decode, began: 0.0, ended: ms }
    }

    #[test]
    fn the_chunk_stays_within_eight_decode_steps() {
        let mut pacing = Pacing::new(512);
        assert_eq!(pacing.step(&step(0, 1, 30.0)), None, "nothing known of prefill");
        let chunk = pacing.step(&step(100, 1, 1030.0)).unwrap();
        assert_eq!(chunk, 16, "5.5 x 30 ms at 10 ms a token");
        assert_eq!(pacing.step(&step(16, 1, 190.0)), None, "as predicted: no change");
        for _ in 0..50 {
            pacing.step(&step(21, 1, 30.0 + 21.0 * 0.01));
        }
        assert_eq!(pacing.now, 512, "never above the caller's limit");
    }

    #[test]
    fn extremes_stay_in_bounds() {
        let mut pacing = Pacing::new(64);
        pacing.step(&step(0, 1, 0.0));
        assert_eq!(pacing.step(&step(10, 0, 0.0)), None, "a clock that did not move says nothing");
        pacing.step(&step(0, 1, 1e-3));
        pacing.step(&step(1, 0, 1e9));
        assert_eq!(pacing.now, LEAST);
        let mut tiny = Pacing::new(2);
        tiny.step(&step(0, 1, 1.0));
        tiny.step(&step(1, 0, 1e9));
        assert_eq!(tiny.now, 2);
    }
}
