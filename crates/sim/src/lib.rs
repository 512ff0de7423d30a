//! A seeded virtual world that drives the protocol machines and tries to break them.

pub mod baseline;
pub mod clock;
pub mod engine;
pub mod fact;
pub mod invariants;
pub mod net;
