//! No token is further ahead of a node's token clock than it may be, and nobody moves that clock
//! but nodes.
//!
//! Whatever clients say, no floor and no limit of a node exceeds its token clock by more than the
//! configuration allows; and no token clock is ahead of every wall clock that a node ever had,
//! carried on at its rate.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Config;

use super::book::broken;
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// A clock on disk may be this far ahead, and a little more.
const LEAD_MICROS: u64 = 2_100_000;

/// Checks the tokens of nodes against their clocks.
#[derive(Debug)]
pub struct TokenBound {
    config: Arc<Config>,
    /// The largest reading that any node's wall clock accounts for, and when it was that.
    wall: (u64, True),
    starts: u64,
}

impl TokenBound {
    /// A checker for a run under this configuration.
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            wall: (0, True(0)),
            starts: 0,
        }
    }

    /// What the fastest of all wall clocks accounts for now.
    fn accounted(&mut self, at: True, eyes: &dyn Eyes) -> u64 {
        let run = Duration::from_nanos(at.0 - self.wall.1.0);
        let run = self.config.times.stretch(run).as_micros() as u64;
        let nodes = (0..eyes.nodes()).map(NodeId::at);
        let walls = nodes.filter_map(|node| eyes.wall(node));
        let wall = walls.max().map_or(0, |wall| wall.0);
        self.wall = (wall.max(self.wall.0 + run + 1), at);
        self.wall.0 + (1 + self.starts) * LEAD_MICROS
    }
}

impl Checker for TokenBound {
    fn property(&self) -> &'static str {
        "token-bound"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let most = self.accounted(at, eyes);
        match fact {
            Fact::Granted { node, .. } => self.check(*node, most, at, eyes),
            Fact::Attacked { .. } => {
                let mut nodes = (0..eyes.nodes()).map(NodeId::at);
                nodes.try_for_each(|node| self.check(node, most, at, eyes))
            }
            Fact::NodeUp { node } => {
                self.starts += 1;
                self.check(*node, most, at, eyes)
            }
            _ => Ok(()),
        }
    }
}

impl TokenBound {
    fn check(&self, node: NodeId, most: u64, at: True, eyes: &dyn Eyes) -> Result<(), Violation> {
        let Some((highest, clock)) = eyes.tokens(node) else {
            return Ok(());
        };
        let bound = clock.plus(self.config.times.token_ahead).0;
        if highest.0 > bound {
            let ahead = highest.0 - bound;
            let what = format!("{node} keeps token {highest}, {ahead} us beyond its bound");
            return broken(self.property(), at, what);
        }
        if clock.0 > most {
            let what = format!(
                "{node}'s token clock shows {}, no clock more than {most}",
                clock.0
            );
            return broken(self.property(), at, what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::Wall;
    use conclave_protocol::id::{NodeId, Token};

    use super::super::fake::Story;
    use super::super::tests::config;
    use super::*;

    #[test]
    fn a_token_beyond_the_bound_is_found() {
        let config = config(|_| {});
        let day = config.times.token_ahead.as_micros() as u64;
        let mut story = Story::new(|_| vec![Box::new(TokenBound::new(config.clone()))]);
        let node = NodeId(0);
        story.eyes.tokens = Some((Token(1000 + day), Wall(1000)));
        story.holds(Fact::Attacked { node });
        story.eyes.tokens = Some((Token(1001 + day), Wall(1000)));
        story.breaks("token-bound", Fact::Attacked { node });
    }

    #[test]
    fn a_clock_that_somebody_else_moved_is_found() {
        let config = config(|_| {});
        let mut story = Story::new(|_| vec![Box::new(TokenBound::new(config.clone()))]);
        let node = NodeId(0);
        story.eyes.tokens = Some((Token(0), Wall(3 * LEAD_MICROS)));
        story.breaks("token-bound", Fact::Attacked { node });
    }
}
