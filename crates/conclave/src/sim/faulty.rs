//! What the simulated protocols that survive lying nodes have in common on the command line.

use clap::Args;

use crate::cli::Failure;

/// The size of a cluster with liars, and the rules it follows.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Faulty {
    /// Leases and objects: how many nodes; drawn by the seed if left out
    #[arg(long, value_name = "N", requires = "byzantine")]
    pub(crate) nodes: Option<usize>,
    /// Leases and objects: how many of the nodes lie; drawn by the seed if left out
    #[arg(long, value_name = "B", requires = "nodes")]
    pub(crate) byzantine: Option<usize>,
    /// Leases, objects, hierarchies: the rules that nodes and clients follow
    #[arg(long, value_enum, default_value = "own")]
    pub(crate) rules: RuleBook,
}

/// Whose rules nodes and clients follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RuleBook {
    /// Those of the service
    Own,
    /// Those of the paper that the protocol comes from, taken literally
    Paper,
}

impl Faulty {
    /// The nodes and liars that were given, if they were.
    pub(crate) fn size(self) -> Option<(usize, usize)> {
        self.nodes.zip(self.byzantine)
    }

    /// Refuses the flags for a protocol in which no node lies.
    pub(crate) fn refuse(self, protocol: &str) -> Result<(), Failure> {
        if self.size().is_none() && self.rules == RuleBook::Own {
            return Ok(());
        }
        Err(Failure::Input(format!(
            "--nodes and --byzantine are for leases and objects, --rules for these and \
             hierarchies, not for {protocol}: leave them out or give --protocol lease"
        )))
    }
}
