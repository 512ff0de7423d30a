//! Logs go to standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use super::place::shown;
use super::settings::LogFormat;
use crate::cli::Failure;

/// What is logged, from its text.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::builder().parse(text).map_err(|error| {
        Failure::Input(format!(
            "log = '{}': {}; write error, warn, info, debug, trace, or module=level",
            shown(text),
            shown(&error.to_string())
        ))
    })
}

/// Starts logging in this process.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = filter(level)?;
    let ansi = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let logs = fmt().with_env_filter(filter).with_writer(io::stderr);
    // A second start in one process keeps the first.
    let _ = match format {
        LogFormat::Text => logs.with_ansi(ansi).with_target(false).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    Ok(())
}
