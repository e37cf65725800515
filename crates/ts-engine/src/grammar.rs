//! Structured output: answers that are held to a JSON schema, a regular expression or a grammar, token by token.
//!
//! A constraint comes from a stranger. It is compiled once per request, on a thread of its own with a deep stack, within a
//! size and a time; one that is wrong, too large or too slow refuses its request, never more. While the answer is
//! generated, every choice is made among the tokens that the grammar [allows](Allowed), each chosen token is
//! [taken in](Grammar::accept), and when nothing may follow any more, only the model's end tokens are left to choose.

mod ebnf;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::model::{ModelSpec, Vocabulary};

/// Largest schema in bytes, and largest expression or grammar. The time to compile one may grow with its square: beyond
/// these sizes it would run on for minutes with nobody waiting.
const MAX_SCHEMA: usize = 64 << 10;
const MAX_EXPRESSION: usize = 16 << 10;
/// How deep brackets may lie in each other. The compiler follows them by recursion.
const MAX_DEPTH: usize = 100;
/// What that recursion may use. It is reserved, not filled.
const STACK: usize = 64 << 20;
/// How long a compilation may hold up the engine.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Compilations that overran and go on with nobody waiting for them. They end by themselves: their fuel is counted.
const MAX_OVERRUN: usize = 2;
/// States of a grammar's lexer, about 2 kB each.
const MAX_LEXER_STATES: usize = 20_000;
/// Parser items of one step: a few hundred milliseconds at the worst.
const MAX_STEP_ITEMS: usize = 200_000;
/// Longest message of the compiler that is passed on.
const MAX_MESSAGE: usize = 300;
/// Between the parts of a JSON text. Unbounded white space would let a small model write nothing else.
const JSON_SPACE: &str = r"[ \n]{0,8}";

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Constraint {
    /// JSON that a schema, given as text, allows.
    JsonSchema(String),
    /// A match of a regular expression, from its first to its last letter.
    Regex(String),
    /// A sentence of a grammar in EBNF (rules with `::=`) or in Lark's notation.
    Ebnf(String),
}

impl Constraint {
    fn text(&self) -> &str {
        match self {
            Constraint::JsonSchema(text) | Constraint::Regex(text) | Constraint::Ebnf(text) => text,
        }
    }

    /// Its name on the wire.
    fn name(&self) -> &'static str {
        match self {
            Constraint::JsonSchema(_) => "json_schema",
            Constraint::Regex(_) => "regex",
            Constraint::Ebnf(_) => "ebnf",
        }
    }

    fn read(&self) -> Result<TopLevelGrammar, String> {
        match self {
            Constraint::JsonSchema(text) => {
                let schema = serde_json::from_str(text).map_err(|error| error.to_string())?;
                Ok(TopLevelGrammar::from_json_schema(with_bounded_space(schema)))
            }
            Constraint::Regex(text) => Ok(TopLevelGrammar::from_regex(without_anchors(text))),
            Constraint::Ebnf(text) if text.contains("::=") => Ok(TopLevelGrammar::from_lark(ebnf::to_lark(text)?)),
            Constraint::Ebnf(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
        }
    }
}

/// Compiles grammars for one model.
pub(crate) struct Grammars {
    factory: Arc<ParserFactory>,
    overrun: Arc<AtomicUsize>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a model with such tokens; `None` when it has no end token: nothing could end an answer then.
    pub(crate) fn new(vocabulary: &Vocabulary, spec: &ModelSpec) -> Option<Self> {
        let size = vocabulary.tokens.len().min(spec.vocab);
        let eos: Vec<u32> = spec.eos.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
        let eos: Vec<u32> = eos.into_iter().filter(|id| (*id as usize) < size).collect();
        let mut tokens = vocabulary.tokens.get(..size)?.to_vec();
        for id in &eos {
            // It is allowed by name where the grammar may end, and never as text.
            tokens.get_mut(*id as usize)?.clear();
        }
        let info = TokRxInfo::new(u32::try_from(size).ok()?, *eos.first()?);
        let trie = TokTrie::from(&info, &tokens).with_eos_tokens(&eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env)
            .inspect_err(|error| tracing::warn!(%error, "no grammars: the vocabulary does not fit"))
            .ok()?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.step_max_items = MAX_STEP_ITEMS;
        Some(Grammars { factory: Arc::new(factory), overrun: Arc::default() })
    }

