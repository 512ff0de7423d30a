//! Traces of what this process does, where they are built in and the environment says where to.

use conclave_client::trace;

pub(crate) use conclave_client::trace::stop;

/// What commands that take locks call themselves.
pub(crate) const CLIENT: &str = "conclave-client";
/// What nodes call themselves.
pub(crate) const NODE: &str = "conclave-node";

/// Begins to send traces. Whoever cannot be watched does its work all the same.
pub(crate) fn start(service: &str, instance: Option<&str>) {
    if let Err(error) = trace::start(service, instance) {
        anstream::eprintln!("warning: no traces are sent: {error}");
    }
}
