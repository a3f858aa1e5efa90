//! Sampling parameters, checked once against the vocabulary and believed from then on. Applying them is the chain's.
use crate::ids::TokenId;
use crate::{Error, Result};

use super::raw::{RawSampling, RawValue};

/// Stop strings a request may have.
pub const MAX_STOPS: usize = 16;
/// Bytes of one stop string.
pub const MAX_STOP_BYTES: usize = 1024;
/// Choices a request may have.
pub const MAX_CHOICES: u32 = 128;
/// Alternatives listed with a token's logprob.
pub const MAX_LOGPROBS: u32 = 20;
/// Seeds are integers below this, so that JavaScript numbers hold them exactly.
pub const SEED_LIMIT: u64 = 1 << 53;

/// A request's sampling parameters, every field in range. Defaults change nothing about the model's distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise 1e-6 to 1e6 (where f32 quotients on every device stay finite). Default 1.
    pub temperature: f32,
    /// Keep this many best tokens; `None` (0 in the request) keeps all.
    pub top_k: Option<u32>,
    /// Keep the fewest best tokens whose mass reaches this share, in (0, 1]; 1 is off.
    pub top_p: f64,
    /// Keep tokens at least this fraction as likely as the likeliest, in [0, 1]; 0 is off.
    pub min_p: f64,
    /// Keep the tokens nearest the expected surprisal until their mass reaches this share, in (0, 1]; 1 is off.
    pub typical_p: f64,
    /// Divides positive and multiplies other logits of tokens in prompt or output, 0.01 to 100; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token in the output, -2 to 2.
    pub presence_penalty: f64,
    /// Subtracted for each occurrence in the output, -2 to 2.
    pub frequency_penalty: f64,
    /// Added to logits, -100 to 100, ascending by token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Below [`SEED_LIMIT`]; the engine picks one when absent.
    pub seed: Option<u64>,
    /// Up to [`MAX_STOPS`] non-empty strings of at most [`MAX_STOP_BYTES`] bytes.
    pub stop: Vec<String>,
    /// Choices, 1 to [`MAX_CHOICES`].
    pub n: u32,
    /// Tokens to generate at most; absent means what the context has left.
    pub max_tokens: Option<u32>,
    /// Report each token's logprob and this many alternatives, 0 to [`MAX_LOGPROBS`].
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            n: 1,
            max_tokens: None,
            logprobs: None,
        }
    }
}

/// What the device must hand over so that a token can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readback {
    /// The `greedy` record of the adjusted row.
    Greedy,
    /// The `candidates` records of the adjusted row; more only when the draw says so.
    Candidates,
    /// The whole row, before any adjustment.
    Row,
}

