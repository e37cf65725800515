//! A frontend's connection to one TokenSpeed engine group.
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
