//! The connection to an engine group, for the gateway's life: bound at start, whether or not the engines are there. The client
//! library takes engines in whenever they come, and takes them back when they return.

use std::time::Duration;

use ts_client::{ClientConfig, ClientListener, EngineClient, GroupPhase, GroupState, LoadBalance, Routing, Tuning};

use crate::backend::StartError;
use crate::config::{EngineGroup, RankLoss};

/// How long an engine may take to accept a message.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// The connection to one group. Dropping it aborts what runs and closes it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: EngineClient,
    ranks: u16,
}

impl Link {
    /// Bind the group's handshake address.
    pub(super) async fn start(group: &EngineGroup) -> Result<Self, StartError> {
        let listener = ClientListener::bind_with(client_config(group), tuning(group)).await;
        let listener = listener.map_err(|e| StartError(format!("engines at {}: {e}", group.handshake)))?;
        Ok(Self { client: listener.into_client(), ranks: group.ranks })
    }

    /// Ranks of the group.
    pub(super) fn ranks(&self) -> u16 {
        self.ranks
    }

    /// Why no request can be served, for the operator; `None` while serving.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.client.state();
        let trouble = state.trouble()?;
        Some(match state.phase {
            GroupPhase::Waiting => format!("{} of {}", self.awaited(&state), self.client.handshake_address()),
            _ => format!("{trouble} ({})", self.client.handshake_address()),
        })
    }

    fn awaited(&self, state: &GroupState) -> String {
        let missing: Vec<String> = state
            .ranks
            .iter()
            .filter(|rank| rank.status != ts_client::RankStatus::Ready)
            .map(|rank| rank.engine_index.to_string())
            .collect();
        if self.ranks == 1 {
            "waiting for engine 0".into()
        } else {
            format!("waiting for engines {}", missing.join(", "))
        }
    }
}

fn client_config(group: &EngineGroup) -> ClientConfig {
    ClientConfig {
        handshake_address: group.handshake.clone(),
        input_address: beside(&group.handshake, "input"),
        output_address: beside(&group.handshake, "output"),
        first_engine_index: 0,
        num_engines: group.ranks,
        routing: Routing::Aggregated(LoadBalance::LeastInFlight),
        // Nobody waits for the handshake: see `into_client`.
        handshake_timeout: Duration::from_secs(600),
        send_timeout: SEND_LIMIT,
    }
}

fn tuning(group: &EngineGroup) -> Tuning {
    let mut tuning = Tuning::default();
    tuning.advertise.clone_from(&group.advertise);
    tuning.rank_loss = match group.rank_loss {
        RankLoss::Group => ts_client::RankLoss::Group,
        RankLoss::Rank => ts_client::RankLoss::Rank,
    };
    tuning
}

/// Where the socket `name` stands, which the engines are told: on a free port of the handshake's host, or in its folder.
fn beside(handshake: &str, name: &str) -> String {
    if handshake == "ipc://*" {
        return handshake.to_owned();
    }
    if handshake.starts_with("ipc://") {
        return format!("{handshake}-{name}");
    }
    let host = handshake.rsplit_once(':').map_or(handshake, |(host, _)| host);
    format!("{host}:0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_and_output_stand_beside_the_handshake() {
        assert_eq!(beside("tcp://127.0.0.1:30500", "input"), "tcp://127.0.0.1:0");
        assert_eq!(beside("tcp://[::1]:30500", "input"), "tcp://[::1]:0");
        assert_eq!(beside("ipc:///run/infergw/group", "output"), "ipc:///run/infergw/group-output");
        assert_eq!(beside("ipc://*", "output"), "ipc://*");
    }
}
