//! Exclusive, shared and group locks on quorums: `Maekawa_M` in a form that survives cancels,
//! expiry, reconnects, restarts and change of quorum, and `Maekawa_S` behind the same client.

mod access;
mod api;
mod arbiter;
mod canon;
mod client;
mod config;
mod floor;
mod handle;
mod home;
mod message;
mod mode;
mod node;
mod plant;
mod reach;
mod record;
mod serial;
#[cfg(test)]
mod serial_tests;
mod watch;

pub use access::{
    ADDRESS_MARK, ANYONE, Access, AccessError, Action, PRINCIPAL_MAX, RULES_MAX, Rule, Who,
};
pub use api::{
    Acquire, ClientEffects, ClientEvent, ClientInput, End, Ended, EntryView, Label, LockView,
    NodeEffects, NodeEvent, NodeHealth, NodeInput, Reason, SessionView, To, Why,
};
pub use canon::Canon;
pub use client::LockClient;
pub use config::{
    Choice, Config, Gate, Limits, Policy, Protocol, Quorums, QuorumsError, Restart, Times,
};
pub use floor::{Fence, Floors};
pub use handle::Handle;
pub use message::{
    Carried, Claim, ConfigId, Entered, Finished, GrantRef, Message, NotNow, Recovered, Refusal,
    Resume, SessionInfo, Travel,
};
pub use mode::{Ask, Bond, Group, Mode, Priority};
pub use node::{LockNode, Start};
pub use plant::{Plant, Rules};
pub use record::{Record, Snapshot, Stored, StoredConfig, StoredGrant, StoredRevocation};
pub use watch::{Holder, LockState, Report, Sight, Watch};
