//! The request's body: bounded, and read only as far as every backend needs it (A2).

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::error::ApiError;
use crate::config::Limits;
use crate::types::{Endpoint, StreamEnd};

/// Read a body of at most `limits.max_body` bytes, with at most `pause` between its pieces.
///
/// # Errors
/// 413 over the limit, 408 after a pause, 400 when the client breaks off.
pub async fn read<B>(mut body: B, limits: &Limits, pause: Duration) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > limits.max_body as u64 {
        return Err(ApiError::too_large(limits.max_body));
    }
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    loop {
        let frame = if pause.is_zero() {
            body.frame().await
        } else {
            timeout(pause, body.frame()).await.map_err(|_| ApiError::slow_body())?
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::invalid("The request's body broke off.", None))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + more.len() + data.len() > limits.max_body {
            return Err(ApiError::too_large(limits.max_body));
        }
        if first.is_empty() {
            first = data;
        } else {
            more.extend_from_slice(&data);
        }
    }
    if more.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + more.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&more);
    Ok(whole.freeze())
}

/// Refuse JSON that is nested deeper than `limit`, before any parser sees it (X4).
///
/// # Errors
/// 400 with the limit.
pub fn check_depth(body: &[u8], limit: usize) -> Result<(), ApiError> {
    let mut depth = 0usize;
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    let message = format!("The JSON is nested deeper than {limit} levels (limits.max_depth).");
                    return Err(ApiError::invalid(&message, None));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    Ok(())
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    loop {
        let rest = bytes.as_slice();
        let Some(at) = memchr::memchr2(b'"', b'\\', rest) else {
            *bytes = [].iter();
            return;
        };
        let escape = usize::from(rest.get(at) == Some(&b'\\'));
        *bytes = rest.get(at + 1 + escape..).unwrap_or_default().iter();
        if escape == 0 {
            return;
        }
    }
}

/// The fields that the gateway needs whatever the backend is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// `model`; empty where it is not named and need not be.
    pub model: String,
    /// `stream`
    pub stream: bool,
    /// `stream_options.include_usage`
    pub include_usage: bool,
    /// `data_parallel_rank`
    pub rank: Option<u16>,
    /// Choices of a whole answer: `n` times the number of prompts.
    pub choices: usize,
    /// The answer is the same each time by contract: temperature 0, or a seed (C5).
    pub deterministic: bool,
}

impl Envelope {
    /// Read the fields; a field given twice counts as it stands last.
    ///
    /// # Errors
    /// 400 for what is no JSON object, and for a field of a wrong type, by its name.
    pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Self, ApiError> {
        let fields: Fields<'_> = serde_json::from_slice(body).map_err(|error| not_json(&error))?;
        let model = typed::<String>("model", fields.model, "a string")?;
        if model.is_none() && endpoint.row().names_model {
            return Err(ApiError::invalid("The field 'model' is required.", Some("model")));
        }
        // Where nothing is streamed, a field of this name is the backend's business.
        let stream = match endpoint.generates() {
            true => typed::<bool>("stream", fields.stream, "true or false")?.unwrap_or(false),
            false => false,
        };
        let options = match endpoint.end() {
            StreamEnd::Choices => typed::<StreamOptions>("stream_options", fields.stream_options, "an object")?,
            _ => None,
        };
        if options.is_some() && !stream {
            let message = "'stream_options' is only allowed with 'stream': true.";
            return Err(ApiError::invalid(message, Some("stream_options")));
        }
        let rank = typed::<u16>("data_parallel_rank", fields.rank, "an integer from 0 to 65535")?;
        Ok(Self {
            model: model.unwrap_or_default(),
            stream,
            include_usage: options.is_some_and(|options| options.include_usage == Some(true)),
            rank,
            choices: if endpoint.end() == StreamEnd::Choices { choices(endpoint, &fields) } else { 1 },
            deterministic: fields.is_deterministic(endpoint),
        })
    }
}

fn not_json(error: &serde_json::Error) -> ApiError {
    use serde_json::error::Category;
    match error.classify() {
        Category::Data => ApiError::invalid("The body must be a JSON object.", None),
        _ => {
            // The library's message may quote the body; the place is enough.
            let place = format!("line {}, column {}", error.line(), error.column());
            ApiError::invalid(&format!("The body is not valid JSON (at {place})."), None)
        }
    }
}

fn typed<T: DeserializeOwned>(name: &str, value: Option<&RawValue>, allowed: &str) -> Result<Option<T>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    serde_json::from_str::<Option<T>>(value.get())
        .map_err(|_| ApiError::invalid(&format!("'{name}' must be {allowed}."), Some(name)))
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

/// How many choices the answer will have. Values that make no sense are the backend's to refuse; they count as one.
fn choices(endpoint: Endpoint, fields: &Fields<'_>) -> usize {
    let n = fields.n.and_then(|n| serde_json::from_str::<usize>(n.get()).ok()).unwrap_or(1);
    let prompts = match fields.prompt.filter(|_| endpoint == Endpoint::Completions).map(RawValue::get) {
        // A list of strings or of lists is one prompt each; a list of token ids is one prompt.
        Some(text) if text.starts_with('[') => {
            let rest = text.trim_start_matches('[').trim_start();
            let lists = text.get(1..).is_some_and(|inner| inner.trim_start().starts_with('['));
            if rest.starts_with('"') || lists {
                serde_json::from_str::<Vec<IgnoredAny>>(text).map_or(1, |prompts| prompts.len())
            } else {
                1
            }
        }
        _ => 1,
    };
    n.saturating_mul(prompts).max(1)
}

