//! Text becomes content, reasoning and tool calls (A8).
//!
//! The property that everything here is made for: whatever way the text was cut, the assembled pieces are the same; arguments
//! are passed on while they are generated; nothing is lost, and what is held back is bounded. The readers look at characters,
//! never at pieces, so the first part holds by construction.
//!
//! Why not one of the field's crates. `tool-parser` 1.10 (172 crates), fed one text whole, in two pieces at every place and by
//! characters, gives other answers for other cuts: whole, its Qwen parser loses the text before a call and the second of two
//! calls, and its DeepSeek and Kimi parsers give `{}` for the arguments, by characters no call; text behind a Mistral call is there
//! or not. `reasoning-parser` 1.10, whole and by characters, disagrees on white space before `<think>` and on a later `<think>` in the
//! content. `dynamo-parsers-v2` 0.9 (278 crates, image codecs among them) was not run: its tool registry has no Hermes, Llama 3, Mistral
//! or DeepSeek V3.

use std::sync::Arc;

use serde_json::Value;

mod family;
mod harmony;
mod headed;
mod json;
mod marks;
mod reasoning;
mod sink;
mod tools;
mod xml;

pub use sink::Piece;

use crate::config::{ReasoningParser, ToolParser};
use harmony::Harmony;
use reasoning::{Part, Reasoning};
use sink::{Ids, Sink};
use tools::{Context, Tools, Unmarked};

/// The families of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    tools: ToolParser,
    reasoning: ReasoningParser,
}

/// What a request says about calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wanted {
    /// None are looked for: no tools, or `tool_choice: none`.
    #[default]
    None,
    /// The model decides.
    Auto,
    /// At least one: the answer is constrained to a list of calls.
    Required,
    /// The first of the tools: the answer is constrained to its arguments.
    Named,
}

/// What a request says about reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shown {
    /// By itself.
    #[default]
    Apart,
    /// Not at all (`include_reasoning: false`).
    Dropped,
    /// In the content, as the model wrote it (`separate_reasoning: false`).
    Merged,
}

/// What a request says about the parts of its answer.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Calls.
    pub wanted: Wanted,
    /// Functions with the schemas of their parameters. With [`Wanted::Named`] the one.
    pub functions: Vec<(String, Value)>,
    /// Only the first call is told.
    pub only_first: bool,
    /// Reasoning.
    pub shown: Shown,
}

/// How the answers of one request are parsed.
#[derive(Debug, Clone)]
pub struct Plan {
    families: Families,
    wanted: Wanted,
    only_first: bool,
    shown: Shown,
    opened: bool,
    context: Arc<Context>,
}

impl Families {
    /// The families that the configuration names; `auto` looks at the chat template.
    pub fn of(tools: ToolParser, reasoning: ReasoningParser, template: &str) -> Self {
        let (tools, reasoning) = family::resolve(tools, reasoning, template);
        Self { tools, reasoning }
    }

    fn is_harmony(self) -> bool {
        self.tools == ToolParser::Harmony || self.reasoning == ReasoningParser::Harmony
    }

    /// How to parse the answers to `prompt`, which ends where the answer begins; `None` where all is content.
    pub fn plan(self, wishes: &Wishes, prompt: &str) -> Option<Plan> {
        let fences = family::fences(self.reasoning);
        let calls = wishes.wanted != Wanted::None
            && (self.tools != ToolParser::None || matches!(wishes.wanted, Wanted::Required | Wanted::Named));
        if fences.is_none() && !calls && !self.is_harmony() {
            return None;
        }
        let opened = fences.is_some_and(|fences| {
            let end = prompt.trim_end();
            let forced = self.reasoning == ReasoningParser::DeepseekR1 && !end.ends_with(fences.close);
            forced || end.ends_with(fences.open)
        });
        Some(Plan {
            families: self,
            wanted: if calls { wishes.wanted } else { Wanted::None },
            only_first: wishes.only_first,
            shown: wishes.shown,
            opened,
            context: Arc::new(Context { functions: wishes.functions.clone() }),
        })
    }
}

