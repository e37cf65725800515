//! Write the corpus of every target: `cargo run --bin corpus`, then `cargo +nightly fuzz run text`.

use std::fs;
use std::io;
use std::path::Path;

use infergw::foreign::{READERS, corpus};

fn main() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, _) in READERS {
        fs::create_dir_all(here.join(name))?;
        for (number, bytes) in corpus(name).iter().enumerate() {
            fs::write(here.join(name).join(format!("whole-{number}")), bytes)?;
        }
    }
    // The door takes what a client says after a 0, and what an upstream answers after a 1.
    fs::create_dir_all(here.join("door"))?;
    let body = "{\"model\":\"m\",\"stream\":true,\"messages\":[]}";
    let length = body.len();
    let client = format!("\0POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let upstream = format!("\x01HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{event}data: [DONE]\n\n");
    fs::write(here.join("door/client"), client)?;
    fs::write(here.join("door/upstream"), upstream)
}
