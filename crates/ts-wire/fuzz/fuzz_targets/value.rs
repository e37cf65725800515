//! Untyped values: reading one and skipping it accept the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ts_wire::msgpack::Decoder;
use ts_wire::{Value, Wire};

fuzz_target!(|message: &[u8]| {
    let mut reader = Decoder::over(message);
    let mut skipper = reader.clone();
    let read = Value::decode(&mut reader);
    assert_eq!(read.is_ok(), skipper.skip().is_ok());
    if read.is_ok() {
        assert_eq!(reader.position(), skipper.position());
    }
});
