//! A seeded virtual world that drives the protocol machines and tries to break them.

pub mod baseline;
pub mod clock;
mod disk;
pub mod engine;
pub mod fact;
pub mod fuzz;
pub mod history;
pub mod invariants;
pub mod lease;
pub mod linear;
pub mod measure;
pub mod model;
pub mod multilevel;
pub mod net;
pub mod object;
pub mod options;
pub mod script;
pub mod swarm;
pub mod trace;
mod workload;
pub mod world;

pub use fuzz::{Finding, Fuzz, FuzzReport, fuzz, run_checked};
pub use options::{Options, OptionsError};
pub use swarm::{demo, swarm};
pub use world::{Outcome, run};
