//! A peer that speaks ZMTP by hand over TCP, rightly or not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub(crate) struct RawPeer {
    stream: TcpStream,
}

/// A ZMTP frame: its flags (1 more, 2 long, 4 command) and its body.
pub(crate) struct Frame {
    pub(crate) flags: u8,
    pub(crate) body: Vec<u8>,
}

// === impl RawPeer ===

impl RawPeer {
    /// Connect and greet as ZMTP 3.`minor` with the NULL mechanism.
    pub(crate) fn connect(address: &str, kind: &str, identity: &[u8], minor: u8) -> Self {
        let stream = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut peer = Self { stream };
        let mut greeting = [0_u8; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[11] = minor;
        greeting[12..16].copy_from_slice(b"NULL");
        peer.write(&greeting);
        let mut theirs = [0_u8; 64];
        peer.stream.read_exact(&mut theirs).unwrap();
        let mut ready = b"\x05READY".to_vec();
        for (name, value) in [("Socket-Type", kind.as_bytes()), ("Identity", identity)] {
            ready.push(u8::try_from(name.len()).unwrap());
            ready.extend(name.as_bytes());
            ready.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            ready.extend(value);
        }
        peer.send(4, &ready);
        let answer = peer.receive().expect("READY");
        assert!(answer.flags & 4 != 0 && answer.body.starts_with(b"\x05READY"));
        peer
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, flags: u8, body: &[u8]) {
        let mut frame = match u8::try_from(body.len()) {
            Ok(length) => vec![flags, length],
            Err(_) => [&[flags | 2], u64::try_from(body.len()).unwrap().to_be_bytes().as_slice()].concat(),
        };
        frame.extend(body);
        self.write(&frame);
    }

    /// The next frame; `None` once the peer has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Frame> {
        let flags = self.bytes(1)?[0];
        let length = if flags & 2 == 0 {
            usize::from(self.bytes(1)?[0])
        } else {
            usize::try_from(u64::from_be_bytes(self.bytes(8)?.try_into().unwrap())).unwrap()
        };
        Some(Frame { flags, body: self.bytes(length)? })
    }

    /// The frames of the next message that is not a command.
    pub(crate) fn receive_message(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        loop {
            let frame = self.receive()?;
            if frame.flags & 4 != 0 {
                continue;
            }
            frames.push(frame.body);
            if frame.flags & 1 == 0 {
                return Some(frames);
            }
        }
    }

    fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("the peer neither sends nor closes")
            }
            Err(_) => None,
        }
    }
}