impl SamplingParams {
    /// Checks every field; the first bad one is `request.invalid` with `field`, `expected` and `got`, one that the engine
    /// cannot honour is `request.unsupported` with `field`.
    pub fn new(raw: &RawSampling, vocab: usize) -> Result<Self> {
        refuse_unsupported(raw)?;
        let or = |x: Option<f64>, default: f64| x.unwrap_or(default);
        let temperature =
            number("temperature", &raw.temperature, "0 (greedy) or a number from 0.000001 to 1000000", |x| {
                x == 0.0 || (1e-6..=1e6).contains(&x)
            })?;
        let share = |x: f64| x > 0.0 && x <= 1.0;
        let penalty = |x: f64| (-2.0..=2.0).contains(&x);
        let repetition = number("repetition_penalty", &raw.repetition_penalty, "a number from 0.01 to 100", |x| {
            (0.01..=100.0).contains(&x)
        })?;
        Ok(Self {
            temperature: or(temperature, 1.0) as f32,
            top_k: integer("top_k", &raw.top_k, 0, u64::from(u32::MAX))?.filter(|&k| k > 0).map(|k| k as u32),
            top_p: or(number("top_p", &raw.top_p, "a number above 0, at most 1", share)?, 1.0),
            min_p: or(number("min_p", &raw.min_p, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))?, 0.0),
            typical_p: or(number("typical_p", &raw.typical_p, "a number above 0, at most 1", share)?, 1.0),
            repetition_penalty: or(repetition, 1.0) as f32,
            presence_penalty: or(
                number("presence_penalty", &raw.presence_penalty, "a number from -2 to 2", penalty)?,
                0.0,
            ),
            frequency_penalty: or(
                number("frequency_penalty", &raw.frequency_penalty, "a number from -2 to 2", penalty)?,
                0.0,
            ),
            logit_bias: logit_bias(&raw.logit_bias, vocab)?,
            seed: integer("seed", &raw.seed, 0, SEED_LIMIT - 1)?,
            stop: stops(&raw.stop)?,
            n: integer("n", &raw.n, 1, u64::from(MAX_CHOICES))?.map_or(1, |n| n as u32),
            max_tokens: integer("max_tokens", &raw.max_tokens, 0, u64::from(u32::MAX))?.map(|n| n as u32),
            logprobs: integer("logprobs", &raw.logprobs, 0, u64::from(MAX_LOGPROBS))?.map(|n| n as u32),
        })
    }

    /// Whether `TokenCounts` are consulted: where not, they need not be kept.
    pub fn counts_tokens(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether logits change before the temperature, a grammar mask aside.
    pub fn adjusts(&self) -> bool {
        self.counts_tokens() || !self.logit_bias.is_empty()
    }

    /// Whether every token stays in play: the draw then needs no ranking.
    pub(super) fn keeps_all(&self) -> bool {
        self.top_k.is_none() && self.top_p >= 1.0 && self.min_p <= 0.0 && self.typical_p >= 1.0
    }

    /// The least that suffices to sample a row, `masked` when a grammar constrains it. Logprobs are of the unmodified
    /// logits, so with adjustments they need the row as it was; typical sampling needs the entropy of all that top-k keeps.
    pub fn readback(&self, masked: bool) -> Readback {
        if self.logprobs.is_some() && (masked || self.adjusts()) {
            Readback::Row
        } else if self.temperature == 0.0 {
            if self.logprobs.unwrap_or(0) == 0 { Readback::Greedy } else { Readback::Candidates }
        } else if self.typical_p < 1.0 && self.top_k.is_none() {
            Readback::Row
        } else {
            Readback::Candidates
        }
    }
}

fn invalid(field: &str, expected: &str, got: &RawValue) -> Error {
    Error::new("request.invalid", format!("`{field}` must be {expected}"))
        .with("field", field)
        .with("expected", expected)
        .with("got", got.describe())
}

fn refuse_unsupported(raw: &RawSampling) -> Result<()> {
    let unsupported = |field: &str, got: &RawValue| {
        Err(Error::new("request.unsupported", format!("this engine cannot honour `{field}`"))
            .with("field", field)
            .with("got", got.describe()))
    };
    match &raw.response_format {
        None | Some(RawValue::Null) => {}
        Some(RawValue::Map(fields))
            if fields.len() == 1 && fields.get("type") == Some(&RawValue::Text("text".into())) => {}
        Some(RawValue::Map(fields)) => match fields.get("type") {
            Some(kind @ RawValue::Text(t)) if t != "text" => return unsupported("response_format.type", kind),
            _ => return Err(invalid("response_format", "an object with a known type", &RawValue::Map(fields.clone()))),
        },
        Some(other) => return Err(invalid("response_format", "an object", other)),
    }
    match &raw.adapter {
        None | Some(RawValue::Null) => Ok(()),
        Some(name @ RawValue::Text(_)) => unsupported("adapter", name),
        Some(other) => Err(invalid("adapter", "a string", other)),
    }
}

/// A finite number that `valid` accepts.
fn number(field: &str, raw: &Option<RawValue>, expected: &str, valid: impl Fn(f64) -> bool) -> Result<Option<f64>> {
    match raw {
        None | Some(RawValue::Null) => Ok(None),
        Some(RawValue::Number(x)) if x.is_finite() && valid(*x) => Ok(Some(*x)),
        Some(other) => Err(invalid(field, expected, other)),
    }
}

