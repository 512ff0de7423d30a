//! How commands that run under a lock or a lease say in JSON how they ended.

use crate::cli::Failure;

/// What became of it, the code to end with, and what there is to say; none if the failure is none
/// of the command's own.
pub(super) fn ending(result: &Result<(), Failure>) -> Option<(&'static str, u8, Option<&str>)> {
    Some(match result {
        Ok(()) => ("done", 0, None),
        Err(Failure::Exit(code)) => ("done", *code, None),
        Err(Failure::NotAcquired(message)) => ("not_acquired", 3, Some(message)),
        Err(Failure::Lost(message)) => ("lost", 4, Some(message)),
        Err(Failure::NoQuorum(message)) => ("no_quorum", 5, Some(message)),
        Err(Failure::Input(message)) => ("refused", 2, Some(message)),
        Err(_) => return None,
    })
}

/// Ends with a code, everything having been said.
pub(super) fn ended(code: u8) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}
