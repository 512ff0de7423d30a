//! `conclave watch`: locks as they change.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use conclave_client::{AcquireError, Client, Holder, LockState, Mode, Refusal, Sight, WatchError};
use serde_json::{Value, json};

use super::find::{Endpoints, Target, not_connected};
use super::place::shown;
use super::runtime;
use super::signals::Stops;
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The lock
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix")]
    name: Option<OsString>,
    /// All locks whose names begin so; '' is all locks
    #[arg(long, value_name = "P")]
    prefix: Option<OsString>,
    /// Tell what is now, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print a line of JSON per change
    #[arg(long)]
    json: bool,
}

impl Watch {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let target = self.endpoints.find()?;
        runtime()?.block_on(async {
            let mut stops = Stops::new()?;
            tokio::select! {
                ended = self.follow(&target) => ended,
                _ = stops.next() => Ok(()),
            }
        })
    }

    async fn follow(&self, target: &Target) -> Result<(), Failure> {
        let client = connect(target).await?;
        let failed = |error: WatchError| watch_failure(&error);
        if let Some(name) = &self.name {
            let mut watch = client.watch(name.as_bytes());
            loop {
                let state = watch.next().await.map_err(failed)?;
                self.show(&state)?;
                if self.once {
                    return Ok(());
                }
            }
        }
        let prefix = self.prefix.clone().unwrap_or_default();
        let mut watch = client.watch_prefix(prefix.as_bytes());
        loop {
            match watch.next().await.map_err(failed)? {
                Sight::State(state) => self.show(&state)?,
                Sight::Synced { partial } => {
                    if self.json {
                        output::line(json!({ "synced": true, "partial": partial }).to_string())?;
                    } else if partial {
                        output::line("too few nodes are heard to know of every holder")?;
                    }
                    if self.once {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn show(&self, state: &LockState) -> Result<(), Failure> {
        output::line(if self.json {
            as_json(state).to_string()
        } else {
            as_text(state)
        })
    }
}

/// A client of the cluster that is meant.
pub(super) async fn connect(target: &Target) -> Result<Client, Failure> {
    let client = target.client().await;
    client.map_err(|error| not_connected(&error))
}

/// How a watch that ended ends its command.
pub(super) fn watch_failure(error: &WatchError) -> Failure {
    match error {
        WatchError::NoQuorum(AcquireError::NoQuorum { .. }) => Failure::NoQuorum(error.to_string()),
        WatchError::Refused(why @ Refusal::NotPermitted) => Failure::Input(why.to_string()),
        WatchError::Refused(Refusal::Size) => {
            Failure::input("a name has 1 to 1024 bytes unless the cluster says otherwise")
        }
        error => Failure::Failed(error.to_string()),
    }
}

fn as_text(state: &LockState) -> String {
    let mut line = told(state.name.bytes());
    match state.holders.as_slice() {
        [] => line.push_str(": free"),
        holders => {
            let holders: Vec<String> = holders.iter().map(holder_text).collect();
            let _ = write!(line, ": {}", holders.join(", "));
        }
    }
    if state.more > 0 {
        let _ = write!(line, ", and {} more", state.more);
    }
    if state.waiting > 0 {
        let _ = write!(line, "; {} waiting", state.waiting);
    }
    if state.partial {
        line.push_str(" (too few nodes are heard to be sure)");
    }
    line
}

fn holder_text(holder: &Holder) -> String {
    let mut text = shown(&holder.owner);
    match holder.mode() {
        Mode::Exclusive => {}
        Mode::Shared => text.push_str(", shared"),
        Mode::Group(group) => {
            let _ = write!(text, ", group {}", told(&group));
        }
    }
    let _ = write!(text, ", token {}", holder.token);
    if let Some(note) = holder.note.as_deref().filter(|note| !note.is_empty()) {
        let _ = write!(text, ", {}", told(note));
    }
    text
}

fn as_json(state: &LockState) -> Value {
    let holder = |holder: &Holder| {
        let mode = match holder.mode() {
            Mode::Exclusive => json!("exclusive"),
            Mode::Shared => json!("shared"),
            Mode::Group(group) => json!({ "group": text(&group) }),
        };
        json!({
            "mode": mode,
            "token": holder.token.0,
            "group": holder.group.to_string(),
            "owner": &*holder.owner,
            "note": holder.note.as_deref().map(text),
            "session": format!("{:x}", holder.session),
            "asked_us": holder.asked.0,
        })
    };
    json!({
        "name": text(state.name.bytes()),
        "holders": state.holders.iter().map(holder).collect::<Vec<_>>(),
        "more": state.more,
        "waiting": state.waiting,
        "partial": state.partial,
    })
}

/// Bytes as JSON: a string if they are text.
pub(super) fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// Bytes for people.
pub(super) fn told(bytes: &[u8]) -> String {
    shown(&String::from_utf8_lossy(bytes))
}
