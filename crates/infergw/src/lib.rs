//! The front door of self-hosted LLM inference: coalescing, routing, streaming.
#![forbid(unsafe_code)]
