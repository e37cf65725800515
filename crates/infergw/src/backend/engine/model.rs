//! What is known about a model's text: tokenizer, chat template, end tokens, defaults, context length.
//! Read once at start, from a model directory as the hub lays it out or from a GGUF file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::detokenize::TokenTable;
use super::gguf::Gguf;
use super::prompt::ChatTemplate;

/// Largest tokenizer file.
const MAX_TOKENIZER: u64 = 512 << 20;
/// Largest configuration or template file.
const MAX_CONFIG: u64 = 16 << 20;

/// Why a model's text cannot be loaded: one sentence that names the file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(String);

fn load_error(path: &Path, reason: impl std::fmt::Display) -> LoadError {
    LoadError(format!("{}: {reason}", path.display()))
}

/// A model's text side.
#[derive(Debug)]
pub struct TextModel {
    /// Folder or file name: what the model is called unless the configuration or the engine says otherwise.
    pub name: String,
    /// Text to ids.
    pub tokenizer: Tokenizer,
    /// Ids to text.
    pub table: Arc<TokenTable>,
    /// The chat template; without one chat requests are refused.
    pub template: Option<ChatTemplate>,
    /// The ids that end an answer.
    pub eos: Vec<u32>,
    /// Tokens of context that the model was made for.
    pub context: Option<u64>,
    /// Sampling defaults of the model's makers.
    pub defaults: Defaults,
}

/// `generation_config.json`: what holds where a request says nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus mass.
    pub top_p: Option<f64>,
    /// Most likely tokens to choose from.
    pub top_k: Option<i64>,
    /// Least probability relative to the most likely token.
    pub min_p: Option<f64>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f64>,
}

impl TextModel {
    /// Load from a model directory or a `.gguf` file.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong with it.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let is_dir = fs::metadata(path).map_err(|e| load_error(path, e))?.is_dir();
        if is_dir { Self::from_directory(path) } else { Self::from_gguf(path) }
    }

    fn from_directory(directory: &Path) -> Result<Self, LoadError> {
        let file = directory.join("tokenizer.json");
        let bytes = read(&file, MAX_TOKENIZER)?
            .ok_or_else(|| load_error(directory, "there is no tokenizer.json in this model directory"))?;
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| load_error(&file, e))?;
        let config = json(&directory.join("tokenizer_config.json"))?;
        let generation = json(&directory.join("generation_config.json"))?;
        let model = json(&directory.join("config.json"))?;

        let named = |value: &Value| match value {
            Value::String(token) => Some(token.clone()),
            other => other.get("content").and_then(Value::as_str).map(str::to_owned),
        };
        let mut tokens = BTreeMap::new();
        for (key, value) in config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token")) {
            if let Some(token) = named(value) {
                tokens.insert(key.clone(), token);
            }
        }
        let mut eos = ids(&generation["eos_token_id"]);
        if eos.is_empty() {
            eos = ids(first_of(&model, &["/eos_token_id", "/text_config/eos_token_id"]));
        }
        eos.extend(tokens.get("eos_token").and_then(|token| tokenizer.token_to_id(token)));
        let context = first_of(&model, &["/max_position_embeddings", "/text_config/max_position_embeddings"]).as_u64();
        let template = directory_template(directory, &config, &tokens)?;
        let beside = Beside { template, eos, context, defaults: Defaults::of(&generation) };
        Ok(Self::assemble(directory, tokenizer, beside))
    }

    fn from_gguf(file: &Path) -> Result<Self, LoadError> {
        let gguf = Gguf::open(file).map_err(|e| load_error(file, e))?;
        Self::of_gguf(file, &gguf)
    }

    /// Of what a `.gguf` file says; `file` names it in errors.
    ///
    /// # Errors
    /// See [`TextModel::load`].
    pub fn of_gguf(file: &Path, gguf: &Gguf) -> Result<Self, LoadError> {
        let tokenizer = gguf_tokenizer(gguf).map_err(|e| load_error(file, e))?;
        let id = |key: &str| gguf.int(&format!("tokenizer.ggml.{key}_token_id")).and_then(|id| u32::try_from(id).ok());
        let mut tokens = BTreeMap::new();
        for key in ["bos", "eos", "unknown", "padding"] {
            if let Some(token) = id(key).and_then(|id| tokenizer.id_to_token(id)) {
                let name = key.replace("unknown", "unk").replace("padding", "pad");
                tokens.insert(format!("{name}_token"), token);
            }
        }
        let mut eos: Vec<u32> = ["eos", "eot", "eom"].into_iter().filter_map(id).collect();
        // Converters name one end token; chat models end their turns with another. These are the field's turn ends.
        for name in ["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"] {
            eos.extend(tokenizer.token_to_id(name));
        }
        let architecture = gguf.text("general.architecture").unwrap_or_default();
        let context = gguf.int(&format!("{architecture}.context_length")).and_then(|n| u64::try_from(n).ok());
        let template = match gguf.text("tokenizer.chat_template") {
            Some(source) => Some(ChatTemplate::new(source, None, tokens).map_err(|e| load_error(file, e))?),
            None => None,
        };
        Ok(Self::assemble(file, tokenizer, Beside { template, eos, context, defaults: Defaults::default() }))
    }

    fn assemble(path: &Path, tokenizer: Tokenizer, beside: Beside) -> Self {
        let Beside { template, mut eos, context, defaults } = beside;
        let table = Arc::new(TokenTable::new(&tokenizer));
        eos.retain(|&id| (id as usize) < table.len());
        eos.sort_unstable();
        eos.dedup();
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self { name, tokenizer, table, template, eos, context, defaults }
    }
}

