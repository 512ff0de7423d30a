//! The client of a Conclave cluster: it asks the nodes of a quorum itself, one round trip per
//! lock.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use conclave_client::Client;
//!
//! let client = Client::connect(["http://127.0.0.1:7001", "http://127.0.0.1:7002"]).await?;
//! let guard = client.lock("jobs/nightly").acquire().await?;
//! tokio::select! {
//!     () = guard.lost() => eprintln!("lost: stop at once"),
//!     () = work(guard.token()) => {}
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! # async fn work(_token: u64) {}
//! ```
//!
//! What a [`Guard`] promises:
//!
//! - No conflicting holder is let in before [`Guard::lost`] fires, as long as this process runs.
//! - A process that is stopped (a debugger, a full disk, a virtual machine that moves) cannot be
//!   told anything. When it goes on, its lock may be another's. So hand [`Guard::token`] to what
//!   the lock protects, and let a [`Fence`] there refuse whoever comes late.
//!
//! Locks are **not re-entrant**: whoever holds a lock exclusively and asks for it again waits for
//! itself. Tasks that share a [`Client`] exclude each other like any others. Where a guard is at
//! hand, [`Request::while_holding`] turns that mistake into an error.
//!
//! Dropping the future of any call cancels it: a lock that came in just then is given back.

// The nodes of the tests name it so.
#[cfg(test)]
extern crate self as conclave_client;

mod acquire;
mod barrier;
mod client;
pub mod clock;
mod dial;
mod directory;
pub mod discover;
pub mod driver;
mod elect;
mod error;
mod fault;
mod guard;
pub mod keeper;
mod latch;
mod request;
pub mod secure;
pub mod semaphore;
mod slots;
#[cfg_attr(
    not(feature = "otel"),
    allow(dead_code, reason = "what is noted of a span is read where it is sent")
)]
pub mod trace;
mod watch;

pub use barrier::{Barrier, BarrierError};
pub use client::{Builder, Client, default_owner};
pub use conclave_protocol::id::{Name, NodeId, Token};
pub use conclave_protocol::lock::{Group, Holder, LockState, Mode, NodeHealth, Refusal};
/// What kinds of objects are made of.
pub use conclave_protocol::object::kinds::{
    Bytes, Cells, Code, Entry, Model, Reader, When, Writer,
};
pub use conclave_protocol::object::{Cell, Context, Draft, KindError, Span, Value};
pub use conclave_wire::Cluster;
pub use elect::{Election, Leader, LeaderView, Leading, Observer};
pub use error::{AcquireError, ConnectError, LostError};
pub use guard::{Guard, GuardSet, Holding, SlotGuard};
pub use keeper::error::{LeaseError, ObjectError, Trouble};
pub use keeper::handles::{Counter, KeyWatch, Log, Map, Queue, Register, Stored};
pub use keeper::lease::{LeaseGuard, LeaseRequest};
pub use keeper::object::{Handle, Object, ObjectWatch, Pending};
pub use latch::Latch;
pub use request::{LockAllRequest, LockRequest, Request, Sharable, SlotRequest};
pub use secure::Security;
pub use slots::SLOTS_MAX;
pub use watch::{PrefixWatch, Sight, Watch, WatchError};

/// The check at the resource that a lock protects: it refuses a holder once a later conflicting
/// one was admitted.
///
/// Keep one per lock beside the data, and ask it before every change, under the same mutex or in
/// the same transaction as the change itself. Holders of one group never refuse each other.
///
/// ```
/// use conclave_client::{Fence, Group, Token};
///
/// let readers = Group::Shared;
/// let writers = Group::Named(b"writers".as_slice().into());
/// let mut fence = Fence::new();
/// assert!(fence.admit(&readers, Token(7)));
/// assert!(fence.admit(&writers, Token(9)));
/// // A reader that slept through the change of groups comes too late.
/// assert!(!fence.admit(&readers, Token(8)));
/// ```
pub use conclave_protocol::lock::Fence;
