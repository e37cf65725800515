//! A model that only pretends: its steps take the time that a cost model says, its tokens come from a script.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::model::{Made, Model, ModelError, ModelSpec, StepOutput, Work};
use crate::sample::mix;

/// Which tokens a simulated model emits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emission {
    /// Token ids drawn from the vocabulary by the request's seed, never one that ends the generation.
    Random,
    /// The prompt again, then the end-of-sequence id.
    Echo,
    /// These lists, one request after the other, from the first again after the last; each then ends with the
    /// end-of-sequence id.
    Script(Vec<Vec<i32>>),
}

/// The cost model and the script of a simulated engine.
///
/// Its text form is `key=value,...`, every key optional: `prefill` (prompt tokens per second, 0 costs nothing),
/// `decode-base-us` and `decode-per-request-us` (microseconds per decoding step, and more for each request in it),
/// `tokens-per-step` (tokens a request gains in a step), `kv-pages`, `page-size` (tokens), `max-running`,
/// `max-batched-tokens`, `max-model-len`, `vocab`, `eos` (an id, or `none`), `emit` (`random`, `echo`, or a script such as
/// `5:6:7/8:9`: lists of ids, separated by slashes), `name`.
///
/// ```
/// use ts_engine::simulate::{Emission, SimulateConfig};
///
/// let config: SimulateConfig = "prefill=50000,decode-base-us=8000,decode-per-request-us=100,emit=echo".parse()?;
/// assert_eq!(config.emit, Emission::Echo);
/// assert_eq!("kv-page=9".parse::<SimulateConfig>().unwrap_err().to_string().split(';').next(), Some("unknown key kv-page"));
/// # Ok::<(), ts_engine::simulate::SimulateError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SimulateConfig {
    /// The name it is registered under.
    pub name: String,
    /// Prompt tokens per second; 0 costs nothing.
    pub prefill_tokens_per_s: f64,
    /// Microseconds of a step in which any request decodes.
    pub decode_base_us: f64,
    /// Further microseconds for each request that decodes in it.
    pub decode_per_request_us: f64,
    /// Tokens that a request gains in a step.
    pub tokens_per_step: usize,
    /// KV pages in all.
    pub kv_pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Requests that run at once.
    pub max_running: usize,
    /// Tokens computed in one step.
    pub max_batched_tokens: usize,
    /// Longest sequence.
    pub max_model_len: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// The id that ends a generation. Without it, scripts and echoes start again at their end.
    pub eos: Option<i32>,
    /// Which tokens come.
    pub emit: Emission,
}

impl Default for SimulateConfig {
    fn default() -> Self {
        SimulateConfig {
            name: "simulated".into(),
            prefill_tokens_per_s: 0.0,
            decode_base_us: 0.0,
            decode_per_request_us: 0.0,
            tokens_per_step: 1,
            kv_pages: 65_536,
            page_size: 16,
            max_running: 256,
            max_batched_tokens: 8192,
            max_model_len: 32_768,
            // Of the demo model, so that its tokenizer fits.
            vocab: 49_152,
            eos: Some(2),
            emit: Emission::Random,
        }
    }
}

/// A text that is no simulation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// There is no such key.
    #[error("unknown key {0}; the keys are {keys}", keys = KEYS.join(", "))]
    UnknownKey(String),
    /// An item without `=`.
    #[error("{0:?} is not of the form key=value")]
    NoValue(String),
    /// A value that its key cannot have.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

const KEYS: [&str; 13] = [
    "name",
    "prefill",
    "decode-base-us",
    "decode-per-request-us",
    "tokens-per-step",
    "kv-pages",
    "page-size",
    "max-running",
    "max-batched-tokens",
    "max-model-len",
    "vocab",
    "eos",
    "emit",
];

impl FromStr for SimulateConfig {
    type Err = SimulateError;

    fn from_str(text: &str) -> Result<Self, SimulateError> {
        let mut config = SimulateConfig::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').ok_or_else(|| SimulateError::NoValue(item.to_owned()))?;
            config.set(key.trim(), value.trim())?;
        }
        config.check()?;
        Ok(config)
    }
}

fn wrong(key: &str, value: impl fmt::Display, expected: &'static str) -> SimulateError {
    SimulateError::Value { key: key.to_owned(), value: value.to_string(), expected }
}

fn amount(key: &str, value: &str) -> Result<f64, SimulateError> {
    match value.parse::<f64>() {
        Ok(amount) if amount.is_finite() && amount >= 0.0 => Ok(amount),
        _ => Err(wrong(key, value, "a number that is not negative")),
    }
}

fn count(key: &str, value: &str) -> Result<usize, SimulateError> {
    match value.parse::<usize>() {
        Ok(count) if (1..=100_000_000).contains(&count) => Ok(count),
        _ => Err(wrong(key, value, "a whole number from 1 to 100000000")),
    }
}

fn token(key: &str, value: &str) -> Result<i32, SimulateError> {
    match value.parse::<i32>() {
        Ok(id) if id >= 0 => Ok(id),
        _ => Err(wrong(key, value, "a token id")),
    }
}

