//! `conclave quorum show`.

use clap::Args;
use conclave_quorum::build::Built;
use conclave_quorum::{Family, NodeSet, Prng, family, pick};
use serde_json::json;

use super::Target;
use crate::cli::Failure;
use crate::output;

/// More quorums than this are not printed.
const PRINTED_MAX: usize = 100_000;

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    target: Target,
    /// The quorum that the construction assigns to this site
    #[arg(long, value_name = "NODE", conflicts_with_all = ["all", "avoid"])]
    site: Option<usize>,
    /// All minimal quorums
    #[arg(long, conflicts_with = "avoid")]
    all: bool,
    /// Nodes that the quorum must not use, for example 3,17
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    avoid: Vec<usize>,
    /// The group (cartel), from 1; without it a group system shows its exclusive quorums
    #[arg(long, value_name = "GROUP")]
    group: Option<usize>,
    /// The seed of the pick
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let built = self.target.build()?;
        let cartel = super::cartel(self.group, &built)?;
        let family = built
            .system
            .family(cartel)
            .ok_or_else(|| Failure::input("the system has no such group"))?;
        let quorums = self.quorums(&built, family.as_ref())?;
        if self.json {
            let listed: Vec<Vec<usize>> = quorums.iter().map(|q| q.numbers().collect()).collect();
            output::json(&json!({
                "system": built.text,
                "n": built.system.nodes(),
                "kind": built.system.kind(),
                "group": self.group,
                "names": built.names,
                "quorums": listed,
            }))?;
        } else if quorums.is_empty() {
            output::line("no quorum avoids these nodes")?;
        } else {
            let lines: Vec<String> = quorums.iter().map(|quorum| named(quorum, &built)).collect();
            output::line(lines.join("\n"))?;
        }
        if quorums.is_empty() {
            Err(Failure::Violation)
        } else {
            Ok(())
        }
    }

    fn quorums(&self, built: &Built, family: &dyn Family) -> Result<Vec<NodeSet>, Failure> {
        let nodes = built.system.nodes();
        if let Some(site) = self.site {
            let site = super::node(site, nodes)?;
            let own = family.own(site).ok_or_else(|| {
                Failure::Input(format!(
                    "'{}' assigns no quorum to site {}: leave out --site for a pick",
                    built.text,
                    site + 1
                ))
            })?;
            return Ok(vec![own]);
        }
        if self.all {
            return family::list(family, PRINTED_MAX).ok_or_else(|| {
                let count = family.count().map_or_else(
                    || "more quorums than can be listed".to_owned(),
                    |count| format!("about {count:.3e} quorums, more than can be listed"),
                );
                Failure::Input(format!(
                    "'{}' has {count}: leave out --all for a pick",
                    built.text
                ))
            });
        }
        let avoid = super::node_set(&self.avoid, nodes)?;
        let mut prng = Prng::new(self.seed);
        Ok(pick(family, &avoid, None, &mut prng).into_iter().collect())
    }
}

/// A quorum in numbers, or in names where the system has some.
pub(crate) fn named(quorum: &NodeSet, built: &Built) -> String {
    match &built.names {
        None => quorum.to_string(),
        Some(names) => {
            let list: Vec<&str> = quorum.iter().map(|node| names[node].as_str()).collect();
            format!("{{{}}}", list.join(", "))
        }
    }
}
