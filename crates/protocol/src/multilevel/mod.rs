//! Locks on a hierarchy: clusters of clusters, for thousands of nodes.
//!
//! Rahman and Akbar, "A Permission based Multilevel Parallel Solution for Distributed Mutual
//! Exclusion", with its defects mended. A node that wants a lock gathers the permissions of a
//! quorum of its own small cluster. At the same time a *representing node* of the parent cluster,
//! told by an announcement, gathers those of a quorum there, and so on up to the root cluster.
//! Consent then travels down. A representing node that has consent serves its waiting children
//! one after the other, up to a bound, before it gives consent back.
//!
//! **The root cluster is the lock.** The levels below only order and thin the traffic: a wrong
//! grant there costs fairness and never exclusion. So only arbiters of the root keep anything on
//! disk, and every consent has an end that its holder knows.

mod api;
mod config;
mod message;
mod node;
mod plant;
mod record;
mod sight;
mod topology;

pub use api::{LevelEffects, LevelEvent, LevelInput};
pub use config::{LevelConfig, Representation, Trust};
pub use message::{Block, GrantId, Id, LevelMessage, LockKey, Place, UNKNOWN, Until, Word};
pub use node::{LevelNode, LevelView};
pub use plant::{LevelPlant, LevelRules};
pub use record::{Kept, LevelRecord, LevelStored};
pub use sight::{Seen, Sight};
pub use topology::{Any, Choose, HeapTree, Seat, Topology, TopologyError};
