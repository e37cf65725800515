//! EBNF as llama.cpp, XGrammar and vLLM write it (`root ::= "yes" | "no"`), brought into the notation of the compiler.
//!
//! The compiler takes words before it takes sentences, and each word as long as it can be, which EBNF knows nothing of. So
//! whatever has no recursion in it becomes one regular expression, where no such choice is made: a grammar without
//! recursion as a whole, others in pieces as large as they can be.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Most rules of a grammar.
const MAX_RULES: usize = 2000;
/// Largest result in bytes: rules that use each other twice would double it without end.
const MAX_RESULT: usize = 128 << 10;
/// Repetitions in each other that need no brackets, such as `x*?`, and so are not bounded with those.
const MAX_REPEATS: usize = 4;
/// Most repetitions that are counted.
const MAX_COUNT: u32 = 10_000;

#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// One letter among ranges, or none of them.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat {
        of: Box<Node>,
        least: u32,
        most: Option<u32>,
    },
}

impl Node {
    fn letter(letter: char) -> Node {
        Node::Class { negated: false, ranges: vec![(letter, letter)] }
    }

    fn rules<'a>(&'a self, into: &mut Vec<&'a str>) {
        match self {
            Node::Class { .. } => {}
            Node::Rule(name) => into.push(name),
            Node::Sequence(parts) | Node::Choice(parts) => parts.iter().for_each(|part| part.rules(into)),
            Node::Repeat { of, .. } => of.rules(into),
        }
    }
}

/// The grammar in the compiler's notation.
///
/// # Errors
/// What is wrong with it, for its author to read.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let rules = reader.rules().map_err(|error| format!("line {}: {error}", reader.line))?;
    if !rules.contains_key("root") {
        return Err("there is no rule root".into());
    }
    let mut writer = Writer { regular: regular(&rules)?, rules: &rules, size: 0 };
    let mut lark = String::from("start: r_root\n");
    let mut names = vec!["root"];
    let mut seen: HashSet<&str> = names.iter().copied().collect();
    while let Some(name) = names.pop() {
        let body = rules.get(name).ok_or("a rule is missing")?;
        let written = writer.rule(body)?;
        let _ = writeln!(lark, "{}: {written}", lark_name(name));
        let mut used = Vec::new();
        body.rules(&mut used);
        names.extend(used.into_iter().filter(|used| !writer.regular.contains(used) && seen.insert(used)));
    }
    Ok(lark)
}

/// Lower-case letters, digits and underscores only: different names stay different.
fn lark_name(name: &str) -> String {
    let mut lark = String::from("r_");
    for letter in name.chars() {
        match letter {
            'a'..='z' | '0'..='9' => lark.push(letter),
            other => {
                let _ = write!(lark, "_{:x}_", u32::from(other));
            }
        }
    }
    lark
}

/// The rules that do not lead back to themselves or to one that does.
fn regular(rules: &HashMap<String, Node>) -> Result<HashSet<&str>, String> {
    let mut uses: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, body) in rules {
        let mut used = Vec::new();
        body.rules(&mut used);
        if let Some(unknown) = used.iter().find(|used| !rules.contains_key(**used)) {
            return Err(format!("there is no rule {unknown}"));
        }
        uses.insert(name, used);
    }
    let mut users: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (name, used) in &uses {
        open.insert(name, used.len());
        used.iter().for_each(|used| users.entry(used).or_default().push(name));
    }
    // What uses nothing is regular, then what uses only such.
    let mut ready: Vec<&str> = open.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    let mut regular = HashSet::new();
    while let Some(name) = ready.pop() {
        regular.insert(name);
        for user in users.get(name).into_iter().flatten() {
            if let Some(count) = open.get_mut(user) {
                *count -= 1;
                if *count == 0 {
                    ready.push(user);
                }
            }
        }
    }
    Ok(regular)
}

// === Writing ===

struct Writer<'a> {
    rules: &'a HashMap<String, Node>,
    regular: HashSet<&'a str>,
    size: usize,
}

