//! A file that is looked at again and again.
//!
//! Its contents are compared, once a second. Notices from the kernel would be sooner, but they belong to inodes: editors write a
//! new file and rename it, Kubernetes swaps a symbolic link two folders away, and network file systems send none at all; each
//! of these has a way to be missed, and a comparison of some kilobytes has none and costs nothing. Times of modification are no
//! help: a link that is swapped may lead to an older file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Something new must stand there for so long: who writes a file in place is not done at once.
const SETTLE: Duration = Duration::from_millis(200);

/// The largest file that is read.
const LARGEST: u64 = 16 << 20;

/// What stands in the file, or why that cannot be told.
pub(crate) type Contents = Result<Vec<u8>, io::ErrorKind>;

/// The file.
#[derive(Debug)]
pub(crate) struct Watched {
    path: PathBuf,
    last: Option<Contents>,
}

impl Watched {
    /// Nothing has been seen yet: whatever stands there is new.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, last: None }
    }

    /// The contents, once they are others than the last time.
    pub(crate) async fn next(&mut self) -> Contents {
        if self.last.is_some() {
            sleep(LOOK).await;
        }
        loop {
            let now = look(&self.path).await;
            if self.last.as_ref() == Some(&now) {
                sleep(LOOK).await;
                continue;
            }
            sleep(if self.last.is_some() { SETTLE } else { Duration::ZERO }).await;
            if look(&self.path).await == now {
                self.last = Some(now.clone());
                return now;
            }
        }
    }
}

async fn look(path: &Path) -> Contents {
    let path = path.to_owned();
    spawn_blocking(move || read(&path)).await.unwrap_or(Err(io::ErrorKind::Other))
}

fn read(path: &Path) -> Contents {
    let contents = || {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            // A pipe can be read once.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    };
    contents().map_err(|error: io::Error| error.kind())
}
