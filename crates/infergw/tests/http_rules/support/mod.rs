//! A scripted upstream, a gateway in front of it, and clients on raw sockets.

pub(crate) mod client;
pub(crate) mod upstream;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use infergw::config::{Config, Upstream as UpstreamConfig};
use infergw::{Gateway, Running};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use client::{Client, chat, stream};
pub(crate) use upstream::{Script, Upstream};

/// Nothing here takes long; this only ends a test that hangs, on a machine however loaded.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway in front of these upstreams, with settings that `tune` changes.
pub(crate) async fn gateway(upstreams: &[&Upstream], tune: impl FnOnce(&mut Config)) -> Running {
    let addresses: Vec<SocketAddr> = upstreams.iter().map(|upstream| upstream.address).collect();
    gateway_at(&addresses, tune).await
}

pub(crate) async fn gateway_at(upstreams: &[SocketAddr], tune: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config::default();
    for address in upstreams {
        config.backends.push(UpstreamConfig {
            url: format!("http://{address}"),
            models: vec!["m".into()],
            ..UpstreamConfig::default()
        });
    }
    tune(&mut config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Gateway::start(config, listener, None).await.unwrap()
}

/// A gateway with an admin listener, and that one's address.
pub(crate) async fn gateway_with_admin(
    upstreams: &[&Upstream],
    tune: impl FnOnce(&mut Config),
) -> (Running, SocketAddr) {
    let mut config = Config::default();
    for upstream in upstreams {
        let url = format!("http://{}", upstream.address);
        config.backends.push(UpstreamConfig { url, models: vec!["m".into()], ..UpstreamConfig::default() });
    }
    let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = admin.local_addr().unwrap();
    config.server.admin = Some(address);
    tune(&mut config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (Gateway::start(config, listener, Some(admin)).await.unwrap(), address)
}

/// Wait for a state, not for a time.
pub(crate) async fn until<F, T>(what: &str, mut state: F) -> T
where
    F: AsyncFnMut() -> Option<T>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = state().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never came true: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// What must come in the end.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// The sum of a metric's samples whose text holds `labels`.
pub(crate) async fn metric(address: SocketAddr, name: &str, labels: &[&str]) -> f64 {
    let answer = client::get(address, "/metrics").await;
    let lines = answer.text();
    lines
        .lines()
        .filter(|line| line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label)))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// How many series the metrics have.
pub(crate) async fn metric_series(address: SocketAddr) -> usize {
    client::get(address, "/metrics").await.text().lines().filter(|line| !line.starts_with('#')).count()
}
