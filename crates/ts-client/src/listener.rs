//! Binding the sockets and waiting for the engines: start reading here.

use std::sync::Arc;

use tokio::time::timeout;

use crate::client::{EngineClient, lock};
use crate::config::{ClientConfig, Tuning};
use crate::driver;
use crate::error::{Error, Result};

/// The client's sockets, bound and open to the engines: those that dial are taken in from the moment of binding.
#[derive(Debug)]
pub struct ClientListener {
    client: EngineClient,
}

// === impl ClientListener ===

impl ClientListener {
    /// Bind the handshake, input and output sockets.
    ///
    /// # Errors
    ///
    /// [`Error::Zmq`] for an address that cannot be bound or must not be advertised, [`Error::Handshake`] for a range
    /// of engine indices that does not exist.
    pub async fn bind(config: ClientConfig) -> Result<Self> {
        Self::bind_with(config, Tuning::default()).await
    }

    /// [`ClientListener::bind`] with more to set.
    ///
    /// # Errors
    ///
    /// As [`ClientListener::bind`].
    pub async fn bind_with(config: ClientConfig, tuning: Tuning) -> Result<Self> {
        let last = u32::from(config.first_engine_index) + u32::from(config.num_engines);
        if config.num_engines == 0 || last > 1 << 16 {
            return Err(Error::Handshake(format!(
                "{} engines from index {} on: there are indices 0 to 65535, and a group has at least one",
                config.num_engines, config.first_engine_index
            )));
        }
        let (shared, thread) = driver::start(config, tuning).await?;
        Ok(Self { client: EngineClient::new(Arc::clone(&shared), thread) })
    }

    /// The handshake address that engines must dial, as bound.
    pub fn handshake_address(&self) -> &str {
        self.client.handshake_address()
    }

    /// The client as it is, without waiting: it refuses requests until the engines are there. Follow
    /// [`EngineClient::watch`].
    pub fn into_client(self) -> EngineClient {
        self.client
    }

    /// Wait until every engine has registered.
    ///
    /// # Errors
    ///
    /// After [`ClientConfig::handshake_timeout`]: [`Error::Handshake`] if an engine was refused, and what it said is
    /// wrong, else [`Error::HandshakeTimeout`].
    pub async fn accept(self) -> Result<EngineClient> {
        let limit = self.client.shared().config.handshake_timeout;
        let mut watch = self.client.watch();
        let ready = watch.wait_for(|state| state.ranks.iter().all(|rank| rank.status == crate::RankStatus::Ready));
        match timeout(limit, ready).await {
            Ok(Some(_)) => Ok(self.client),
            Ok(None) => Err(Error::Unavailable(crate::StreamError::ClientClosed)),
            Err(_) => {
                let error = self.not_ready(limit);
                self.client.close().await;
                Err(error)
            }
        }
    }

    fn not_ready(&self, timeout: std::time::Duration) -> Error {
        let shared = self.client.shared();
        if let Some(refusal) = lock(&shared.refusals).first() {
            return Error::Handshake(refusal.clone());
        }
        let (stage, pending) = lock(&shared.pending).clone().unwrap_or(("registration", Vec::new()));
        Error::HandshakeTimeout { stage, pending, timeout }
    }
}
