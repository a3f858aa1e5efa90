//! A transformer under the engine: one forward a step, then as little of each row of logits as its sampling needs.
//!
//! On the CPU rows are read where they lie. On a GPU what leaves the device is, a row: the greedy record, or the chunk
//! candidates, or (for penalties together with logprobs, for scores, for a draw outside the candidates) the whole row.
use crate::backend::{BackendKind, Floats};
use crate::engine::{
    CandidateDraws, Executor, ExecutorStats, RowResult, SampleRequest, ScoreRequest, Scored, StepOutput, Wanted,
    sample_full_row, sample_greedy_record, score_full_row,
};
use crate::model::transformer::{Checkpoint, Hidden, LOGIT_ROWS, Transformer};
use crate::ops::call;
use crate::ops::counters::take_counters;
use crate::ops::logits::{AdjustProblem, CHUNK, CHUNK_BEST, CandidatesProblem};
use crate::sampling::{CandidateRow, Layout, Readback};
use crate::scheduler::batch::BatchInput;
use crate::{Error, Result};

/// Runs a model for the engine. `C` gives the host a turn within a step.
#[derive(Debug)]
pub struct ModelExecutor<C> {
    model: Transformer,
    checkpoint: C,
    stats: ExecutorStats,
}

/// The requests of one tile of logit rows, by index into the step's lists.
struct Tile<'a> {
    first: usize,
    count: usize,
    samples: Vec<(usize, &'a SampleRequest)>,
    scores: Vec<(usize, &'a ScoreRequest)>,
}

/// Answers in the making.
struct Answers {
    rows: Vec<Option<RowResult>>,
    scores: Vec<Option<Result<Scored>>>,
}

impl<C: Checkpoint> ModelExecutor<C> {
    /// Puts a model under an engine.
    pub fn new(model: Transformer, checkpoint: C) -> Self {
        Self { model, checkpoint, stats: ExecutorStats::default() }
    }

    /// The model.
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    fn layout(&self) -> Layout {
        Layout { vocab: self.model.spec.vocab, chunk: CHUNK, best: CHUNK_BEST }
    }

    /// Rows of logits that are made at once: bounded by memory, and on the CPU by what may be computed without a pause.
    fn rows_at_once(&self) -> usize {
        match self.model.backend().kind() {
            // Rows together share the reading of the largest matrix there is, and cost about half of what they do alone.
            BackendKind::Cpu => self.checkpoint.rows(self.model.head_work() / 2).clamp(1, LOGIT_ROWS),
            BackendKind::Webgpu => LOGIT_ROWS,
        }
    }

    async fn tile(&mut self, hidden: &Hidden, tile: &Tile<'_>, answers: &mut Answers) -> Result<()> {
        let logits = self.model.logits(hidden, tile.first..tile.first + tile.count);
        if self.model.backend().kind() == BackendKind::Cpu {
            let values = self.read_rows(logits).await?;
            self.whole_rows(&values, tile, answers, |_| true);
            return Ok(());
        }
        if !tile.scores.is_empty() || tile.samples.iter().any(|(_, s)| s.needs() == Readback::Row) {
            let values = self.read_rows(logits.clone()).await?;
            self.whole_rows(&values, tile, answers, |s| s.needs() == Readback::Row);
        }
        self.records(logits, tile, answers).await
    }

    /// Answers from whole rows on the host: every score, and the samples that `take` names.
    fn whole_rows(
        &self,
        values: &[f32],
        tile: &Tile<'_>,
        answers: &mut Answers,
        take: impl Fn(&SampleRequest) -> bool,
    ) {
        let vocab = self.model.spec.vocab;
        let row = |row: usize| &values[(row - tile.first) * vocab..][..vocab];
        for (index, request) in tile.samples.iter().filter(|(_, s)| take(s)) {
            answers.rows[*index] = Some(sample_full_row(request, row(request.row), self.layout()));
        }
        for (index, request) in &tile.scores {
            answers.scores[*index] = Some(score_full_row(request, row(request.row)));
        }
    }

    /// Answers the remaining samples from greedy records and candidates made on the device.
    async fn records(&mut self, logits: Floats, tile: &Tile<'_>, answers: &mut Answers) -> Result<()> {
        let open: Vec<_> = tile.samples.iter().filter(|(index, _)| answers.rows[*index].is_none()).copied().collect();
        if open.is_empty() {
            return Ok(());
        }
        let logits = self.adjust(logits, tile, &open);
        let problem = CandidatesProblem { rows: tile.count, vocab: self.model.spec.vocab };
        let mut temperatures = vec![0.0; tile.count];
        for (_, request) in &open {
            temperatures[request.row - tile.first] = request.params.temperature;
        }
        let candidates = call::candidates(&logits, &self.model.backend().floats(temperatures), problem);

        let (greedy, drawn): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, s)| s.needs() == Readback::Greedy);
        if !greedy.is_empty() {
            let words = self.read_words(call::greedy(&candidates, problem)).await?;
            for (index, request) in greedy {
                let at = (request.row - tile.first) * 4;
                let record = [words[at], words[at + 1], words[at + 2], words[at + 3]];
                answers.rows[index] = Some(sample_greedy_record(request, record, self.layout()));
            }
        }
        if !drawn.is_empty() {
            let words = self.read_words(candidates).await?;
            self.draw(&words, logits, tile, &drawn, answers).await?;
        }
        Ok(())
    }

    fn adjust(&self, logits: Floats, tile: &Tile<'_>, open: &[(usize, &SampleRequest)]) -> Floats {
        let mut entries = Vec::new();
        for (_, request) in open {
            for a in request.adjustments() {
                entries.extend([(request.row - tile.first) as u32, a.token.0, a.factor.to_bits(), a.addend.to_bits()]);
            }
        }
        if entries.is_empty() {
            return logits;
        }
        let problem = AdjustProblem { num_entries: entries.len() / 4, vocab: self.model.spec.vocab };
        call::adjust_logits(logits, &self.model.backend().words(entries), problem)
    }

    async fn draw(
        &mut self,
        words: &[u32],
        logits: Floats,
        tile: &Tile<'_>,
        drawn: &[(usize, &SampleRequest)],
        answers: &mut Answers,
    ) -> Result<()> {
        let layout = self.layout();
        let row_words = layout.num_chunks() * layout.chunk_words();
        let mut rows: Option<Vec<f32>> = None;
        for (index, request) in drawn {
            let at = request.row - tile.first;
            let records = CandidateRow::parse(&words[at * row_words..][..row_words], layout, false);
            let mut draws = match records.and_then(|records| CandidateDraws::new(request, records, layout)) {
                Ok(draws) => draws,
                Err(error) => {
                    answers.rows[*index] = Some(RowResult::Failed(error));
                    continue;
                }
            };
            let mut failed = None;
            while let Some(wanted) = draws.wanted() {
                if rows.is_none() {
                    rows = Some(self.read_rows(logits.clone()).await?);
                }
                let row = rows.as_deref().map_or(&[][..], |all| &all[at * layout.vocab..][..layout.vocab]);
                let supplied = match wanted {
                    Wanted::Row => draws.supply_row(row),
                    Wanted::Chunk(c) => draws.supply_chunk(c, row.chunks(layout.chunk).nth(c).unwrap_or_default()),
                };
                if let Err(error) = supplied {
                    failed = Some(error);
                    break;
                }
            }
            answers.rows[*index] = Some(failed.map_or_else(|| draws.finish(), RowResult::Failed));
        }
        Ok(())
    }

    async fn read_rows(&mut self, logits: Floats) -> Result<Vec<f32>> {
        let values = self.model.backend().read_floats(logits).await?;
        self.count_readback(values.len());
        Ok(values)
    }

    async fn read_words(&mut self, words: crate::backend::Words) -> Result<Vec<u32>> {
        let words = self.model.backend().read_words(words).await?;
        self.count_readback(words.len());
        Ok(words)
    }

    fn count_readback(&mut self, words: usize) {
        if self.model.backend().kind() == BackendKind::Webgpu {
            self.stats.readbacks += 1;
            self.stats.readback_bytes += 4 * words as u64;
        }
    }

    fn count_step(&mut self) {
        let counters = take_counters();
        self.stats.dispatches += counters.dispatches;
        self.stats.weight_bytes += counters.weight_bytes;
        self.stats.peak_device_bytes = self.stats.peak_device_bytes.max(self.model.backend().pool_bytes());
    }
}

