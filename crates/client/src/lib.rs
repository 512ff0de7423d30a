//! The client of a Conclave cluster: it asks the nodes of a quorum itself, one round trip per lock.

pub mod clock;
pub mod driver;
