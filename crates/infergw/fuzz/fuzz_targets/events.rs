//! An upstream's stream of events, however it is cut.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::events(bytes);
});
