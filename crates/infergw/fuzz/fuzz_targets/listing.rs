//! An upstream's list of models.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::listing(bytes);
});
