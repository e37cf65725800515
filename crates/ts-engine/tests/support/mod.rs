//! A scripted frontend: the other end of the wire, made of plain libzmq sockets.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ts_engine::serve::{Engine, EngineConfig, start};
use ts_wire::control::ControlOutput;
use ts_wire::{
    BatchTokenIDOutSlim, ControlRequest, Dict, EngineCoreReadyResponse, EngineOutput, EngineRequest,
    HandshakeAddresses, HandshakeInitMessage, ReadyMessage, SamplingParams, TokenizedGenerateReqInput, decode_bytes,
    encode_frames,
};

/// Generous: the machine may be busy. No test waits this long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The frontend's sockets.
pub(crate) struct Frontend {
    handshake: zmq::Socket,
    input: zmq::Socket,
    output: zmq::Socket,
    identity: Vec<u8>,
    context: zmq::Context,
}

/// All rows of one request put together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<i32>,
    /// Tokens of each row.
    pub(crate) rows: Vec<usize>,
    pub(crate) finish: Option<String>,
    pub(crate) details: Option<Dict<String, ts_wire::Value>>,
    pub(crate) prompt_tokens: i64,
    pub(crate) completion_tokens: i64,
    pub(crate) cached_tokens: i64,
    pub(crate) logprobs: Vec<f64>,
    pub(crate) logprob_ids: Vec<i32>,
    pub(crate) top: Vec<Vec<(i32, f64)>>,
    pub(crate) prompt_logprobs: Vec<Option<f64>>,
    pub(crate) prompt_ids: Vec<i32>,
    pub(crate) prompt_top: Vec<Option<Vec<(i32, f64)>>>,
}

impl Answer {
    /// A value of the finish details.
    pub(crate) fn detail(&self, key: &str) -> Option<&ts_wire::Value> {
        self.details.as_ref()?.get(key)
    }
}

fn bound(context: &zmq::Context, kind: zmq::SocketType) -> (zmq::Socket, String) {
    let socket = context.socket(kind).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let address = socket.get_last_endpoint().unwrap().unwrap();
    (socket, address)
}

impl Frontend {
    /// A frontend that listens, and its handshake address.
    pub(crate) fn listen() -> (Frontend, String) {
        let context = zmq::Context::new();
        let (handshake, address) = bound(&context, zmq::ROUTER);
        let (input, _) = bound(&context, zmq::ROUTER);
        let (output, _) = bound(&context, zmq::PULL);
        input.set_router_mandatory(true).unwrap();
        (Frontend { handshake, input, output, identity: Vec::new(), context }, address)
    }

    /// Starts an engine and takes it through the handshake.
    pub(crate) fn with_engine(
        configure: impl FnOnce(String) -> EngineConfig,
    ) -> (Frontend, Engine, EngineCoreReadyResponse) {
        let (mut frontend, address) = Frontend::listen();
        let mut engine = start(configure(address)).unwrap();
        let registration = frontend.accept();
        engine.wait_serving(PATIENCE).unwrap();
        (frontend, engine, registration)
    }

    pub(crate) fn addresses(&self) -> HandshakeAddresses {
        HandshakeAddresses {
            inputs: vec![self.input.get_last_endpoint().unwrap().unwrap()],
            outputs: vec![self.output.get_last_endpoint().unwrap().unwrap()],
            ..HandshakeAddresses::default()
        }
    }

    /// The identity and the payload of the next message on the handshake or the input socket.
    fn receive_from(socket: &zmq::Socket) -> (Vec<u8>, Vec<u8>) {
        assert!(socket.poll(zmq::POLLIN, PATIENCE.as_millis() as i64).unwrap() > 0, "no message from the engine");
        let mut frames = socket.recv_multipart(0).unwrap();
        assert_eq!(frames.len(), 2, "an identity and one frame");
        let payload = frames.pop().unwrap();
        (frames.pop().unwrap(), payload)
    }

    pub(crate) fn receive_status(&self) -> (Vec<u8>, ReadyMessage) {
        let (identity, payload) = Self::receive_from(&self.handshake);
        (identity, decode_bytes(&payload).unwrap())
    }

    pub(crate) fn send_init(&self, identity: &[u8], payload: &[u8]) {
        self.handshake.send_multipart([identity, payload], 0).unwrap();
    }

    /// HELLO, INIT, READY, registration.
    pub(crate) fn accept(&mut self) -> EngineCoreReadyResponse {
        let (identity, hello) = self.receive_status();
        assert_eq!(hello.status.as_deref(), Some("HELLO"));
        let init = HandshakeInitMessage { addresses: self.addresses(), parallel_config: Dict::default() };
        self.send_init(&identity, &encode_frames(&init)[0]);
        let (_, ready) = self.receive_status();
        assert_eq!(ready.status.as_deref(), Some("READY"));
        let (input_identity, registration) = Self::receive_from(&self.input);
        assert_eq!(input_identity, identity, "one identity on both sockets");
        self.identity = identity;
        decode_bytes(&registration).unwrap()
    }

    pub(crate) fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Sends raw frames to the engine.
    pub(crate) fn send_frames<F: AsRef<[u8]>>(&self, frames: &[F]) {
        let parts = std::iter::once(&self.identity[..]).chain(frames.iter().map(AsRef::as_ref));
        self.input.send_multipart(parts, 0).unwrap();
    }

    pub(crate) fn send(&self, request: &EngineRequest) {
        self.send_frames(&request.to_frames());
    }

