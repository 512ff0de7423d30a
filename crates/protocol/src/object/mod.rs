//! Objects: data that all clients change in one order, kept by nodes of which b may lie.
//!
//! A client submits an operation to all nodes. Some client that has the object's lease gathers
//! what waits, applies it, proposes the new state under its rank and commits it; the nodes tell
//! everybody the results. Nodes never run operations: a state is a set of named cells, an
//! operation turns into cells that change, and only those travel.

pub mod acl;
pub mod author;
pub mod cells;
pub mod config;
pub mod envelope;
pub mod kind;
pub mod kinds;
pub mod message;
pub mod orderer;
pub mod plant;
pub mod record;
pub mod server;
pub mod sign;
pub mod state;

pub use config::ObjectConfig;
pub use envelope::Wish;
pub use kind::{Context, Draft, Kind, KindError};
pub use message::{
    Author, Carry, ObjectAsk, ObjectRefusal, ObjectTell, OpId, Page, Pending, Phase, Proof, Rank,
    Span, View,
};
pub use orderer::{Counters, Orderer};
pub use plant::{Plant, Rules};
pub use record::{How, StoredObject};
pub use server::{ObjectOut, ObjectServer, ObjectView, Remedy};
pub use sign::{RankSigner, RankVerifier, Signing};
pub use state::{Builder, Cell, Delta, Digest, Stamp, State, StateError, Value};
