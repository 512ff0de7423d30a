//! Tests over everything this crate writes and reads.

mod cluster_file;
mod golden;
mod hostile;
mod keeper;
mod keeper_samples;
mod levels;
mod random;
mod round_trips;
mod samples;
