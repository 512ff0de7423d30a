//! `conclave elect`: leads while a command runs, or follows who leads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use conclave_client::{LeaderView, Leading};
use conclave_wire::Span;
use serde_json::{Value, json};

use super::find::Endpoints;
use super::lock::Lock;
use super::place::shown;
use super::runtime;
use super::signals::Stops;
use super::watch::{connect, text, told, watch_failure};
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Elect {
    /// The election: the name of its lock
    name: OsString,
    /// What observers read about us while we lead
    #[arg(long, value_name = "V", required_unless_present = "observe")]
    value: Option<OsString>,
    /// How long the lead outlives us if we vanish
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    ttl: Span,
    /// Wait at most so long for the lead
    #[arg(long, value_name = "SPAN")]
    wait: Option<Span>,
    /// Follow who leads instead of standing: a line per change, until Ctrl-C
    #[arg(long, conflicts_with_all = ["value", "wait", "command"])]
    observe: bool,
    /// With --observe: tell who leads now and end, with code 3 if nobody does
    #[arg(long, requires = "observe", conflicts_with_all = ["value", "wait", "command"])]
    once: bool,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Say what is waited for even if nobody seems to watch
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON: a line per change, or one to standard error at the end of the command
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(required_unless_present = "observe", last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Elect {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.name.is_empty() {
            return Err(Failure::input("NAME is empty: name an election"));
        }
        if self.observe {
            return self.follow();
        }
        let value = self.value.unwrap_or_default();
        let mut lock = Lock::plain(self.name, self.endpoints, self.command);
        (lock.ttl, lock.wait) = (self.ttl, self.wait);
        (lock.verbose, lock.json) = (self.verbose, self.json);
        lock.value = Some(value.as_bytes().to_vec());
        lock.run()
    }

    fn follow(&self) -> Result<(), Failure> {
        runtime()?.block_on(async {
            let mut stops = Stops::new()?;
            let client = connect(&self.endpoints.find()?).await?;
            let mut observer = client.observe(self.name.as_bytes());
            loop {
                let leading = tokio::select! {
                    leading = observer.next() => leading,
                    _ = stops.next() => return Ok(()),
                };
                let leading = leading.map_err(|error| watch_failure(&error))?;
                self.show(&leading)?;
                if self.once {
                    let nobody = leading.leader.is_none();
                    return if nobody {
                        Err(Failure::Exit(3))
                    } else {
                        Ok(())
                    };
                }
            }
        })
    }

    fn show(&self, leading: &Leading) -> Result<(), Failure> {
        if self.json {
            return output::line(as_json(leading).to_string());
        }
        let partial = if leading.partial {
            " (too few nodes are heard to be sure)"
        } else {
            ""
        };
        output::line(match &leading.leader {
            None => format!("nobody leads{partial}"),
            Some(leader) => format!(
                "{} leads with token {}, {}{partial}",
                told(&leader.value),
                leader.token,
                shown(&leader.owner)
            ),
        })
    }
}

fn as_json(leading: &Leading) -> Value {
    let leader = |leader: &LeaderView| {
        json!({
            "value": text(&leader.value),
            "token": leader.token,
            "owner": &*leader.owner,
        })
    };
    json!({
        "leader": leading.leader.as_ref().map(leader),
        "partial": leading.partial,
    })
}
