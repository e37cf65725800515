#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// An answer put together: content, reasoning, and the calls' names and arguments.
type Whole = (String, String, Vec<(String, String)>);

fn wishes(wanted: Wanted) -> Wishes {
    let schema = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}, "on": {"type": "boolean"}}});
    Wishes { wanted, functions: vec![("f".into(), schema), ("g".into(), json!({}))], ..Wishes::default() }
}

fn plan(tools: ToolParser, reasoning: ReasoningParser, wishes: &Wishes, prompt: &str) -> Plan {
    Families::of(tools, reasoning, "").plan(wishes, prompt).unwrap()
}

fn run<'a>(plan: &Plan, parts: impl IntoIterator<Item = &'a str>) -> Whole {
    let mut parser = plan.parser();
    let mut whole = Whole::default();
    let mut add = |pieces: Vec<Piece>| {
        for piece in pieces {
            match piece {
                Piece::Content(text) => whole.0.push_str(&text),
                Piece::Reasoning(text) => whole.1.push_str(&text),
                Piece::Call { index, name, .. } => {
                    assert_eq!(index, whole.2.len());
                    whole.2.push((name, String::new()));
                }
                Piece::Arguments { index, text } => whole.2[index].1.push_str(&text),
            }
        }
    };
    for part in parts {
        add(parser.feed(part));
    }
    add(parser.finish());
    whole
}

fn one(tools: ToolParser, text: &str) -> Whole {
    run(&plan(tools, ReasoningParser::None, &wishes(Wanted::Auto), ""), [text])
}

fn calls(calls: &[(&str, &str)]) -> Vec<(String, String)> {
    calls.iter().map(|(name, arguments)| ((*name).into(), (*arguments).into())).collect()
}

const FAMILIES: [ToolParser; 8] = [
    ToolParser::Hermes,
    ToolParser::Qwen3Coder,
    ToolParser::Llama3Json,
    ToolParser::Mistral,
    ToolParser::DeepseekV3,
    ToolParser::DeepseekV31,
    ToolParser::KimiK2,
    ToolParser::Harmony,
];

/// A call as a family writes it.
fn written(family: ToolParser, name: &str, arguments: &str) -> String {
    match family {
        ToolParser::Hermes => {
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>\n")
        }
        ToolParser::Qwen3Coder => {
            let mut text = format!("<tool_call>\n<function={name}>\n");
            for (key, value) in serde_json::from_str::<Value>(arguments).unwrap().as_object().unwrap() {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.push_str(&format!("<parameter={key}>\n{value}\n</parameter>\n"));
            }
            text + "</function>\n</tool_call>\n"
        }
        ToolParser::Llama3Json => format!("<|python_tag|>{{\"name\": \"{name}\", \"parameters\": {arguments}}}"),
        ToolParser::Mistral => format!("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        ToolParser::DeepseekV3 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        ToolParser::DeepseekV31 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        ToolParser::KimiK2 => format!(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        ToolParser::Harmony => format!(
            "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
        ),
        ToolParser::Auto | ToolParser::None => panic!("no family"),
    }
}

/// A8: two calls with text before them, braces and marks in strings, in every family.
#[test]
fn a8_every_family_finds_its_calls() {
    let first = r#"{"city": "Zürich } ] \" { 日本 😀", "list": [{"a": [1]}]}"#;
    for family in FAMILIES {
        let before = match family {
            ToolParser::Harmony => "<|channel|>commentary<|message|>Let me see. {<|end|>",
            _ => "Let me see. {",
        };
        let text = format!("{before}{}{}", written(family, "f", first), written(family, "g", "{\"n\": 1}"));
        let (content, _, found) = one(family, &text);
        assert_eq!(content, "Let me see. {", "{family:?}");
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["f", "g"], "{family:?}");
        let json: Value =
            serde_json::from_str(&found[0].1).unwrap_or_else(|e| panic!("{family:?} {e}: {}", found[0].1));
        assert_eq!(json, serde_json::from_str::<Value>(first).unwrap(), "{family:?}");
        if family != ToolParser::Qwen3Coder {
            assert_eq!(found[0].1, first, "as the model wrote it");
        }
    }
}

/// A8: arguments are passed on while they are generated.
#[test]
fn a8_arguments_stream() {
    let arguments = format!("{{\"city\": \"{}\"}}", "x".repeat(200));
    for family in FAMILIES {
        let text = written(family, "f", &arguments);
        let plan = plan(family, ReasoningParser::None, &wishes(Wanted::Auto), "");
        let mut parser = plan.parser();
        let mut fragments = 0;
        let chars: Vec<String> = text.chars().map(String::from).collect();
        for c in &chars {
            fragments += parser.feed(c).iter().filter(|piece| matches!(piece, Piece::Arguments { .. })).count();
        }
        assert!(fragments > 150, "{family:?}: {fragments}");
    }
}

