//! A seeded virtual world that drives the protocol machines and tries to break them.

pub mod fact;
pub mod invariants;
