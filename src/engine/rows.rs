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
