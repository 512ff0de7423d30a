//! The lock service on the command line: clusters, nodes, locks, and what is going on in them.

use tokio::runtime::{Builder, Runtime};

use crate::cli::Failure;

mod check_config;
mod daemon;
mod demo;
mod elect;
mod ending;
mod find;
mod forward;
mod guard;
mod health;
pub(crate) mod http;
mod layout;
mod lease;
pub(crate) mod local;
mod lock;
mod logs;
mod look;
pub(crate) mod members;
mod object;
mod place;
mod registry;
mod revoke;
pub(crate) mod serve;
mod settings;
pub(crate) mod shape;
pub(crate) mod signals;
mod system;
pub(crate) mod thin;
mod together;
mod token;
pub(crate) mod traces;
pub(crate) mod up;
pub(crate) mod usage;
mod watch;

pub(crate) use check_config::{CheckConfig, hex};
pub(crate) use demo::Demo;
pub(crate) use elect::Elect;
pub(crate) use find::{Target, TlsFlags};
pub(crate) use guard::{ExecGuarded, GuardCommand};
pub(crate) use health::Health;
pub(crate) use lease::Lease;
pub(crate) use lock::Lock;
pub(crate) use look::{Locks, Sessions, Show, Status};
pub(crate) use object::Object;
pub(crate) use place::shown;
pub(crate) use revoke::Revoke;
pub(crate) use serve::Serve;
pub(crate) use together::{Barrier, Latch};
pub(crate) use token::Token;
pub(crate) use up::Up;
pub(crate) use watch::Watch;

/// A runtime on this thread: children that shall end with us must be started by a thread that
/// lives as long as we do.
fn runtime() -> Result<Runtime, Failure> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::Failed(format!("cannot start: {error}")))
}
