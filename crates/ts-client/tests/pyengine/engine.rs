//! An engine process: its start, its end, what it says and what it received.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use ts_client::ClientConfig;

pub(crate) struct Engine {
    child: Child,
    events: Arc<Mutex<Vec<Value>>>,
    dump: PathBuf,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn from_env(name: &str, default: &str) -> PathBuf {
    std::env::var_os(name).map_or_else(|| workspace().join(default), PathBuf::from)
}

// === impl Engine ===

impl Engine {
    /// Start rank `index` of the group that `config` describes.
    pub(crate) fn start(handshake: &str, index: u16, config: &ClientConfig, args: &[&str]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let python = from_env("INFERGW_PYENGINE_PYTHON", ".venv/bin/python");
        assert!(python.exists(), "no Python for the test engines at {}: run `make venv`", python.display());
        let script = from_env("INFERGW_PYENGINE", "tests/pyengine/pyengine.py");
        let name = format!("ts-client-{}-{}.jsonl", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dump = std::env::temp_dir().join(name);
        let mut child = Command::new(python)
            .arg(script)
            .args(["--handshake", handshake, "--die-with-parent"])
            .args(["--index", &index.to_string()])
            .args(["--dp-rank", &(index - config.first_engine_index).to_string()])
            .args(["--dp-size", &config.num_engines.to_string()])
            .arg("--dump")
            .arg(&dump)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let heard = Arc::clone(&events);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().extend(serde_json::from_str::<Value>(&line));
            }
        });
        Self { child, events, dump }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success(), "kill -{name}");
    }

    /// Kill it and wait until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// How often it reported this event.
    pub(crate) fn count(&self, event: &str) -> usize {
        self.events.lock().unwrap().iter().filter(|line| line["event"] == event).count()
    }

    /// The messages of one type that it received: what each decoded to.
    fn received(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.dump).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["frames"][0] == kind).collect()
    }

    /// The request ids of all aborts that it received, in order.
    pub(crate) fn aborts(&self) -> Vec<String> {
        let messages = self.received("01");
        messages.iter().flat_map(|line| strings(&line["frames"][1])).collect()
    }

    /// The request ids of all requests that it received, but for signs of life.
    pub(crate) fn adds(&self) -> Vec<String> {
        let messages = self.received("00");
        let rids = messages.iter().flat_map(|line| line["decoded"].as_array().cloned().unwrap_or_default());
        let rids = rids.filter_map(|add| rid_of(&add));
        rids.filter(|rid| !rid.starts_with("liveness-check")).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        let _never_made = std::fs::remove_file(&self.dump);
    }
}

/// An ADD as the dump has it: an array with the rid behind the tag, or an object.
fn rid_of(add: &Value) -> Option<String> {
    let rid = add.get("rid").or_else(|| add.get(1))?;
    Some(rid.as_str()?.to_owned())
}

/// The strings of an abort's payload, given in hex.
fn strings(hex: &Value) -> Vec<String> {
    let hex = hex.as_str().unwrap_or_default();
    let bytes: Vec<u8> =
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    ts_wire::decode_bytes(&bytes).unwrap()
}