    /// Compiles a constraint.
    ///
    /// # Errors
    /// Why it cannot be: for the client to read.
    pub(crate) fn compile(&self, constraint: &Constraint) -> Result<Grammar, String> {
        let name = constraint.name();
        let text = constraint.text();
        let most = if matches!(constraint, Constraint::JsonSchema(_)) { MAX_SCHEMA } else { MAX_EXPRESSION };
        if text.len() > most {
            return Err(format!("{name} has {} bytes; this engine compiles at most {most}", text.len()));
        }
        if depth(text) > MAX_DEPTH {
            return Err(format!("{name} has more than {MAX_DEPTH} brackets in each other"));
        }
        if self.overrun.load(Ordering::Relaxed) >= MAX_OVERRUN {
            return Err("too many slow constraints are being compiled".into());
        }
        // A rendezvous: what is sent is received, so that one side alone knows that the compilation is over.
        let (sender, receiver) = mpsc::sync_channel(0);
        let (factory, constraint, overrun) = (Arc::clone(&self.factory), constraint.clone(), Arc::clone(&self.overrun));
        overrun.fetch_add(1, Ordering::Relaxed);
        let worker = move || {
            let compiled = catch_unwind(AssertUnwindSafe(|| compile(&factory, &constraint)))
                .unwrap_or_else(|_| Err("it cannot be compiled".into()));
            // Nobody waits any more when it took too long.
            if sender.send(compiled).is_err() {
                overrun.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let spawned = std::thread::Builder::new().name("grammar".into()).stack_size(STACK).spawn(worker);
        if let Err(error) = spawned {
            self.overrun.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(%error, "no thread for a grammar");
            return Err("no thread is free to compile it".into());
        }
        let compiled = match receiver.recv_timeout(MAX_TIME) {
            Ok(compiled) => {
                self.overrun.fetch_sub(1, Ordering::Relaxed);
                compiled
            }
            Err(_) => Err(format!("compiling it takes longer than {} s", MAX_TIME.as_secs())),
        };
        compiled.map(Grammar).map_err(|reason| format!("{name}: {reason}"))
    }
}

fn compile(factory: &ParserFactory, constraint: &Constraint) -> Result<Matcher, String> {
    let mut matcher = Matcher::new(factory.create_parser(constraint.read()?));
    // The first step builds what later ones share; a grammar that allows nothing shows here too.
    match matcher.compute_mask_or_eos() {
        Ok(_) => Ok(matcher),
        Err(error) => Err(told(&error.to_string())),
    }
}

/// The compiler's message without its decorations.
fn told(message: &str) -> String {
    let message = message.split("<non-verbose/>").next().unwrap_or_default();
    let message = message.split("<backtrace>").next().unwrap_or_default();
    message.trim().chars().take(MAX_MESSAGE).collect()
}

/// Most brackets open at once, whether they mean anything or not.
fn depth(text: &str) -> usize {
    let mut open = 0usize;
    let mut most = 0;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// A schema may bring its own `x-guidance`; others get white space with an end.
fn with_bounded_space(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema {
        fields
            .entry("x-guidance")
            .or_insert_with(|| serde_json::json!({ "whitespace_flexible": true, "whitespace_pattern": JSON_SPACE }));
    }
    schema
}

/// The whole answer has to match, so that anchors around the whole expression say nothing, and the compiler knows none.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if rest.bytes().rev().take_while(|byte| *byte == b'\\').count().is_multiple_of(2) => rest,
        _ => regex,
    }
}

/// The tokens that may come next.
#[derive(Debug)]
pub(crate) struct Allowed(SimpleVob);

impl Allowed {
    /// Rules out all others: their logits become negative infinity.
    pub(crate) fn rule(&self, logits: &mut [f32]) {
        for (id, logit) in logits.iter_mut().enumerate() {
            if !(id < self.0.len() && self.0.get(id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Whether there is one that is not among `barred`.
    pub(crate) fn any_but(&self, barred: &[i32]) -> bool {
        self.0.iter().any(|id| !i32::try_from(id).is_ok_and(|id| barred.contains(&id)))
    }
}

/// A compiled constraint, as far as an answer has got in it.
pub(crate) struct Grammar(Matcher);

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("stopped", &self.0.is_stopped()).finish_non_exhaustive()
    }
}

impl Grammar {
    /// What may come next: the model's end tokens alone when the answer is complete.
    ///
    /// # Errors
    /// The grammar is too ambiguous for its limits.
    pub(crate) fn allowed(&mut self) -> Result<Allowed, String> {
        self.0.compute_mask_or_eos().map(Allowed).map_err(|error| told(&error.to_string()))
    }

    /// Takes in the chosen token, one of the allowed. Says whether it ended the answer.
    ///
    /// # Errors
    /// The grammar is too ambiguous for its limits.
    pub(crate) fn accept(&mut self, token: i32) -> Result<bool, String> {
        if self.0.is_stopped() && !self.0.is_error() {
            return Ok(true);
        }
        let token = u32::try_from(token).map_err(|_| "no token")?;
        self.0.consume_token(token).map_err(|error| told(&error.to_string()))?;
        Ok(self.0.stop_reason() == StopReason::EndOfSentence)
    }
}

#[cfg(test)]
mod tests;
