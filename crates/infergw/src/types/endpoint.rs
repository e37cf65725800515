//! The endpoints that backends answer: one row of a table each. A row is all that an HTTP upstream's endpoint needs.

/// An endpoint that a backend answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/messages`, Anthropic's
    Messages,
    /// `POST /v1/messages/count_tokens`, Anthropic's
    CountTokens,
    /// `POST /v1/responses`
    Responses,
    /// `POST /generate`, SGLang's own
    Generate,
    /// `POST /tokenize`, vLLM's
    Tokenize,
    /// `POST /detokenize`, vLLM's
    Detokenize,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /classify`, vLLM's
    Classify,
    /// `POST /pooling`, vLLM's
    Pooling,
}

/// How an endpoint's stream of events says that it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamEnd {
    /// It has no streams: nothing is generated, and nothing is shared.
    Never,
    /// Every choice has its `finish_reason`; then `[DONE]`.
    Choices,
    /// A `message_delta` has the `stop_reason`; then `message_stop`.
    Message,
    /// `response.completed`, `response.incomplete` or `response.failed`.
    Response,
    /// `meta_info` has its `finish_reason`; then `[DONE]`.
    MetaInfo,
}

/// Whose shape an endpoint's errors have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ErrorShape {
    /// `{"error": {...}}`; in a stream `[DONE]` follows.
    #[default]
    OpenAi,
    /// The same as JSON; in a stream an event of type `error`, and nothing after it.
    Responses,
    /// `{"type": "error", "error": {"type", "message"}}`; in a stream an event of type `error`, and nothing after it.
    Anthropic,
}

/// What sets an endpoint apart.
#[derive(Debug)]
pub struct Row {
    /// Which one it is.
    pub endpoint: Endpoint,
    /// The path as clients and HTTP upstreams know it.
    pub path: &'static str,
    /// How its streams end.
    pub end: StreamEnd,
    /// Its errors.
    pub errors: ErrorShape,
    /// Whether the body must name its model. Where not, the only model that is served is meant.
    pub names_model: bool,
}

const fn row(endpoint: Endpoint, path: &'static str, end: StreamEnd, errors: ErrorShape, names_model: bool) -> Row {
    Row { endpoint, path, end, errors, names_model }
}

/// Every endpoint, in the order of [`Endpoint`].
pub const ENDPOINTS: [Row; 13] = [
    row(Endpoint::ChatCompletions, "/v1/chat/completions", StreamEnd::Choices, ErrorShape::OpenAi, true),
    row(Endpoint::Completions, "/v1/completions", StreamEnd::Choices, ErrorShape::OpenAi, true),
    row(Endpoint::Messages, "/v1/messages", StreamEnd::Message, ErrorShape::Anthropic, true),
    row(Endpoint::CountTokens, "/v1/messages/count_tokens", StreamEnd::Never, ErrorShape::Anthropic, true),
    row(Endpoint::Responses, "/v1/responses", StreamEnd::Response, ErrorShape::Responses, true),
    row(Endpoint::Generate, "/generate", StreamEnd::MetaInfo, ErrorShape::OpenAi, false),
    row(Endpoint::Tokenize, "/tokenize", StreamEnd::Never, ErrorShape::OpenAi, false),
    row(Endpoint::Detokenize, "/detokenize", StreamEnd::Never, ErrorShape::OpenAi, false),
    row(Endpoint::Embeddings, "/v1/embeddings", StreamEnd::Never, ErrorShape::OpenAi, true),
    row(Endpoint::Rerank, "/v1/rerank", StreamEnd::Never, ErrorShape::OpenAi, false),
    row(Endpoint::Score, "/v1/score", StreamEnd::Never, ErrorShape::OpenAi, false),
    row(Endpoint::Classify, "/classify", StreamEnd::Never, ErrorShape::OpenAi, false),
    row(Endpoint::Pooling, "/pooling", StreamEnd::Never, ErrorShape::OpenAi, false),
];

impl Endpoint {
    /// The endpoint of a path.
    pub fn of(path: &str) -> Option<Self> {
        ENDPOINTS.iter().find(|row| row.path == path).map(|row| row.endpoint)
    }

    /// Its row.
    pub fn row(self) -> &'static Row {
        // A test keeps the order of the table.
        &ENDPOINTS[self as usize]
    }

    /// The path as the client and an HTTP upstream know it.
    pub fn path(self) -> &'static str {
        self.row().path
    }

    /// How its streams end.
    pub fn end(self) -> StreamEnd {
        self.row().end
    }

    /// Its errors.
    pub fn errors(self) -> ErrorShape {
        self.row().errors
    }

    /// Whether it generates: what does not is never streamed and never shared.
    pub fn generates(self) -> bool {
        self.end() != StreamEnd::Never
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_stands_in_its_place() {
        for (at, row) in ENDPOINTS.iter().enumerate() {
            assert_eq!(row.endpoint as usize, at);
            assert_eq!(row.endpoint.path(), row.path);
            assert_eq!(Endpoint::of(row.path), Some(row.endpoint));
        }
    }
}
