//! The messages of the startup handshake.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ts_wire::{EngineCoreReadyResponse, HandshakeInitMessage, ReadyMessage, Wire, decode_bytes, encode_frames};

fn check<T: Wire>(message: &[u8]) {
    if let Ok(value) = decode_bytes::<T>(message) {
        let encoded = encode_frames(&value);
        assert_eq!(decode_bytes::<T>(&encoded[0]).map(|again| encode_frames(&again)).ok(), Some(encoded));
    }
}

fuzz_target!(|message: &[u8]| {
    check::<ReadyMessage>(message);
    check::<HandshakeInitMessage>(message);
    check::<EngineCoreReadyResponse>(message);
});
