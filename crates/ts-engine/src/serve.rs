//! The engine's side of the wire: it dials the frontend, registers, then serves until it is stopped. One thread owns the
//! sockets, the scheduler and the model.

mod handshake;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ts_wire::EngineRequest;

use crate::model::Model;
use crate::scheduler::Scheduler;
use crate::simulate::{SimulateConfig, Simulated};
use handshake::Sockets;

/// How long a quiet loop sleeps at most before it looks whether it was stopped.
const TICK: Duration = Duration::from_millis(100);
/// Messages taken in between two steps.
const MAX_RECEIVED: usize = 256;
/// Rows and replies that wait for a frontend which does not read. Beyond them nothing more is taken in.
const MAX_BACKLOG: usize = 4096;
/// Frames of one message.
const MAX_FRAMES: usize = 1024;

/// Where the tokens come from.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelSource {
    /// A Llama-like model in a GGUF file, computed on the CPU. Needs the feature `model`.
    Gguf(PathBuf),
    /// A cost model and a script.
    Simulated(SimulateConfig),
}

/// One engine rank.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The frontend's handshake address, such as `tcp://127.0.0.1:29550`.
    pub handshake: String,
    /// The engine's index in the frontend's eyes: its identity on the sockets.
    pub index: u16,
    /// Its attention-DP rank, counted from the first index of its group.
    pub dp_rank: u16,
    /// Ranks of its group.
    pub dp_size: u16,
    /// What it serves.
    pub model: ModelSource,
    /// The name to register the model under. Default: the file's name without its ending, or the simulation's name.
    pub name: Option<String>,
    /// Threads that compute. One is the best where cores are shared: more of them wait for each other, spinning.
    pub threads: usize,
    /// How long to wait for the frontend's INIT.
    pub handshake_timeout: Duration,
}

impl EngineConfig {
    /// The only rank of its group, serving `model`.
    pub fn new(handshake: impl Into<String>, model: ModelSource) -> Self {
        EngineConfig {
            handshake: handshake.into(),
            index: 0,
            dp_rank: 0,
            dp_size: 1,
            model,
            name: None,
            threads: 1,
            // What the engines wait.
            handshake_timeout: Duration::from_secs(600),
        }
    }

    /// The only rank of its group, simulated.
    pub fn simulated(handshake: impl Into<String>, simulation: SimulateConfig) -> Self {
        EngineConfig::new(handshake, ModelSource::Simulated(simulation))
    }

    /// The only rank of its group, with a model file.
    pub fn gguf(handshake: impl Into<String>, file: impl Into<PathBuf>) -> Self {
        EngineConfig::new(handshake, ModelSource::Gguf(file.into()))
    }
}

/// Why an engine did not start, or ended without being told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model cannot be loaded.
    #[error("{0}")]
    Model(String),
    /// A socket call failed.
    #[error("{doing}: {source}")]
    Socket {
        /// What was tried.
        doing: String,
        /// What came of it.
        source: zmq::Error,
    },
    /// No INIT came in time.
    #[error("no INIT from the frontend at {address} within {} s", .limit.as_secs_f32())]
    HandshakeTimeout {
        /// The handshake address.
        address: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// An INIT that is none.
    #[error("the frontend's INIT is malformed: {0}")]
    Init(#[from] ts_wire::Error),
    /// An INIT that says not where to connect.
    #[error("the frontend's INIT names no {0} address")]
    NoAddress(&'static str),
    /// [`Engine::wait_serving`] gave up; the engine still tries.
    #[error("the engine does not serve yet after {} s", .0.as_secs_f32())]
    NotServing(Duration),
    /// It was stopped before it served.
    #[error("the engine was stopped")]
    Stopped,
    /// The system gives no thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The engine's thread panicked: a defect.
    #[error("the engine crashed")]
    Crashed,
}

/// How far an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake,
    Serving,
    Ended,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Say nothing at the end, as a killed process does.
    silent: AtomicBool,
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Shared {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn phase(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.changed.notify_all();
    }
}

/// Marks the end also when the thread panics.
struct EndOnDrop<'a>(&'a Shared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.enter(Phase::Ended);
    }
}

/// Asks an engine to stop, from anywhere.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks for an orderly stop; [`Engine::wait`] returns when it is done.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// A running engine. Dropping it is like killing its process: nobody is told.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), EngineError>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("phase", &self.shared.phase()).finish_non_exhaustive()
    }
}

/// Loads the model, then starts the engine on a thread of its own. The frontend may come up later: the handshake goes on
/// in the background, see [`Engine::wait_serving`].
///
/// # Errors
/// The model cannot be loaded, or no thread started.
pub fn start(config: EngineConfig) -> Result<Engine, EngineError> {
    let model = load(&config)?;
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        silent: AtomicBool::new(false),
        phase: Mutex::new(Phase::Handshake),
        changed: Condvar::new(),
    });
    let inside = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name(format!("engine-{}", config.index)).spawn(move || {
        let _end = EndOnDrop(&inside);
        run(&config, model, &inside)
    })?;
    Ok(Engine { shared, thread: Some(thread) })
}

