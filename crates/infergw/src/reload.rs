//! The configuration, read again while the gateway runs: after SIGHUP, when its file has changed, or when an operator says so.
//!
//! It is read and checked whole before anything is changed. What is wrong with a file that cannot be taken stands in the log, in
//! `GET /admin/reload` and, as a count, in the metrics.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::admission::Admission;
use crate::admit::Keys;
use crate::config::Config;
use crate::config::load::LoadError;
use crate::discovery::Discovery;
use crate::observe::Reloads;
use crate::pool::{Changed, Pool};

mod difference;
pub(crate) mod watched;

use watched::Watched;

type Load = Arc<dyn Fn() -> Result<Config, LoadError> + Send + Sync>;

/// Where the configuration comes from.
#[derive(Clone)]
pub struct Source {
    file: PathBuf,
    load: Load,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Source {
    /// `load` makes the whole configuration, of `file` and of whatever else counts.
    pub fn new(file: PathBuf, load: impl Fn() -> Result<Config, LoadError> + Send + Sync + 'static) -> Self {
        Self { file, load: Arc::new(load) }
    }
}

/// Why the configuration was read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// SIGHUP.
    Signal,
    /// The file has changed.
    File,
    /// `POST /admin/reload`.
    Admin,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is in force, but for what needs a restart.
    Applied {
        /// What was done to the backends.
        backends: Changed,
        /// Settings that stay as they are until a restart.
        needs_restart: Vec<String>,
    },
    /// It says what is in force already.
    Unchanged {
        /// Settings that stay as they are until a restart.
        needs_restart: Vec<String>,
    },
    /// It cannot be taken. Nothing has changed.
    Rejected {
        /// Why.
        error: String,
    },
}

impl Outcome {
    /// The name in the metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Applied { .. } => "applied",
            Self::Unchanged { .. } => "unchanged",
            Self::Rejected { .. } => "rejected",
        }
    }
}

/// The last time that it was read again.
#[derive(Debug, Clone, Serialize)]
pub struct Last {
    /// Seconds since 1970.
    pub at: u64,
    /// Why it was.
    pub trigger: Trigger,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The configuration that is in force, and the way to another one.
#[derive(Debug)]
pub struct Reload {
    keys: Arc<Keys>,
    admission: Arc<Admission>,
    pool: Arc<Pool>,
    counters: Reloads,
    discovery: Discovery,
    /// Held for the whole of a change: one after the other.
    state: Mutex<Option<(Source, Config)>>,
    last: StdMutex<Option<Last>>,
}

impl Reload {
    /// Nothing to read again yet.
    pub fn new((keys, admission, pool): (Arc<Keys>, Arc<Admission>, Arc<Pool>), counters: Reloads) -> Self {
        let discovery = Discovery::new(Arc::clone(&pool), counters.clone());
        Self { keys, admission, pool, counters, discovery, state: Mutex::default(), last: StdMutex::default() }
    }

    /// Ask the sources of discovery that the configuration names.
    pub async fn discover(&self, config: &Config) {
        self.discovery.ask(&config.discovery).await;
    }

    /// From now on the configuration comes from `source`; it has said `in_force` the last time.
    pub async fn from(&self, source: Source, in_force: Config) {
        *self.state.lock().await = Some((source, in_force));
    }

    /// The last time that it was read again; `None` where it never was.
    pub fn last(&self) -> Option<Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Read the configuration again. `None` where it came from nowhere.
    pub async fn now(&self, trigger: Trigger) -> Option<Outcome> {
        let mut state = self.state.lock().await;
        let (source, in_force) = state.as_mut()?;
        let load = Arc::clone(&source.load);
        let loaded = spawn_blocking(move || load()).await;
        let outcome = match loaded {
            Ok(Ok(new)) => self.apply(in_force, new).await,
            Ok(Err(error)) => Outcome::Rejected { error: error.to_string() },
            Err(_) => Outcome::Rejected { error: "it could not be read".into() },
        };
        self.told(trigger, &outcome);
        Some(outcome)
    }

    async fn apply(&self, in_force: &mut Config, new: Config) -> Outcome {
        if let Err(contradiction) = new.check() {
            return Outcome::Rejected { error: contradiction.to_string() };
        }
        let (applied, needs_restart) = difference::applicable(in_force, new);
        if applied == *in_force {
            return Outcome::Unchanged { needs_restart };
        }
        if in_force.has_backends() && !applied.has_backends() {
            // An empty file is an accident: who wants none can drain them.
            let error = "it names no backend at all, and the running gateway has some".into();
            return Outcome::Rejected { error };
        }
        if !in_force.keys.is_empty() && applied.keys.is_empty() {
            let error = "it has no keys, and the running gateway has some: everybody would be let in".into();
            return Outcome::Rejected { error };
        }
        match self.pool.reconfigure(&applied) {
            Ok(backends) => {
                self.keys.replace(&applied.keys);
                self.admission.reconfigure(&applied);
                self.discovery.ask(&applied.discovery).await;
                *in_force = applied;
                Outcome::Applied { backends, needs_restart }
            }
            Err(error) => Outcome::Rejected { error: error.to_string() },
        }
    }

    fn told(&self, trigger: Trigger, outcome: &Outcome) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let again = last.as_ref().is_some_and(|last| last.outcome == *outcome);
        let unchanged = matches!(outcome, Outcome::Unchanged { needs_restart } if needs_restart.is_empty());
        if trigger == Trigger::File && (again || unchanged) {
            // SIGHUP came first, or it was touched only.
            return;
        }
        self.counters.config(outcome.as_str());
        match outcome {
            Outcome::Rejected { error } => {
                tracing::error!(error, ?trigger, "the configuration cannot be taken, nothing has changed");
            }
            Outcome::Applied { backends, .. } => tracing::info!(?backends, ?trigger, "the configuration was changed"),
            Outcome::Unchanged { .. } => tracing::info!(?trigger, "the configuration is in force already"),
        }
        if let Outcome::Applied { needs_restart, .. } | Outcome::Unchanged { needs_restart } = outcome
            && !needs_restart.is_empty()
        {
            tracing::warn!(settings = needs_restart.join(", "), "these settings stay as they are until a restart");
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        *last = Some(Last { at, trigger, outcome: outcome.clone() });
    }

    /// Read the configuration again each time that its file has changed, for ever.
    pub async fn watch(&self) {
        let Some(file) = self.state.lock().await.as_ref().map(|(source, _)| source.file.clone()) else { return };
        let mut watched = Watched::new(file);
        loop {
            // What stands there is read anew: the file is not all that counts, and a file that is not there may be none at all.
            let _ = watched.next().await;
            self.now(Trigger::File).await;
        }
    }
}