impl SimulateConfig {
    fn set(&mut self, key: &str, value: &str) -> Result<(), SimulateError> {
        match key {
            "name" => self.name = value.to_owned(),
            "prefill" => self.prefill_tokens_per_s = amount(key, value)?,
            "decode-base-us" => self.decode_base_us = amount(key, value)?,
            "decode-per-request-us" => self.decode_per_request_us = amount(key, value)?,
            "tokens-per-step" => self.tokens_per_step = count(key, value)?,
            "kv-pages" => self.kv_pages = count(key, value)?,
            "page-size" => self.page_size = count(key, value)?,
            "max-running" => self.max_running = count(key, value)?,
            "max-batched-tokens" => self.max_batched_tokens = count(key, value)?,
            "max-model-len" => self.max_model_len = count(key, value)?,
            "vocab" => self.vocab = count(key, value)?,
            "eos" => self.eos = if value == "none" { None } else { Some(token(key, value)?) },
            "emit" => self.emit = emission(key, value)?,
            _ => return Err(SimulateError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// What must hold between the values.
    fn check(&self) -> Result<(), SimulateError> {
        let inside = |id: i32| usize::try_from(id).is_ok_and(|id| id < self.vocab);
        if self.vocab < 2 {
            return Err(wrong("vocab", self.vocab, "at least 2"));
        }
        if self.max_model_len < 16 {
            return Err(wrong("max-model-len", self.max_model_len, "at least 16"));
        }
        if let Some(eos) = self.eos.filter(|eos| !inside(*eos)) {
            return Err(wrong("eos", eos, "a token id inside the vocabulary"));
        }
        if let Emission::Script(lists) = &self.emit
            && let Some(id) = lists.iter().flatten().find(|id| !inside(**id))
        {
            return Err(wrong("emit", id, "token ids inside the vocabulary"));
        }
        Ok(())
    }

    /// What the scheduler has to know of it.
    pub fn spec(&self) -> ModelSpec {
        ModelSpec {
            name: self.name.clone(),
            vocab: self.vocab,
            max_model_len: self.max_model_len,
            eos: self.eos.into_iter().collect(),
            dtype: "bfloat16",
            max_running: self.max_running,
            kv_pages: self.kv_pages,
            page_size: self.page_size,
            max_batched_tokens: self.max_batched_tokens,
        }
    }
}

fn emission(key: &str, value: &str) -> Result<Emission, SimulateError> {
    match value {
        "random" => Ok(Emission::Random),
        "echo" => Ok(Emission::Echo),
        script => {
            let list = |list: &str| list.split(':').map(|id| token(key, id)).collect::<Result<Vec<_>, _>>();
            let lists = script.split('/').map(list).collect::<Result<Vec<_>, _>>();
            lists.map(Emission::Script).map_err(|_| {
                wrong(key, script, "random, echo, or token ids such as 5:6:7, several lists separated by /")
            })
        }
    }
}

/// The simulated model.
#[derive(Debug)]
pub(crate) struct Simulated {
    config: SimulateConfig,
    spec: ModelSpec,
}

impl Simulated {
    pub(crate) fn new(config: SimulateConfig) -> Self {
        let spec = config.spec();
        Simulated { config, spec }
    }

    /// The token number `index` of the answer to `work`.
    fn token(&self, work: &Work<'_>, index: usize) -> i32 {
        let of_list = |list: &[i32]| match (list.get(index), self.config.eos) {
            (Some(id), _) => *id,
            (None, Some(eos)) => eos,
            (None, None) => list.get(index % list.len().max(1)).copied().unwrap_or(0),
        };
        match &self.config.emit {
            Emission::Random => {
                let choices = self.config.vocab - usize::from(self.config.eos.is_some());
                let id = (mix(work.seed, index as u64) % choices as u64) as i32;
                // The last id takes the place of the one that would end it.
                if Some(id) == self.config.eos { choices as i32 } else { id }
            }
            Emission::Echo => of_list(&work.tokens[..work.prompt]),
            Emission::Script(lists) => {
                let list = lists.get((work.arrival % lists.len().max(1) as u64) as usize);
                of_list(list.map_or(&[], Vec::as_slice))
            }
        }
    }
}

impl Model for Simulated {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn step(&mut self, work: &[Work<'_>], out: &mut StepOutput) -> Result<Duration, ModelError> {
        out.clear();
        let mut prefilled = 0;
        let mut decoding = 0;
        for work in work {
            if work.decodes() {
                decoding += 1;
            } else {
                prefilled += work.compute.len();
            }
            let first = out.tokens.len();
            if work.yields() {
                let known = work.tokens.len() - work.prompt;
                // A prefill yields one token; only decoding steps may yield more.
                let gained = if work.decodes() { self.config.tokens_per_step } else { 1 };
                out.tokens.extend((known..known + gained).map(|index| self.token(work, index)));
            }
            out.made.push(Made::Tokens(first..out.tokens.len()));
        }
        let mut micros = 0.0;
        if self.config.prefill_tokens_per_s > 0.0 {
            micros += prefilled as f64 / self.config.prefill_tokens_per_s * 1e6;
        }
        if decoding > 0 {
            micros += self.config.decode_base_us + self.config.decode_per_request_us * decoding as f64;
        }
        Ok(Duration::from_secs_f64((micros / 1e6).min(3600.0)))
    }
}
