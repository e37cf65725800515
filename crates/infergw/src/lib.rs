//! infergw: the front door of self-hosted LLM inference.
//!
//! The modules stand in the order in which a request passes them; see `ARCHITECTURE.md` for the map.
//!
//! 1. [`listen`]: accept connections, HTTP/1.1 and HTTP/2, limits, drain.
//! 2. [`api`]: what the client speaks, parsed once, and the one error shape.
//! 3. [`admit`]: who is it, may it run now.
//! 4. [`coalesce`]: the same question in flight? Join its flight, else start one.
//! 5. [`pool`]: which backend serves this model; retry before the first byte.
//! 6. [`backend`]: run it, as an HTTP relay or on an engine group.
//! 7. [`reply`]: the HTTP body is a read of the flight's log.
//!
//! [`answer`] is the life of a request: the one function that calls the steps in this order.
#![forbid(unsafe_code)]

pub mod admit;
pub mod answer;
pub mod api;
pub mod backend;
pub mod coalesce;
pub mod pool;
pub mod reply;

pub mod config;
pub mod types;