/// An integer in `min..=max`, `max` below 2^53.
fn integer(field: &str, raw: &Option<RawValue>, min: u64, max: u64) -> Result<Option<u64>> {
    let valid = |x: f64| x.fract() == 0.0 && x >= min as f64 && x <= max as f64;
    Ok(number(field, raw, &format!("an integer from {min} to {max}"), valid)?.map(|x| x as u64))
}

fn logit_bias(raw: &Option<RawValue>, vocab: usize) -> Result<Vec<(TokenId, f32)>> {
    let map = match raw {
        None | Some(RawValue::Null) => return Ok(Vec::new()),
        Some(RawValue::Map(map)) => map,
        Some(other) => return Err(invalid("logit_bias", "an object from token ids to numbers", other)),
    };
    let mut entries = Vec::with_capacity(map.len());
    for (key, value) in map {
        let field = format!("logit_bias[{:?}]", key.chars().take(32).collect::<String>());
        // Only the canonical decimal form: "07" beside "7" would be two biases for one token.
        let token = key.parse::<u32>().ok().filter(|t| (*t as usize) < vocab && t.to_string() == *key);
        let Some(token) = token else {
            return Err(invalid(&field, &format!("keyed by a token id below {vocab}"), &RawValue::Text(key.clone())));
        };
        let expected = "a number from -100 to 100";
        match number(&field, &Some(value.clone()), expected, |x| (-100.0..=100.0).contains(&x))? {
            Some(bias) if bias != 0.0 => entries.push((TokenId(token), bias as f32)),
            Some(_) => {}
            None => return Err(invalid(&field, expected, value)),
        }
    }
    entries.sort_by_key(|&(token, _)| token);
    Ok(entries)
}

