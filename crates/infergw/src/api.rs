//! Step 2: what the client speaks, parsed once, and the one error shape.

pub mod error;
