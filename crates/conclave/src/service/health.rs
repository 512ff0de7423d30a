//! `conclave health`: is the node of this node file alive? For containers, whose images have no
//! other program that could ask.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::settings::{Overrides, Settings};
use super::{http, runtime};
use crate::cli::Failure;
use crate::output;

/// How long the node may take.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct Health {
    #[arg(
        long,
        value_name = "FILE",
        help = "The node file; CONCLAVE_CONFIG without it"
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Overrides,
    /// Ask whether it grants locks; one that pauses after a crash is alive, but not ready
    #[arg(long)]
    ready: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Health {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let config = std::env::var_os("CONCLAVE_CONFIG").filter(|path| !path.is_empty());
        let config = self.config.clone().or(config.map(PathBuf::from));
        let settings = Settings::load(config.as_deref(), &self.flags)?;
        let id = settings.id.value;
        let path = if self.ready { "/readyz" } else { "/healthz" };
        // Under TLS the host must be one of the certificate's: those of its public URL.
        let api = match (settings.security.tls(), settings.cluster.node(id)) {
            (Some(_), Some(node)) => node.api.trim_end_matches('/').to_owned(),
            _ => format!("http://{}", own(&settings.listen_api.value)),
        };
        let url = format!("{api}{path}");
        let answer = runtime()?.block_on(http::get(&url, &settings.security, PATIENCE));
        let problem = match answer {
            Ok(answer) if answer.status == 200 => None,
            Ok(answer) => Some(answer.trouble()),
            Err(error) => Some(error),
        };
        if self.json {
            output::json(&json!({ "id": id, "healthy": problem.is_none(), "why": problem }))?;
            return problem.map_or(Ok(()), |_| Err(Failure::Exit(1)));
        }
        let what = if self.ready { "ready" } else { "alive" };
        match problem {
            None => output::line(format!("node {id} is {what}")),
            Some(why) => Err(Failure::Failed(format!("node {id} is not {what}: {why}"))),
        }
    }
}

/// The address as this machine reaches it: whoever listens everywhere listens on the loopback.
fn own(listen: &str) -> String {
    match listen.rsplit_once(':') {
        Some(("0.0.0.0", port)) => format!("127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("[::1]:{port}"),
        _ => listen.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_everywhere_is_asked_on_the_loopback() {
        assert_eq!(own("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(own("[::]:80"), "[::1]:80");
        assert_eq!(own("10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(own("x"), "x");
    }
}
