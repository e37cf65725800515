//! infergw: the front door of self-hosted LLM inference.
//!
//! The modules stand in the order in which a request passes them; see `ARCHITECTURE.md` for the map.
//!
//! 1. [`listen`]: accept connections, HTTP/1.1 and HTTP/2, limits, drain.
//! 2. [`api`]: what the client speaks, parsed once, and the one error shape.
//! 3. [`admit`]: who is it, may it come in.
//! 4. [`coalesce`]: the same question in flight? Join its flight, else start one.
//! 5. [`admission`]: may it run now, or who comes before it.
//! 6. [`pool`]: which backend serves this model; retry before the first byte.
//! 7. [`backend`]: run it, as an HTTP relay or on an engine group.
//! 8. [`reply`]: the HTTP body is a read of the flight's log.
//!
//! [`answer`] is the life of a request: the one function that calls the steps in this order.
#![forbid(unsafe_code)]

pub mod listen;
pub mod answer;
pub mod api;
pub mod admit;
pub mod coalesce;
pub mod admission;
pub mod pool;
pub mod backend;
pub mod reply;

pub mod admin;
pub mod cli;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod discovery;
pub mod drain;
#[cfg(any(test, feature = "fuzz"))]
pub mod foreign;
#[cfg(feature = "demo")]
pub mod engine_command;
pub mod health;
pub mod hop_by_hop;
pub mod logging;
pub mod observe;
pub mod reload;
pub mod serve;
pub mod types;
pub mod workers;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use admission::Admission;
use admit::Keys;
use backend::StartError;
use backend::engine::EngineBackend;
use coalesce::Flights;
use coalesce::log::Bounds;
use config::{Coalesce, Config};
use drain::{Drain, Phase};
use observe::Metrics;
use pool::Pool;
use reload::{Reload, Source};
use workers::Workers;

/// A gateway: what all its connections share.
#[derive(Debug)]
pub struct Gateway {
    /// The effective configuration.
    pub config: Config,
    /// Its own metrics.
    pub metrics: Arc<Metrics>,
    /// Who may come in.
    pub keys: Arc<Keys>,
    /// Who may run now.
    pub admission: Arc<Admission>,
    /// The backends.
    pub pool: Arc<Pool>,
    /// The flights.
    pub flights: Flights,
    /// Its way down.
    pub drain: Arc<Drain>,
    /// The way to another configuration.
    pub reload: Reload,
    /// The threads that serve its connections.
    pub workers: Workers,
}

impl Gateway {
    /// Start the backends and serve on `listener`, which is bound already; on `admin` too, where given. Connections are
    /// served by the runtime that this is called on.
    ///
    /// # Errors
    /// A backend that cannot be started, by its address.
    pub async fn start(
        config: Config,
        listener: TcpListener,
        admin: Option<TcpListener>,
    ) -> Result<Running, StartError> {
        Self::start_on(Workers::none(), config, listener, admin).await
    }

    /// The same, with connections served by `workers`.
    ///
    /// Returns before the backends are ready: `/readyz` says when.
    ///
    /// # Errors
    /// A backend that cannot be started, by its address.
    pub async fn start_on(
        workers: Workers,
        config: Config,
        listener: TcpListener,
        admin: Option<TcpListener>,
    ) -> Result<Running, StartError> {
        let address =
            listener.local_addr().map_err(|error| StartError(format!("the listener has no address: {error}")))?;
        config.check().map_err(|contradiction| StartError(contradiction.0))?;
        let metrics = Arc::new(Metrics::new());
        let mut engines = Vec::new();
        for group in &config.engines {
            let counters = metrics.tokenizing.clone();
            let started = EngineBackend::counting(group, &config.text, &config.timeouts, counters).await?;
            engines.push(started);
        }
        let drain = Arc::new(Drain::default());
        let bounds = Bounds {
            join_window: config.coalesce.join_window,
            join_age: config.coalesce.join_age,
            max_subscribers: config.coalesce.max_subscribers,
        };
        let pool = Arc::new(Pool::new(&config, engines, Arc::clone(&metrics), Arc::clone(&drain))?);
        let admission = Arc::new(Admission::new(&config, metrics.admissions.clone(), Arc::clone(&drain)));
        let keys = Arc::new(Keys::new(&config.keys));
        let parts = (Arc::clone(&keys), Arc::clone(&admission), Arc::clone(&pool));
        let reload = Reload::new(parts, metrics.reloads.clone());
        reload.discover(&config).await;
        let mut flights = Flights::counting(bounds, config.coalesce.total, metrics.sharing.clone())
            .remembering(config.coalesce.remember);
        if config.coalesce.resume {
            let Coalesce { linger, linger_bytes, .. } = config.coalesce;
            flights = flights.resuming(linger, linger_bytes, metrics.resuming.clone());
        }
        let gateway = Arc::new(Gateway { keys, admission, pool, reload, flights, metrics, drain, workers, config });
        let mut tasks = vec![tokio::spawn(listen::serve(Arc::clone(&gateway), listener, answer::answer))];
        if let Some(admin) = admin {
            tasks.push(tokio::spawn(listen::serve(Arc::clone(&gateway), admin, admin::answer)));
        }
        Ok(Running { gateway, address, tasks, watch: None })
    }
}

/// A gateway that serves. Dropping it stops it at once; [`Running::drain`] lets streams finish.
#[derive(Debug)]
pub struct Running {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
    watch: Option<JoinHandle<()>>,
}

impl Running {
    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Read the configuration again from `source` when its file changes, or when [`Reload::now`] is called. `in_force` is what
    /// `source` said when this gateway was made of it.
    pub async fn reload_from(&mut self, source: Source, in_force: Config) {
        self.gateway.reload.from(source, in_force).await;
        let gateway = Arc::clone(&self.gateway);
        self.watch = Some(tokio::spawn(async move { gateway.reload.watch().await }));
    }

    /// The gateway itself.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Shut down as R7 has it: readiness off at once, new requests refused after the pause, running ones cut at the limit.
    /// Returns when all connections have ended.
    pub async fn drain(mut self) {
        let server = &self.gateway.config.server;
        let drain = &self.gateway.drain;
        drain.enter(Phase::Announced);
        tracing::info!(pause = ?server.drain_pause, limit = ?server.drain_limit, "draining: readiness is off");
        sleep(server.drain_pause).await;
        drain.enter(Phase::Refusing);
        let tasks = std::mem::take(&mut self.tasks);
        let ended = async {
            for task in tasks {
                let _ = task.await;
            }
        };
        tokio::pin!(ended);
        if timeout(server.drain_limit, &mut ended).await.is_err() {
            tracing::warn!("the drain limit is reached, what still runs is cut");
            drain.enter(Phase::Cutting);
            ended.await;
        }
        tracing::info!("drained");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in self.tasks.iter().chain(&self.watch) {
            task.abort();
        }
    }
}
