//! Commands that run under `conclave lock` during a whole chaos run: no fault that leaves a quorum
//! may end one of them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::faults::Fault;
use crate::cli::Failure;

/// What the names of their locks begin with.
pub(super) const PREFIX: &str = "command/";
/// Their TTLs, in seconds.
const TTLS: [u64; 5] = [2, 5, 10, 30, 60];
/// Where a node that was killed keeps quiet for the longest TTL, longer ones would leave no quorum
/// for most of the run.
const SHORT: usize = 2;

/// All of them.
#[derive(Debug)]
pub(super) struct Commands {
    endpoints: String,
    flags: Vec<OsString>,
    running: Vec<Running>,
    count: usize,
    /// Those that ended, though nobody had told them to.
    pub(super) stopped: Vec<Stopped>,
}

#[derive(Debug)]
struct Running {
    ttl: u64,
    child: Child,
    errors: PathBuf,
}

/// A command that ended.
#[derive(Clone, Debug)]
pub(super) struct Stopped {
    ttl: u64,
    /// What was done to the cluster meanwhile.
    during: &'static str,
    why: String,
}

impl Stopped {
    pub(super) fn text(&self) -> String {
        let Self { ttl, during, why } = self;
        format!("a command under conclave lock --ttl {ttl}s ended while {during}: {why}")
    }

    pub(super) fn json(&self) -> Value {
        json!({"ttl_s": self.ttl, "during": self.during, "why": self.why})
    }
}

impl Commands {
    /// Starts one for each TTL, each with a lock of its own. Where nodes are not `durable` TTLs are
    /// short.
    pub(super) fn start(
        folder: &Path,
        endpoints: &[String],
        flags: Vec<OsString>,
        durable: bool,
    ) -> Result<Self, Failure> {
        let mut commands = Self {
            endpoints: endpoints.join(","),
            flags,
            running: Vec::new(),
            count: 0,
            stopped: Vec::new(),
        };
        let ttls = if durable { &TTLS[..] } else { &TTLS[..SHORT] };
        for ttl in ttls.iter().copied() {
            let errors = folder.join(format!("command{ttl}.log"));
            let child = commands.spawn(ttl, &errors)?;
            commands.running.push(Running { ttl, child, errors });
            commands.count += 1;
        }
        Ok(commands)
    }

    fn spawn(&self, ttl: u64, errors: &Path) -> Result<Child, Failure> {
        let started = Command::new(std::env::current_exe()?)
            .args([
                "lock",
                &format!("{PREFIX}{ttl}"),
                "--ttl",
                &format!("{ttl}s"),
            ])
            .args(["--endpoints", &self.endpoints])
            .args(&self.flags)
            .args(["--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(errors)?)
            .spawn();
        started.map_err(|error| Failure::Failed(format!("cannot start a command: {error}")))
    }

    /// Looks for those that have ended since the last look, and starts them again. A fault that
    /// took every quorum away excuses them.
    pub(super) fn look(&mut self, fault: Option<Fault>) -> Result<(), Failure> {
        for place in 0..self.running.len() {
            let one = &mut self.running[place];
            let Some(status) = one.child.try_wait()? else {
                continue;
            };
            let (ttl, errors) = (one.ttl, one.errors.clone());
            let said = fs::read_to_string(&errors).unwrap_or_default();
            if fault != Some(Fault::Power) {
                let how = crate::service::members::ended(status);
                self.stopped.push(Stopped {
                    ttl,
                    during: fault.map_or("all was well", Fault::name),
                    why: format!("{how}: {}", said.trim()),
                });
            }
            self.running[place].child = self.spawn(ttl, &errors)?;
        }
        Ok(())
    }
}

impl Commands {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Ends all of them.
    pub(super) fn end(&mut self) {
        for mut one in self.running.drain(..) {
            let _ = one.child.kill();
            let _ = one.child.wait();
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.end();
    }
}
