//! A world of leases: honest nodes, liars that know everything, clients that come and go, clocks
//! that drift, messages that are late or lost. Checked: no two clients hold a lease at once on
//! true time, tokens only grow, and everybody gets its leases when messages come in time.

mod check;
mod liar;
pub mod options;
pub mod response;
pub mod swarm;
pub mod world;

pub use liar::Strategy;
pub use options::{Delays, Growth, LeaseOptions, LeaseOptionsError};
pub use swarm::{PAIRS, swarm};
pub use world::{LeaseOutcome, run};
