//! Endpoints that need the text side only: prompts to tokens and back, in vLLM's form.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::prepare::TextSide;
use super::request::Input;
use crate::api::error::ApiError;
use crate::types::Endpoint;

#[derive(Deserialize)]
struct Tokenize {
    #[serde(default)]
    prompt: Option<Value>,
    #[serde(default)]
    messages: Option<Value>,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    return_token_strs: Option<bool>,
}

#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: Option<u64>,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Detokenized {
    prompt: String,
}

impl TextSide {
    /// `/tokenize`: the tokens of a prompt, or of messages as a chat request would have them. `context` is the engine's.
    ///
    /// # Errors
    /// A 400 with the field at fault.
    pub fn tokenize(&self, body: &[u8], context: Option<u64>) -> Result<Vec<u8>, ApiError> {
        let asked: Tokenize = read(body, "'add_special_tokens' and 'return_token_strs' must be true or false.")?;
        let tokens = match (&asked.prompt, &asked.messages) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("'prompt' and 'messages' exclude each other.", Some("prompt")));
            }
            (_, Some(_)) => self.conversation_tokens(Endpoint::ChatCompletions, body)?,
            (Some(Value::String(prompt)), None) => {
                let special = asked.add_special_tokens.unwrap_or(true);
                self.encode(prompt, special)
                    .map_err(|e| ApiError::invalid(&format!("The prompt cannot be tokenized: {e}."), Some("prompt")))?
            }
            _ => return Err(ApiError::invalid("'prompt' must be a string, or 'messages' a list.", Some("prompt"))),
        };
        let text = |id: &u32| self.model.tokenizer.id_to_token(*id).unwrap_or_default();
        let token_strs = asked.return_token_strs.unwrap_or(false).then(|| tokens.iter().map(text).collect());
        written(&Tokenized { count: tokens.len(), max_model_len: context, tokens, token_strs })
    }

    /// The tokens of a chat request's prompt; not a single one is an answer too.
    ///
    /// # Errors
    /// A 400 with the field at fault.
    pub fn conversation_tokens(&self, endpoint: Endpoint, body: &[u8]) -> Result<Vec<u32>, ApiError> {
        match self.read(endpoint, body)?.1.input {
            Input::Chat { mut conversation, add_special_tokens } => self.chat(&mut conversation, add_special_tokens),
            Input::Prompts { .. } => Ok(Vec::new()),
        }
    }

    /// `/v1/messages/count_tokens`: how many tokens the same message would begin with.
    ///
    /// # Errors
    /// A 400 with the field at fault.
    pub fn count_tokens(&self, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let tokens = self.conversation_tokens(Endpoint::CountTokens, body)?;
        written(&serde_json::json!({"input_tokens": tokens.len()}))
    }

    /// `/detokenize`: the text of tokens, control tokens included.
    ///
    /// # Errors
    /// A 400 for what is no list of the model's token ids.
    pub fn detokenize(&self, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let most = self.model.table.len().saturating_sub(1);
        let allowed = format!("'tokens' must be a list of token ids from 0 to {most}.");
        let asked: Detokenize = read(body, &allowed).map_err(|_| ApiError::invalid(&allowed, Some("tokens")))?;
        if asked.tokens.iter().any(|&id| id as usize > most) {
            return Err(ApiError::invalid(&allowed, Some("tokens")));
        }
        written(&Detokenized { prompt: self.model.table.decode(&asked.tokens, false) })
    }
}

/// The body was JSON when its envelope was read: what fails here is a type.
fn read<'a, T: Deserialize<'a>>(body: &'a [u8], allowed: &str) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|_| ApiError::invalid(allowed, None))
}

fn written(answer: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(answer).map_err(|_| ApiError::internal("The answer could not be written."))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::super::model::TextModel;
    use super::super::sample_models::demo_file;
    use super::*;
    use crate::config::Text;
    use crate::observe::Tokenizing;

    fn side() -> TextSide {
        TextSide::new(TextModel::load(&demo_file()).unwrap(), &Text::default(), Tokenizing::default())
    }

    fn json(answer: Result<Vec<u8>, ApiError>) -> Value {
        match answer {
            Ok(body) => serde_json::from_slice(&body).unwrap(),
            Err(error) => serde_json::from_slice(error.body()).unwrap(),
        }
    }

    #[test]
    fn a9_prompts_and_messages_there_and_back() {
        let side = side();
        let text = "Hello wörld 😀<|im_end|>";
        let answer = json(side.tokenize(json!({"prompt": text}).to_string().as_bytes(), Some(99)));
        assert_eq!((answer["max_model_len"].as_u64(), &answer["token_strs"]), (Some(99), &Value::Null));
        assert_eq!(answer["count"].as_u64().unwrap() as usize, answer["tokens"].as_array().unwrap().len());
        let back = json(side.detokenize(json!({"tokens": answer["tokens"]}).to_string().as_bytes()));
        assert_eq!(back["prompt"], text);

        let body = json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]});
        let chat = json(side.tokenize(body.to_string().as_bytes(), None));
        let back = json(side.detokenize(json!({"tokens": chat["tokens"]}).to_string().as_bytes()));
        let rendered = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(back["prompt"], rendered);

        let named = json(side.tokenize(br#"{"prompt": "a b", "return_token_strs": true}"#, None));
        assert_eq!(named["token_strs"], json!(["a", "\u{120}b"]));
        assert_eq!(json(side.tokenize(br#"{"prompt": ""}"#, None))["count"], 0);
    }

    #[test]
    fn a6_wrong_fields_are_named() {
        let side = side();
        for body in [r#"{}"#, r#"{"prompt": 5}"#, r#"{"prompt": "a", "messages": []}"#] {
            assert_eq!(json(side.tokenize(body.as_bytes(), None))["error"]["param"], "prompt", "{body}");
        }
        assert_eq!(json(side.tokenize(br#"{"messages": []}"#, None))["error"]["param"], "messages");
        for tokens in ["[-1]", "[49152]", "[1.5]", "5", "null", "[99999999999]"] {
            let body = format!(r#"{{"tokens": {tokens}}}"#);
            assert_eq!(json(side.detokenize(body.as_bytes()))["error"]["param"], "tokens", "{body}");
        }
    }
}
