//! Checks what real processes did, with the checkers of the simulator.
//!
//! Nodes write a line for every grant and its end, clients for every acquisition, the resource for
//! every use ([`mod@line`]). [`check`] puts the lines of all files in the order of their times,
//! turns them into facts and tells them to the checkers of [`crate::invariants`], which look at a
//! state rebuilt from the lines instead of a world.
//!
//! All processes run on one machine and read one clock, so the order of times is the order of
//! causes: a node's line is older than the message that it explains, and a client's line is
//! younger than the answer that it rests on, except that leaving is written before it is done. So
//! a believed interval lies within the true one, and what overlaps here overlapped.
//!
//! What cannot be known from lines is left out by name, see [`Verdict::left_out`].

pub mod line;
mod past;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lock::Config;

use self::line::{ClientLine, ClientWord, Kind, Line, NodeLine, NodeWord, RunWord};
use self::past::{Past, holder_of};
use crate::fact::{Checker, Fact, True, Violation};
use crate::invariants;

/// The property of holders that only a history checks: they rest on a quorum of live grants.
pub const QUORUM: &str = "quorum";

/// More violations than this are counted and not kept.
const KEPT_MAX: usize = 100;

/// What became of a history.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The first broken properties.
    pub violations: Vec<Violation>,
    /// How many there were in all.
    pub broken: usize,
    /// How many lines were read.
    pub lines: usize,
    /// Acquisitions of all clients.
    pub all: Pace,
    /// Of smart clients.
    pub smart: Pace,
    /// Of thin clients.
    pub thin: Pace,
    /// Acquisitions of each lock.
    pub locks: BTreeMap<Name, u64>,
    /// How often a holder was told that its lock is lost.
    pub lost: u64,
    /// How often the resource let somebody pass, and how often not.
    pub admitted: u64,
    /// See `admitted`.
    pub refused: u64,
    /// How many lives of nodes ended without a word.
    pub crashes: u64,
    /// The properties that were checked.
    pub checked: Vec<&'static str>,
    /// The properties that a history cannot show, or cannot show without a `healed` line.
    pub left_out: Vec<&'static str>,
}

impl Verdict {
    /// Whether every property held.
    pub fn holds(&self) -> bool {
        self.broken == 0
    }
}

/// How steadily locks were acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How many times.
    pub acquisitions: u64,
    /// The longest time between two of them.
    pub longest_pause: Duration,
    /// When that pause began.
    pub pause_at: u64,
    last: Option<u64>,
}

impl Pace {
    fn acquired(&mut self, at: u64) {
        self.acquisitions += 1;
        if let Some(last) = self.last.replace(at) {
            let pause = Duration::from_nanos(at.saturating_sub(last));
            if pause > self.longest_pause {
                self.longest_pause = pause;
                self.pause_at = last;
            }
        }
    }
}

/// Checks a history: the lines of all files, each file in its own order.
pub fn check(config: &Arc<Config>, lines: impl IntoIterator<Item = Line>) -> Verdict {
    let mut lines: Vec<Line> = lines.into_iter().collect();
    lines.sort_by_key(|line| (line.at(), rank(line)));
    let healed = lines.iter().any(|line| matches!(line, Line::Run(_)));
    let mut run = Run::new(config, healed);
    run.verdict.lines = lines.len();
    let mut end = 0;
    for line in lines {
        end = line.at();
        match line {
            Line::Node(line) => run.node(line),
            Line::Client(line) => run.client(&line),
            Line::Run(line) => match line.event {
                RunWord::Healed => run.tell(line.at, &Fact::Healed),
            },
        }
    }
    run.tell(end, &Fact::Over);
    run.verdict
}

/// The order of lines of one time: leaving is written early, so it comes before what it allows,
/// and a grant comes before the entry that rests on it.
fn rank(line: &Line) -> u8 {
    match line {
        Line::Client(line) => match line.event {
            ClientWord::Released | ClientWord::Lost | ClientWord::Ended | ClientWord::Vanished => 0,
            _ => 2,
        },
        Line::Node(_) => 1,
        Line::Run(_) => 3,
    }
}