/// What stands beside a tokenizer.
struct Beside {
    template: Option<ChatTemplate>,
    eos: Vec<u32>,
    context: Option<u64>,
    defaults: Defaults,
}

impl Defaults {
    fn of(generation: &Value) -> Self {
        let number = |key: &str| generation.get(key).and_then(Value::as_f64).filter(|n| n.is_finite());
        let in_range = |key: &str, low: f64, high: f64| number(key).filter(|n| (low..=high).contains(n));
        Self {
            temperature: in_range("temperature", 0.0, 2.0),
            top_p: in_range("top_p", f64::MIN_POSITIVE, 1.0),
            // The engine takes 1 to 127; a wider default is as good as none.
            top_k: generation.get("top_k").and_then(Value::as_i64).filter(|k| (1..128).contains(k)),
            min_p: in_range("min_p", 0.0, 1.0),
            repetition_penalty: in_range("repetition_penalty", f64::MIN_POSITIVE, 2.0),
        }
    }
}

/// A file's bytes, `None` if it is not there.
fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, LoadError> {
    match fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(load_error(path, e)),
        Ok(meta) if meta.len() > limit => Err(load_error(path, format!("{} bytes, the limit is {limit}", meta.len()))),
        Ok(_) => fs::read(path).map(Some).map_err(|e| load_error(path, e)),
    }
}

/// A JSON file, `Null` if it is not there.
fn json(path: &Path) -> Result<Value, LoadError> {
    match read(path, MAX_CONFIG)? {
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|e| load_error(path, e)),
        None => Ok(Value::Null),
    }
}

fn first_of<'a>(value: &'a Value, pointers: &[&str]) -> &'a Value {
    pointers.iter().find_map(|p| value.pointer(p)).filter(|v| !v.is_null()).unwrap_or(&Value::Null)
}

/// One id or a list of ids.
fn ids(value: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(values) => values.iter().filter_map(id).collect(),
        value => id(value).into_iter().collect(),
    }
}

