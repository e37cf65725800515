//! Grammars over a vocabulary small enough to see through: every printable letter, a few longer tokens, two ends.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::time::Instant;

use super::*;

const EOS: i32 = 0;
const TURN: i32 = 1;
const VOCAB: usize = 107;

fn spec() -> ModelSpec {
    ModelSpec {
        name: "letters".into(),
        vocab: VOCAB,
        max_model_len: 64,
        eos: vec![EOS, TURN],
        dtype: "float32",
        max_running: 4,
        kv_pages: 16,
        page_size: 4,
        max_batched_tokens: 16,
    }
}

fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<Vec<u8>> = vec![b"</s>".to_vec(), b"<turn>".to_vec(), Vec::new(), b"\n".to_vec()];
    tokens.extend((b' '..=b'~').map(|letter| vec![letter]));
    tokens.extend(["true", "\": ", "yes", "ab", "abc", "é", "{\"", "}}"].map(|text| text.as_bytes().to_vec()));
    assert_eq!(tokens.len(), VOCAB);
    Vocabulary { tokens }
}

fn grammars() -> Grammars {
    Grammars::new(&vocabulary(), &spec()).unwrap()
}

fn compiled(constraint: &Constraint) -> Grammar {
    grammars().compile(constraint).unwrap_or_else(|reason| panic!("{reason}"))
}

fn allowed(grammar: &mut Grammar) -> Vec<i32> {
    let mut logits = vec![0.0; VOCAB];
    grammar.allowed().unwrap().rule(&mut logits);
    (0..VOCAB as i32).filter(|id| logits[*id as usize] == 0.0).collect()
}

/// Whether the grammar takes `text`, letter by letter, and then lets the answer end.
fn takes(constraint: &Constraint, text: &str) -> bool {
    let mut grammar = compiled(constraint);
    for letter in text.chars() {
        let mut bytes = [0; 4];
        let letter = letter.encode_utf8(&mut bytes).as_bytes();
        let id = vocabulary().tokens.iter().position(|token| token == letter).unwrap() as i32;
        if !allowed(&mut grammar).contains(&id) {
            return false;
        }
        assert_eq!(grammar.accept(id), Ok(false));
    }
    allowed(&mut grammar).contains(&EOS) && grammar.accept(EOS) == Ok(true)
}

fn regex(text: &str) -> Constraint {
    Constraint::Regex(text.into())
}

fn ebnf(text: &str) -> Constraint {
    Constraint::Ebnf(text.into())
}

fn schema(text: &str) -> Constraint {
    Constraint::JsonSchema(text.into())
}

#[test]
fn only_what_can_go_on_is_allowed() {
    let mut grammar = compiled(&regex("abc?"));
    let texts = |ids: Vec<i32>| ids.iter().map(|id| vocabulary().tokens[*id as usize].clone()).collect::<Vec<_>>();
    let first = allowed(&mut grammar);
    assert_eq!(texts(first.clone()), [b"a".to_vec(), b"ab".to_vec(), b"abc".to_vec()]);
    assert_eq!(grammar.accept(first[1]), Ok(false));
    let next = allowed(&mut grammar);
    assert_eq!(next[..2], [EOS, TURN], "it may end here, by either end token");
    assert_eq!(texts(next[2..].to_vec()), [b"c".to_vec()]);
    assert_eq!(grammar.accept(next[2]), Ok(false));
    assert_eq!(allowed(&mut grammar), [EOS, TURN], "and must end here");
    assert_eq!(grammar.accept(TURN), Ok(true));
}

#[test]
fn an_end_that_is_barred_is_allowed_when_nothing_else_is() {
    let mut grammar = compiled(&regex("a"));
    assert!(grammar.allowed().unwrap().any_but(&[EOS, TURN]));
    let a = allowed(&mut grammar)[0];
    grammar.accept(a).unwrap();
    assert!(!grammar.allowed().unwrap().any_but(&[EOS, TURN]));
}

