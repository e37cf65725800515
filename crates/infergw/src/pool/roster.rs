//! The members as requests see them: a snapshot, which a change replaces whole. Requests take no lock for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use tokio::time::Instant;

use super::Round;
use super::member::{Member, Place};
use super::models::Models;
use super::policy::Candidate;
use super::retry::Budget;
use crate::types::Cause;

/// A snapshot of the pool.
#[derive(Debug)]
pub(super) struct Roster {
    /// Those that are in the pool; not all of them get requests.
    pub(super) members: Vec<Arc<Member>>,
    pub(super) models: Arc<Models>,
    pub(super) budget: Arc<Budget>,
}

impl Roster {
    /// What a request keeps for its whole life.
    pub(super) fn settings(&self) -> (Arc<Models>, Arc<Budget>) {
        (Arc::clone(&self.models), Arc::clone(&self.budget))
    }

    /// The models that backends list.
    pub(super) fn listed(&self) -> BTreeSet<String> {
        self.members.iter().flat_map(|member| member.backend.status().models).collect()
    }

    /// Whether one of them serves `model`, ready or not.
    pub(super) fn serves(&self, model: &str) -> bool {
        self.members.iter().any(|member| member.backend.serves(model))
    }

    /// The members that a question for `model` can go to and that have not been tried: those that are well, else those that
    /// have asked to be spared, else those of the last resort.
    pub(super) fn candidates(&self, model: &str, round: &Round, now: Instant) -> Vec<Candidate> {
        let mut ready = Vec::with_capacity(self.members.len());
        let (mut spared, mut last_resort) = (Vec::new(), Vec::new());
        for member in self.members.iter().filter(|member| !round.tried.contains(&member.slot)) {
            match member.place(model, now) {
                Place::Ready(candidate) => ready.push(candidate),
                Place::Spared(candidate) => spared.push(candidate),
                Place::LastResort(candidate) => last_resort.push(candidate),
                Place::Open(_) | Place::Out => {}
            }
        }
        // Where connections were refused a moment ago is tried as long as nothing else has been: it costs no time (S6).
        let unreached = round.failed.as_ref().is_none_or(|failure| failure.cause == Cause::Unreachable);
        let asked_to_spare = round.failed.as_ref().is_some_and(|failure| failure.cause == Cause::Busy);
        match (ready.is_empty(), spared.is_empty()) {
            (false, _) => ready,
            // Of those that want to be spared one is asked, not each: what it says goes to the client.
            (true, false) if !asked_to_spare => spared,
            _ if unreached => last_resort,
            _ => ready,
        }
    }
}

/// Who has named a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The configuration's `[[backends]]`.
    Config,
    /// The configuration's `[[engines]]`.
    Engines,
    /// The discovery file.
    File,
    /// A DNS name of `discovery.dns`, by the name of its backends.
    Dns(Arc<str>),
    /// The admin API.
    Admin,
}

impl Origin {
    /// As operators read it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Engines => "engines",
            Self::File => "discovery.file",
            Self::Dns(_) => "discovery.dns",
            Self::Admin => "admin",
        }
    }

    /// What backends without a name of their own are named after.
    pub(super) fn prefix(&self) -> &str {
        match self {
            Self::Config => "http",
            Self::Engines => "engine",
            Self::File => "file",
            Self::Dns(name) => name,
            Self::Admin => "admin",
        }
    }
}

/// A backend as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// `http` or `engine`.
    pub kind: &'static str,
    /// Its address: an HTTP backend's URL, an engine group's handshake address.
    pub url: String,
    /// Who has named it: see [`Origin`].
    pub origin: &'static str,
    /// The models it serves, as far as that is known.
    pub models: Vec<String>,
    /// How much it can take beside the others.
    pub weight: f64,
    /// `ready`, `not_ready`, `draining`, or `leaving`: taken out, but requests still run on it.
    pub state: &'static str,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `closed`, `spared` (it has asked for a pause), `trial` or `open`.
    pub breaker: &'static str,
    /// Requests that run on it for this gateway.
    pub in_flight: usize,
}
