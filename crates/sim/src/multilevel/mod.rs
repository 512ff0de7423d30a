//! Worlds of hierarchies: thousands of nodes in clusters of clusters that ask for one lock.
//!
//! Two kinds of worlds share one driver. [`run`] measures what an entry costs in the set-up of
//! the published simulation, or in one like it; [`world::check`] runs a small world in
//! which much goes wrong and tells what was broken. One unit of time is a nanosecond of the
//! machines' clocks.
//!
//! ```
//! use std::sync::Arc;
//!
//! use conclave_protocol::multilevel::Topology;
//! use conclave_quorum::construct::multilevel::Clusters;
//! use conclave_sim::multilevel::{Scenario, run};
//!
//! let topology = Topology::trees(Clusters::build(49, 1)?);
//! let mut scenario = Scenario::new(Arc::new(topology), 1.0);
//! scenario.entries = 100;
//! let measured = run(&scenario, &mut |_| ());
//! assert!((measured.messages_per_entry / measured.predicted - 1.0).abs() < 0.05);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod draws;
mod drive;
mod eye;
mod faults;
mod meter;
pub mod options;
mod primary;
mod scenario;
pub mod swarm;
pub mod world;

pub use options::{LevelOptions, LevelOptionsError};
pub use scenario::{GAP, Kind, Measured, SPAN, Scenario, run};
pub use swarm::swarm;
