//! `conclave revoke`: an operator ends a session.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::find::Endpoints;
use super::{http, runtime};
use crate::cli::Failure;
use crate::output;

/// How long a node may take to answer; it tells the others meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The session, as 'conclave sessions' and 'conclave show --json' tell it
    session: String,
    /// Free its locks at once, while their holder may still believe to hold them
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Revoke {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let digits = self.session.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !digits || !(1..=32).contains(&self.session.len()) {
            return Err(Failure::input(
                "SESSION has up to 32 hexadecimal digits; 'conclave sessions' lists them",
            ));
        }
        let target = self.endpoints.find()?;
        let told = runtime()?.block_on(async {
            let mut troubles = Vec::new();
            // One after the other: the first node that answers tells all the others.
            for endpoint in &target.urls {
                let url = format!(
                    "{endpoint}/v1/sessions/{}/revoke?force={}",
                    self.session, self.force
                );
                match http::post(&url, &target.security, &json!({}), PATIENCE).await {
                    Ok(answer) if answer.status == 200 => match answer.json() {
                        Ok(told) => return Ok(told),
                        Err(trouble) => troubles.push(format!("{endpoint}: {trouble}")),
                    },
                    Ok(answer) if answer.status / 100 == 4 => {
                        return Err(Failure::Input(answer.trouble()));
                    }
                    Ok(answer) => troubles.push(format!("{endpoint}: {}", answer.trouble())),
                    Err(trouble) => troubles.push(format!("{endpoint}: {trouble}")),
                }
            }
            Err(Failure::NoQuorum(format!(
                "no endpoint answers ({}); is the cluster running?",
                super::place::shown(&troubles.join("; "))
            )))
        })?;
        self.print(&told)?;
        if told["enough"] == Value::Bool(true) {
            return Ok(());
        }
        if self.json {
            return Err(Failure::Exit(5));
        }
        Err(Failure::NoQuorum(
            "too few nodes heard it: the others may still renew the session; revoke it again when \
             they can be reached"
                .to_owned(),
        ))
    }

    fn print(&self, told: &Value) -> Result<(), Failure> {
        if self.json {
            return output::json(told);
        }
        let mut table = output::table(&["NODE", "WHAT", "GRANTS LEFT", "FOR"]);
        let nodes = told["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        for node in nodes {
            let outcome = node["outcome"].as_str().unwrap_or_default();
            let problem = node["problem"].as_str().unwrap_or_default();
            let known = node["known"] == Value::Bool(true);
            let what = match (outcome, known) {
                ("revoked", true) => "revoked".to_owned(),
                ("revoked", false) => "not there; refused should it come".to_owned(),
                ("not_permitted", _) => "not permitted: it holds what you do not administer".into(),
                _ => format!("unreachable: {}", super::place::shown(problem)),
            };
            let grants = node["grants"].as_u64().unwrap_or(0);
            let left = node["left_ms"].as_u64().unwrap_or(0);
            let left = Duration::from_millis(left).as_secs_f64();
            table.add_row([
                node["node"].to_string(),
                what,
                grants.to_string(),
                if grants > 0 {
                    format!("at most {left:.1} s")
                } else {
                    String::new()
                },
            ]);
        }
        output::print(&table)?;
        let note = if self.force {
            "\nIts locks are free now. A holder that was not reached may still act as if it held \
             them, until its TTL has run out: only fencing tokens keep it from doing harm."
        } else {
            "\nIts holder was told. Locks that it does not give up by itself are free when their \
             time is over; --force frees them at once, while the holder may still act."
        };
        output::line(note)
    }
}
