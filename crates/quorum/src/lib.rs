//! Quorum systems: build, check, measure, choose and draw them.
//!
//! Pure: no clock, no socket, no thread, no random source of its own. Chance comes in as a
//! [`Prng`].

pub mod analyze;
pub mod build;
mod chance;
pub mod check;
mod circuit;
pub mod construct;
pub mod draw;
pub mod family;
pub mod measure;
mod node_set;
pub mod plan;
pub mod reference;
pub mod system;
pub mod text;

pub use chance::Prng;
pub use circuit::{Circuit, Gate, GateId};
pub use family::{Family, LoadPlan, Mass, Odds, Sizes, pick};
pub use node_set::NodeSet;
pub use system::{Apart, Coterie, GroupSystem, Masking, System};
