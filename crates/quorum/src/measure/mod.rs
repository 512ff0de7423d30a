//! Measures of quorum systems: load, failure probability, resilience, messages, latency.
//!
//! Every value says whether it is exact. One that is not comes with bounds that hold anyway.

mod diagram;
pub mod failure;
pub mod hierarchy;
pub mod latency;
pub mod load;
pub mod messages;
pub mod resilience;
pub mod tables;

/// How far a long computation is, for a progress bar. `done` never passes `total`; a stage may
/// end before it reaches `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, in a few words.
    pub stage: &'static str,
    /// Steps done.
    pub done: u64,
    /// Steps there are at most.
    pub total: u64,
}

/// A progress receiver that drops what it is told.
pub fn quiet(_: Progress) {}
