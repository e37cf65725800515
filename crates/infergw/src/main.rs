//! The gateway binary.
#![forbid(unsafe_code)]
fn main() {}