fn stops(raw: &Option<RawValue>) -> Result<Vec<String>> {
    let items = match raw {
        None | Some(RawValue::Null) => return Ok(Vec::new()),
        Some(one @ RawValue::Text(_)) => std::slice::from_ref(one),
        Some(RawValue::List(items)) if items.len() <= MAX_STOPS => items,
        Some(other) => return Err(invalid("stop", &format!("a string or a list of at most {MAX_STOPS}"), other)),
    };
    let stop = |item: &RawValue| match item {
        RawValue::Text(text) if !text.is_empty() && text.len() <= MAX_STOP_BYTES => Ok(text.clone()),
        other => Err(invalid("stop", &format!("non-empty strings of at most {MAX_STOP_BYTES} bytes"), other)),
    };
    items.iter().map(stop).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<SamplingParams> {
        SamplingParams::new(&serde_json::from_str(json).unwrap(), 100)
    }

    #[test]
    fn defaults_change_nothing() {
        assert_eq!(parse("{}").unwrap(), SamplingParams::default());
        assert_eq!(
            parse(r#"{"temperature":null,"stop":null,"top_k":0,"response_format":{"type":"text"}}"#).unwrap(),
            SamplingParams::default()
        );
        assert!(SamplingParams::default().keeps_all() && !SamplingParams::default().adjusts());
    }

    #[test]
    fn every_field_is_taken() {
        let p = parse(
            r#"{"temperature":0.5,"top_k":40,"top_p":0.9,"min_p":0.05,"typical_p":0.8,"repetition_penalty":1.25,
                "presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"99":-100,"7":1.5,"8":0},"seed":9007199254740991,
                "stop":["a","b"],"n":4,"max_tokens":0,"logprobs":20}"#,
        )
        .unwrap();
        assert_eq!((p.temperature, p.top_k, p.top_p, p.min_p, p.typical_p), (0.5, Some(40), 0.9, 0.05, 0.8));
        assert_eq!((p.repetition_penalty, p.presence_penalty, p.frequency_penalty), (1.25, -2.0, 2.0));
        assert_eq!(p.logit_bias, [(TokenId(7), 1.5), (TokenId(99), -100.0)]);
        assert_eq!((p.seed, p.n, p.max_tokens, p.logprobs), (Some((1 << 53) - 1), 4, Some(0), Some(20)));
        assert_eq!(p.stop, ["a", "b"]);
        assert_eq!(parse(r#"{"stop":"x"}"#).unwrap().stop, ["x"]);
    }

    #[test]
    fn bad_values_name_their_field() {
        let long = format!(r#"{{"stop":"{}"}}"#, "x".repeat(MAX_STOP_BYTES + 1));
        for (json, field) in [
            (r#"{"temperature":-0.1}"#, "temperature"),
            (r#"{"temperature":"hot"}"#, "temperature"),
            (r#"{"temperature":1e-9}"#, "temperature"),
            (r#"{"top_k":-1}"#, "top_k"),
            (r#"{"top_k":1.5}"#, "top_k"),
            (r#"{"top_p":0}"#, "top_p"),
            (r#"{"top_p":1.01}"#, "top_p"),
            (r#"{"min_p":-0.01}"#, "min_p"),
            (r#"{"typical_p":0}"#, "typical_p"),
            (r#"{"repetition_penalty":0}"#, "repetition_penalty"),
            (r#"{"presence_penalty":2.1}"#, "presence_penalty"),
            (r#"{"frequency_penalty":-2.1}"#, "frequency_penalty"),
            (r#"{"logit_bias":[1]}"#, "logit_bias"),
            (r#"{"logit_bias":{"100":1}}"#, r#"logit_bias["100"]"#),
            (r#"{"logit_bias":{"07":1}}"#, r#"logit_bias["07"]"#),
            (r#"{"logit_bias":{"7":101}}"#, r#"logit_bias["7"]"#),
            (r#"{"logit_bias":{"7":null}}"#, r#"logit_bias["7"]"#),
            (r#"{"seed":9007199254740992}"#, "seed"),
            (r#"{"seed":-1}"#, "seed"),
            (r#"{"stop":""}"#, "stop"),
            (r#"{"stop":["a",1]}"#, "stop"),
            (r#"{"stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]}"#, "stop"),
            (long.as_str(), "stop"),
            (r#"{"n":0}"#, "n"),
            (r#"{"max_tokens":-1}"#, "max_tokens"),
            (r#"{"logprobs":21}"#, "logprobs"),
            (r#"{"logprobs":true}"#, "logprobs"),
            (r#"{"response_format":"json"}"#, "response_format"),
            (r#"{"adapter":3}"#, "adapter"),
        ] {
            let error = parse(json).unwrap_err();
            assert_eq!(error.code, "request.invalid", "{json}");
            assert_eq!(error.details["field"], field, "{json}");
            assert!(error.details.contains_key("expected") && error.details.contains_key("got"), "{json}");
        }
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let raw = RawSampling { temperature: Some(x.into()), ..Default::default() };
            assert_eq!(SamplingParams::new(&raw, 100).unwrap_err().code, "request.invalid");
        }
        for json in [r#"{"response_format":{"type":"json_object"}}"#, r#"{"adapter":"x"}"#] {
            assert_eq!(parse(json).unwrap_err().code, "request.unsupported", "{json}");
        }
    }

    #[test]
    fn the_readback_is_the_least_that_suffices() {
        let of = |json: &str| parse(json).unwrap().readback(false);
        assert_eq!(of("{}"), Readback::Candidates);
        assert_eq!(of(r#"{"temperature":0}"#), Readback::Greedy);
        assert_eq!(of(r#"{"temperature":0,"logprobs":0}"#), Readback::Greedy);
        assert_eq!(of(r#"{"temperature":0,"logprobs":1}"#), Readback::Candidates);
        assert_eq!(of(r#"{"temperature":0,"logprobs":0,"presence_penalty":1}"#), Readback::Row);
        assert_eq!(of(r#"{"temperature":0,"presence_penalty":1}"#), Readback::Greedy);
        assert_eq!(of(r#"{"typical_p":0.5}"#), Readback::Row);
        assert_eq!(of(r#"{"typical_p":0.5,"top_k":5}"#), Readback::Candidates);
        assert_eq!(SamplingParams { logprobs: Some(0), ..Default::default() }.readback(true), Readback::Row);
    }
}