struct Run {
    past: Past,
    checkers: Vec<Box<dyn Checker>>,
    verdict: Verdict,
}

impl Run {
    fn new(config: &Arc<Config>, healed: bool) -> Self {
        let mut verdict = Verdict::default();
        let mut checkers = invariants::all(config);
        // Waiting can only be judged if it is known when the faults ended.
        let blind = |property| match property {
            // The last grants of a node that was killed may not be written.
            "structure" | "memory" | "migration" => true,
            "no-forgotten" => !healed,
            _ => false,
        };
        checkers.retain(|checker| {
            let property = checker.property();
            let out = blind(property);
            let list = if out {
                &mut verdict.left_out
            } else {
                &mut verdict.checked
            };
            list.push(property);
            !out
        });
        verdict.checked.push(QUORUM);
        Self {
            past: Past::new(config.clone()),
            checkers,
            verdict,
        }
    }

    fn tell(&mut self, at: u64, fact: &Fact) {
        self.past.before(at, fact);
        for checker in &mut self.checkers {
            if let Err(violation) = checker.watch(True(at), fact, &self.past) {
                note(&mut self.verdict, violation);
            }
        }
        self.past.after(fact);
    }

    fn node(&mut self, line: NodeLine) {
        let NodeLine { at, node, event } = line;
        let fact = match event {
            NodeWord::Start => {
                if self.past.knows(node) {
                    self.verdict.crashes += 1;
                    self.down(at, node);
                }
                self.past.serves(node, false);
                Fact::NodeUp { node }
            }
            NodeWord::Down => {
                self.down(at, node);
                self.past.forget(node);
                return;
            }
            NodeWord::Serving => {
                self.past.serves(node, true);
                return;
            }
            NodeWord::Entered => return,
            NodeWord::Granted {
                ask,
                grant,
                floor,
                limit,
                bypass,
                inside,
            } => Fact::Granted {
                node,
                ask,
                grant,
                floor,
                limit,
                bypass,
                inside,
            },
            NodeWord::Reclaimed { ask, grant, token } => Fact::Reclaimed {
                node,
                ask,
                grant,
                token,
            },
            NodeWord::Ended { ask, grant, why } => Fact::NodeEnded {
                node,
                ask,
                grant,
                why,
            },
        };
        self.tell(at, &fact);
    }

    fn down(&mut self, at: u64, node: NodeId) {
        let disk_lost = false;
        self.tell(at, &Fact::NodeDown { node, disk_lost });
    }

    fn client(&mut self, line: &ClientLine) {
        let Some(holder) = holder_of(line) else {
            // A whole process died.
            for holder in self.past.open(line.client, line.life) {
                self.tell(line.at, &Fact::Vanished { holder });
            }
            return;
        };
        self.count(line, &holder.name);
        let (fact, wrong) = self.past.client(line, holder);
        if let Some(fact) = fact {
            self.tell(line.at, &fact);
        }
        if let Some(violation) = wrong {
            note(&mut self.verdict, violation);
        }
    }

    fn count(&mut self, line: &ClientLine, name: &Name) {
        let verdict = &mut self.verdict;
        match line.event {
            ClientWord::Entered => {
                verdict.all.acquired(line.at);
                match line.kind {
                    Kind::Smart => verdict.smart.acquired(line.at),
                    Kind::Thin => verdict.thin.acquired(line.at),
                }
                *verdict.locks.entry(name.clone()).or_default() += 1;
            }
            ClientWord::Lost => verdict.lost += 1,
            ClientWord::Acted if line.admitted == Some(true) => verdict.admitted += 1,
            ClientWord::Acted => verdict.refused += 1,
            _ => {}
        }
    }
}

fn note(verdict: &mut Verdict, violation: Violation) {
    verdict.broken += 1;
    if verdict.violations.len() < KEPT_MAX {
        verdict.violations.push(violation);
    }
}