impl Writer<'_> {
    fn is_regular(&self, node: &Node) -> bool {
        let mut used = Vec::new();
        node.rules(&mut used);
        used.iter().all(|name| self.regular.contains(name))
    }

    fn spend(&mut self, text: String) -> Result<String, String> {
        self.size += text.len();
        if self.size > MAX_RESULT { Err("it is too large when written out".into()) } else { Ok(text) }
    }

    /// A part of a rule.
    fn rule(&mut self, node: &Node) -> Result<String, String> {
        if self.is_regular(node) {
            return self.word(std::slice::from_ref(node));
        }
        match node {
            Node::Rule(name) => Ok(lark_name(name)),
            Node::Choice(parts) => {
                let parts = parts.iter().map(|part| self.rule(part)).collect::<Result<Vec<_>, _>>()?;
                Ok(format!("({})", parts.join(" | ")))
            }
            Node::Sequence(parts) => {
                let mut written = Vec::new();
                let runs: Vec<&[Node]> = parts.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b)).collect();
                for run in runs {
                    written.push(match run {
                        [node] if !self.is_regular(node) => self.rule(node)?,
                        words => self.word(words)?,
                    });
                }
                Ok(written.join(" "))
            }
            Node::Repeat { of, least, most } => {
                let inner = self.rule(of)?;
                self.spend(format!("({inner}){}", times(*least, *most)))
            }
            // Always regular.
            Node::Class { .. } => self.word(std::slice::from_ref(node)),
        }
    }

    /// A word of the language: one regular expression.
    fn word(&mut self, parts: &[Node]) -> Result<String, String> {
        let mut regex = String::new();
        for part in parts {
            regex.push_str(&self.regex(part)?);
        }
        Ok(if regex.is_empty() { r#""""#.to_owned() } else { format!("/{regex}/") })
    }

    fn regex(&mut self, node: &Node) -> Result<String, String> {
        let text = match node {
            Node::Class { negated, ranges } => class(*negated, ranges),
            Node::Rule(name) => {
                let rules = self.rules;
                format!("({})", self.regex(rules.get(name).ok_or("a rule is missing")?)?)
            }
            Node::Sequence(parts) => parts.iter().map(|part| self.regex(part)).collect::<Result<String, _>>()?,
            Node::Choice(parts) => {
                let parts = parts.iter().map(|part| self.regex(part)).collect::<Result<Vec<_>, _>>()?;
                format!("({})", parts.join("|"))
            }
            Node::Repeat { of, least, most } => format!("({}){}", self.regex(of)?, times(*least, *most)),
        };
        self.spend(text)
    }
}

fn class(negated: bool, ranges: &[(char, char)]) -> String {
    if let ([(letter, last)], false) = (ranges, negated)
        && letter == last
        && letter.is_ascii_alphanumeric()
    {
        return letter.to_string();
    }
    let mut text = String::from(if negated { "[^" } else { "[" });
    for (first, last) in ranges {
        let _ = write!(text, r"\x{{{:x}}}", u32::from(*first));
        if first != last {
            let _ = write!(text, r"-\x{{{:x}}}", u32::from(*last));
        }
    }
    text + "]"
}

/// `*`, `+`, `?`, or counts: `{1,2}` in regular expressions and in rules alike.
fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

// === Reading ===

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let letter = self.rest.next();
        self.line += usize::from(letter == Some('\n'));
        letter
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.rest.peek() == Some(&wanted);
        if there {
            self.next();
        }
        there
    }

    /// White space and comments.
    fn skip(&mut self) {
        while let Some(letter) = self.rest.peek() {
            match letter {
                '#' => while self.next().is_some_and(|letter| letter != '\n') {},
                letter if letter.is_whitespace() => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(letter) =
            self.rest.peek().copied().filter(|letter| letter.is_alphanumeric() || "_-.".contains(*letter))
        {
            name.push(letter);
            self.next();
        }
        name
    }

    /// Whether a rule's head begins here, and not another part of the rule before.
    fn at_head(&self) -> bool {
        let mut ahead = Reader { rest: self.rest.clone(), line: 0 };
        if ahead.name().is_empty() {
            return false;
        }
        ahead.skip();
        ahead.take(':')
    }

    fn rules(&mut self) -> Result<HashMap<String, Node>, String> {
        let mut rules = HashMap::new();
        self.skip();
        while self.rest.peek().is_some() {
            let name = self.name();
            self.skip();
            if name.is_empty() || !(self.take(':') && self.take(':') && self.take('=')) {
                return Err("expected a rule, such as: root ::= \"yes\" | \"no\"".into());
            }
            let body = self.choice()?;
            if self.rest.peek().is_some() && !self.at_head() {
                return Err(format!("unexpected {:?}", self.rest.peek().copied().unwrap_or(' ')));
            }
            if rules.len() >= MAX_RULES {
                return Err(format!("there are more than {MAX_RULES} rules"));
            }
            if rules.insert(name.clone(), body).is_some() {
                return Err(format!("there are two rules {name}"));
            }
        }
        Ok(rules)
    }

    /// The nesting of groups is bounded by that of brackets, which was looked at before.
    fn choice(&mut self) -> Result<Node, String> {
        let mut parts = vec![self.sequence()?];
        while self.take('|') {
            parts.push(self.sequence()?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Node::Choice(parts),
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut parts = Vec::new();
        loop {
            self.skip();
            let part = match self.rest.peek().copied() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.next();
                    Node::Class { negated: true, ranges: vec![('\n', '\n')] }
                }
                Some('(') => {
                    self.next();
                    let inner = self.choice()?;
                    if !self.take(')') {
                        return Err("expected )".into());
                    }
                    inner
                }
                Some(letter) if (letter.is_alphanumeric() || letter == '_') && !self.at_head() => {
                    Node::Rule(self.name())
                }
                _ => return Ok(Node::Sequence(parts)),
            };
            parts.push(self.repeated(part)?);
        }
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        for _ in 0..MAX_REPEATS {
            self.skip_blanks();
            let (least, most) = match self.rest.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.next();
                    let bounds = self.bounds()?;
                    node = Node::Repeat { of: Box::new(node), least: bounds.0, most: bounds.1 };
                    continue;
                }
                _ => return Ok(node),
            };
            self.next();
            node = Node::Repeat { of: Box::new(node), least, most };
        }
        Err("repetitions of repetitions of repetitions".into())
    }

    fn skip_blanks(&mut self) {
        while self.take(' ') || self.take('\t') {}
    }

    /// `3}`, `3,}` or `3,5}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let least = self.count()?.ok_or("expected a number after {")?;
        let most = if self.take(',') { self.count()? } else { Some(least) };
        if !self.take('}') || most.is_some_and(|most| most < least) {
            return Err("expected {n}, {n,} or {n,m}".into());
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<Option<u32>, String> {
        self.skip_blanks();
        let mut digits = String::new();
        while let Some(digit) = self.rest.peek().copied().filter(char::is_ascii_digit) {
            digits.push(digit);
            self.next();
        }
        self.skip_blanks();
        if digits.is_empty() {
            return Ok(None);
        }
        let count = digits.parse().ok().filter(|count| *count <= MAX_COUNT);
        count.map(Some).ok_or_else(|| format!("repetitions go up to {MAX_COUNT}"))
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.next();
        let mut letters = Vec::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Node::Sequence(letters)),
                Some('\\') => letters.push(Node::letter(self.escaped()?)),
                Some('\n') | None => return Err("a string has no end".into()),
                Some(letter) => letters.push(Node::letter(letter)),
            }
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.next();
        let negated = self.take('^');
        let mut ranges = Vec::new();
        while !self.take(']') {
            let first = self.class_letter()?;
            let mut last = first;
            if self.rest.peek() == Some(&'-') {
                self.next();
                // A dash before the end is a dash.
                if self.rest.peek() == Some(&']') {
                    ranges.push(('-', '-'));
                } else {
                    last = self.class_letter()?;
                }
            }
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Err("a class of letters is empty".into());
        }
        Ok(Node::Class { negated, ranges })
    }

    fn class_letter(&mut self) -> Result<char, String> {
        match self.next() {
            Some('\\') => self.escaped(),
            Some('\n') | None => Err("a class of letters has no end".into()),
            Some(letter) => Ok(letter),
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('b') => return Ok('\u{8}'),
            Some('f') => return Ok('\u{c}'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(letter) if letter.is_ascii_punctuation() => return Ok(letter),
            other => return Err(format!("unknown escape \\{}", other.map_or(String::new(), String::from))),
        };
        let code = (0..digits).try_fold(0u32, |code, _| Some(code.checked_mul(16)? + self.next()?.to_digit(16)?));
        code.and_then(char::from_u32).ok_or_else(|| format!("an escape needs {digits} hexadecimal digits of a letter"))
    }
}
