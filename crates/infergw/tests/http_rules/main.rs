//! The rules of behaviour on HTTP backends, kept through the public door: a scripted upstream behind, raw sockets in front.
//!
//! One module for each family of rules; every test is named after the rule that it keeps.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod admission;
mod api;
mod coalescing;
mod disconnects;
mod drain;
mod endpoints;
mod models;
mod mutation;
mod recovery;
mod reload;
mod resources;
mod resume;
mod routing;
mod security;
mod sharing;
mod streams;
mod support;
