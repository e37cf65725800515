//! docs/parameters.md and the code say the same. Each cell of the table is tried: border values, examples and wrong types of what is
//! honoured, a value of what is refused, and what has no effect or is unknown must not change the request. And each field that the code
//! reads has a row.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot read the repo has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use infergw::api::body::Envelope;
use infergw::api::error::ApiError;
use infergw::backend::engine::form::{Form, renames};
use infergw::backend::engine::request::{self, Request};
use infergw::backend::engine::{messages, native, responses};
use infergw::types::Endpoint;
use serde_json::{Map, Value, json};
use ts_wire::{SamplingParams, TokenizedGenerateReqInput};

/// The endpoints in the order of the table's columns.
const ENDPOINTS: [Endpoint; 5] =
    [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses, Endpoint::Generate];

/// What the table says of a field at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Honoured,
    Refused,
    WithoutEffect,
    Unknown,
}

#[derive(Debug)]
struct Row {
    name: String,
    cells: [Cell; 5],
    allowed: String,
    goes_to: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join("docs/parameters.md")).unwrap();
    let row = |line: &str| {
        let parts: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(parts.len(), 8, "{line}");
        let cell = |at: usize| match parts[at] {
            "yes" => Cell::Honoured,
            "400" => Cell::Refused,
            "–" => Cell::WithoutEffect,
            "" => Cell::Unknown,
            other => panic!("{other:?} in {line}"),
        };
        Row {
            name: parts[0].trim_matches('`').to_owned(),
            cells: [1, 2, 3, 4, 5].map(cell),
            allowed: parts[6].to_owned(),
            goes_to: parts[7].to_owned(),
        }
    };
    let rows: Vec<Row> = text.lines().filter(|line| line.starts_with("| `")).map(row).collect();
    assert!(rows.len() > 100, "the table has {} rows", rows.len());
    rows
}

/// What stands in backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

impl Row {
    /// The examples, which are JSON.
    fn examples(&self) -> Vec<Value> {
        quoted(&self.allowed).into_iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
    }

    /// Values that must be accepted, and values that must not.
    fn probes(&self) -> (Vec<Value>, Vec<Value>) {
        let (mut good, mut bad) = (self.examples(), vec![json!(0.5)]);
        let words: Vec<&str> = self.allowed.split([' ', ';', ',']).collect();
        match words.as_slice() {
            ["true", "or", "false", ..] => good.extend([json!(true), json!(false)]),
            ["number", "above", low, "to", high, ..] => {
                let [low, high] = [low, high].map(|end| end.parse::<f64>().unwrap());
                good.extend([json!(f64::midpoint(low, high)), json!(high)]);
                bad = vec![json!(low), json!(high + 0.001), json!("x"), json!([high]), json!(true)];
            }
            ["number", low, "to", high, ..] => {
                let [low, high] = [low, high].map(|end| end.parse::<f64>().unwrap());
                good.extend([json!(low), json!(high)]);
                bad = vec![json!(low - 0.001), json!(high + 0.001), json!("x"), json!([high]), json!(true)];
            }
            ["integer", low, "to", high, ..] => {
                let [low, high] = [low, high].map(|end| end.parse::<i64>().unwrap());
                good.extend([json!(low), json!(high)]);
                bad.extend([json!(low - 1), json!(high + 1), json!("x"), json!(1e300), json!(true)]);
            }
            ["integer", "from", low, ..] => {
                let low = low.parse::<i64>().unwrap();
                good.extend([json!(low), json!(i64::MAX)]);
                bad.extend([json!(low - 1), json!("x"), json!(u64::MAX), json!(1e300)]);
            }
            ["integer", ..] => {
                good.extend([json!(i64::MIN), json!(i64::MAX)]);
                bad.extend([json!("x"), json!(u64::MAX), json!(1e300)]);
            }
            _ => {}
        }
        (good, bad)
    }
}

/// A body that is in order, in which the field can matter.
fn body(endpoint: Endpoint) -> Value {
    let conversation = json!([{"role": "user", "content": "hi"}]);
    let mut body = match endpoint {
        Endpoint::ChatCompletions => json!({"messages": conversation, "logprobs": true,
            "tools": [{"type": "function", "function": {"name": "f"}}]}),
        Endpoint::Completions => json!({"prompt": "hi"}),
        Endpoint::Messages => json!({"messages": conversation, "max_tokens": 9,
            "tools": [{"name": "f", "input_schema": {}}]}),
        Endpoint::Responses => json!({"input": "hi", "tools": [{"type": "function", "name": "f"}]}),
        _ => json!({"text": "hi", "return_logprob": true, "sampling_params": {"max_new_tokens": 7}}),
    };
    body["model"] = "default".into();
    body["stream"] = true.into();
    body
}

fn with(endpoint: Endpoint, name: &str, value: &Value) -> Value {
    let mut body = body(endpoint);
    match name.split_once('.') {
        Some((outer, inner)) => body[outer][inner] = value.clone(),
        None => body[name] = value.clone(),
    }
    if name == "input_ids" && endpoint == Endpoint::Generate {
        // One prompt, in one form.
        body.as_object_mut().unwrap().remove("text");
    }
    body
}

