//! `infergw serve`: the gateway with its listeners, and the demo engine beside it where there is one.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::backend::StartError;
use crate::config::Config;
use crate::reload::{Source, Trigger};
use crate::workers::Workers;
use crate::{Gateway, Running};

/// A gateway as the command runs it.
#[derive(Debug)]
pub struct Served {
    running: Running,
    #[cfg(feature = "demo")]
    engine: Option<crate::demo::DemoEngine>,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The worker threads cannot be started.
    #[error("cannot start the worker threads (server.workers)")]
    Workers(#[source] io::Error),
    /// A backend cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Served {
    /// Bind, start the backends, and the demo engine if it is asked for or nothing else is configured. `source` has said
    /// `config`, and is asked again later.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start(config: Config, source: Source) -> Result<Self, ServeError> {
        let in_force = config.clone();
        let mut served = Self::bound(config).await?;
        served.running.reload_from(source, in_force).await;
        Ok(served)
    }

    async fn bound(config: Config) -> Result<Self, ServeError> {
        let listener = bind(config.server.listen).await?;
        let admin = match config.server.admin {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        Self::with_demo(config, listener, admin).await
    }

    #[cfg(feature = "demo")]
    async fn with_demo(
        mut config: Config,
        listener: TcpListener,
        admin: Option<TcpListener>,
    ) -> Result<Self, ServeError> {
        let workers = Workers::start(config.server.workers).map_err(ServeError::Workers)?;
        let demo = config.demo.clone();
        let wanted = demo.enabled || !config.has_backends();
        if !wanted {
            return Ok(Self { running: Gateway::start_on(workers, config, listener, admin).await?, engine: None });
        }
        let group = crate::demo::group(&demo)?;
        let model = group.tokenizer.clone();
        // First among the groups, so that its handshake address is known below.
        config.engines.insert(0, group);
        let running = Gateway::start_on(workers, config, listener, admin).await?;
        let handshake = running.gateway().pool.handshake_address().unwrap_or_default();
        let engine = crate::demo::launch(&demo, &model, &handshake).await?;
        Ok(Self { running, engine: Some(engine) })
    }

    #[cfg(not(feature = "demo"))]
    async fn with_demo(config: Config, listener: TcpListener, admin: Option<TcpListener>) -> Result<Self, ServeError> {
        if !config.has_backends() {
            let message = "There is no backend: give --upstream or --engines (this build has no demo engine).";
            return Err(StartError(message.into()).into());
        }
        let workers = Workers::start(config.server.workers).map_err(ServeError::Workers)?;
        Ok(Self { running: Gateway::start_on(workers, config, listener, admin).await? })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.running.address()
    }

    /// Read the configuration again, because of SIGHUP.
    pub async fn reload(&self) {
        self.running.gateway().reload.now(Trigger::Signal).await;
    }

    /// Shut down without cutting a stream; returns when all has ended.
    pub async fn drain(self) {
        self.running.drain().await;
        #[cfg(feature = "demo")]
        if let Some(engine) = self.engine {
            engine.stop().await;
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}
