//! A seeded virtual world that drives the protocol machines and tries to break them.

pub mod clock;
mod disk;
pub mod engine;
pub mod fact;
pub mod invariants;
pub mod measure;
pub mod net;
pub mod options;
pub mod trace;
mod workload;
pub mod world;

pub use options::{Options, OptionsError};
pub use world::{Outcome, run};
