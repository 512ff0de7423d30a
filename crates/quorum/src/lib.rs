//! Quorum systems: build, check, measure, choose and draw them.
//!
//! A system is named by a text, built for a number of nodes, and then asked:
//!
//! ```
//! use conclave_quorum::{NodeSet, Prng, build::build, measure, pick, text};
//!
//! let spec = text::parse("billiard(40)")?;
//! let no_files = |_: &str| Err("no files here".to_owned());
//! let built = build(&spec, None, &no_files)?;
//! let family = built.system.family(None).expect("a coterie has one family");
//!
//! let down = NodeSet::of_numbers(40, [3, 17]);
//! let quorum = pick(family.as_ref(), &down, None, &mut Prng::new(7)).expect("one avoids two");
//! assert!(family.contains_quorum(&quorum) && !quorum.intersects(&down));
//!
//! let load = measure::load::load(family.as_ref(), None, &mut measure::quiet);
//! assert!(load.exact && (load.upper - 0.25).abs() < 1e-9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What intersects is told by types ([`Coterie`], [`Masking`], [`GroupSystem`]); every construction
//! is a [`Family`].
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
pub mod level_plan;
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
