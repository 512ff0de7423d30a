//! A seeded world for objects: nodes of which some lie, clients that order operations, and what
//! must hold all the same.

pub mod check;
pub mod figures;
pub mod kinds;
pub mod known;
pub mod liar;
pub mod options;
pub mod swarm;
pub mod world;

pub use figures::{Cost, cost};
pub use options::{Family, Options};
pub use swarm::{Frame, swarm};
pub use world::{Outcome, run};
