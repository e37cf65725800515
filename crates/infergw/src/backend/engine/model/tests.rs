#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::super::sample_models::{byte_level, demo};
use super::*;

/// A model directory in a temporary place, gone when dropped.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, String)]) -> Self {
        let path = std::env::temp_dir().join(format!("infergw-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        byte_level().save(path.join("tokenizer.json"), false).unwrap();
        for (file, text) in files {
            fs::write(path.join(file), text).unwrap();
        }
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The demo model: its name, ends, context and template, and text that survives both ways.
#[test]
fn the_demo_model() {
    let model = demo();
    assert_eq!(model.context, Some(8192));
    assert_eq!(model.eos, [0, 2]);
    assert!(model.template.is_some());
    assert_eq!(model.table.len(), 49152);
    let text = "Hello, wörld! 12345 日本語 😀👨‍👩‍👧\n\n  x";
    let ids = model.tokenizer.encode(text, false).unwrap();
    assert_eq!(model.table.decode(ids.get_ids(), true), text);
    let digits = model.tokenizer.encode("123", false).unwrap();
    assert_eq!(digits.get_ids().len(), 3, "this model splits numbers into digits");
    let turn = model.tokenizer.encode("<|im_start|>user\nhi<|im_end|>", false).unwrap();
    assert_eq!(turn.get_ids()[0], 1);
    assert_eq!(turn.get_ids().last(), Some(&2));
}

/// A directory as the hub lays it out.
#[test]
fn a_model_directory() {
    let config = json!({"eos_token": {"content": "<|end|>"}, "bos_token": "<|begin|>", "chat_template": "old"});
    let generation = json!({"eos_token_id": [3, 5], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 7});
    let directory = Directory::new(
        "full",
        &[
            ("tokenizer_config.json", config.to_string()),
            ("generation_config.json", generation.to_string()),
            ("config.json", json!({"max_position_embeddings": 4096}).to_string()),
            ("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}".into()),
        ],
    );
    let model = TextModel::load(&directory.0).unwrap();
    let end = byte_level().token_to_id("<|end|>").unwrap();
    assert_eq!(model.eos, [3, 5, end]);
    assert_eq!(model.context, Some(4096));
    let defaults = Defaults { temperature: Some(0.6), top_p: Some(0.95), top_k: Some(20), ..Defaults::default() };
    assert_eq!(model.defaults, defaults, "a default out of range is none");
    let conversation = super::super::prompt::Conversation {
        messages: vec![json!({"role": "user", "content": "x"})],
        ..Default::default()
    };
    assert_eq!(model.template.unwrap().render(&conversation).unwrap(), "<|begin|>x", "the file wins");
}

/// Templates in a list: one for requests with tools.
#[test]
fn a_list_of_templates() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]});
    let directory = Directory::new("list", &[("tokenizer_config.json", config.to_string())]);
    let template = TextModel::load(&directory.0).unwrap().template.unwrap();
    let mut conversation = super::super::prompt::Conversation::default();
    assert_eq!(template.render(&conversation).unwrap(), "plain");
    conversation.tools = Some(json!([{}]));
    assert_eq!(template.render(&conversation).unwrap(), "tools");
}

/// What cannot be loaded says which file it is.
#[test]
fn errors_name_the_file() {
    let broken = Directory::new("broken", &[("config.json", "{".into())]);
    assert!(TextModel::load(&broken.0).unwrap_err().to_string().contains("config.json"));
    let template = Directory::new("template", &[("chat_template.jinja", "{% if %}".into())]);
    assert!(TextModel::load(&template.0).unwrap_err().to_string().contains("chat template"));
    assert!(TextModel::load(Path::new("/nowhere/model.gguf")).unwrap_err().to_string().contains("/nowhere/model.gguf"));
    let empty = Directory::new("empty", &[]);
    fs::remove_file(empty.0.join("tokenizer.json")).unwrap();
    assert!(TextModel::load(&empty.0).unwrap_err().to_string().contains("tokenizer.json"));
}
