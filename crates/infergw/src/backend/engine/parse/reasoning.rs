//! Reasoning between marks at the start of an answer. The mark that opens it may stand in the prompt already.

use super::marks::Marks;

/// Most white space before the opening mark.
const MAX_BLANK: usize = 256;

/// How a family marks reasoning.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fences {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// Marks that end it too, and that belong to what follows.
    pub(super) implied: &'static [&'static str],
}

#[derive(Debug)]
enum State {
    /// White space and a part of the opening mark.
    Start(String),
    Inside,
    Outside,
}

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Content,
    Reasoning,
    /// A mark around reasoning.
    Mark,
}

/// Splits an answer into reasoning and the rest.
#[derive(Debug)]
pub(super) struct Reasoning {
    fences: &'static Fences,
    /// The prompt has opened it.
    opened: bool,
    /// An answer that begins with this has no reasoning: it is the JSON that was asked for.
    json: Option<char>,
    state: State,
    marks: Marks,
}

impl Reasoning {
    pub(super) fn new(fences: &'static Fences, opened: bool, json: Option<char>) -> Self {
        let marks = Marks::new(std::iter::once(fences.close).chain(fences.implied.iter().copied()));
        Self { fences, opened, json, state: State::Start(String::new()), marks }
    }

    pub(super) fn feed(&mut self, text: &str, tell: &mut impl FnMut(Part, &str)) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let taken = match &mut self.state {
                State::Outside => {
                    tell(Part::Content, rest);
                    return;
                }
                State::Inside => self.inside(rest, tell),
                State::Start(held) => {
                    held.push(first);
                    self.start(tell);
                    first.len_utf8()
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
    }

    fn start(&mut self, tell: &mut impl FnMut(Part, &str)) {
        let State::Start(held) = &self.state else { return };
        let mark = held.trim_start();
        if mark == self.fences.open {
            tell(Part::Mark, held);
            self.state = State::Inside;
            return;
        }
        let json = self.json.is_some_and(|json| mark.starts_with(json));
        if !json && self.fences.open.starts_with(mark) && held.len() - mark.len() <= MAX_BLANK {
            return;
        }
        let held = held.clone();
        if self.opened && !json {
            self.state = State::Inside;
            self.inside(&held, tell);
        } else {
            self.state = State::Outside;
            tell(Part::Content, &held);
        }
    }

    fn inside(&mut self, rest: &str, tell: &mut impl FnMut(Part, &str)) -> usize {
        let mut free = String::new();
        let found = self.marks.take(rest, &mut free);
        if !free.is_empty() {
            tell(Part::Reasoning, &free);
        }
        let Some((index, taken)) = found else { return rest.len() };
        self.state = State::Outside;
        match index.checked_sub(1).and_then(|at| self.fences.implied.get(at)) {
            None => tell(Part::Mark, self.fences.close),
            Some(mark) => tell(Part::Content, mark),
        }
        taken
    }

    /// The text ends here.
    pub(super) fn finish(&mut self, tell: &mut impl FnMut(Part, &str)) {
        let part = if self.opened { Part::Reasoning } else { Part::Content };
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Start(held) if !held.is_empty() => tell(part, &held),
            State::Inside => {
                let held = self.marks.flush();
                if !held.is_empty() {
                    tell(Part::Reasoning, &held);
                }
            }
            State::Start(_) | State::Outside => {}
        }
    }
}