/// A8: what is no call is content, and nothing of it is lost.
#[test]
fn a8_malformed_calls_are_content() {
    for (family, text) in [
        (ToolParser::Hermes, " <tool_call>\nnot json\n</tool_call> rest"),
        (ToolParser::Hermes, "<tool_call>{\"name\": 3}</tool_call>"),
        (ToolParser::Hermes, "<tool_call>{\"arguments\": {\"a\": 1}"),
        (ToolParser::Hermes, "a < b <tool_ca"),
        (ToolParser::Hermes, "  only white space before text  "),
        (ToolParser::Llama3Json, "{\"name\": \"Bob\", \"age\": 3}"),
        (ToolParser::Llama3Json, "{\"name\": \"f\"}"),
        (ToolParser::Llama3Json, "<|python_tag|>print(1)"),
        (ToolParser::Qwen3Coder, "<tool_call>\n<funktion=f>"),
        (ToolParser::Mistral, "[TOOL_CALLS] ? {"),
        (ToolParser::DeepseekV3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"),
        (ToolParser::KimiK2, "<|tool_call_begin|>functions.f:0"),
    ] {
        assert_eq!(one(family, text), (text.into(), String::new(), Vec::new()), "{family:?}");
    }
    let long = format!("<tool_call>{{\"arguments\": \"{}\"}}", "y".repeat(tools::MAX_HELD + 5));
    assert_eq!(one(ToolParser::Hermes, &long).0, long, "what is held back is bounded");
}

/// A8: a call that is cut keeps the arguments that came; missing ones are an empty object.
#[test]
fn a8_cut_calls() {
    let found = |family, text| one(family, text).2;
    let hermes = ToolParser::Hermes;
    assert_eq!(
        found(hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b"),
        calls(&[("f", "{\"a\": \"b")])
    );
    assert_eq!(found(hermes, "<tool_call>{\"name\": \"f\"}</tool_call>"), calls(&[("f", "{}")]));
    assert_eq!(found(hermes, "<tool_call>{\"arguments\": {}, \"name\": \"f\"}"), calls(&[("f", "{}")]));
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 1}}</tool_call> after";
    let (content, _, found) = one(hermes, text);
    assert_eq!((content.as_str(), found), (" after", calls(&[("f", "{'a': 1}}")])));
    let text = r#"<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud83d\ude00\"}"}</tool_call>"#;
    assert_eq!(one(hermes, text).2, calls(&[("f", "{\"a\": \"😀\"}")]), "arguments as text");
}

