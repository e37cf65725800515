//! The reference engine of the TokenSpeed wire: a small real model on the CPU, or a simulated one.
//!
//! It is one rank, as a frontend sees it: it dials the frontend's handshake address, registers, and serves. Read in this
//! order: [`serve`] (sockets and their thread), `admission` (what is refused), `scheduler` (what runs when), [`model`]
//! (what computes), `sample` (which token), `grammar` (which tokens may be).
//!
//! ```no_run
//! use ts_engine::serve::{EngineConfig, start};
//!
//! let config = EngineConfig::simulated("tcp://127.0.0.1:29550", "prefill=20000,decode-base-us=5000".parse()?);
//! let engine = start(config)?;
//! // ... the frontend accepts it and sends requests ...
//! engine.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod admission;
mod batch;
mod control;
mod grammar;
mod kv;
pub mod model;
mod sample;
mod scheduler;
mod sequence;
pub mod serve;
pub mod simulate;

pub use serve::{Engine, EngineConfig, EngineError, start};
pub use simulate::SimulateConfig;
