//! The quorum toolbox on the command line.

use std::io::{self, IsTerminal};
use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use conclave_quorum::build::{BuildError, Built, build};
use conclave_quorum::construct::groups::GroupsError;
use conclave_quorum::measure::Progress as Step;
use conclave_quorum::{NodeSet, System, text};

use crate::cli::Failure;
use crate::output::Progress;

mod analyze;
mod check;
mod compare;
pub(crate) mod draw;
mod inputs;
mod levels;
mod list;
mod plan;
mod show;
mod tables;

/// The largest file that is read.
const FILE_MAX: u64 = 16 * 1024 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List every form of quorum system, what it needs, and an example with its sizes
    List(list::List),
    /// Show quorums of a system
    #[command(
        after_help = "Examples:\n  conclave quorum show 'billiard(40)' --site 11\n  \
        conclave quorum show 'surficial(groups=3, n=12)' --group 2 --all\n  \
        conclave quorum show 'majority(7)' --avoid 3,5 --json"
    )]
    Show(show::Show),
    /// Check the properties of a system; exit 1 with a counterexample where a promised one fails
    #[command(
        after_help = "Examples:\n  conclave quorum check 'surficial(groups=3, n=12)'\n  \
        conclave quorum check 'threshold(4, 2)'        # disjoint quorums: exit 1\n  \
        conclave quorum check 'surficial(groups=2, n=4)' --assign red=1,blue=2"
    )]
    Check(check::Check),
    /// Measure load, capacity, resilience, failure probability, messages and latency
    #[command(
        after_help = "Examples:\n  conclave quorum analyze 'billiard(24)' --down 0.05\n  \
        conclave quorum analyze 'majority(5)' --down 0.1 --json\n  \
        conclave quorum analyze 'grid(9)' --capacity cap.csv --latency rtt.csv\n\n\
        Files: capacity and per-node down files have lines 'node,value' (node from 1); a\n\
        latency file has a line per client 'name,ms,ms,...'; a domains file has lines\n\
        'name,p,1 2 3'."
    )]
    Analyze(analyze::Analyze),
    /// Compare systems side by side, with availability curves
    #[command(
        after_help = "Example:\n  conclave quorum compare 'majority(25)' 'grid(25)' \
        'billiard(24)' 'tree(31)' --down 0.01..0.3 --plot out.svg"
    )]
    Compare(compare::Compare),
    /// Choose a system for a cluster
    #[command(
        after_help = "Examples:\n  conclave quorum plan --nodes 24 --down 0.02\n  \
        conclave quorum plan --nodes 9 --byzantine 1\n  \
        conclave quorum plan --nodes 12 --groups 3 --favour load\n  \
        conclave quorum plan --nodes 1200 --up 0.85 --multilevel\n  \
        conclave quorum plan --nodes 300 --up 0.95 --multilevel --coterie grid --root majority"
    )]
    Plan(plan::Plan),
    /// Draw a system, with a quorum, dead nodes or a heat map of load, as SVG or PNG
    #[command(
        after_help = "Examples:\n  conclave quorum draw 'billiard(40)' --site 11 -o out.svg\n  \
        conclave quorum draw 'billiard(24, tiers=T0)' --heat -o load.png\n  \
        conclave quorum draw 'grid(25)' --avoid 3,17 -o out.svg"
    )]
    Draw(draw::Draw),
    /// Recompute the reference tables, values beside the expected ones; exit 1 where they differ
    Tables(tables::Tables),
}

/// Runs one command of the toolbox.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(list) => list.run(),
        Command::Show(show) => show.run(),
        Command::Check(check) => check.run(),
        Command::Analyze(analyze) => analyze.run(),
        Command::Compare(compare) => compare.run(),
        Command::Plan(plan) => plan.run(),
        Command::Draw(draw) => draw.run(),
        Command::Tables(tables) => tables.run(),
    }
}

/// The system a command is about.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The system, for example 'majority(5)' or 'billiard(24)'; see 'conclave quorum list'
    system: String,
    /// The cluster's size, for forms that do not name one
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
}

impl Target {
    pub(crate) fn build(&self) -> Result<Built, Failure> {
        system(&self.system, self.nodes)
    }
}

/// Builds the system that a text names.
pub(crate) fn system(text: &str, nodes: Option<usize>) -> Result<Built, Failure> {
    let spec = text::parse(text).map_err(|error| {
        if io::stderr().is_terminal() {
            return Failure::Input(format!("{error}\n{}", error.pointer(text)));
        }
        Failure::input(error)
    })?;
    build(&spec, nodes, &read_file).map_err(|error| match error {
        BuildError::Groups(GroupsError::Apart { .. }) => Failure::Broken(error.to_string()),
        error => Failure::input(error),
    })
}

/// Reads a file of moderate size, or says why not.
pub(crate) fn read_file(path: &str) -> Result<String, String> {
    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("not a file".to_owned());
    }
    if found.len() > FILE_MAX {
        return Err(format!(
            "{} bytes are too many: at most {FILE_MAX}",
            found.len()
        ));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "not a text in UTF-8".to_owned())
}

/// Reads a file given as an option.
pub(crate) fn read_option(path: &Path) -> Result<String, Failure> {
    let shown = path.display().to_string();
    read_file(&shown).map_err(|why| Failure::Input(format!("file '{shown}': {why}")))
}

/// Node numbers from 1, as given on the command line, as a set.
pub(crate) fn node_set(numbers: &[usize], nodes: usize) -> Result<NodeSet, Failure> {
    let mut set = NodeSet::new(nodes);
    for number in numbers {
        set.insert(node(*number, nodes)?);
    }
    Ok(set)
}

/// A node number from 1 as an index.
pub(crate) fn node(number: usize, nodes: usize) -> Result<usize, Failure> {
    if (1..=nodes).contains(&number) {
        return Ok(number - 1);
    }
    Err(Failure::Input(format!(
        "there is no node {number}: the system has nodes 1 to {nodes}"
    )))
}

/// A group number from 1 as the place of its cartel.
pub(crate) fn cartel(group: Option<usize>, built: &Built) -> Result<Option<usize>, Failure> {
    let Some(group) = group else { return Ok(None) };
    let System::Groups(groups) = &built.system else {
        return Err(Failure::Input(format!(
            "'{}' has no groups: leave out --group, or use a group system such as \
             'surficial(groups=3, n=12)'",
            built.text
        )));
    };
    let cartels = groups.cartels().len();
    if !(1..=cartels).contains(&group) {
        return Err(Failure::Input(format!(
            "there is no group {group}: the system has groups 1 to {cartels}"
        )));
    }
    Ok(Some(group - 1))
}

/// Shows the library's progress on a progress line.
pub(crate) fn tell(progress: &Progress) -> impl FnMut(Step) + '_ {
    move |step: Step| {
        progress.say(step.stage);
        progress.set(step.done, step.total);
    }
}

/// What to favour in a plan.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Favour {
    /// A bit of everything
    Balance,
    /// Little work per node
    Load,
    /// A quorum left after failures
    Availability,
    /// Few messages per entry
    Messages,
    /// Near quorums; needs --latency
    Latency,
}
