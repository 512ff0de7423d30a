//! A seeded world for objects: nodes of which some lie, clients that order operations, and what
//! must hold all the same.

pub mod check;
pub mod fuzz;
pub mod kinds;
pub mod known;
pub mod liar;
pub mod options;
pub mod swarm;
pub mod world;

pub use fuzz::{Fuzz, FuzzReport, fuzz, run_caught};
pub use options::{Family, Options};
pub use swarm::{Frame, swarm};
pub use world::{Outcome, run};
