//! Measures of quorum systems: load, failure probability, resilience, messages, latency.

pub mod failure;
pub mod hierarchy;
pub mod latency;
pub mod load;
pub mod messages;
pub mod resilience;