#[test]
fn schemas() {
    let person = schema(
        r##"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
            "required": ["name", "age"], "additionalProperties": false, "$defs": {"age": {"type": "integer"}}}"##,
    );
    assert!(takes(&person, r#"{"name": "ab \"é", "age": 12}"#));
    assert!(takes(&person, "{\n  \"name\":\"\",\"age\":-1 \n}"));
    assert!(!takes(&person, r#"{"name": "ab"}"#), "age is required");
    assert!(!takes(&person, r#"{"name": "ab", "age": 1.5}"#));
    assert!(!takes(&person, r#"{"name": "ab", "age": 1, "x": 1}"#));
    assert!(!takes(&person, "{          \"name"), "white space has an end");
    assert!(takes(&schema(r#"{"enum": ["a", 1, null]}"#), "null"));
    assert!(takes(&schema(r#"{"type": "object"}"#), r#"{"x": [1, {"y": null}]}"#));
    assert!(!takes(&schema(r#"{"type": "object"}"#), "[]"));
    assert!(takes(&schema("true"), "[1]"));
}

#[test]
fn regexes_match_the_whole_answer() {
    for pattern in ["[0-9]{3}-x", "^[0-9]{3}-x$"] {
        assert!(takes(&regex(pattern), "123-x"));
        assert!(!takes(&regex(pattern), "123-"));
        assert!(!takes(&regex(pattern), "1234-x"));
    }
    assert!(takes(&regex(r"a/b\$"), "a/b$"));
}

#[test]
fn grammars_without_recursion() {
    let choice = ebnf(r#"root ::= "yes" | "no, \"é\"" # the second is rare"#);
    assert!(takes(&choice, "yes") && takes(&choice, "no, \"é\""));
    assert!(!takes(&choice, "no") && !takes(&choice, "yesno"));
    // Longest words first would fail here.
    let words = ebnf("root ::= word \"!\"\nword ::= [a-z!]+ |\n  \"A\" [^a-z]{1,2}\n");
    assert!(takes(&words, "ab!!") && takes(&words, "A1!") && takes(&words, "A1!!"));
    assert!(!takes(&words, "ab") && !takes(&words, "A!"));
    assert!(takes(&ebnf(r#"root ::= "a" | """#), ""));
    assert!(takes(&ebnf(r"root ::= [\x61-\u0063\]-]* ."), "abc]-a"));
    // The compiler's own notation.
    assert!(takes(&ebnf("start: \"a\" start?"), "aa"));
}

#[test]
fn grammars_with_recursion() {
    let sum =
        ebnf("root ::= term (\"+\" term)*\nterm ::= digit+ | \"(\" sp root sp \")\"\ndigit ::= [0-9]\nsp ::= \" \"*");
    assert!(takes(&sum, "1+(2+34)+( 5)"));
    assert!(!takes(&sum, "1+(2") && !takes(&sum, "1+") && !takes(&sum, "()"));
    let lists = ebnf("root ::= My-List\nMy-List ::= \"[\" (My-List (\",\" My-List){0,2})? \"]\"");
    assert!(takes(&lists, "[[],[[]]]") && !takes(&lists, "[[],[],[],[]]"));
    let endless = ebnf("root ::= \"a\" root");
    assert!(!takes(&endless, "aa"));
}

#[test]
fn what_is_wrong_is_refused_with_a_reason() {
    let refused = |constraint: &Constraint| grammars().compile(constraint).unwrap_err();
    for (constraint, part) in [
        (schema("{"), "json_schema: EOF"),
        (schema(r#"{"type": "cow"}"#), "json_schema: "),
        (schema(r#"{"type": "string", "minLength": -1}"#), "json_schema: "),
        (schema(r##"{"$ref": "#/nowhere"}"##), "json_schema: "),
        (schema(r#"{"not": {"type": "string"}}"#), "not"),
        (schema(r#"{"type": "string", "minLength": 3, "maxLength": 2}"#), "json_schema: "),
        (regex("("), "regex: "),
        (regex("(?=a)b"), "regex: "),
        (regex("[0-9"), "regex: "),
        (ebnf("root ::= x"), "ebnf: there is no rule x"),
        (ebnf("a ::= \"b\""), "ebnf: there is no rule root"),
        (ebnf("root ::= \"b"), "ebnf: line 1: a string has no end"),
        (ebnf("root ::= \"a\"\nroot ::= \"b\""), "ebnf: line 2: there are two rules root"),
        (ebnf("root ::= (\"a\""), "ebnf: line 1: expected )"),
        (ebnf("root ::= root"), "ebnf: "),
        (ebnf("root ::= \"a\"}"), "ebnf: line 1: unexpected '}'"),
        (ebnf("start: nothing"), "ebnf: "),
        (ebnf(""), "ebnf: "),
    ] {
        let reason = refused(&constraint);
        assert!(reason.contains(part), "{constraint:?} gives {reason:?}");
        assert!(reason.len() < 2 * MAX_MESSAGE && !reason.contains("<state>"), "{reason}");
    }
}

#[test]
fn what_is_too_much_is_refused_in_time() {
    let nested = |open: &str, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(2000), close.repeat(2000));
    let doubled: String = (1..60).map(|n| format!("r{n} ::= r{} r{}\n", n - 1, n - 1)).collect();
    let chain: String = (0..1500).map(|n| format!(r##""d{n}": {{"$ref": "#/$defs/d{}"}},"##, n + 1)).collect();
    let all_of: String =
        (0..1200).map(|n| format!(r##""d{n}": {{"allOf": [{{"$ref": "#/$defs/d{}"}}]}},"##, n + 1)).collect();
    let defs = |chain: &str, last: usize| {
        format!(r##"{{"$ref": "#/$defs/d0", "$defs": {{{chain}"d{last}": {{"type": "null"}}}}}}"##)
    };
    for constraint in [
        regex(&nested("(", "a", ")")),
        regex(&format!("a{}", "*".repeat(16_000))),
        regex(&"a?".repeat(8_000)),
        regex("(a{1,1000}){1,1000}"),
        regex(&format!("({})*b", "(a|b)".repeat(2500))),
        regex(&format!("{}a", "|".repeat(16_000))),
        ebnf(&format!("root ::= {}", nested("(", "\"a\"", ")"))),
        ebnf(&format!("root ::= \"a\"{}", "*".repeat(16_000))),
        ebnf(&format!("root ::= r59\nr0 ::= \"a\"\n{doubled}")),
        ebnf(&format!("root ::= {}\n", "root | ".repeat(2000) + "\"a\"")),
        ebnf(&format!("start: {}", nested("(", "\"a\"", ")"))),
        ebnf(&format!("start: \"a\"{}", "*".repeat(16_000))),
        schema(&nested("[", "", "]")),
        schema(&nested(r#"{"not":"#, "true", "}")),
        schema(&defs(&chain, 1500)),
        schema(&defs(&all_of, 1200)),
        schema(r#"{"type": "array", "minItems": 1000000, "items": {"type": "array", "minItems": 1000000}}"#),
        schema(r#"{"type": "string", "minLength": 2000000000}"#),
        schema(&format!(r#"{{"enum": [{}1]}}"#, "\"x\",".repeat(15_000))),
        regex(&"a".repeat(MAX_EXPRESSION + 1)),
    ] {
        let start = Instant::now();
        let result = grammars().compile(&constraint);
        let shown: String = constraint.text().chars().take(60).collect();
        assert!(start.elapsed() < MAX_TIME * 3, "{shown:?} took {:?}", start.elapsed());
        if let Ok(mut grammar) = result {
            // On this thread, with its usual stack.
            for _ in 0..30 {
                let Ok(mask) = grammar.allowed() else { break };
                let mut logits = vec![0.0; VOCAB];
                mask.rule(&mut logits);
                let last = (0..VOCAB).rev().find(|id| logits[*id] == 0.0).unwrap();
                if grammar.accept(last as i32) != Ok(false) {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_model_without_an_end_has_no_grammars() {
    assert!(Grammars::new(&vocabulary(), &ModelSpec { eos: Vec::new(), ..spec() }).is_none());
    // More rows of logits than tokens, as padded models have: the surplus is never allowed.
    let grammars = Grammars::new(&vocabulary(), &ModelSpec { vocab: VOCAB + 9, ..spec() }).unwrap();
    let mut logits = vec![0.0; VOCAB + 9];
    grammars.compile(&regex(".*")).unwrap().allowed().unwrap().rule(&mut logits);
    assert!(logits[VOCAB..].iter().all(|logit| *logit == f32::NEG_INFINITY));
}

#[test]
fn constraints_that_were_compiled_in_time_hold_up_none_after_them() {
    let grammars = grammars();
    for at in 0..200 {
        assert!(grammars.compile(&regex(&format!("a{at}"))).is_ok(), "{at}");
        assert_eq!(grammars.overrun.load(Ordering::Relaxed), 0, "{at}");
    }
}
