//! `conclave token`: bearer tokens.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use conclave_node::access::{hash_of, is_principal};
use jiff::Timestamp;
use serde_json::json;

use crate::cli::Failure;
use crate::output;

/// What every token begins with, so that people and scanners know one when they see it.
const MARK: &str = "cct_";

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a bearer token, and the lines of the access file that make it count
    #[command(after_help = "Examples:\n  conclave token new --principal ci\n  \
        conclave token new --principal ci --expires 2027-01-01T00:00:00Z --json\n\n\
        The token is printed once and kept nowhere: the access file of the nodes has only its\n\
        hash. Put it into a file that only its owner reads, and name that file with\n\
        --bearer-file or CONCLAVE_BEARER_FILE.")]
    New(New),
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// Whose token it is
    #[arg(long, value_name = "NAME")]
    principal: String,
    /// When it stops to count, as 2027-01-01T00:00:00Z; never without it
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A token that nobody has had before.
pub(crate) fn fresh() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Failed(format!("no random numbers: {error}")))?;
    Ok(format!("{MARK}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)))
}

impl Token {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::New(new) => new.run(),
        }
    }
}

impl New {
    fn run(&self) -> Result<(), Failure> {
        let principal = &self.principal;
        if !is_principal(principal) {
            return Err(Failure::input(
                "--principal takes 1 to 64 letters, digits, '-', '_', '.' or '@', begins with a \
                 letter or digit, and is not 'anonymous'",
            ));
        }
        let expires = self.expires.as_ref().map(|text| {
            let time: Result<Timestamp, _> = text.parse();
            time.map_err(|_| Failure::input("--expires takes a time as 2027-01-01T00:00:00Z"))
        });
        let expires = expires.transpose()?;
        let token = fresh()?;
        let sha256 = hash_of(&token);
        let until = expires.map_or(String::new(), |at| format!("\nexpires = \"{at}\""));
        let lines = format!("[[token]]\nprincipal = \"{principal}\"\nsha256 = \"{sha256}\"{until}");
        if self.json {
            return output::json(&json!({
                "principal": principal,
                "token": token,
                "sha256": sha256,
                "expires": expires.map(|at| at.to_string()),
                "access_toml": lines,
            }));
        }
        output::line(format!(
            "{token}\n\nThis is the token; it is not kept anywhere. In the access file of every \
             node:\n\n{lines}"
        ))
    }
}
