//! A frontend's connection to one TokenSpeed engine group.
#![forbid(unsafe_code)]
