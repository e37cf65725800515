//! What parsing makes: the pieces of an answer, in their order.

/// A piece of an answer. Pieces of one kind that follow each other are one text cut somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning.
    Reasoning(String),
    /// A call begins.
    Call {
        /// Which call of the answer.
        index: usize,
        /// Its id.
        id: String,
        /// The function's name.
        name: String,
    },
    /// Text of the arguments of the call that began last.
    Arguments {
        /// Which call of the answer.
        index: usize,
        /// JSON text, as the model wrote it.
        text: String,
    },
}

/// How ids of calls look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Ids {
    /// `call_` and 24 characters.
    #[default]
    Long,
    /// Nine letters or digits: Mistral's templates refuse all others.
    Nine,
}

impl Ids {
    fn mint(self) -> String {
        let random = rand::random::<u128>();
        match self {
            Ids::Long => format!("call_{:024x}", random >> 32),
            Ids::Nine => format!("{:09x}", random >> 92),
        }
    }
}

/// Collects pieces.
#[derive(Debug, Default)]
pub(super) struct Sink {
    pieces: Vec<Piece>,
    /// Calls that have begun, those that are not told included.
    calls: usize,
    /// A call is going on, and whether it has arguments yet.
    open: bool,
    argued: bool,
    /// Only the first call is told (`parallel_tool_calls: false`).
    only_first: bool,
    ids: Ids,
}

impl Sink {
    pub(super) fn new(only_first: bool, ids: Ids) -> Self {
        Self { only_first, ids, ..Self::default() }
    }

    pub(super) fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn content(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Content(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Content(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    /// A call begins. `id` is the model's own, where it makes ids.
    pub(super) fn begin(&mut self, name: &str, id: Option<String>) {
        self.calls += 1;
        self.open = true;
        self.argued = false;
        if !self.muted() {
            let id = id.unwrap_or_else(|| self.ids.mint());
            self.pieces.push(Piece::Call { index: self.calls - 1, id, name: name.to_owned() });
        }
    }

    pub(super) fn arguments(&mut self, new: &str) {
        if new.is_empty() {
            return;
        }
        self.argued = true;
        if self.muted() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Arguments { text, .. }) => text.push_str(new),
            _ => self.pieces.push(Piece::Arguments { index: self.calls.saturating_sub(1), text: new.to_owned() }),
        }
    }

    /// The call is complete. One without arguments has none: an empty object.
    pub(super) fn end(&mut self) {
        if self.open && !self.argued {
            self.arguments("{}");
        }
        self.open = false;
    }

    fn muted(&self) -> bool {
        self.only_first && self.calls > 1
    }
}
