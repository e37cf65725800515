//! The handle on a group: each method sends one command to the thread that owns the sockets, or reads what it keeps
//! current here.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};
use tracing::Instrument;
use ts_wire::{
    ControlOutput, ControlRequest, EngineCoreReadyResponse, EngineRequest, StrOrList, TokenizedGenerateReqInput,
};

use crate::config::{ClientConfig, Routing, Tuning};
use crate::driver::Thread;
use crate::error::{Error, Result, StreamError};
use crate::listener::ClientListener;
use crate::observe::RankStats;
use crate::route::{self, Policy, RankView, Slot, Target};
use crate::state::{GroupState, GroupWatch};
use crate::stream::{RequestStream, StreamBuffer};
use crate::transport::{Bound, Wake};
use crate::wakeups::Wakeups;

/// An engine that completed the handshake.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// Its index, which is its routing identity.
    pub index: u16,
    /// The configuration that it registered with.
    pub ready: EngineCoreReadyResponse,
}

/// An engine's scheduler load, as it last reported it with its output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests running.
    pub num_running: i64,
    /// Requests waiting.
    pub num_waiting: i64,
    /// KV pages in use by its requests.
    pub kv_active_pages: i64,
    /// KV pages that it has.
    pub kv_total_pages: i64,
}

/// A connection to one engine group.
///
/// Dropping it ends its streams with [`StreamError::ClientClosed`], aborts what runs on the engines and frees the
/// addresses; it waits for that, at most [`Tuning::close_timeout`] and a little.
#[derive(Debug)]
pub struct EngineClient {
    shared: Arc<Shared>,
    thread: Thread,
}

/// What the handle and the thread have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) tuning: Tuning,
    pub(crate) bound: Bound,
    pub(crate) ranks: Vec<RankShared>,
    pub(crate) engines: Mutex<Vec<EngineInfo>>,
    pub(crate) state: watch::Sender<GroupState>,
    /// The stage and the engines that the handshake waits for; empty when all are ready.
    pub(crate) pending: Mutex<Option<(&'static str, Vec<u16>)>>,
    pub(crate) refusals: Mutex<Vec<String>>,
    pub(crate) closing: AtomicBool,
    pub(crate) wakeups: Wakeups,
    dropped: Mutex<Vec<Arc<StreamBuffer>>>,
    wake: Wake,
    turn: AtomicUsize,
}

/// What is known of one rank.
#[derive(Debug, Default)]
pub(crate) struct RankShared {
    pub(crate) serving: AtomicBool,
    in_flight: Arc<AtomicUsize>,
    figures: Mutex<Figures>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    load: EngineLoad,
    stats: RankStats,
}

/// What the handle asks of the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Add(Submission),
    Abort { rid: Arc<str>, reply: oneshot::Sender<bool> },
    Control { request: Box<ControlRequest>, timeout: Duration, reply: oneshot::Sender<Result<Vec<ControlOutput>>> },
}

/// A request on its way to a rank.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) rank: usize,
    pub(crate) frames: Vec<Bytes>,
    pub(crate) stream: Arc<StreamBuffer>,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

// === impl EngineClient ===