impl Plan {
    /// The marks that this looks for: where one is a control token its text must not be hidden.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = Vec::new();
        if self.families.is_harmony() {
            marks.extend(harmony::MARKS);
            return marks;
        }
        if let Some(fences) = family::fences(self.families.reasoning) {
            marks.extend([fences.open, fences.close]);
            marks.extend(fences.implied);
        }
        if self.wanted != Wanted::None
            && let Some(grammar) = family::grammar(self.families.tools)
        {
            marks.extend(grammar.sections.iter().chain(grammar.calls).chain(grammar.ends));
            marks.extend(["<｜tool▁sep｜>", "<|tool_call_argument_begin|>", "[ARGS]", "[CALL_ID]"]);
        }
        marks
    }

    /// Whether a call ends the answer as the API says it for a named function.
    pub fn is_named(&self) -> bool {
        self.wanted == Wanted::Named
    }

    /// A parser for one choice.
    pub fn parser(&self) -> Parser {
        let json = match self.wanted {
            Wanted::Required => Some('['),
            Wanted::Named => Some('{'),
            Wanted::None | Wanted::Auto => None,
        };
        let unmarked = match self.wanted {
            Wanted::Required => Unmarked::List,
            Wanted::Named => {
                Unmarked::Named(self.context.functions.first().map(|(n, _)| n.clone()).unwrap_or_default())
            }
            Wanted::Auto if self.families.tools == ToolParser::Llama3Json => Unmarked::Object,
            Wanted::None | Wanted::Auto => Unmarked::None,
        };
        let ids = if self.families.tools == ToolParser::Mistral { Ids::Nine } else { Ids::Long };
        let calls = self.wanted != Wanted::None;
        let tools = || Tools::new(family::grammar(self.families.tools), unmarked, Arc::clone(&self.context));
        let tools = calls.then(tools);
        let fences = family::fences(self.families.reasoning).filter(|_| !self.families.is_harmony());
        Parser {
            harmony: self.families.is_harmony().then(|| Harmony::new(calls)),
            undecided: json.filter(|_| self.families.is_harmony()),
            blank: String::new(),
            reasoning: fences.map(|fences| Reasoning::new(fences, self.opened, json)),
            tools,
            shown: self.shown,
            sink: Sink::new(self.only_first, ids),
        }
    }
}

/// One choice's text on its way to pieces.
#[derive(Debug)]
pub struct Parser {
    /// Channels instead of marks.
    harmony: Option<Harmony>,
    /// An answer that begins with this is the JSON that was asked for, not channels.
    undecided: Option<char>,
    blank: String,
    reasoning: Option<Reasoning>,
    tools: Option<Tools>,
    shown: Shown,
    sink: Sink,
}

impl Parser {
    /// Take new text; the pieces that are certain now.
    pub fn feed(&mut self, text: &str) -> Vec<Piece> {
        if let Some(json) = self.undecided {
            self.blank.push_str(text);
            let Some(first) = self.blank.trim_start().chars().next() else { return Vec::new() };
            self.undecided = None;
            if first == json {
                self.harmony = None;
            }
            let text = std::mem::take(&mut self.blank);
            return self.feed(&text);
        }
        let Self { harmony, reasoning, tools, sink, shown, .. } = self;
        match (harmony, reasoning) {
            (Some(harmony), _) => harmony.feed(text, sink),
            (None, Some(reasoning)) => reasoning.feed(text, &mut |part, text| tell(part, text, *shown, tools, sink)),
            (None, None) => tell(Part::Content, text, *shown, tools, sink),
        }
        self.take()
    }

    /// The text ends here: the rest.
    pub fn finish(&mut self) -> Vec<Piece> {
        let blank = std::mem::take(&mut self.blank);
        let Self { harmony, reasoning, tools, sink, shown, .. } = self;
        sink.content(&blank);
        match (harmony, reasoning) {
            (Some(harmony), _) => harmony.finish(sink),
            (None, Some(reasoning)) => reasoning.finish(&mut |part, text| tell(part, text, *shown, tools, sink)),
            (None, None) => {}
        }
        if let Some(tools) = tools {
            tools.finish(sink);
        }
        self.take()
    }

    /// Whether there was a call.
    pub fn has_calls(&self) -> bool {
        self.sink.calls() > 0
    }

    fn take(&mut self) -> Vec<Piece> {
        let shown = self.shown;
        let told = |piece| match piece {
            Piece::Reasoning(_) if shown == Shown::Dropped => None,
            Piece::Reasoning(text) if shown == Shown::Merged => Some(Piece::Content(text)),
            piece => Some(piece),
        };
        self.sink.take().into_iter().filter_map(told).collect()
    }
}

fn tell(part: Part, text: &str, shown: Shown, tools: &mut Option<Tools>, sink: &mut Sink) {
    match (part, tools) {
        (Part::Content, Some(tools)) => tools.feed(text, sink),
        (Part::Content, None) => sink.content(text),
        (Part::Reasoning, _) => sink.reasoning(text),
        // Merged reasoning keeps its marks, and its place.
        (Part::Mark, _) if shown == Shown::Merged => sink.reasoning(text),
        (Part::Mark, _) => {}
    }
}

#[cfg(test)]
mod tests;
