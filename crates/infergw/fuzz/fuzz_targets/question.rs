//! A request's body: its depth, its fields, and the key under which it is shared.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::question(bytes);
});
