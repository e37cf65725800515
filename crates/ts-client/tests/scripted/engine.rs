//! An engine whose every message is the test's.

use bytes::Bytes;
use ts_wire::output::BatchTokenIDOutSlim;
use ts_wire::{
    EngineCoreReadyResponse, EngineRequest, HandshakeInitMessage, ReadyMessage, Wire, decode_bytes, encode_frames,
    engine_identity,
};

pub(crate) struct Engine {
    context: zmq::Context,
    pub(crate) input: zmq::Socket,
    output: zmq::Socket,
    pub(crate) init: HandshakeInitMessage,
    index: u16,
}

/// One row: request, tokens, finish reason ("" while running), tokens in all.
pub(crate) type Row<'a> = (&'a str, &'a [i32], &'a str, i64);

fn frame<T: Wire>(value: &T) -> Vec<u8> {
    encode_frames(value).remove(0).to_vec()
}

fn status(status: &str) -> Vec<u8> {
    frame(&ReadyMessage {
        status: Some(status.into()),
        local: Some(true),
        headless: Some(true),
        parallel_config_hash: None,
    })
}

fn dealer(context: &zmq::Context, index: u16, address: &str) -> zmq::Socket {
    let socket = context.socket(zmq::DEALER).unwrap();
    socket.set_identity(&engine_identity(index)).unwrap();
    socket.set_rcvtimeo(30_000).unwrap();
    socket.set_linger(1_000).unwrap();
    socket.connect(address).unwrap();
    socket
}

/// HELLO, INIT, READY.
pub(crate) fn shake_hands(context: &zmq::Context, handshake: &str, index: u16) -> HandshakeInitMessage {
    let socket = dealer(context, index, handshake);
    socket.send(status("HELLO"), 0).unwrap();
    let init = decode_bytes(&socket.recv_bytes(0).expect("INIT")).unwrap();
    socket.send(status("READY"), 0).unwrap();
    init
}

pub(crate) fn registration(rank: u16, ranks: u16) -> Vec<u8> {
    frame(&EngineCoreReadyResponse {
        data_parallel_rank: i64::from(rank),
        data_parallel_size: i64::from(ranks),
        ..EngineCoreReadyResponse::default()
    })
}

pub(crate) fn batch(engine_index: u16, rows: &[Row<'_>]) -> BatchTokenIDOutSlim {
    BatchTokenIDOutSlim {
        rids: Some(rows.iter().map(|row| row.0.to_owned()).collect()),
        output_ids: rows.iter().map(|row| row.1.to_vec()).collect(),
        finished_reasons: rows.iter().map(|row| row.2.to_owned()).collect(),
        prompt_tokens: vec![3; rows.len()],
        completion_tokens: rows.iter().map(|row| row.3).collect(),
        cached_tokens: vec![0; rows.len()],
        output_token_logprobs_val: vec![vec![]; rows.len()],
        output_token_logprobs_idx: vec![vec![]; rows.len()],
        engine_index: i64::from(engine_index),
        ..BatchTokenIDOutSlim::default()
    }
}

// === impl Engine ===

impl Engine {
    /// Join the group: the whole handshake, up to a connected output.
    pub(crate) fn join(handshake: &str, index: u16, ranks: u16) -> Self {
        Self::join_over(handshake, index, ranks, str::to_owned)
    }

    /// [`Engine::join`], dialling what `route` makes of the two addresses of INIT.
    pub(crate) fn join_over(handshake: &str, index: u16, ranks: u16, route: impl Fn(&str) -> String) -> Self {
        let context = zmq::Context::new();
        let init = shake_hands(&context, handshake, index);
        let input = dealer(&context, index, &route(&init.addresses.inputs[0]));
        input.send(registration(index, ranks), 0).unwrap();
        let output = context.socket(zmq::PUSH).unwrap();
        output.set_linger(1_000).unwrap();
        output.connect(&route(&init.addresses.outputs[0])).unwrap();
        Self { context, input, output, init, index }
    }

    /// The next message, but for probes (aborts of nothing) and signs of life that are asked for.
    pub(crate) fn receive(&self) -> EngineRequest {
        loop {
            let frames = self.input.recv_multipart(0).expect("a message");
            let frames: Vec<Bytes> = frames.into_iter().map(Bytes::from).collect();
            match EngineRequest::from_frames(&frames).unwrap() {
                EngineRequest::Abort(rids) if rids.is_empty() => {}
                EngineRequest::Add(request) if request.validation_error.is_some() => {}
                message => return message,
            }
        }
    }

    /// The next message, which is an ADD. Returns its id.
    pub(crate) fn receive_add(&self) -> String {
        match self.receive() {
            EngineRequest::Add(request) => match request.rid {
                Some(ts_wire::StrOrList::One(rid)) => rid,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// The next message, which is an ABORT. Returns its ids.
    pub(crate) fn receive_abort(&self) -> Vec<String> {
        match self.receive() {
            EngineRequest::Abort(rids) => rids,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn send(&self, rows: &[Row<'_>]) {
        self.send_bytes(&frame(&batch(self.index, rows)));
    }

    pub(crate) fn send_bytes(&self, message: &[u8]) {
        self.output.send(message, 0).unwrap();
    }

    pub(crate) fn context(&self) -> &zmq::Context {
        &self.context
    }
}
