//! A model file's metadata, and the tokenizer made of it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    infergw::foreign::gguf(bytes);
});
