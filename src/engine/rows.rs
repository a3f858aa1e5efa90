//! From logits (or what a device keeps of them) to the results that an `Executor` gives back. Executors that have whole rows
//! on the host need nothing else; the choosing itself is the sampling room's.
use super::executor::{RowResult, SampleRequest, ScoreRequest, Scored};
use crate::sampling::{
    CandidateOutcome, CandidateRow, Layout, Sampled, logprob_of, resume_chunk, resume_row, sample_candidates,
    sample_greedy, sample_row, top_logprobs,
};
use crate::{Error, Result};

/// Every draw of a request from its whole row of unmodified logits, `[V]`.
pub fn sample_full_row(request: &SampleRequest, logits: &[f32], layout: Layout) -> RowResult {
    collect(request.draws.iter().map(|&key| sample_row(logits, &request.input(key, layout))))
}

/// Every draw of a greedy request from the `greedy` record of its adjusted row.
pub fn sample_greedy_record(request: &SampleRequest, record: [u32; 4], layout: Layout) -> RowResult {
    collect(request.draws.iter().map(|&key| sample_greedy(record, &request.input(key, layout))))
}

/// The log-probability of a request's token in a whole row of unmodified logits, `[V]`.
///
/// # Errors
/// `model.non_finite` when the row holds NaN or infinity.
pub fn score_full_row(request: &ScoreRequest, logits: &[f32]) -> Result<Scored> {
    let logprob = logprob_of(logits, request.token)?;
    let top = if request.num_top > 0 { top_logprobs(logits, request.num_top as usize)? } else { Vec::new() };
    Ok(Scored { logprob, top })
}

fn collect(draws: impl Iterator<Item = Result<Sampled>>) -> RowResult {
    match draws.collect() {
        Ok(tokens) => RowResult::Tokens(tokens),
        Err(error) => RowResult::Failed(error),
    }
}

/// What the records of a row did not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The logits of this chunk of the adjusted row.
    Chunk(usize),
    /// The whole adjusted row.
    Row,
}

/// The draws of one request from the `candidates` records of its adjusted row: most are decided at once, the rest after
/// the executor has read what [`CandidateDraws::wanted`] names.
#[derive(Debug)]
pub struct CandidateDraws<'a> {
    request: &'a SampleRequest,
    records: CandidateRow,
    layout: Layout,
    draws: Vec<CandidateOutcome>,
}

impl<'a> CandidateDraws<'a> {
    /// Draws as far as the records reach.
    ///
    /// # Errors
    /// Those of the sampling room: a row with NaN or infinity, records of another layout.
    pub fn new(request: &'a SampleRequest, records: CandidateRow, layout: Layout) -> Result<Self> {
        let draws = request.draws.iter().map(|&key| sample_candidates(&records, &request.input(key, layout)));
        let draws = draws.collect::<Result<_>>()?;
        Ok(Self { request, records, layout, draws })
    }

    /// The next thing to read, or `None` when every draw is decided. A whole row serves every draw, so it comes first.
    pub fn wanted(&self) -> Option<Wanted> {
        let mut chunk = None;
        for draw in &self.draws {
            match draw {
                CandidateOutcome::NeedRow => return Some(Wanted::Row),
                CandidateOutcome::NeedChunk(c) => chunk = chunk.or(Some(Wanted::Chunk(*c))),
                CandidateOutcome::Sampled(_) => {}
            }
        }
        chunk
    }

    /// Decides the draws that fell into `chunk`.
    ///
    /// # Errors
    /// Those of the sampling room.
    pub fn supply_chunk(&mut self, chunk: usize, logits: &[f32]) -> Result<()> {
        for (draw, &key) in self.draws.iter_mut().zip(&self.request.draws) {
            if *draw == CandidateOutcome::NeedChunk(chunk) {
                let sampled = resume_chunk(&self.records, chunk, logits, &self.request.input(key, self.layout))?;
                *draw = CandidateOutcome::Sampled(sampled);
            }
        }
        Ok(())
    }

    /// Decides every open draw from the whole adjusted row.
    ///
    /// # Errors
    /// Those of the sampling room.
    pub fn supply_row(&mut self, logits: &[f32]) -> Result<()> {
        for (draw, &key) in self.draws.iter_mut().zip(&self.request.draws) {
            if !matches!(draw, CandidateOutcome::Sampled(_)) {
                let sampled = resume_row(&self.records, logits, &self.request.input(key, self.layout))?;
                *draw = CandidateOutcome::Sampled(sampled);
            }
        }
        Ok(())
    }