/// The forms that a family's models use beside the usual one.
#[test]
fn other_forms() {
    let two = calls(&[("f", "{\"n\": 1}"), ("g", "{}")]);
    let text = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
    assert_eq!(one(ToolParser::Mistral, text).2, two);
    assert_eq!(one(ToolParser::Mistral, "[TOOL_CALLS]f{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}").2, two);
    let text = "{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"g\", \"parameters\": {}}";
    assert_eq!(one(ToolParser::Llama3Json, text), (String::new(), String::new(), two.clone()));
    let text = "<function=f>\n<parameter=n>\nseven\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n<parameter=city>\n\n a\"\n\n</parameter>\n</function>";
    let found = one(ToolParser::Qwen3Coder, text).2;
    assert_eq!(found, calls(&[("f", r#"{"n": "seven", "on": true, "city": "\n a\"\n"}"#)]));
}

/// A constrained answer is the call: a list for `required`, the arguments for a named function.
#[test]
fn a8_forced_calls() {
    let required = plan(ToolParser::None, ReasoningParser::Qwen3, &wishes(Wanted::Required), "<think>\n");
    let text = " [{\"name\": \"f\", \"parameters\": {\"n\": 1}}, {\"name\": \"g\", \"parameters\": {}}]\n";
    assert_eq!(run(&required, [text]).2, calls(&[("f", "{\"n\": 1}"), ("g", "{}")]));
    let thought = format!("hm</think>{text}");
    assert_eq!(run(&required, [thought.as_str()]).1, "hm");
    assert_eq!(run(&required, [thought.as_str()]).2.len(), 2);
    let named = plan(ToolParser::Hermes, ReasoningParser::None, &wishes(Wanted::Named), "");
    assert_eq!(run(&named, ["{\"n\": [1, {}]}"]), (String::new(), String::new(), calls(&[("f", "{\"n\": [1, {}]}")])));
    assert_eq!(run(&named, ["no"]).0, "no");
    let first = Wishes { only_first: true, ..wishes(Wanted::Required) };
    let first = plan(ToolParser::None, ReasoningParser::None, &first, "");
    assert_eq!(run(&first, [text]).2, calls(&[("f", "{\"n\": 1}")]));
}

/// Reasoning, opened by the answer or by the prompt, shown or not.
#[test]
fn reasoning() {
    let made =
        |parser, shown, prompt: &str| plan(ToolParser::None, parser, &Wishes { shown, ..Wishes::default() }, prompt);
    let text = "<think>\na < b</think>\n\nok <think> </think>";
    let qwen = made(ReasoningParser::Qwen3, Shown::Apart, "");
    assert_eq!(run(&qwen, [text]), ("\n\nok <think> </think>".into(), "\na < b".into(), Vec::new()));
    assert_eq!(run(&qwen, ["plain </think>"]).0, "plain </think>");
    assert_eq!(run(&qwen, ["<think>cut</th"]).1, "cut</th");
    assert_eq!(run(&made(ReasoningParser::Qwen3, Shown::Dropped, ""), [text]).1, "");
    assert_eq!(run(&made(ReasoningParser::Qwen3, Shown::Merged, ""), [text]).0, text);
    let opened = made(ReasoningParser::Qwen3, Shown::Apart, "...<think>\n");
    assert_eq!(run(&opened, ["x</think>y"]), ("y".into(), "x".into(), Vec::new()));
    let forced = made(ReasoningParser::DeepseekR1, Shown::Apart, "...");
    assert_eq!(run(&forced, ["x</think>y"]), ("y".into(), "x".into(), Vec::new()));
    let closed = made(ReasoningParser::DeepseekR1, Shown::Apart, "<think>\n\n</think>\n\n");
    assert_eq!(run(&closed, ["y"]).0, "y");
    let kimi = plan(ToolParser::KimiK2, ReasoningParser::KimiK2, &wishes(Wanted::Auto), "<think>");
    let text = format!("hm{}", written(ToolParser::KimiK2, "f", "{}"));
    assert_eq!(run(&kimi, [text.as_str()]), (String::new(), "hm".into(), calls(&[("f", "{}")])));
    let harmony = plan(ToolParser::Harmony, ReasoningParser::Auto, &Wishes::default(), "");
    let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>ok";
    assert_eq!(run(&harmony, [text]), ("ok".into(), "hm".into(), Vec::new()));
    assert_eq!(run(&harmony, ["plain"]).0, "plain");
}

#[test]
fn auto_looks_at_the_template() {
    let of = |template| family::resolve(ToolParser::Auto, ReasoningParser::Auto, template);
    assert_eq!(of("<tool_call> <think>"), (ToolParser::Hermes, ReasoningParser::Qwen3));
    assert_eq!(of("<tool_call><function="), (ToolParser::Qwen3Coder, ReasoningParser::None));
    assert_eq!(of("<|start|> <|channel|>"), (ToolParser::Harmony, ReasoningParser::Harmony));
    assert_eq!(of("plain"), (ToolParser::None, ReasoningParser::None));
    assert!(Families::of(ToolParser::Auto, ReasoningParser::Auto, "").plan(&wishes(Wanted::Auto), "").is_none());
}

/// What answers are made of: a family's own calls, whole and broken, and other text.
fn answer(family: ToolParser) -> impl Strategy<Value = String> {
    let call = written(family, "f", r#"{"city": "x }\" é😀 <", "n": 12, "list": [1, {"a": null}]}"#);
    let broken: Vec<String> =
        call.char_indices().step_by(7).map(|(at, _)| call[..at].to_owned()).chain([call.clone()]).collect();
    let piece = prop_oneof![
        3 => proptest::sample::select(broken),
        1 => Just(call),
        1 => "[ \n;a{}<é日😀\\[\\]\"]{0,6}",
        1 => proptest::sample::select(vec![
            "<think>", "</think>", "</tool_call>", "<", "{", "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "```", "[",
            "</function>", "</parameter>", "\\u12", "; ", "<|message|>", "<|end|>", "to=functions.f",
        ]).prop_map(str::to_owned),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A8: for any split of the text the assembled deltas equal the parse of the whole.
    #[test]
    fn a8_any_split_is_the_whole(
        (family, text) in proptest::sample::select(FAMILIES.to_vec()).prop_flat_map(|f| answer(f).prop_map(move |t| (f, t))),
        reasoning in proptest::sample::select(vec![
            ReasoningParser::None, ReasoningParser::Qwen3, ReasoningParser::DeepseekR1, ReasoningParser::KimiK2,
        ]),
        wanted in proptest::sample::select(vec![Wanted::Auto, Wanted::Required, Wanted::Named]),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
    ) {
        let plan = plan(family, reasoning, &wishes(wanted), "");
        let whole = run(&plan, [text.as_str()]);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        at.retain(|&at| text.is_char_boundary(at));
        at.extend([0, text.len()]);
        at.sort_unstable();
        prop_assert_eq!(&run(&plan, at.windows(2).map(|pair| &text[pair[0]..pair[1]])), &whole);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        prop_assert_eq!(&run(&plan, chars.iter().map(String::as_str)), &whole);
    }

    /// Without a call nothing is lost: the text is content, to the byte.
    #[test]
    fn a8_nothing_is_lost(text in "[ \n;a<é日😀tol_c>/{}\"]{0,60}") {
        let found = one(ToolParser::Hermes, &text);
        prop_assert!(found.2.is_empty());
        prop_assert_eq!(found.0, text);
    }
}
