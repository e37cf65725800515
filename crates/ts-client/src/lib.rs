//! A frontend's connection to one TokenSpeed engine group.
//!
//! A group is one process per data-parallel rank. Engines dial the frontend: it binds a handshake address, tells whoever
//! says HELLO there where its input and output sockets are, and from then on sends requests to ranks and gets token ids
//! back, in batches of many requests. This crate is everything between `generate(request)` and a stream of chunks: the
//! handshake, placement on ranks, dispatch of batches, aborts, control operations, and what the wire lacks: noticing that
//! an engine died, hangs, or came back.
//!
//! ```no_run
//! use std::time::Duration;
//! use ts_client::{ClientConfig, ClientListener, LoadBalance, Routing};
//! use ts_wire::{SamplingParams, TokenizedGenerateReqInput};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = ClientListener::bind(ClientConfig {
//!     handshake_address: "tcp://127.0.0.1:30500".into(),
//!     input_address: "tcp://127.0.0.1:0".into(),
//!     output_address: "tcp://127.0.0.1:0".into(),
//!     first_engine_index: 0,
//!     num_engines: 2,
//!     routing: Routing::Aggregated(LoadBalance::LeastInFlight),
//!     handshake_timeout: Duration::from_secs(600),
//!     send_timeout: Duration::from_secs(5),
//! })
//! .await?;
//! let client = listener.accept().await?;
//!
//! let mut request = TokenizedGenerateReqInput::new("r1", SamplingParams::default());
//! request.input_ids = Some(vec![1, 2, 3]);
//! request.stream = true;
//! let mut stream = client.generate(request).await?;
//! while let Some(chunk) = stream.next().await {
//!     let chunk = chunk?;
//!     println!("{:?} {:?}", chunk.output_ids, chunk.finish_reason);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `examples/` has this program whole (`generate`), a weight update (`control`) and two ranks (`two_ranks`); each says how
//! to start an engine for it that needs no GPU. The public API is that of the published crate `tokenspeed-client` 0.1.0;
//! what is added stands beside it: [`Tuning`] with [`ClientListener::bind_with`], [`ClientListener::into_client`],
//! [`GroupState`] with [`EngineClient::watch`], [`RequestStream::end_cause`], [`EngineClient::stats`], [`Observer`],
//! [`EngineClient::control_within`], [`EngineClient::close`].
//!
//! # What happens when something fails
//!
//! | what | this crate's answer |
//! |---|---|
//! | [`EngineClient::abort`] | the stream ends at once with an `"abort"` chunk, its place is free, the engine gets one ABORT (it does not answer) |
//! | a [`RequestStream`] or the future of [`EngineClient::generate`] is dropped | the same, without a chunk |
//! | the [`EngineClient`] is dropped | all that runs is aborted; the drop waits for that, at most [`Tuning::close_timeout`] and a little |
//! | a rank is killed | its streams end within 2 s with [`EndCause::RankLost`]; it gets no requests; under [`RankLoss::Group`] the whole group's streams end |
//! | a rank hangs, or its host is gone without a word | its streams end after [`Tuning::silence`]; other ranks notice nothing; when it speaks again it serves again, and what it still ran is aborted |
//! | a rank announces its shutdown (the message names none) | [`RankLoss::Group`]: every stream ends with [`StreamError::EngineDead`]; [`RankLoss::Rank`]: the rank is told by its connection, the others go on |
//! | an engine restarts | its new HELLO is taken at any time; nothing of its old life reaches a new request |
//! | this frontend restarts, the engine lives (it never repeats its HELLO) | [`RankStatus::NeedsRestart`] at once, or adopted as [`Tuning::adopt`] says |
//! | an output message does not decode | dropped and counted; [`Tuning::bad_output_run`] of them in a row fail that rank's requests with [`EndCause::BadOutput`] |
//! | output was lost (`completion_tokens` does not add up) | that stream ends with [`EndCause::Gap`], and its request is aborted |
//! | a reader is slow | rows are merged: memory follows its token ids; past [`Tuning::stream_buffer_bytes`] that stream alone ends with [`EndCause::Overrun`] |
//! | an engine takes no messages | [`Error::SendTimeout`] after [`ClientConfig::send_timeout`]; such a request was not and will not be delivered |
//! | no answer to a control operation (0.1.1 engines give none) | an error after [`Tuning::control_timeout`] that names the ranks; a late answer is dropped |
//! | a stranger on the sockets, junk, frames of 2^60 bytes | its connection is closed or its message dropped, counted, logged once; nobody else notices |
//!
//! # Who may talk to the sockets
//!
//! The engine wire knows no authentication and no encryption: whoever reaches the sockets can pose as an engine, read
//! prompts and answer requests. So bind loopback, an `ipc://` path in a directory of mode 0700, or an address of a
//! private network that only the engines share. A socket on a public address is logged as a warning. CURVE is not
//! offered: the engines' own sockets set no keys, so that no engine could connect, and the vendored libzmq is built
//! without it. Encrypt below, with WireGuard or a mesh's tunnel, where the network is not yours.
//!
//! # How fast
//!
//! One thread owns the sockets and hands rows to streams without a lock that is shared between ranks.
//! `cargo bench -p ts-client --bench dispatch` compares it with the published client and with the physical limit, copying
//! the same bytes once; the figures on record stand in `bench/README.md`.
#![forbid(unsafe_code)]

mod address;
mod client;
mod config;
mod control;
mod driver;
mod error;
mod group;
mod listener;
mod liveness;
mod observe;
mod outbox;
mod route;
mod state;
mod stream;
mod transport;
mod wakeups;

pub use client::{EngineClient, EngineInfo, EngineLoad};
pub use config::{ClientConfig, Heartbeat, LoadBalance, Placement, RankLoss, Routing, Tuning};
pub use error::{EndCause, Error, Result, StreamError, TransportError};
pub use listener::ClientListener;
pub use observe::{Event, Observer, RankStats};
pub use state::{GroupPhase, GroupState, GroupWatch, RankState, RankStatus};
pub use stream::{OutputChunk, RequestStream};