    /// The tokens. A draw still open fails the row.
    pub fn finish(self) -> RowResult {
        collect(self.draws.into_iter().map(|draw| match draw {
            CandidateOutcome::Sampled(sampled) => Ok(sampled),
            CandidateOutcome::NeedChunk(_) | CandidateOutcome::NeedRow => {
                Err(Error::new("engine.bad_step", "the executor did not read all that a draw needed"))
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::TokenId;
    use crate::sampling::{DrawKey, Readback, SamplingParams};

    const LAYOUT: Layout = Layout { vocab: 300, chunk: 64, best: 4 };

    fn request(params: SamplingParams, draws: u32) -> SampleRequest {
        let draws = (0..draws).map(|choice| DrawKey { seed: 11, choice, index: 3 }).collect();
        SampleRequest { row: 0, params: Rc::new(params), adjustments: Vec::new(), draws }
    }

    /// What a device keeps of a row, as `Layout` says.
    fn records(row: &[f32], temperature: f32) -> CandidateRow {
        let mut words = Vec::new();
        for (c, chunk) in row.chunks(LAYOUT.chunk).enumerate() {
            let max = chunk.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum = |t: f32| chunk.iter().map(|l| ((l - max) / t).exp()).sum::<f32>().to_bits();
            words.extend([max.to_bits(), sum(1.0), (max / temperature).to_bits(), sum(temperature)]);
            let mut order: Vec<usize> = (0..chunk.len()).collect();
            order.sort_by(|&a, &b| chunk[b].total_cmp(&chunk[a]).then(a.cmp(&b)));
            order.truncate(LAYOUT.best);
            words.extend(order.iter().flat_map(|&i| [(c * LAYOUT.chunk + i) as u32, chunk[i].to_bits()]));
        }
        CandidateRow::parse(&words, LAYOUT, false).unwrap()
    }

    fn tokens(result: RowResult) -> Vec<TokenId> {
        match result {
            RowResult::Tokens(sampled) => sampled.into_iter().map(|s| s.token).collect(),
            RowResult::Failed(error) => panic!("{error}"),
        }
    }

    proptest! {
        #[test]
        fn candidates_lead_to_the_tokens_of_whole_rows(
            row in prop::collection::vec(-6.0f32..6.0, LAYOUT.vocab), temperature in 0.2f32..3.0, top_p in 0.3f64..=1.0, draws in 1u32..9,
        ) {
            let request = request(SamplingParams { temperature, top_p, ..SamplingParams::default() }, draws);
            prop_assert_eq!(request.needs(), Readback::Candidates);
            let mut open = CandidateDraws::new(&request, records(&row, temperature), LAYOUT).unwrap();
            let mut reads = 0;
            while let Some(wanted) = open.wanted() {
                match wanted {
                    Wanted::Chunk(c) => open.supply_chunk(c, row.chunks(LAYOUT.chunk).nth(c).unwrap()).unwrap(),
                    Wanted::Row => open.supply_row(&row).unwrap(),
                }
                reads += 1;
            }
            prop_assert!(reads <= row.chunks(LAYOUT.chunk).count(), "each chunk is read once at most");
            prop_assert_eq!(tokens(open.finish()), tokens(sample_full_row(&request, &row, LAYOUT)));
        }
    }

    #[test]
    fn a_greedy_record_serves_every_draw() {
        let request = request(SamplingParams { temperature: 0.0, ..SamplingParams::default() }, 3);
        let record = [42, 2.0f32.to_bits(), 2.0f32.to_bits(), 1.5f32.to_bits()];
        assert_eq!(tokens(sample_greedy_record(&request, record, LAYOUT)), [TokenId(42); 3]);
        let nan = [42, f32::NAN.to_bits(), f32::NAN.to_bits(), f32::NAN.to_bits()];
        assert!(
            matches!(sample_greedy_record(&request, nan, LAYOUT), RowResult::Failed(e) if e.code == "model.non_finite")
        );
    }

    #[test]
    fn a_draw_that_was_not_decided_fails_the_row() {
        let flat = vec![0.0; LAYOUT.vocab];
        let request = request(SamplingParams::default(), 8);
        let open = CandidateDraws::new(&request, records(&flat, 1.0), LAYOUT).unwrap();
        assert!(open.wanted().is_some(), "of 300 equal tokens the records show 20");
        assert!(matches!(open.finish(), RowResult::Failed(e) if e.code == "engine.bad_step"));
    }
}
