//! A rank made of TokenSpeed's own sockets: `pyengine` in a process that ends with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) struct Rank {
    child: Child,
    dump: PathBuf,
}

fn from_env(name: &str, default: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os(name).map_or_else(|| root.join(default), PathBuf::from)
}

impl Rank {
    /// Rank 0 of a group of one, dialling `handshake`.
    pub(crate) fn start(handshake: &str, arguments: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let python = from_env("INFERGW_PYENGINE_PYTHON", ".venv/bin/python");
        let script = from_env("INFERGW_PYENGINE", "../shared/pyengine/pyengine.py");
        assert!(python.exists(), "no Python at {}: run `make venv`", python.display());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dump = std::env::temp_dir().join(format!("infergw-rank-{}-{number}", std::process::id()));
        let child = Command::new(python)
            .arg(script)
            .args(["--handshake", handshake, "--index", "0", "--die-with-parent", "--dump"])
            .arg(&dump)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(if std::env::var_os("SHOW_RANK").is_some() { Stdio::inherit() } else { Stdio::null() })
            .spawn()
            .unwrap();
        Self { child, dump }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The messages that the engine received: the type byte, and what it holds.
    pub(crate) fn received(&self) -> Vec<(u8, Value)> {
        let text = std::fs::read_to_string(&self.dump).unwrap_or_default();
        // The last line may be half written.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .map(|line| {
                let kind = u8::from_str_radix(line["frames"][0].as_str().unwrap(), 16).unwrap();
                (kind, line["decoded"].clone())
            })
            .collect()
    }

    pub(crate) fn count(&self, kind: u8) -> usize {
        self.received().iter().filter(|(k, _)| *k == kind).count()
    }

    /// Wait until the engine has received `count` messages of a kind.
    pub(crate) async fn wait_for(&self, kind: u8, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.count(kind) < count {
            assert!(Instant::now() < deadline, "the engine got {:?}", self.received());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.dump);
    }
}
