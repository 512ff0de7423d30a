//! Simulated worlds written down as histories: what held in the world holds in its history, and
//! planted bugs are found in it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use conclave_protocol::id::{GrantNo, NodeId, SessionId};
use conclave_protocol::lock::{End, Group, Plant, Protocol};
use conclave_sim::fact::{Checker, Eyes, Fact, Holder, True, Violation};
use conclave_sim::history::line::{
    ClientLine, ClientWord, Line, NodeLine, NodeWord, RunLine, RunWord,
};
use conclave_sim::history::{Verdict, check};
use conclave_sim::{Options, run, swarm};

/// Writes down what real processes would.
#[derive(Default)]
struct Scribe {
    lines: Rc<RefCell<Vec<Line>>>,
    /// Sessions that a node ended out of spite: an operator would be the one to do so.
    spited: BTreeSet<(NodeId, SessionId)>,
}

impl Scribe {
    fn client(&self, at: True, event: ClientWord, holder: &Holder, more: ClientLine) {
        let mut line = ClientLine {
            at: at.0,
            client: holder.client,
            life: holder.life,
            key: Some(holder.key.0),
            event,
            ..more
        };
        line.set_lock(holder.name.bytes());
        self.lines.borrow_mut().push(Line::Client(line));
    }

    fn node(&self, at: True, node: NodeId, event: NodeWord) {
        let line = NodeLine {
            at: at.0,
            node,
            event,
        };
        self.lines.borrow_mut().push(Line::Node(line));
    }
}

fn inside(
    until: Option<True>,
    token: conclave_protocol::id::Token,
    members: &[(NodeId, GrantNo)],
) -> ClientLine {
    ClientLine {
        until: Some(until.map_or(0, |until| until.0)),
        token: Some(token.0),
        members: members
            .iter()
            .map(|(node, grant)| (node.0 + 1, grant.0))
            .collect(),
        ..ClientLine::default()
    }
}

fn mode_of(group: &Group) -> String {
    match group {
        Group::Shared => "shared".to_owned(),
        Group::Named(name) => format!("group:{}", String::from_utf8_lossy(name)),
        Group::Request(..) | Group::Session(_) => "exclusive".to_owned(),
    }
}

impl Checker for Scribe {
    fn property(&self) -> &'static str {
        "none"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let nothing = ClientLine::default();
        match fact.clone() {
            Fact::Asked { holder } => self.client(at, ClientWord::Asked, &holder, nothing),
            Fact::Entered {
                holder,
                group,
                token,
                members,
            } => {
                let mut line = inside(eyes.believes_until(&holder), token, &members);
                line.mode = Some(mode_of(&group));
                self.client(at, ClientWord::Entered, &holder, line);
            }
            Fact::Moved {
                holder,
                token,
                members,
            } => {
                let line = inside(eyes.believes_until(&holder), token, &members);
                self.client(at, ClientWord::Moved, &holder, line);
            }
            Fact::Released { holder } => self.client(at, ClientWord::Released, &holder, nothing),
            Fact::Lost { holder } => self.client(at, ClientWord::Lost, &holder, nothing),
            Fact::Ended { holder } => self.client(at, ClientWord::Ended, &holder, nothing),
            Fact::Vanished { holder } => self.client(at, ClientWord::Vanished, &holder, nothing),
            Fact::Acted {
                holder,
                token,
                admitted,
                ..
            } => {
                if let Some(until) = eyes.believes_until(&holder) {
                    let line = ClientLine {
                        until: Some(until.0),
                        ..ClientLine::default()
                    };
                    self.client(at, ClientWord::Moved, &holder, line);
                }
                let line = ClientLine {
                    token: Some(token.0),
                    admitted: Some(admitted),
                    ..ClientLine::default()
                };
                self.client(at, ClientWord::Acted, &holder, line);
            }
            Fact::Granted {
                node,
                ask,
                grant,
                floor,
                limit,
                bypass,
                inside,
            } => self.node(
                at,
                node,
                NodeWord::Granted {
                    ask,
                    grant,
                    floor,
                    limit,
                    bypass,
                    inside,
                },
            ),
            Fact::Reclaimed {
                node,
                ask,
                grant,
                token,
            } => self.node(at, node, NodeWord::Reclaimed { ask, grant, token }),
            Fact::NodeEnded {
                node,
                ask,
                grant,
                why,
            } => {
                let spite = self.spited.contains(&(node, ask.session));
                let why = if spite && why == End::Expired {
                    End::Revoked
                } else {
                    why
                };
                self.node(at, node, NodeWord::Ended { ask, grant, why });
            }
            Fact::ExpiredBySpite { node, session } => {
                self.spited.insert((node, session));
            }
            Fact::NodeUp { node } => self.node(at, node, NodeWord::Start),
            Fact::Healed => self.lines.borrow_mut().push(Line::Run(RunLine {
                at: at.0,
                event: RunWord::Healed,
            })),
            Fact::NodeDown { .. }
            | Fact::AskedAny { .. }
            | Fact::Seen { .. }
            | Fact::Unserved { .. }
            | Fact::TokenRefused { .. }
            | Fact::Attacked { .. }
            | Fact::ClocksSet
            | Fact::Tick
            | Fact::Over => {}
        }
        Ok(())
    }
}

/// What the history of this world shows.
fn history(options: &Options) -> Verdict {
    let scribe = Scribe::default();
    let lines = scribe.lines.clone();
    let mut checkers: Vec<Box<dyn Checker>> = vec![Box::new(scribe)];
    run(options, &mut checkers, None).unwrap();
    check(&options.config(true).unwrap(), lines.take())
}

#[test]
fn worlds_that_hold_have_histories_that_hold() {
    let mut acquisitions = 0;
    for protocol in [Protocol::Parallel, Protocol::Serial] {
        for seed in 1..=SEEDS {
            let verdict = history(&swarm(protocol, seed, None));
            let first = verdict.violations.first();
            assert!(verdict.holds(), "{protocol:?}, seed {seed}: {first:?}");
            acquisitions += verdict.all.acquisitions;
        }
    }
    assert!(acquisitions > 10_000, "{acquisitions} acquisitions");
}

const SEEDS: u64 = 200;

#[test]
fn planted_bugs_show_in_histories() {
    let plants = [
        (Plant::NoFloorOnExpiry, "token-order"),
        (Plant::EnterBeforeRaised, "token-order"),
        (Plant::AmnesiaZeroFloor, "token-order"),
        (Plant::PauseTooShort, "lost-in-time"),
        (Plant::ValidityFromReply, "lost-in-time"),
        (Plant::NoRequestOnLocked, "grounded"),
        (Plant::LiteralRefill, "max-inside"),
        (Plant::SilentExpiry, "no-forgotten"),
        (Plant::YieldInside, "quorum"),
    ];
    for (plant, property) in plants {
        let found = (1..=400).any(|seed| {
            let verdict = history(&swarm(Protocol::Parallel, seed, Some(plant)));
            let mut all = verdict.violations.iter();
            all.any(|violation| violation.property == property)
        });
        assert!(found, "{} as {property}", plant.name());
    }
}
