//! C3: equal if and only if the JSON is equal by the rule's definition.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::types::{Caller, Endpoint};

fn key(body: &str) -> Option<Key> {
    Key::of(&question(body))
}

fn question(body: &str) -> Question {
    Question {
        endpoint: Endpoint::ChatCompletions,
        model: "m".into(),
        stream: true,
        include_usage: false,
        body: body.to_owned().into(),
        headers: HeaderMap::new(),
        caller: Caller { tenant: "t".into(), scope: [7; 32], keyed: false },
        request_id: "r".into(),
        choices: 1,
        rank: None,
    }
}

#[test]
fn c3_order_and_white_space_do_not_matter() {
    let a = key(r#"{"model":"m","messages":[{"role":"user","content":"x"}],"n":1}"#);
    let b = key("\n{ \"n\" : 1,\t\"messages\": [ {\"content\":\"x\", \"role\":\"user\"} ] ,\r\n \"model\":\"m\" } ");
    assert!(a.is_some());
    assert_eq!(a, b);
}

#[test]
fn c3_what_can_change_the_answer_separates() {
    let different = [
        r#"{"a":1}"#,
        r#"{"a":1.0}"#,
        r#"{"a":1e0}"#,
        r#"{"a":"1"}"#,
        r#"{"a":true}"#,
        r#"{"a":null}"#,
        r#"{}"#,
        r#"{"a":[1]}"#,
        r#"{"a":[1,[]]}"#,
        r#"{"a":[[1]]}"#,
        r#"{"a":{}}"#,
        r#"{"a":"é"}"#,
        "{\"a\":\"e\u{301}\"}", // the same to the eye, decomposed
        r#"{"a":0.1234567890123456789}"#,
        r#"{"a":0.1234567890123456788}"#,
        r#"{"a":[1,2]}"#,
        r#"{"a":[2,1]}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"a":"\ufffd"}"#,
        r#"{"a":1,"unknown":0}"#,
    ];
    for (i, a) in different.iter().enumerate() {
        for b in &different[..i] {
            assert_ne!(key(a).unwrap(), key(b).unwrap(), "{a} and {b}");
        }
    }
}

#[test]
fn c3_an_escape_is_its_character() {
    assert_eq!(key(r#"{"a":"A\n/\u00e9😀"}"#), key(r#"{"\u0061":"\u0041\u000a\/é\ud83d\ude00"}"#));
}

#[test]
fn c3_what_is_not_safe_to_compare_is_not_shared() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let unsafe_bodies = [
        r#"{"a":1,"a":1}"#,
        r#"{"b":{"a":1,"\u0061":2}}"#,
        r#"[1]"#,
        r#""text""#,
        "",
        r#"{"a":1"#,
        r#"{"a":1}x"#,
        r#"{"a":01}"#,
        r#"{"a":1.}"#,
        r#"{"a":.5}"#,
        r#"{"a":+1}"#,
        r#"{"a":1e}"#,
        r#"{"a":tru}"#,
        r#"{"a":"\x"}"#,
        r#"{"a":"\u12"}"#,
        "{\"a\":\"\n\"}",
        r#"{"a":1,}"#,
        r#"{,}"#,
        r#"{"a":[1,]}"#,
        deep.as_str(),
    ];
    for body in unsafe_bodies {
        assert_eq!(key(body), None, "{body:.60}");
    }
}

#[test]
fn c3_scope_rank_endpoint_and_headers_that_matter_separate() {
    let base = question("{}");
    let mut others = vec![base.clone(); 4];
    others[0].caller.scope = [8; 32];
    others[1].rank = Some(0);
    others[2].endpoint = Endpoint::Completions;
    others[3].headers.insert("openai-beta", "x".parse().unwrap());
    for other in &others {
        assert_ne!(Key::of(&base).unwrap(), Key::of(other).unwrap());
    }
    let mut same = base.clone();
    for name in ["user-agent", "x-request-id", "x-stainless-retry-count", "traceparent"] {
        same.headers.insert(name, "x".parse().unwrap());
    }
    same.request_id = "another".into();
    assert_eq!(Key::of(&base), Key::of(&same));
}

/// JSON with its exact number texts, as a tree whose equality is C3's.
#[derive(Debug, Clone, PartialEq)]
enum Json {
    Literal(&'static str),
    Number(String),
    Text(String),
    Array(Vec<Json>),
    Object(std::collections::BTreeMap<String, Json>),
}

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "false"]).prop_map(Json::Literal),
        "(0|-?[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?".prop_map(Json::Number),
        ".{0,4}".prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
            prop::collection::btree_map("[a-c\"\\\\é]{0,2}", inner, 0..4).prop_map(Json::Object),
        ]
    })
}

fn object() -> impl Strategy<Value = Json> {
    prop::collection::btree_map("[a-d]{0,2}", json(), 0..5).prop_map(Json::Object)
}

/// Write the tree with an order of keys, white space and escapes that depend on `style`.
fn write(value: &Json, style: &mut u64, out: &mut String) {
    *style = style.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let choice = *style >> 40;
    let space = ["", " ", "\n\t", "\r\n"][choice as usize % 4];
    out.push_str(space);
    match value {
        Json::Literal(text) => out.push_str(text),
        Json::Number(text) => out.push_str(text),
        Json::Text(text) => write_text(text, choice, out),
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, style, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            if choice & 8 != 0 {
                members.reverse();
            }
            out.push('{');
            for (i, (name, item)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(space);
                write_text(name, choice >> 1, out);
                out.push_str(space);
                out.push(':');
                write(item, style, out);
            }
            out.push('}');
        }
    }
    out.push_str(space);
}

fn write_text(text: &str, choice: u64, out: &mut String) {
    if choice & 4 == 0 {
        out.push_str(&serde_json::to_string(text).unwrap());
        return;
    }
    out.push('"');
    for unit in text.encode_utf16() {
        let _ = write!(out, "\\u{unit:04x}");
    }
    out.push('"');
}

fn written(value: &Json, mut style: u64) -> String {
    let mut out = String::new();
    write(value, &mut style, &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn c3_the_form_does_not_depend_on_how_it_is_written(value in object(), a: u64, b: u64) {
        let (a, b) = (canonical(written(&value, a).as_bytes()), canonical(written(&value, b).as_bytes()));
        prop_assert!(a.is_some());
        prop_assert_eq!(a, b);
    }

    #[test]
    fn c3_equal_forms_mean_equal_json(a in object(), b in object(), s: u64) {
        let equal = canonical(written(&a, s).as_bytes()) == canonical(written(&b, !s).as_bytes());
        prop_assert_eq!(equal, a == b);
    }

    #[test]
    fn c3_accepts_what_serde_json_accepts(text in "[\\[\\]{}\",:0-9eE.+\\-a-c\\\\u tfn]{0,24}") {
        // An object that we take is JSON; duplicate keys are what we refuse beyond that.
        if canonical(text.as_bytes()).is_some() {
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok(), "{}", text);
        }
    }
}
