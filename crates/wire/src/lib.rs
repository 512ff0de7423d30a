//! The only place that turns bytes into domain types and back: frames between processes, the
//! public API, records on disk, sealed handles, cluster files. Whatever comes from outside is
//! checked and bounded here; what leaves this crate is safe to give to a machine.

pub mod cluster;
pub mod codec;
pub mod greeting;
pub mod handle;
pub mod record;
pub mod span;

pub use cluster::Cluster;
pub use span::Span;
