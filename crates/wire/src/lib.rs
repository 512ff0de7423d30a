//! The only place that turns bytes into domain types and back: frames between processes, the
//! public API, records on disk, sealed handles, cluster files. Whatever comes from outside is
//! checked and bounded here; what leaves this crate is safe to give to a machine.

pub mod cluster;
pub mod codec;
mod decode;
mod dictionary;
mod encode;
pub mod faults;
mod generated;
pub mod greeting;
pub mod handle;
pub mod hierarchy;
pub mod keeper;
pub mod lease_handle;
pub mod levels;
mod parts;
mod pb;
pub mod record;
mod secret;
mod sight;
pub mod span;
pub mod tolerant;
pub mod version;

pub use cluster::Cluster;
pub use generated::api;
pub use span::Span;

#[cfg(test)]
mod tests;