    pub(crate) fn add(&self, request: &TokenizedGenerateReqInput) {
        self.send(&EngineRequest::Add(Box::new(request.clone())));
    }

    pub(crate) fn abort(&self, rid: &str) {
        self.send(&EngineRequest::Abort(vec![rid.to_owned()]));
    }

    /// The next output, or `None` if none comes within `limit`.
    pub(crate) fn next_within(&self, limit: Duration) -> Option<EngineOutput> {
        if self.output.poll(zmq::POLLIN, limit.as_millis() as i64).unwrap() == 0 {
            return None;
        }
        let frames: Vec<Bytes> = self.output.recv_multipart(0).unwrap().into_iter().map(Bytes::from).collect();
        Some(EngineOutput::from_frames(&frames).unwrap())
    }

    pub(crate) fn next(&self) -> EngineOutput {
        self.next_within(PATIENCE).expect("no output from the engine")
    }

    pub(crate) fn next_batch(&self) -> BatchTokenIDOutSlim {
        match self.next() {
            EngineOutput::Batch(batch) => *batch,
            other => panic!("expected a batch, got {other:?}"),
        }
    }

    /// Sends a control request and waits for its reply; rows that come before it go to `answers`.
    pub(crate) fn control(&self, request: ControlRequest, answers: &mut Answers) -> ControlOutput {
        self.send(&EngineRequest::Control(Box::new(request)));
        self.next_reply(answers)
    }

    pub(crate) fn next_reply(&self, answers: &mut Answers) -> ControlOutput {
        loop {
            match self.next() {
                EngineOutput::Control(reply) => return *reply,
                EngineOutput::Batch(batch) => answers.take(&batch),
                EngineOutput::Dead => panic!("the engine ended"),
            }
        }
    }

    /// Runs requests to their end.
    pub(crate) fn run(&self, requests: &[TokenizedGenerateReqInput]) -> Vec<Answer> {
        requests.iter().for_each(|request| self.add(request));
        let mut answers = Answers::default();
        let rids: Vec<String> = requests.iter().map(rid_of).collect();
        self.collect(&mut answers, &rids);
        rids.iter().map(|rid| answers.0.remove(rid).unwrap()).collect()
    }

    /// Reads until all of `rids` have ended.
    pub(crate) fn collect(&self, answers: &mut Answers, rids: &[String]) {
        let deadline = Instant::now() + PATIENCE;
        while !rids.iter().all(|rid| answers.finished(rid)) {
            assert!(Instant::now() < deadline, "the requests do not end");
            answers.take(&self.next_batch());
        }
    }
}

/// Answers by request id.
#[derive(Debug, Default)]
pub(crate) struct Answers(pub(crate) BTreeMap<String, Answer>);

impl Answers {
    pub(crate) fn finished(&self, rid: &str) -> bool {
        self.0.get(rid).is_some_and(|answer| answer.finish.is_some())
    }

    pub(crate) fn take(&mut self, batch: &BatchTokenIDOutSlim) {
        for row in batch.requests().unwrap() {
            let answer = self.0.entry(row.rid.to_owned()).or_default();
            assert!(answer.finish.is_none(), "a row after the end of {}", row.rid);
            answer.tokens.extend(row.output_ids);
            answer.rows.push(row.output_ids.len());
            answer.finish = row.finish_reason.map(str::to_owned);
            answer.details = row.finish_details.cloned();
            answer.prompt_tokens = row.prompt_tokens;
            answer.completion_tokens = row.completion_tokens;
            assert_eq!(answer.completion_tokens as usize, answer.tokens.len(), "a gap in {}", row.rid);
            answer.cached_tokens = row.cached_tokens;
            answer.logprobs.extend(row.output_token_logprobs);
            if !row.output_token_logprobs.is_empty() {
                answer.logprob_ids.extend(row.output_ids);
            }
            if let Some((values, ids)) = row.output_top_logprobs {
                answer.top.extend(values.iter().zip(ids).map(|(values, ids)| pairs(values, ids)));
            }
            if let Some((values, ids)) = row.input_token_logprobs {
                assert!(answer.prompt_ids.is_empty(), "prompt logprobs come once");
                answer.prompt_logprobs = values.to_vec();
                answer.prompt_ids = ids.to_vec();
            }
            if let Some((values, ids)) = row.input_top_logprobs {
                let position = |(values, ids): (&Option<Vec<f64>>, &Option<Vec<i32>>)| {
                    values.as_ref().zip(ids.as_ref()).map(|(values, ids)| pairs(values, ids))
                };
                answer.prompt_top = values.iter().zip(ids).map(position).collect();
            }
        }
    }
}

fn pairs(values: &[f64], ids: &[i32]) -> Vec<(i32, f64)> {
    ids.iter().copied().zip(values.iter().copied()).collect()
}

fn rid_of(request: &TokenizedGenerateReqInput) -> String {
    match &request.rid {
        Some(ts_wire::StrOrList::One(rid)) => rid.clone(),
        other => panic!("no single id: {other:?}"),
    }
}

/// A streaming request with greedy sampling.
pub(crate) fn request(rid: &str, prompt: &[i32], max_new: i64) -> TokenizedGenerateReqInput {
    let params = SamplingParams { temperature: 0.0, max_new_tokens: Some(max_new), ..SamplingParams::default() };
    let mut request = TokenizedGenerateReqInput::new(rid, params);
    request.input_ids = Some(prompt.to_vec());
    request.stream = true;
    request
}
