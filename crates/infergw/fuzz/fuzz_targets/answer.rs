//! An upstream's error body.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::answer(bytes);
});
