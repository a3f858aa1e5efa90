//! From logits to a token: validated params, the processor chain, the seeded draw, stop rules, logprobs. It reads logits as
//! slices and records; computing them, and decoding tokens to text, is left to others.
//!
//! A row is sampled either whole ([`sample_row`]) or from what a device keeps of it ([`sample_candidates`]), which says when
//! it needs more ([`resume_chunk`], [`resume_row`]). Both run the same code (`processors.rs`) over the same ranking, so they
//! choose the same token. `exp` and `ln` are those of the `libm` crate in f64, the same bits natively and in wasm: what is
//! drawn depends on the platform only through the logits, and through the f32 sums that a device puts into its records
//! (whose last bits may move a draw that falls within about 1e-6 of the boundary between two tokens).
mod candidates;
mod counts;
mod draw;
mod logprobs;
mod mask;
mod params;
mod processors;
mod rank;
mod raw;
mod sample;
mod stop;

#[cfg(test)]
mod tests;

pub use candidates::{CandidateRow, Layout};
pub use counts::TokenCounts;
pub use draw::DrawKey;
pub use logprobs::{LogNormalizer, TokenLogprob, logprob_of, top_logprobs};
pub use mask::TokenMask;
pub use params::{MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_BYTES, MAX_STOPS, Readback, SEED_LIMIT, SamplingParams};
pub use processors::{Adjustment, adjustments};
pub use raw::{RawSampling, RawValue};
pub use sample::{
    CandidateOutcome, SampleInput, Sampled, resume_chunk, resume_row, sample_candidates, sample_greedy, sample_row,
};
pub use stop::{StopMatcher, StopStep};
