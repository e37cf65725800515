//! Backends that are named outside the configuration: by a file, or by DNS.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::config::load::{LoadError, parse_backends};
use crate::config::{self, DnsName, Upstream};
use crate::observe::Reloads;
use crate::pool::{ChangeError, Origin, Pool};
use crate::reload::watched::{Contents, Watched};

/// For an answer of DNS.
const LOOKUP: Duration = Duration::from_secs(5);

/// Most addresses of a name that are taken.
const MOST_ADDRESSES: usize = 256;

/// The sources that are being asked. Dropping it ends them; their backends stay.
#[derive(Debug)]
pub struct Discovery {
    pool: Arc<Pool>,
    counters: Reloads,
    asked: Mutex<HashMap<Origin, (Spec, Asking)>>,
}

/// What a source is asked by.
#[derive(Debug, Clone, PartialEq)]
enum Spec {
    File(PathBuf),
    Dns(DnsName, Duration),
}

/// Ends when dropped.
#[derive(Debug)]
struct Asking(JoinHandle<()>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Discovery {
    /// No source yet.
    pub fn new(pool: Arc<Pool>, counters: Reloads) -> Self {
        Self { pool, counters, asked: Mutex::default() }
    }

    /// Ask these sources from now on. The backends of those that are not among them leave.
    pub async fn ask(&self, settings: &config::Discovery) {
        let file = settings.file.iter().map(|file| (Origin::File, Spec::File(file.clone())));
        let dns = settings
            .dns
            .iter()
            .map(|dns| (Origin::Dns(Arc::from(dns.name.as_str())), Spec::Dns(dns.clone(), settings.interval)));
        let wanted: HashMap<Origin, Spec> = file.chain(dns).collect();
        let mut asked = self.asked.lock().await;
        let old: Vec<_> = asked.extract_if(|origin, (spec, _)| wanted.get(origin) != Some(spec)).collect();
        for (origin, (_, mut asking)) in old {
            asking.0.abort();
            // It may be in the middle of a change, which would come after the next one.
            let _ = (&mut asking.0).await;
            if !wanted.contains_key(&origin) {
                told(&self.counters, &origin, self.pool.replace(&origin, &[]).map_err(Trouble::from));
            }
        }
        for (origin, spec) in wanted {
            let (pool, counters) = (Arc::clone(&self.pool), self.counters.clone());
            asked.entry(origin.clone()).or_insert_with(|| {
                let asking = Asking(match spec.clone() {
                    Spec::File(file) => tokio::spawn(ask_file(file, pool, counters)),
                    Spec::Dns(dns, interval) => tokio::spawn(ask_dns((dns, interval), origin, pool, counters)),
                });
                (spec, asking)
            });
        }
    }
}

/// Why a source's word is not taken: what it said before holds.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("cannot read {}: {why}", file.display())]
    Unread { file: PathBuf, why: std::io::ErrorKind },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("{0} cannot be looked up: {1}")]
    Lookup(String, String),
}

async fn ask_file(file: PathBuf, pool: Arc<Pool>, counters: Reloads) {
    let mut watched = Watched::new(file.clone());
    loop {
        let contents = watched.next().await;
        let applied = upstreams(&file, contents)
            .and_then(|upstreams| pool.replace(&Origin::File, &upstreams).map_err(Trouble::from));
        told(&counters, &Origin::File, applied);
    }
}

fn upstreams(file: &Path, contents: Contents) -> Result<Vec<Upstream>, Trouble> {
    let bytes = contents.map_err(|kind| Trouble::Unread { file: file.to_owned(), why: kind })?;
    Ok(parse_backends(file, &String::from_utf8_lossy(&bytes))?)
}

async fn ask_dns((dns, interval): (DnsName, Duration), origin: Origin, pool: Arc<Pool>, counters: Reloads) {
    let mut trouble = String::new();
    loop {
        let applied = match addresses(&dns).await {
            Ok(addresses) => {
                let upstream = |address: &SocketAddr| Upstream {
                    name: None,
                    url: format!("http://{address}"),
                    models: dns.models.clone(),
                    weight: dns.weight,
                    key: dns.key.clone(),
                };
                let upstreams: Vec<_> = addresses.iter().map(upstream).collect();
                pool.replace(&origin, &upstreams).map_err(Trouble::from)
            }
            Err(error) => Err(error),
        };
        // The same trouble is told once.
        let now = applied.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if now.is_empty() || now != trouble {
            told(&counters, &origin, applied);
        }
        trouble = now;
        sleep(interval).await;
    }
}

/// The name's addresses of the first family that has any: one that has both would be two backends.
async fn addresses(dns: &DnsName) -> Result<Vec<SocketAddr>, Trouble> {
    let failed = |why: String| Trouble::Lookup(dns.host.clone(), why);
    let found = timeout(LOOKUP, lookup_host((dns.host.as_str(), dns.port))).await;
    let all: Vec<SocketAddr> =
        found.map_err(|_| failed("no answer".into()))?.map_err(|error| failed(error.to_string()))?.collect();
    let four = all.iter().any(SocketAddr::is_ipv4);
    let mut addresses: Vec<_> = all.into_iter().filter(|address| address.is_ipv4() == four).collect();
    addresses.sort();
    addresses.dedup();
    addresses.truncate(MOST_ADDRESSES);
    if addresses.is_empty() { Err(failed("it has no address".into())) } else { Ok(addresses) }
}

fn told(counters: &Reloads, origin: &Origin, applied: Result<crate::pool::Changed, Trouble>) {
    let source = origin.as_str();
    match applied {
        Ok(changed) if changed.is_empty() => {}
        Ok(changed) => {
            counters.discovery(source, "applied");
            tracing::info!(source, ?changed, "the backends were changed");
        }
        Err(error) => {
            counters.discovery(source, "rejected");
            tracing::warn!(source, %error, "the backends stay as they are");
        }
    }
}
