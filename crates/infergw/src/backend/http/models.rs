//! Which models an upstream serves: configured, or learned from its `/v1/models` and refreshed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connect::Connections;

/// Between two looks at a list that is known, and at one that is not.
const REFRESH: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Largest list, and most models that are taken from it.
const MAX_LIST: usize = 4 << 20;
const MAX_MODELS: usize = 1000;

/// The models of one upstream, and whether it answers.
#[derive(Debug)]
pub struct LearnedModels {
    state: Mutex<State>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    configured: bool,
    models: Vec<String>,
    known: bool,
    reason: String,
}

#[derive(Deserialize)]
struct List {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
}

/// The request that lists an upstream's models.
///
/// # Errors
/// A path that no request can have.
pub fn request(
    base_path: &str,
    authority: &HeaderValue,
    key: Option<&HeaderValue>,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request =
        Request::builder().method(Method::GET).uri(format!("{base_path}/v1/models")).header(HOST, authority);
    if let Some(key) = key {
        request = request.header(AUTHORIZATION, key);
    }
    request.body(Full::default())
}

impl LearnedModels {
    /// Take the configured models, and keep asking the upstream for its list where there are none.
    pub fn start(configured: Vec<String>, connections: Arc<Connections>, request: Request<Full<Bytes>>) -> Arc<Self> {
        let state = State { configured: !configured.is_empty(), models: configured, ..State::default() };
        let learned = Arc::new(Self { state: Mutex::new(state), task: Mutex::default() });
        if !learned.lock().configured {
            let weak = Arc::downgrade(&learned);
            let task = tokio::spawn(async move {
                loop {
                    let found = timeout(PROBE_LIMIT, list(&connections, &request)).await;
                    let Some(learned) = weak.upgrade() else { return };
                    let known = learned.learn(found.unwrap_or_else(|_| Err("it does not answer".into())));
                    drop(learned);
                    sleep(if known { REFRESH } else { RETRY }).await;
                }
            });
            *learned.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
        learned
    }

    /// Ready, why not, and the models.
    pub fn snapshot(&self) -> (bool, String, Vec<String>) {
        let state = self.lock();
        let ready = state.configured || state.known;
        (ready, if ready { String::new() } else { state.reason.clone() }, state.models.clone())
    }

    /// Whether nothing is known: no list was configured, and none has come, or an empty one.
    pub fn unknown(&self) -> bool {
        self.lock().models.is_empty()
    }

    fn learn(&self, found: Result<Vec<String>, String>) -> bool {
        let mut state = self.lock();
        match found {
            Ok(models) => {
                state.models = models;
                state.known = true;
                true
            }
            Err(reason) => {
                // What was learned stays: whether it can serve is the business of requests and their retries.
                state.reason = format!("waiting for the upstream's model list: {reason}");
                state.known && !state.models.is_empty()
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LearnedModels {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

async fn list(connections: &Connections, request: &Request<Full<Bytes>>) -> Result<Vec<String>, String> {
    let (response, sender) = connections.send(super::connect::copy_of(request)).await.map_err(|e| e.to_string())?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_LIST).collect().await;
    let body = body.map_err(|_| "its model list cannot be read".to_owned())?.to_bytes();
    connections.recycle(sender);
    if status == http::StatusCode::NOT_FOUND || status == http::StatusCode::METHOD_NOT_ALLOWED {
        // It answers, but has no list: it takes any model.
        return Ok(Vec::new());
    }
    if !status.is_success() {
        return Err(format!("it answered {} to /v1/models", status.as_u16()));
    }
    let list: List = serde_json::from_slice(&body).map_err(|_| "its model list is no list".to_owned())?;
    Ok(list.data.into_iter().take(MAX_MODELS).map(|entry| entry.id).collect())
}
