//! Mock upstream and load generator: the two ends of every benchmark of infergw.
//!
//! The generator knows nothing of infergw, so that the same run can be pointed at the mock itself, at infergw, and at any other
//! proxy in front of the mock. What a run measures is in [`report::Report`].
#![forbid(unsafe_code)]

pub mod delay;
pub mod load;
pub mod mock;
pub mod report;
