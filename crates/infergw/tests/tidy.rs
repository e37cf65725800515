//! The rules of STYLE.md that a compiler does not check, read off the source files of the workspace.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot read the repo has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The steps of a request in their order; `answer` stands above those it calls.
const STEPS: [&str; 9] = ["listen", "answer", "api", "admit", "coalesce", "admission", "pool", "backend", "reply"];

/// What every step may use: words, telemetry, settings, and the stop signal.
const SHARED: [&str; 6] = ["types", "observe", "config", "drain", "hop_by_hop", "workers"];

/// Edges that would go upward, each with the reason why it stands.
const UPWARD: [(&str, &str, &str); 8] = [
    ("*", "api::error", "the one place that makes errors; it has no other part of the api step in it"),
    ("listen", "Gateway", "a connection serves the whole gateway"),
    ("answer", "Gateway", "the life of a request goes through all of it"),
    ("answer", "health", "the routes that look in from the side are answered here too"),
    ("admission", "coalesce::flight", "the writing end of a flight is handed down with the question"),
    ("pool", "coalesce::flight", "the writing end of a flight is handed down with the question"),
    ("backend", "coalesce::flight", "the writing end of a flight is handed down with the question"),
    ("reply", "coalesce::log", "the body is the read of the flight's log: the cursor is handed down"),
];

/// Files whose code is longer than [`LONGEST`] lines, each with its reason. A file that has shrunk must leave the list.
const LONG_FILES: [(&str, &str); 0] = [];

/// Lines of code that a file may have, its tests not counted.
const LONGEST: usize = 600;

const DRAWERS: [&str; 10] =
    ["util", "utils", "helper", "helpers", "common", "misc", "manager", "processor", "shared", "stuff"];

/// A source file: its path from the workspace root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The numbered lines of code: no comments, nothing from the test module on.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        // `#[cfg(test)] mod tests;` is one line of declaration; `mod tests {` is the end of the code.
        let inline = |pair: &[&str]| {
            pair.first() == Some(&"#[cfg(test)]")
                && pair.last().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'))
        };
        let end = lines.windows(2).position(inline).unwrap_or(lines.len());
        lines
            .into_iter()
            .take(end)
            .enumerate()
            .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Every Rust file under `src` of the workspace's crates, without the files that are tests as a whole.
fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    for krate in fs::read_dir(root().join("crates")).unwrap() {
        walk(&krate.unwrap().path().join("src"), &mut files);
    }
    assert!(files.len() > 10, "the workspace has more than {} source files", files.len());
    files
}

fn walk(folder: &Path, files: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" {
                walk(&path, files);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let shown = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            files.push(Source { path: shown, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

/// The paths that a file names through `crate::`, groups in braces taken apart one level: `crate::a::{b, c::d}` is two.
fn crate_paths(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in source.code() {
        for rest in line.split("crate::").skip(1) {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
            let (path, after) = rest.split_at(end);
            match after.strip_prefix('{') {
                Some(group) => {
                    let group = group.split('}').next().unwrap_or_default();
                    for item in group.split(',').map(str::trim).filter(|item| !item.is_empty()) {
                        found.push((number, format!("{path}{item}")));
                    }
                }
                None => found.push((number, path.to_owned())),
            }
        }
    }
    found
}

fn step(module: &str) -> Option<usize> {
    STEPS.iter().position(|step| *step == module)
}

/// Whether code in `from` may name `path`.
fn may_use(from: &str, path: &str) -> bool {
    let to = path.split("::").next().unwrap_or_default();
    let matches = |what: &str| path == what || path.starts_with(&format!("{what}::"));
    if UPWARD.iter().any(|(who, what, _)| (*who == "*" || *who == from) && matches(what)) {
        return true;
    }
    let (Some(here), Some(there)) = (step(from), step(to)) else {
        // Modules that look in from the side may use the steps; the steps do not know them.
        return step(from).is_none() || SHARED.contains(&to);
    };
    let strangers = (from == "api" && to == "backend") || (from == "backend" && to == "api");
    there >= here && !strangers
}

fn report(rule: &str, problems: &[String]) {
    let mut text = String::new();
    for problem in problems {
        let _ = writeln!(text, "  {problem}");
    }
    assert!(problems.is_empty(), "{rule}:\n{text}");
}

#[test]
fn a_request_only_goes_down() {
    let mut problems = Vec::new();
    let mut edges = 0;
    for source in sources() {
        let Some(inside) = source.path.strip_prefix("crates/infergw/src/") else { continue };
        let from = inside.split(['/', '.']).next().unwrap_or_default();
        for (line, path) in crate_paths(&source) {
            edges += 1;
            if !may_use(from, &path) {
                problems.push(format!("{}:{line}: {from} uses crate::{path}", source.path));
            }
        }
    }
    assert!(edges > 10, "found only {edges} edges: the reader of `crate::` paths is broken");
    report(
        "a step may use types, observe, config and later steps, never an earlier one (STYLE.md, layering)",
        &problems,
    );
}

#[test]
fn the_layering_rule_can_fail() {
    assert!(!may_use("backend", "pool::Pool"));
    assert!(!may_use("coalesce", "answer"));
    assert!(!may_use("backend", "api::chat"));
    assert!(!may_use("pool", "health"));
    assert!(may_use("backend", "api::error::ApiError"));
    assert!(may_use("health", "pool::Pool"));
    assert!(may_use("answer", "reply"));
    let source = Source { path: String::new(), text: "use crate::coalesce::{flight::Writer, key};".into() };
    let paths: Vec<String> = crate_paths(&source).into_iter().map(|(_, path)| path).collect();
    assert_eq!(paths, ["coalesce::flight::Writer", "coalesce::key"]);
}

#[test]
fn telemetry_depends_on_the_shared_words_only() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("crates/infergw/src/observe")) {
        for (line, path) in crate_paths(source) {
            let to = path.split("::").next().unwrap_or_default();
            if !["types", "observe", "config"].contains(&to) {
                problems.push(format!("{}:{line}: observe uses crate::{path}", source.path));
            }
        }
    }
    report("observe depends on types and config only", &problems);
}

#[test]
fn no_file_is_a_drawer() {
    let drawers: Vec<String> = sources()
        .into_iter()
        .map(|source| source.path)
        .filter(|path| {
            let stems = path.split(['/', '.']).flat_map(|part| part.split('_'));
            stems.into_iter().any(|stem| DRAWERS.contains(&stem))
        })
        .collect();
    report("a module is named after what it is about, not after being useful", &drawers);
}

#[test]
fn long_files_are_listed_with_a_reason() {
    let listed: BTreeMap<&str, &str> = LONG_FILES.into_iter().collect();
    let mut problems = Vec::new();
    for source in sources() {
        let lines = source.code().count();
        match (lines > LONGEST, listed.contains_key(source.path.as_str())) {
            (true, false) => {
                problems.push(format!("{} has {lines} lines: split it, or list it with a reason", source.path))
            }
            (false, true) => problems.push(format!("{} has {lines} lines only: take it off the list", source.path)),
            _ => {}
        }
    }
    report(&format!("a file has at most {LONGEST} lines of code"), &problems);
}

/// Searches the code of all files but those that `exempt` names for `needles`.
fn forbid(rule: &str, needles: &[&str], exempt: impl Fn(&str) -> bool) {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|source| !exempt(&source.path)) {
        for (number, line) in source.code() {
            if let Some(needle) = needles.iter().find(|needle| line.contains(**needle)) {
                problems.push(format!("{}:{number}: {needle}", source.path));
            }
        }
    }
    report(rule, &problems);
}

