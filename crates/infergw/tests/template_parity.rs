//! A9: chat templates render as the reference library renders them: real templates, conversations with tools, golden files
//! that `scripts/goldens.sh` makes of the library itself.
//!
//! The templates whose licences allow it stand in `tests/goldens`; all others are fetched by that script.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use infergw::backend::engine::prompt::ChatTemplate;
use infergw::backend::engine::request::{Dialect, Input, Request};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// What a template gives for a body: its text, or that it refuses.
fn rendered(template: &ChatTemplate, body: &Value) -> Result<String, String> {
    let request = Request::parse(Dialect::ChatCompletions, body.to_string().as_bytes(), 1000);
    match request.map_err(|error| format!("{:?}", error.message()))?.input {
        Input::Chat { conversation, .. } => template.render(&conversation).map_err(|error| error.to_string()),
        Input::Prompts { .. } => unreachable!("a chat"),
    }
}

/// Today's date in the two forms that templates write it in.
fn undated(text: &str) -> String {
    let now = jiff::Zoned::now();
    let mut text = text.to_owned();
    for form in ["%Y-%m-%d", "%d %b %Y", "%B %d, %Y"] {
        text = text.replace(&now.strftime(form).to_string(), "TODAY");
    }
    text
}

/// What stays different, and why.
const KNOWN: [(&str, &str); 6] = [
    (
        "meetkai-functionary-medium-v3.1.jinja ",
        "adds plain text to text that is marked safe, which HTML-escapes it in Python",
    ),
    ("Apriel-1.6-15b-Thinker-fixed.jinja tools_floats", FLOATS),
    ("unsloth-Apriel-1.5.jinja tools_floats", FLOATS),
    ("GigaChat3-10B-A1.8B.jinja tools_floats", FLOATS),
    ("GigaChat3.1-10B-A1.8B.jinja tools_floats", FLOATS),
    ("meetkai-functionary-medium-v3.2.jinja tools_floats", FLOATS),
];
const FLOATS: &str = "joins floats below 1e-4 or from 1e16 on to text with `~`, or prints a whole object with such";

/// Compare all golden files of a folder; the number of cases, and what differs.
fn compare(templates: &Path, goldens: &Path) -> (usize, String) {
    let (mut count, mut differences) = (0, String::new());
    let read = |file: &Path| -> Value { serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap() };
    let conversations = read(&goldens.join("conversations.json"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".jinja.json"));
    files.sort();
    for file in files {
        let golden = read(&file);
        let name = golden["template"].as_str().unwrap();
        let source = std::fs::read_to_string(templates.join(name)).unwrap();
        let tokens: BTreeMap<String, String> = serde_json::from_value(golden["tokens"].clone()).unwrap();
        let template = match ChatTemplate::new(&source, None, tokens) {
            Ok(template) => template,
            Err(error) => {
                let _ = writeln!(differences, "{name}: {error:#}");
                continue;
            }
        };
        for (case, golden) in golden["cases"].as_object().unwrap() {
            count += 1;
            let ours = rendered(&template, &conversations[case]).map(|text| undated(&text));
            let same = |form: &Value| match (&ours, form["text"].as_str()) {
                (Ok(ours), Some(theirs)) => ours == theirs,
                (Err(_), None) => true,
                // What the template itself refuses is refused; where Python stumbles over a type, rendering is no fault.
                (Ok(_), None) => form["refused"].as_str().is_some_and(|error| error.starts_with("TypeError")),
                _ => false,
            };
            let place = format!("{name} {case}");
            let known = KNOWN.iter().any(|(known, _)| place.starts_with(known));
            if !known && !same(golden) && !golden.get("parts").is_some_and(same) {
                let _ = writeln!(differences, "{place}:\n  ours   {ours:?}\n  theirs {golden}");
            }
        }
    }
    (count, differences)
}

#[test]
fn a9_templates_render_as_the_reference_does() {
    let folder = root().join("tests/goldens");
    let (count, differences) = compare(&folder.join("templates"), &folder.join("rendered"));
    assert!(differences.is_empty(), "{differences}");
    assert!(count >= 6 * 20, "{count} cases");
}

#[test]
fn a9_fetched_templates_render_as_the_reference_does() {
    let venv = std::env::var_os("INFERGW_VENV").map_or_else(|| root().join(".venv"), PathBuf::from);
    let folder = venv.join("goldens");
    if !folder.join("rendered").is_dir() {
        println!("SKIPPED: there are no fetched templates in {}: run scripts/goldens.sh", folder.display());
        return;
    }
    let (count, differences) = compare(&folder.join("templates"), &folder.join("rendered"));
    if !differences.is_empty() {
        panic!("{differences}");
    }
    assert!(count >= 1000, "{count} cases");
}