/// What the gateway makes of a body, or the name of the field at fault.
fn outcome(endpoint: Endpoint, body: &Value) -> Result<String, String> {
    let read = || -> Result<String, ApiError> {
        let envelope = Envelope::parse(endpoint, body.to_string().as_bytes())?;
        let (form, body) = Form::read(endpoint, body.as_object().cloned().unwrap_or_default())?;
        let request = Request::of(form.dialect(), &body, 1000)?;
        // A response repeats fields that change nothing; what the native form keeps matters.
        let form = if let Form::Native(native) = form { format!("{native:?}") } else { String::new() };
        Ok(format!("{envelope:?} {form} {request:?}"))
    };
    read().map_err(|error| {
        let error = error.renamed(renames(endpoint));
        assert_eq!(error.status, 400);
        let told: Value = serde_json::from_slice(error.body()).unwrap();
        told["error"]["param"].as_str().unwrap_or_default().to_owned()
    })
}

#[test]
fn the_table_says_what_the_code_does() {
    let rows = rows();
    let mut wrong = Vec::new();
    for row in &rows {
        for (at, endpoint) in ENDPOINTS.into_iter().enumerate() {
            let twin = |other: &&Row| other.name == row.name && other.cells[at] != Cell::Unknown;
            let plain = outcome(endpoint, &body(endpoint)).unwrap();
            let try_out = |value: &Value| outcome(endpoint, &with(endpoint, &row.name, value));
            let mut complain = |value: &Value, said: &str| {
                wrong.push(format!("{} = {value} at {}: {said}", row.name, endpoint.path()));
            };
            // A field of two shapes has two rows.
            let cell =
                if row.cells[at] == Cell::Unknown && rows.iter().any(|r| twin(&r)) { continue } else { row.cells[at] };
            let inert = [json!(0.5), json!("x"), json!([1]), json!({"a": 1}), json!(true)];
            match cell {
                Cell::Honoured => {
                    let (good, bad) = row.probes();
                    let outcomes: Vec<_> = good.iter().map(try_out).collect();
                    for (value, outcome) in good.iter().zip(&outcomes) {
                        if let Err(param) = outcome {
                            complain(value, &format!("is refused, for {param}"));
                        }
                    }
                    if !outcomes.iter().flatten().any(|outcome| *outcome != plain) {
                        complain(&json!(good), "none of it has an effect");
                    }
                    for value in &bad {
                        match try_out(value) {
                            Err(param) if param.starts_with(&row.name) => {}
                            other => complain(value, &format!("must be refused by name, is {other:?}")),
                        }
                    }
                }
                Cell::Refused => {
                    if try_out(&json!(7)) != Err(row.name.clone()) {
                        complain(&json!(7), "must be refused by name");
                    }
                    for value in row.examples().iter().chain([&Value::Null]) {
                        if try_out(value).as_ref() != Ok(&plain) {
                            complain(value, "is neutral");
                        }
                    }
                }
                Cell::WithoutEffect | Cell::Unknown => {
                    for value in inert.iter().chain(&row.examples()) {
                        if try_out(value).as_ref() != Ok(&plain) {
                            complain(value, &format!("must change nothing, and gives {:?}", try_out(value)));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lists of the code, and which endpoints they are for.
fn lists() -> Vec<(Cell, &'static str, Vec<Endpoint>)> {
    let dialects = || ENDPOINTS[..4].to_vec();
    let mut lists = Vec::new();
    lists.extend(request::REFUSED.iter().map(|(name, _)| (Cell::Refused, *name, dialects())));
    lists.extend(request::WITHOUT_EFFECT.iter().map(|name| (Cell::WithoutEffect, *name, dialects())));
    for (endpoint, refused, without_effect) in [
        (Endpoint::Messages, messages::REFUSED, messages::WITHOUT_EFFECT),
        (Endpoint::Responses, responses::REFUSED, responses::WITHOUT_EFFECT),
        (Endpoint::Generate, native::REFUSED, native::WITHOUT_EFFECT),
    ] {
        lists.extend(refused.iter().map(|name| (Cell::Refused, *name, vec![endpoint])));
        lists.extend(without_effect.iter().map(|name| (Cell::WithoutEffect, *name, vec![endpoint])));
    }
    lists
}

#[test]
fn what_is_refused_or_without_effect_is_in_the_codes_lists_and_in_the_table() {
    let (rows, lists) = (rows(), lists());
    for (cell, name, endpoints) in &lists {
        for endpoint in endpoints {
            let at = ENDPOINTS.iter().position(|other| other == endpoint).unwrap();
            assert!(
                rows.iter().any(|row| row.name == *name && row.cells[at] == *cell),
                "{name} has no {cell:?} at {endpoint:?}"
            );
        }
    }
    for row in &rows {
        for (at, endpoint) in ENDPOINTS.into_iter().enumerate().filter(|(at, _)| row.cells[*at] == Cell::WithoutEffect)
        {
            let listed = |(cell, name, endpoints): &(Cell, &str, Vec<Endpoint>)| {
                *cell == row.cells[at] && *name == row.name && endpoints.contains(&endpoint)
            };
            assert!(lists.iter().any(listed), "{} is in no list of {endpoint:?}", row.name);
        }
    }
}

/// String literals that follow `before`, in a text without white space.
fn literals<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The string literals of the constants with one of these names.
fn listed<'a>(text: &'a str, names: &[&str]) -> Vec<&'a str> {
    let list = |name: &&str| text.split_once(&format!("const{name}:")).and_then(|(_, rest)| rest.split_once("];"));
    names.iter().filter_map(list).flat_map(|(list, _)| list.split('"').skip(1).step_by(2)).collect()
}

/// The fields that a source file reads off a body, by the ways in which the code here reads.
fn read_by(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates/infergw/src").join(file)).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let text: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().concat();
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let mut names = Vec::new();
    for reader in ["get", "flag", "text", "int", "number", "positive", "remove", "entry", "contains_key"] {
        for fields in ["fields", "body"] {
            names.extend(literals(&text, &format!("{fields}.{reader}(\"")));
        }
    }
    names.extend(literals(&text, "=flag(\"").into_iter().chain(literals(&text, ":flag(\"")));
    names.extend(listed(&text, &["NAMED", "FOREIGN", "REPEATED"]));
    let mut names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
    if file.ends_with("native.rs") {
        let arms = text.split("\"=>out.insert(").filter_map(|before| before.rsplit('"').next());
        let inner = arms.chain(listed(&text, &["SAME"])).map(|name| format!("sampling_params.{name}"));
        names.extend(inner.chain(["text".to_owned(), "input_ids".to_owned()]));
    }
    if file == "api/body.rs" {
        names.extend(text.split("\"=>&mutfields.").filter_map(|before| before.rsplit('"').next()).map(str::to_owned));
    }
    // Beside names there are defaults, as JSON.
    names.retain(|name| name.parse::<Value>().is_err());
    names.retain(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '.') && !name.is_empty());
    names
}

#[test]
fn every_field_that_the_code_reads_has_a_row() {
    let rows = rows();
    let known: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let engine = "backend/engine";
    for (file, least) in [
        ("api/body.rs", 8),
        ("backend/engine/request.rs", 8),
        ("backend/engine/request/constraint.rs", 11),
        ("backend/engine/request/conversation.rs", 8),
        ("backend/engine/request/sampling.rs", 14),
        ("backend/engine/request/tools.rs", 5),
        ("backend/engine/messages.rs", 12),
        ("backend/engine/responses.rs", 18),
        ("backend/engine/native.rs", 24),
    ] {
        let read = read_by(file);
        assert!(read.len() >= least, "{file} reads {}: does the test still find them? {read:?}", read.len());
        let missing: Vec<&String> = read.iter().filter(|name| !known.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "docs/parameters.md has no row for {missing:?} of {file}");
    }
    // No part of reading a request is somewhere else.
    for entry in fs::read_dir(root().join("crates/infergw/src").join(engine).join("request")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = ["constraint.rs", "conversation.rs", "fields.rs", "sampling.rs", "tests.rs", "tools.rs"];
        assert!(known.contains(&name.as_str()), "{name} is not looked at by this test");
    }
}

#[test]
fn the_wires_fields_are_the_wires() {
    let wire = format!("{:?}", TokenizedGenerateReqInput::new(String::new(), SamplingParams::default()));
    for row in rows() {
        let honoured = row.cells.contains(&Cell::Honoured);
        assert!(row.goes_to.is_empty() || honoured, "{}", row.name);
        for name in quoted(&row.goes_to) {
            assert!(wire.contains(&format!(" {name}: ")), "{}: the wire has no {name}", row.name);
        }
    }
}

/// What the examples and ranges do not show: in `sampling_params` an unknown field is refused, elsewhere it is ignored.
#[test]
fn unknown_fields() {
    for endpoint in ENDPOINTS {
        let plain = outcome(endpoint, &body(endpoint));
        assert_eq!(outcome(endpoint, &with(endpoint, "x_vendor", &json!({"a": 1}))), plain);
        assert_eq!(outcome(endpoint, &Value::Object(nulls(endpoint))), plain, "null is absent");
    }
    let odd = with(Endpoint::Generate, "sampling_params.x_vendor", &json!(1));
    assert_eq!(outcome(Endpoint::Generate, &odd), Err("sampling_params.x_vendor".into()));
}

/// The body with a null for each field of the table that it has not.
fn nulls(endpoint: Endpoint) -> Map<String, Value> {
    let mut body = body(endpoint).as_object().unwrap().clone();
    for row in rows() {
        if !row.name.contains('.') {
            body.entry(row.name).or_insert(Value::Null);
        }
    }
    body
}
