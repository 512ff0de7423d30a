//! What must hold in every run: one file for each promise.

mod answers;
mod chain;
mod order;

pub use answers::Answers;
pub use chain::Chain;
pub use order::{Order, ReadMark};

use crate::fact::{True, Violation};

/// A broken promise.
pub(crate) fn broken(property: &'static str, at: True, what: String) -> Violation {
    Violation { property, at, what }
}