/// The known fields of a body, unparsed.
#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    rank: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    temperature: Option<&'a RawValue>,
    seed: Option<&'a RawValue>,
    sampling_params: Option<&'a RawValue>,
}

/// Where SGLang's own endpoint has its sampling.
#[derive(Deserialize)]
struct SamplingParams<'a> {
    #[serde(borrow, default)]
    temperature: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sampling_seed: Option<&'a RawValue>,
}

impl Fields<'_> {
    fn is_deterministic(&self, endpoint: Endpoint) -> bool {
        let (temperature, seed) = match endpoint {
            Endpoint::Generate => self
                .sampling_params
                .and_then(|params| serde_json::from_str::<SamplingParams<'_>>(params.get()).ok())
                .map_or((None, None), |params| (params.temperature, params.sampling_seed)),
            _ => (self.temperature, self.seed),
        };
        let zero = temperature.is_some_and(|value| serde_json::from_str::<f64>(value.get()).is_ok_and(|t| t == 0.0));
        let seeded = seed.is_some_and(|value| serde_json::from_str::<i64>(value.get()).is_ok());
        zero || seeded
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Members<'a> {
            type Value = Fields<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Fields::default();
                while let Some(Name(name)) = map.next_key()? {
                    let field = match name.as_ref() {
                        "model" => &mut fields.model,
                        "stream" => &mut fields.stream,
                        "stream_options" => &mut fields.stream_options,
                        "data_parallel_rank" => &mut fields.rank,
                        "n" => &mut fields.n,
                        "prompt" => &mut fields.prompt,
                        "temperature" => &mut fields.temperature,
                        "seed" => &mut fields.seed,
                        "sampling_params" => &mut fields.sampling_params,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *field = Some(map.next_value()?);
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}

/// A member's name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn refusal(body: &str) -> (u16, String) {
        let error = Envelope::parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap_err();
        (error.status.as_u16(), String::from_utf8(error.body().to_vec()).unwrap())
    }

    #[test]
    fn a4_what_is_no_json_or_of_a_wrong_type_is_a_400_that_says_where() {
        for (body, said) in [
            ("", "line 1"),
            ("{", "line 1"),
            ("{\"model\":\"m\"\n,}", "line 2"),
            ("[]", "must be a JSON object"),
            ("{}", "'model' is required"),
            ("{\"model\":1}", "\"param\":\"model\""),
            ("{\"model\":\"m\",\"stream\":\"yes\"}", "\"param\":\"stream\""),
            ("{\"model\":\"m\",\"stream_options\":{}}", "\"param\":\"stream_options\""),
            (
                "{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
                "\"param\":\"stream_options\"",
            ),
            ("{\"model\":\"m\",\"data_parallel_rank\":70000}", "\"param\":\"data_parallel_rank\""),
        ] {
            let (status, text) = refusal(body);
            assert_eq!(status, 400);
            assert!(text.contains(said), "{body}: {text}");
        }
    }

    #[test]
    fn a2_unknown_fields_and_odd_values_are_the_backends_business() {
        let body = r#"{"mode\u006c":"m","stream":null,"n":"many","x":[1e999,{"y":null}],"stream_options":null}"#;
        let envelope = Envelope::parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
        assert_eq!((envelope.model.as_str(), envelope.stream, envelope.choices), ("m", false, 1));
    }

    #[test]
    fn s3_choices_are_n_times_the_prompts() {
        let choices = |rest: &str| {
            Envelope::parse(Endpoint::Completions, format!("{{\"model\":\"m\"{rest}}}").as_bytes()).unwrap().choices
        };
        assert_eq!(choices(""), 1);
        assert_eq!(choices(r#","n":3"#), 3);
        assert_eq!(choices(r#","n":2,"prompt":["a","b"]"#), 4);
        assert_eq!(choices(r#","prompt":[[1,2],[3]]"#), 2);
        assert_eq!(choices(r#","prompt":[1,2,3]"#), 1);
        assert_eq!(choices(r#","n":0"#), 1);
    }

    /// C5: `/generate` has its sampling in `sampling_params`, and nowhere else.
    #[test]
    fn c5_determinism_of_native_requests() {
        let is = |body: &str| Envelope::parse(Endpoint::Generate, body.as_bytes()).unwrap().deterministic;
        assert!(is(r#"{"sampling_params":{"temperature":0}}"#) && is(r#"{"sampling_params":{"sampling_seed":3}}"#));
        assert!(!is(r#"{"temperature":0,"seed":1}"#) && !is(r#"{"sampling_params":[{"temperature":0}]}"#));
    }

    #[test]
    fn x4_deep_json_is_refused_before_it_is_parsed() {
        let deep = format!("{{\"model\":\"m\",\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(check_depth(deep.as_bytes(), 256).unwrap_err().status.as_u16(), 400);
        // Brackets inside strings are text, whatever is escaped in them.
        let text = format!("{{\"a\":\"{}\\\"\\\\\",\"b\":[[1]]}}", "[".repeat(1000));
        assert!(check_depth(text.as_bytes(), 3).is_ok());
        assert!(check_depth(text.as_bytes(), 2).is_err());
    }
}