impl EngineClient {
    /// Bind the sockets and wait until every engine has registered. Use [`ClientListener`] to learn the bound address
    /// before waiting, or to serve without waiting.
    ///
    /// # Errors
    ///
    /// As [`ClientListener::bind`] and [`ClientListener::accept`].
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        Self::connect_with(config, Tuning::default()).await
    }

    /// [`EngineClient::connect`] with more to set.
    ///
    /// # Errors
    ///
    /// As [`ClientListener::bind`] and [`ClientListener::accept`].
    pub async fn connect_with(config: ClientConfig, tuning: Tuning) -> Result<Self> {
        ClientListener::bind_with(config, tuning).await?.accept().await
    }

    pub(crate) fn new(shared: Arc<Shared>, thread: Thread) -> Self {
        Self { shared, thread }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The registered engines, in index order, with what each registered. An engine that was lost stays listed until
    /// it registers anew.
    pub fn engines(&self) -> Vec<EngineInfo> {
        lock(&self.shared.engines).clone()
    }

    /// Each rank's last reported load, in index order; zeros before the first report.
    pub fn loads(&self) -> Vec<EngineLoad> {
        self.shared.ranks.iter().map(|rank| lock(&rank.figures).load).collect()
    }

    /// This client's unfinished requests on each rank, in index order.
    pub fn in_flight(&self) -> Vec<usize> {
        self.shared.ranks.iter().map(RankShared::in_flight).collect()
    }

    /// Totals of each rank, in index order.
    pub fn stats(&self) -> Vec<RankStats> {
        let figures = self.shared.ranks.iter().map(|rank| lock(&rank.figures).stats);
        figures
            .zip(self.shared.config.first_engine_index..)
            .map(|(stats, engine_index)| RankStats { engine_index, ..stats })
            .collect()
    }

    /// The handshake address that engines dial, as bound.
    pub fn handshake_address(&self) -> &str {
        &self.shared.bound.handshake
    }

    /// The group's state now.
    pub fn state(&self) -> GroupState {
        self.shared.state.borrow().clone()
    }

    /// Whether a request would be accepted now. Cheaper than [`EngineClient::state`].
    pub fn is_serving(&self) -> bool {
        self.shared.ranks.iter().any(|rank| rank.serving.load(Ordering::Acquire))
    }

    /// Follow the group's state.
    pub fn watch(&self) -> GroupWatch {
        GroupWatch { receiver: self.shared.state.subscribe() }
    }

    /// Submit a request and return its output stream, once the request is with the engine's socket.
    ///
    /// Dropping the future withdraws the request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidRequest`] for a request without one id or with a rank that does not exist,
    /// [`Error::DuplicateRequestId`], [`Error::SendTimeout`] if the engine does not read (the request was not and will
    /// not be delivered), [`Error::Unavailable`] while no engine can take it.
    pub async fn generate(&self, request: TokenizedGenerateReqInput) -> Result<RequestStream> {
        let Some(StrOrList::One(rid)) = &request.rid else {
            return Err(Error::InvalidRequest("a request has one id".into()));
        };
        let rid: Arc<str> = rid.as_str().into();
        let (rank, slot) = self.place(&request)?;
        let engine_index =
            self.shared.config.first_engine_index.saturating_add(u16::try_from(rank).unwrap_or(u16::MAX));
        let span = tracing::debug_span!("generate", %rid, rank = engine_index);
        let frames = EngineRequest::Add(Box::new(request)).to_frames();
        let limit = self.shared.tuning.stream_buffer_bytes;
        let buffer = Arc::new(StreamBuffer::new(rid, engine_index, slot, limit));
        // From here on a dropped future means a dropped stream, and that means an abort.
        let stream = RequestStream::new(Arc::clone(&buffer), Arc::downgrade(&self.shared));
        let (reply, answer) = oneshot::channel();
        let submission = Submission { rank, frames, stream: buffer, reply };
        let submit = async {
            self.ask(Command::Add(submission)).await?;
            answer.await.map_err(|_| closed())?
        };
        submit.instrument(span).await?;
        Ok(stream)
    }

    /// Run a control operation on every engine, and return the replies, one per engine, in order of arrival.
    /// Operations of one kind run one at a time. The limit is [`Tuning::control_timeout`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if not all engines answered in time, naming those that did not (0.1.1 engines drop every
    /// control operation), and if a rank is not there to be asked.
    pub async fn control(&self, request: ControlRequest) -> Result<Vec<ControlOutput>> {
        self.control_within(request, self.shared.tuning.control_timeout).await
    }

    /// [`EngineClient::control`] with its own limit: a `wait` pause lasts as long as the longest request.
    ///
    /// # Errors
    ///
    /// As [`EngineClient::control`].
    pub async fn control_within(&self, request: ControlRequest, timeout: Duration) -> Result<Vec<ControlOutput>> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Control { request: Box::new(request), timeout, reply }).await?;
        answer.await.map_err(|_| closed())?
    }

    /// Abort a request. Its stream ends at once with an `"abort"` chunk; the engine is sent one abort, which it does
    /// not answer. Returns `false` if no such request is in flight.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] once the client is closed.
    pub async fn abort(&self, rid: &str) -> Result<bool> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Abort { rid: rid.into(), reply }).await?;
        answer.await.map_err(|_| closed())
    }

    /// Close the client as dropping it does, without blocking the thread of the caller.
    pub async fn close(self) {
        let _done = tokio::task::spawn_blocking(move || drop(self)).await;
    }

    /// Pick the rank for a request and take a place on it.
    fn place(&self, request: &TokenizedGenerateReqInput) -> Result<(usize, Slot)> {
        let shared = &self.shared;
        let routing = shared.config.routing;
        let chosen = match route::target(request, routing, shared.ranks.len())? {
            Target::Rank(rank) => Some(rank),
            Target::Any => {
                let views: Vec<RankView> = shared.ranks.iter().map(RankShared::view).collect();
                let turn = shared.turn.fetch_add(1, Ordering::Relaxed);
                let prompt = request.input_ids.as_deref().unwrap_or_default();
                route::choose(self.policy(routing), &views, prompt, turn)
            }
        };
        match chosen.and_then(|rank| Some((rank, shared.ranks.get(rank)?))) {
            Some((rank, place)) => Ok((rank, Slot::take(&place.in_flight))),
            None => {
                let trouble = self.state().trouble().unwrap_or_else(|| "no engine serves".to_owned());
                Err(Error::Unavailable(StreamError::Transport(trouble)))
            }
        }
    }

    fn policy(&self, routing: Routing) -> Policy {
        match (self.shared.tuning.placement, routing) {
            (Some(placement), _) => Policy::Added(placement),
            (None, Routing::Aggregated(balance)) => Policy::Published(balance),
            // Every request has a target of its own there.
            (None, Routing::BootstrapRoom) => Policy::Published(crate::config::LoadBalance::RoundRobin),
        }
    }

    async fn ask(&self, command: Command) -> Result<()> {
        self.thread.commands().send(command).await.map_err(|_| closed())?;
        self.shared.wake.wake();
        Ok(())
    }
}