fn load(config: &EngineConfig) -> Result<Box<dyn Model>, EngineError> {
    match &config.model {
        ModelSource::Simulated(simulation) => {
            let mut simulation = simulation.clone();
            simulation.name = config.name.clone().unwrap_or(simulation.name);
            Ok(Box::new(Simulated::new(simulation)))
        }
        #[cfg(feature = "model")]
        ModelSource::Gguf(file) => {
            let mut model = crate::model::Llama::load(file, config.threads)
                .map_err(|error| EngineError::Model(format!("cannot load the model {}: {error}", file.display())))?;
            if let Some(name) = &config.name {
                model.set_name(name);
            }
            Ok(Box::new(model))
        }
        #[cfg(not(feature = "model"))]
        ModelSource::Gguf(_) => Err(EngineError::Model("this build can only simulate (feature `model` is off)".into())),
    }
}

impl Engine {
    /// Whether its thread lives: it dials, or it serves.
    pub fn is_running(&self) -> bool {
        self.shared.phase() != Phase::Ended
    }

    /// Whether it has registered with the frontend.
    pub fn is_serving(&self) -> bool {
        self.shared.phase() == Phase::Serving
    }

    /// Waits until it has registered.
    ///
    /// # Errors
    /// The reason why it ended, or [`EngineError::NotServing`] after `limit`.
    pub fn wait_serving(&mut self, limit: Duration) -> Result<(), EngineError> {
        let deadline = Instant::now() + limit;
        let mut phase = self.shared.phase.lock().unwrap_or_else(PoisonError::into_inner);
        while *phase == Phase::Handshake {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EngineError::NotServing(limit));
            }
            phase = self.shared.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let serving = *phase == Phase::Serving;
        drop(phase);
        if serving { Ok(()) } else { self.join().and(Err(EngineError::Stopped)) }
    }

    /// Stops it orderly: the frontend is told.
    ///
    /// # Errors
    /// It had ended before, by a failure.
    pub fn stop(mut self) -> Result<(), EngineError> {
        self.stopper().stop();
        self.join()
    }

    /// Ends it without telling the frontend, as if its process were killed.
    pub fn kill(mut self) {
        self.end_silently();
    }

    /// Something that can stop it, for a signal handler.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It ended by a failure.
    pub fn wait(mut self) -> Result<(), EngineError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), EngineError> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(EngineError::Crashed),
        }
    }

    fn end_silently(&mut self) {
        self.shared.silent.store(true, Ordering::Relaxed);
        self.stopper().stop();
        if let Err(error) = self.join() {
            tracing::debug!(%error, "engine had failed");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end_silently();
    }
}

fn run(config: &EngineConfig, model: Box<dyn Model>, shared: &Shared) -> Result<(), EngineError> {
    let sockets = match handshake::register(config, model.spec(), &|| shared.stopping()) {
        Err(EngineError::Stopped) => return Ok(()),
        other => other?,
    };
    shared.enter(Phase::Serving);
    tracing::info!(index = config.index, model = model.spec().name, "engine serves");
    let mut scheduler = Scheduler::new(model, config.index);
    let result = serve(&sockets, &mut scheduler, shared);
    tracing::info!(index = config.index, "engine stops");
    let silent = shared.silent.load(Ordering::Relaxed);
    sockets.close(if silent { None } else { Some(ts_wire::ENGINE_CORE_DEAD) });
    result
}

/// Takes in, computes, sends out, in turns, until it is told to stop.
fn serve(sockets: &Sockets, scheduler: &mut Scheduler, shared: &Shared) -> Result<(), EngineError> {
    // When the results of the last step may go out: a simulated step is held back for its cost.
    let mut ready = Instant::now();
    while !shared.stopping() {
        if scheduler.backlog() < MAX_BACKLOG {
            take_in(sockets, scheduler)?;
        }
        let now = Instant::now();
        if now < ready {
            sockets.wait_input(ready - now)?;
            continue;
        }
        if !sockets.send_all(scheduler)? {
            // The frontend does not read. Nothing is computed for nobody, but its aborts are still heard.
            sockets.wait_output(TICK, scheduler.backlog() < MAX_BACKLOG)?;
        } else if scheduler.has_work() {
            let busy = scheduler.step();
            if !busy.is_zero() {
                // Steps follow each other without the loop's own delays, as long as those are small.
                let start = if now - ready < Duration::from_millis(5) { ready } else { now };
                ready = start + busy;
            }
        } else {
            sockets.wait_input(TICK)?;
        }
    }
    Ok(())
}

fn take_in(sockets: &Sockets, scheduler: &mut Scheduler) -> Result<(), EngineError> {
    for _ in 0..MAX_RECEIVED {
        let Some(frames) = sockets.receive(MAX_FRAMES)? else { break };
        match EngineRequest::from_frames(&frames) {
            Ok(request) => scheduler.receive(request, Instant::now()),
            // As the engines do it: no answer, and on with the next one.
            Err(error) => tracing::warn!(%error, frames = frames.len(), "message dropped: it cannot be decoded"),
        }
    }
    Ok(())
}
