//! A request's body on its way to an engine: fields, chat template, tokens.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::prepared(bytes);
});