#[test]
fn only_the_transport_names_zmq() {
    let needles = ["zmq::", "zmq_", "use zmq"];
    let rule = "ZMQ is an affair of ts-client/src/transport.rs and of the engine side";
    forbid(rule, &needles, |path| {
        path.starts_with("crates/ts-client/src/transport") || path.starts_with("crates/ts-engine/")
    });
    for krate in ["ts-wire", "infergw"] {
        let manifest = fs::read_to_string(root().join("crates").join(krate).join("Cargo.toml")).unwrap();
        assert!(!manifest.lines().any(|line| line.starts_with("zmq")), "{rule}: {krate} depends on it");
    }
}

#[test]
fn no_channel_is_unbounded() {
    // std's mpsc::channel is unbounded too; its bounded form is sync_channel.
    let needles = ["unbounded_channel", "unbounded()", "unbounded::<", "std::sync::mpsc::channel", "mpsc::channel()"];
    forbid("a channel has a bound, or the data goes through a log with cursors", &needles, |_| false);
}

#[test]
fn logs_go_through_tracing() {
    forbid("standard output and error belong to the command line", &["println!(", "print!(", "eprint!("], |path| {
        let cli = ["main.rs", "cli.rs", "check.rs"];
        path.starts_with("crates/infergw/src/") && cli.iter().any(|name| path.ends_with(name))
    });
}

#[test]
fn unsafe_code_is_forbidden() {
    for file in ["ts-wire/src/lib.rs", "ts-client/src/lib.rs", "infergw/src/lib.rs", "infergw/src/main.rs"] {
        let text = fs::read_to_string(root().join("crates").join(file)).unwrap();
        assert!(text.lines().any(|line| line == "#![forbid(unsafe_code)]"), "{file} lacks #![forbid(unsafe_code)]");
    }
}

#[test]
fn every_crate_carries_the_licence() {
    for krate in fs::read_dir(root().join("crates")).unwrap() {
        let manifest = krate.unwrap().path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(text.lines().any(|line| line == "license.workspace = true"), "{} has no licence", manifest.display());
    }
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(root().join(file).is_file(), "{file} is missing");
    }
}

#[test]
fn no_step_panics_on_purpose() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for lint in ["unwrap_used", "expect_used", "panic", "todo", "unimplemented"] {
        assert!(workspace.contains(&format!("{lint} = \"warn\"")), "the workspace lints lost {lint}");
    }
    for krate in fs::read_dir(root().join("crates")).unwrap() {
        let manifest = krate.unwrap().path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        if !text.contains("[lints]\nworkspace = true") {
            panic!("{} does not take the workspace's lints", manifest.display());
        }
    }
}

#[test]
fn the_readme_lists_every_flag() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_infergw")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let long = |line: &str| {
        let at = line.find("--")?;
        let name: String = line[at..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        (name.len() > 2).then_some(name)
    };
    let flags: BTreeSet<String> =
        help.lines().filter(|line| line.trim_start().starts_with('-')).filter_map(long).collect();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let listed: BTreeSet<String> = readme.lines().filter(|line| line.starts_with("| `--")).filter_map(long).collect();
    let wanted: BTreeSet<String> = flags.into_iter().filter(|flag| flag != "--help" && flag != "--version").collect();
    assert!(wanted.len() > 5, "the reader of the help is broken: {wanted:?}");
    assert_eq!(listed, wanted, "the flags of the README (left) and of `infergw serve --help` (right) differ");
}
