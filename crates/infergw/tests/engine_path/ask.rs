//! Ask an engine backend a question through a flight, as the gateway does, and read the answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use infergw::backend::engine::EngineBackend;
use infergw::coalesce::Flights;
use infergw::coalesce::log::{Bounds, Cursor, Step};
use infergw::config::{EngineGroup, ReasoningParser, Text, Timeouts, ToolParser};
use infergw::types::{Caller, End, Endpoint, Question};
use serde_json::Value;

pub(crate) fn demo_file() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.demo/smollm2-135m.gguf");
    let file = std::env::var_os("INFERGW_DEMO_MODEL").map_or(root, PathBuf::from);
    assert!(file.is_file(), "the demo model is not at {}: run `make demo-model`", file.display());
    file
}

pub(crate) struct Asker {
    pub(crate) backend: Arc<EngineBackend>,
    flights: Flights,
}

/// A whole answer, as a client sees it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) end: End,
    pub(crate) text: String,
}

impl Asker {
    /// A group with the demo model's tokenizer.
    pub(crate) async fn start(timeouts: Timeouts) -> Self {
        Self::serve("tcp://127.0.0.1:0", timeouts).await
    }

    pub(crate) async fn serve(handshake: &str, timeouts: Timeouts) -> Self {
        let group = EngineGroup {
            handshake: handshake.into(),
            ranks: 1,
            model: Some("smollm2-135m".into()),
            tokenizer: demo_file(),
            tool_parser: ToolParser::Hermes,
            reasoning_parser: ReasoningParser::Qwen3,
            ..EngineGroup::default()
        };
        let backend = EngineBackend::start(&group, &Text::default(), &timeouts).await.unwrap();
        let bounds = Bounds { join_window: 512 << 10, join_age: Duration::from_secs(600), max_subscribers: 100 };
        Self { backend: Arc::new(backend), flights: Flights::new(bounds, 64 << 20) }
    }

    pub(crate) fn address(&self) -> &str {
        self.backend.handshake_address()
    }

    /// Wait until the group is ready, or is not.
    pub(crate) async fn until_ready(&self, ready: bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.backend.status().ready != ready {
            assert!(Instant::now() < deadline, "status is {:?}", self.backend.status());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Start a flight; dropping the cursor cancels it.
    pub(crate) fn fly(&self, endpoint: Endpoint, body: &Value) -> Cursor {
        let stream = body["stream"] == true;
        let question = Question {
            endpoint,
            model: "smollm2-135m".into(),
            stream,
            include_usage: body["stream_options"]["include_usage"] == true,
            body: body.to_string().into_bytes().into(),
            headers: HeaderMap::new(),
            caller: Caller { tenant: "default".into(), scope: [0; 32], keyed: false },
            request_id: "test".into(),
            choices: 1,
            rank: body["data_parallel_rank"].as_u64().map(|rank| rank as u16),
        };
        let backend = Arc::clone(&self.backend);
        let (cursor, _) = self.flights.join(None, |mut writer| async move {
            writer.errors(question.endpoint.errors());
            let result = backend.run(&question, &mut writer).await;
            writer.finish(result, stream);
        });
        cursor
    }

    pub(crate) async fn ask(&self, endpoint: Endpoint, body: &Value) -> Answer {
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, read(self.fly(endpoint, body))).await.expect("an answer within a minute")
    }

    pub(crate) async fn complete(&self, body: &Value) -> Answer {
        self.ask(Endpoint::Completions, body).await
    }

    pub(crate) async fn chat(&self, body: &Value) -> Answer {
        self.ask(Endpoint::ChatCompletions, body).await
    }
}

pub(crate) async fn read(mut cursor: Cursor) -> Answer {
    let status = cursor.head().await.status.as_u16();
    let mut bytes = Vec::new();
    loop {
        match cursor.step().await {
            Step::Frame(frame) => bytes.extend_from_slice(&frame),
            Step::End(end) => return Answer { status, end, text: String::from_utf8(bytes).unwrap() },
            Step::Cut => panic!("a lone reader is never cut"),
        }
    }
}

impl Answer {
    /// The body of an answer that is not streamed.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The events of a stream; the last one must be `[DONE]` and is not among them.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.text.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.text);
        events.iter().map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }

    /// The joined text of a choice in a stream.
    pub(crate) fn joined(&self, choice: u64) -> String {
        let events = self.events();
        let choices = events.iter().filter_map(|event| event["choices"].get(0)).filter(|c| c["index"] == choice);
        choices.filter_map(|c| c["text"].as_str().or(c["delta"]["content"].as_str())).collect()
    }

    /// The finish reasons of a choice in a stream.
    pub(crate) fn finishes(&self, choice: u64) -> Vec<String> {
        let events = self.events();
        let choices = events.iter().filter_map(|event| event["choices"].get(0)).filter(|c| c["index"] == choice);
        choices.filter_map(|c| c["finish_reason"].as_str().map(str::to_owned)).collect()
    }
}
