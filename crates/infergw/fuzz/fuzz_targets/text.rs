//! A model's text: calls, reasoning, stop strings.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::text(bytes);
});
