//! A whole little model file: byte-level BPE with a token for each byte, some merges, and a chat template.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Kinds of values in a GGUF file.
const INT: u32 = 5;
const FLOAT: u32 = 6;
const TEXT: u32 = 8;
const LIST: u32 = 9;

const MERGES: [&str; 6] = ["h i", "a b", "o n", "Ġ t", "Ġt h", "Ġth e"];

const TEMPLATE: &str = "{%- if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for message in messages %}\
<|im_start|>{{ message.role }}\n{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>\n\
{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Its bytes.
pub(super) fn gguf() -> Vec<u8> {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let plain = bytes.into_iter().map(String::from).chain(MERGES.iter().map(|merge| merge.replace(' ', "")));
    let control = ["<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let mut tokens: Vec<String> = plain.collect();
    let kinds: Vec<i32> = std::iter::repeat_n(1, tokens.len()).chain([3, 3]).collect();
    tokens.extend(control);
    let end = i32::try_from(tokens.len() - 1).unwrap_or_default();
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(9u64.to_le_bytes());
    entry(&mut file, "general.architecture", TEXT, |file| text(file, "llama"));
    entry(&mut file, "llama.context_length", INT, |file| file.extend(2048i32.to_le_bytes()));
    entry(&mut file, "llama.rope.freq_base", FLOAT, |file| file.extend(10_000f32.to_le_bytes()));
    entry(&mut file, "tokenizer.ggml.model", TEXT, |file| text(file, "gpt2"));
    entry(&mut file, "tokenizer.ggml.eos_token_id", INT, |file| file.extend(end.to_le_bytes()));
    entry(&mut file, "tokenizer.chat_template", TEXT, |file| text(file, TEMPLATE));
    entry(&mut file, "tokenizer.ggml.merges", LIST, |file| list(file, TEXT, &MERGES, |file, merge| text(file, merge)));
    entry(&mut file, "tokenizer.ggml.tokens", LIST, |file| list(file, TEXT, &tokens, |file, token| text(file, token)));
    entry(&mut file, "tokenizer.ggml.token_type", LIST, |file| {
        list(file, INT, &kinds, |file, kind| file.extend(kind.to_le_bytes()));
    });
    file
}

fn entry(file: &mut Vec<u8>, key: &str, kind: u32, value: impl FnOnce(&mut Vec<u8>)) {
    text(file, key);
    file.extend(kind.to_le_bytes());
    value(file);
}

fn text(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

fn list<T>(file: &mut Vec<u8>, kind: u32, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    file.extend(kind.to_le_bytes());
    file.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| write(file, item));
}
