//! `infergw.example.toml` is made of config.rs and config/coalesce.rs: its doc comments and its defaults. `INFERGW_UPDATE=1` writes it anew.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use infergw::config::Config;
use infergw::config::load::parse;

/// What stands for a setting that has no default.
const EXAMPLES: [(&str, &str); 33] = [
    ("Server.admin", "\"127.0.0.1:9090\""),
    ("ApiKey.key", "\"sk-...\""),
    ("ApiKey.tenant", "\"team-a\""),
    ("Tenant.name", "\"team-a\""),
    ("Tenant.concurrency", "8"),
    ("Tenant.queue", "64"),
    ("Tenant.weight", "1.0"),
    ("Tenant.priority", "3"),
    ("Tenant.tokens_per_minute", "100000"),
    ("Upstream.name", "\"gpu-1\""),
    ("Upstream.url", "\"http://127.0.0.1:8000\""),
    ("Upstream.models", "[\"qwen3-8b\"]"),
    ("Upstream.weight", "1.0"),
    ("Upstream.key", "\"sk-...\""),
    ("EngineGroup.handshake", "\"tcp://127.0.0.1:30500\""),
    ("EngineGroup.name", "\"group-a\""),
    ("EngineGroup.weight", "1.0"),
    ("EngineGroup.ranks", "1"),
    ("EngineGroup.model", "\"qwen3-8b\""),
    ("EngineGroup.tokenizer", "\"/models/qwen3-8b\""),
    ("Model.name", "\"qwen3-8b\""),
    ("Model.aliases", "[\"gpt-4o\"]"),
    ("Model.fallbacks", "[\"qwen3-1.7b\"]"),
    ("Model.concurrency", "64"),
    ("Model.queue", "256"),
    ("Model.policy", "\"prefix_affinity\""),
    ("EngineGroup.tool_parser", "\"auto\""),
    ("EngineGroup.reasoning_parser", "\"auto\""),
    ("EngineGroup.advertise", "\"10.0.0.7\""),
    ("EngineGroup.rank_loss", "\"group\""),
    ("Discovery.file", "\"/etc/infergw/backends.json\""),
    ("Demo.model", "\".demo/smollm2-135m.gguf\""),
    ("Demo.threads", "1"),
];

struct Field {
    docs: Vec<String>,
    name: String,
    kind: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The structs of the settings with their documented public fields.
fn structs(source: &str) -> BTreeMap<String, Vec<Field>> {
    let mut structs: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    let mut current = String::new();
    let mut docs = Vec::new();
    for line in source.lines() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("/// ") {
            docs.push(text.to_owned());
        } else if let Some(rest) = line.strip_prefix("pub struct ") {
            current = rest.trim_end_matches(" {").to_owned();
            docs.clear();
        } else if let Some((name, kind)) = line.strip_prefix("pub ").and_then(|field| field.split_once(": ")) {
            let field =
                Field { docs: std::mem::take(&mut docs), name: name.into(), kind: kind.trim_end_matches(',').into() };
            structs.entry(current.clone()).or_default().push(field);
        } else if !line.starts_with("#[") {
            docs.clear();
        }
    }
    structs
}

fn generated() -> String {
    let read = |file: &str| std::fs::read_to_string(root().join("crates/infergw/src").join(file)).unwrap();
    let source: String =
        ["config.rs", "config/admission.rs", "config/backends.rs", "config/coalesce.rs"].map(read).concat();
    let structs = structs(&source);
    let defaults: toml::Table = toml::from_str(&toml::to_string(&Config::default()).unwrap()).unwrap();
    let mut out = String::from(
        "# Every setting of infergw with its default. Copy what you change into infergw.toml; unknown keys are errors.\n\
         # Times are \"250ms\", \"30s\", \"5m\", \"1h\" or \"off\"; sizes are bytes, or \"512KiB\", \"32MiB\", \"1GiB\".\n",
    );
    for section in &structs["Config"] {
        let list = section.kind.strip_prefix("Vec<").map(|kind| kind.trim_end_matches('>'));
        let kind = list.unwrap_or(&section.kind);
        out.push('\n');
        for line in &section.docs {
            let _ = writeln!(out, "# {line}");
        }
        let _ = match list {
            Some(_) => writeln!(out, "# [[{}]]", section.name),
            None => writeln!(out, "[{}]", section.name),
        };
        for field in &structs[kind] {
            for line in &field.docs {
                let _ = writeln!(out, "# {line}");
            }
            let default = defaults.get(&section.name).and_then(|section| section.get(&field.name));
            let example = || {
                let name = format!("{kind}.{}", field.name);
                EXAMPLES.iter().find(|(key, _)| *key == name).map_or("\"...\"", |(_, example)| example)
            };
            let _ = match default {
                Some(value) => writeln!(out, "{} = {value}", field.name),
                None => writeln!(out, "# {} = {}", field.name, example()),
            };
        }
    }
    out
}

#[test]
fn the_example_is_in_step_with_the_settings() {
    let file = root().join("infergw.example.toml");
    let generated = generated();
    if std::env::var_os("INFERGW_UPDATE").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == generated, "run INFERGW_UPDATE=1 cargo test -p infergw --test example_config, and commit the file");
}

#[test]
fn the_example_is_the_default_configuration() {
    assert_eq!(parse(Path::new("infergw.example.toml"), &generated()).unwrap(), Config::default());
}

#[test]
fn what_is_commented_out_is_valid_too() {
    let text: String = generated()
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("# ").unwrap_or(line);
            let setting = line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
            setting.then(|| format!("{line}\n"))
        })
        .collect();
    let config = parse(Path::new("all"), &text).unwrap();
    assert_eq!((config.backends.len(), config.engines.len(), config.keys.len()), (1, 1, 1));
}