/// The directory's chat template: the file wins over the configuration; a list holds one for tool use beside the default.
fn directory_template(
    directory: &Path,
    config: &Value,
    tokens: &BTreeMap<String, String>,
) -> Result<Option<ChatTemplate>, LoadError> {
    let file = directory.join("chat_template.jinja");
    let (mut source, mut tool_use) = (None, None);
    if let Some(bytes) = read(&file, MAX_CONFIG)? {
        source = Some(String::from_utf8(bytes).map_err(|e| load_error(&file, e))?);
    } else {
        let beside = json(&directory.join("chat_template.json"))?;
        match first_of(&beside, &["/chat_template"]) {
            Value::String(text) => source = Some(text.clone()),
            _ => match &config["chat_template"] {
                Value::String(text) => source = Some(text.clone()),
                Value::Array(named) => {
                    let find = |name: &str| {
                        let entry = named.iter().find(|entry| entry["name"] == name)?;
                        entry["template"].as_str().map(str::to_owned)
                    };
                    source = find("default");
                    tool_use = find("tool_use");
                }
                _ => {}
            },
        }
    }
    match source {
        Some(source) => ChatTemplate::new(&source, tool_use.as_deref(), tokens.clone())
            .map(Some)
            .map_err(|e| load_error(directory, format!("the chat template: {e}"))),
        None => Ok(None),
    }
}

// === the tokenizer inside a GGUF file ===

/// Split patterns of the llama 3 and qwen 2 families, as their tokenizer files have them.
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn gguf_tokenizer(gguf: &Gguf) -> Result<Tokenizer, String> {
    let kind = gguf.text("tokenizer.ggml.model").unwrap_or("nothing");
    if kind != "gpt2" {
        return Err(format!(
            "its tokenizer is of kind '{kind}'; of GGUF files only byte-level BPE ('gpt2') is read, \
             use the model's directory with tokenizer.json"
        ));
    }
    let tokens = gguf.texts("tokenizer.ggml.tokens").ok_or("it holds no tokens")?;
    let merges = gguf.texts("tokenizer.ggml.merges").ok_or("it holds no merges")?;
    let vocabulary: Vocab = tokens.iter().cloned().zip(0..).collect();
    let merges = merges
        .iter()
        .map(|merge| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())))
        .collect::<Option<Vec<_>>>()
        .ok_or("a merge is not a pair")?;
    if let Some((a, b)) = merges.iter().find(|(a, b)| !vocabulary.contains_key(&[&**a, b].concat())) {
        // The builder would panic where the result is longer than any token.
        return Err(format!("its merge '{a} {b}' makes no token of its vocabulary"));
    }
    let pre = gguf.text("tokenizer.ggml.pre").unwrap_or("default");
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(pre == "llama-bpe")
        .build()
        .map_err(|e| e.to_string())?;
    let mut tokenizer = Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(gguf_pre_tokenizer(pre)?));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let types = gguf.ints("tokenizer.ggml.token_type").unwrap_or_default();
    // Kind 3 is a control token, 4 one that the user defined: both are found in text before anything else.
    let added = tokens.iter().zip(types).filter(|(_, kind)| matches!(kind, 3 | 4));
    let added = added.map(|(token, &kind)| AddedToken::from(token.clone(), kind == 3).normalized(false));
    tokenizer.add_tokens(added).map_err(|e| e.to_string())?;
    Ok(tokenizer)
}

fn gguf_pre_tokenizer(pre: &str) -> Result<PreTokenizerWrapper, String> {
    let split = |pattern: &str| -> Result<PreTokenizerWrapper, String> {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|e| e.to_string())?;
        Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, false, false).into()]).into())
    };
    match pre {
        "smollm" => Ok(Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()]).into()),
        "gpt-2" | "default" => Ok(ByteLevel::new(false, true, true).into()),
        "llama-bpe" => split(LLAMA3_SPLIT),
        "qwen2" => split(QWEN2_SPLIT),
        other => Err(format!(
            "its pre-tokenizer '{other}' is not known here (known: smollm, gpt-2, default, llama-bpe, qwen2); \
             use the model's directory with tokenizer.json"
        )),
    }
}

#[cfg(test)]
mod tests;
