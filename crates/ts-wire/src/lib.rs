//! The TokenSpeed engine wire: schema and byte-exact msgpack codec.
#![forbid(unsafe_code)]
