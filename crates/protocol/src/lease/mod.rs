//! Leases: the exclusive right to something for a time, given by nodes of which b may lie.
//!
//! A client asks all nodes at once. Each gives its vote for a while unless it has given it to
//! somebody else; enough votes are a lease, which ends by itself. Whoever gets too few gives them
//! back and tries again later. [`LeaseServer`] is the node's side, [`Contender`] the client's;
//! [`HandleRequest`] renews and releases a lease that somebody else took.

mod backoff;
pub mod config;
pub mod contender;
pub mod handle;
pub mod message;
pub mod plant;
mod round;
pub mod server;

pub use config::{Backoff, LeaseConfig, Terms};
pub use contender::{Contender, Standing};
pub use handle::{HandleAction, HandleRequest, HandleStanding, LeaseHandle};
pub use message::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, LeaseReply, Seal, Secret, Space, Try,
};
pub use server::{LeaseOut, LeaseServer, LeaseStart, LeaseView};
