//! The head of a request or an answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::head(bytes);
});
