//! The world itself.

use std::sync::Arc;

use conclave_protocol::multilevel::Topology;

use super::meter::Meter;
use super::options::LevelOptions;
use super::scenario::Measured;

/// Runs a world without checkers and measures it.
pub(super) fn measure(
    options: &LevelOptions,
    topology: Arc<Topology>,
    progress: &mut dyn FnMut(u64),
) -> Measured {
    let _ = options;
    progress(0);
    Meter::default().finish(0, topology.nodes() as u64, 0)
}