impl<C: Checkpoint> Executor for ModelExecutor<C> {
    async fn execute(
        &mut self,
        batch: &BatchInput,
        samples: &[SampleRequest],
        scores: &[ScoreRequest],
    ) -> Result<StepOutput> {
        take_counters();
        let hidden = self.model.hidden(batch, &mut self.checkpoint).await?;
        let mut answers = Answers { rows: vec![None; samples.len()], scores: scores.iter().map(|_| None).collect() };
        let (work, rows) = (self.model.head_work(), self.rows_at_once());
        for first in (0..batch.logit_rows.len()).step_by(rows) {
            let count = rows.min(batch.logit_rows.len() - first);
            let within = |row: usize| (first..first + count).contains(&row);
            let tile = Tile {
                first,
                count,
                samples: samples.iter().enumerate().filter(|(_, s)| within(s.row)).collect(),
                scores: scores.iter().enumerate().filter(|(_, s)| within(s.row)).collect(),
            };
            self.tile(&hidden, &tile, &mut answers).await?;
            self.checkpoint.pause(work * count).await;
        }
        self.count_step();
        // After the reads: what went wrong before them has been reported by now.
        self.model.backend().check()?;
        let missing = || Error::new("engine.bad_step", "a row was asked for that the batch does not have");
        Ok(StepOutput {
            rows: answers.rows.into_iter().map(|row| row.unwrap_or_else(|| RowResult::Failed(missing()))).collect(),
            scores: answers.scores.into_iter().map(|score| score.unwrap_or_else(|| Err(missing()))).collect(),
        })
    }

    fn stats(&self) -> ExecutorStats {
        self.stats
    }

    /// On the CPU nothing goes on behind a dropped future; a GPU has the step in its queue, and gives it back soon.
    fn can_give_up(&self) -> bool {
        self.model.backend().kind() == BackendKind::Cpu
    }
}
