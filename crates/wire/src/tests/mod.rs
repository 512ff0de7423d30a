//! Tests over everything this crate writes and reads.

mod golden;
mod hostile;
mod random;
mod round_trips;
mod samples;