impl Drop for EngineClient {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake.wake();
        self.thread.finish(self.shared.tuning.close_timeout + Duration::from_millis(250));
    }
}

fn closed() -> Error {
    Error::Unavailable(StreamError::ClientClosed)
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(config: ClientConfig, tuning: Tuning, bound: Bound, wake: Wake, state: GroupState) -> Self {
        let ranks = (0..config.num_engines).map(|_| RankShared::default()).collect();
        Self {
            config,
            tuning,
            bound,
            ranks,
            engines: Mutex::default(),
            state: watch::Sender::new(state),
            pending: Mutex::default(),
            refusals: Mutex::default(),
            closing: AtomicBool::new(false),
            wakeups: Wakeups::default(),
            dropped: Mutex::default(),
            wake,
            turn: AtomicUsize::new(0),
        }
    }

    /// A stream was dropped before its end. Bounded by the number of streams there were.
    pub(crate) fn stream_dropped(&self, stream: Arc<StreamBuffer>) {
        lock(&self.dropped).push(stream);
        self.wake.wake();
    }

    pub(crate) fn take_dropped(&self) -> Vec<Arc<StreamBuffer>> {
        std::mem::take(&mut *lock(&self.dropped))
    }
}

// === impl RankShared ===

impl RankShared {
    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    fn view(&self) -> RankView {
        RankView {
            serving: self.serving.load(Ordering::Acquire),
            in_flight: self.in_flight(),
            kv_active_pages: lock(&self.figures).load.kv_active_pages,
        }
    }

    pub(crate) fn set_load(&self, load: EngineLoad) {
        lock(&self.figures).load = load;
    }

    pub(crate) fn count(&self, event: crate::observe::Event) {
        lock(&self.figures).stats.count(event);
    }
}

/// A lock that a panic elsewhere does not poison: what is under it is replaced whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
