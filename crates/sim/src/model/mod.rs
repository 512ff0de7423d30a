//! Exhaustive exploration of the lock machines: every order in which a few requesters' messages,
//! cancels, expiries and crashes can happen.
//!
//! The very machines of the service run here. Time stands still: an expiry is an event that may
//! come at any moment, a connection is never slow, and heartbeats are left out, because at a
//! standing clock they change nothing. Connections keep the order of their messages, and messages
//! on different connections overtake each other at will.
//!
//! What is explored is bounded by budgets in [`ModelOptions`]; within them every reachable state
//! is visited once. Two states are the same if no step could ever tell them apart: see
//! [`conclave_protocol::lock::Canon`].

mod object;
mod options;
mod properties;
mod rooms;
mod search;
mod space;
mod state;

pub use object::{ObjectModel, check_object};
pub use options::{ModelError, ModelOptions, ModelProgress, ModelReport, ModelViolation};
pub use search::check;
