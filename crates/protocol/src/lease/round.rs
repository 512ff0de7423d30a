//! What one attempt has heard, and what follows from it.

use std::time::Duration;

use super::config::LeaseConfig;
use super::message::{Attempt, LeaseAnswer, LeaseRefusal};
use super::plant::Plant;
use crate::fault::Lie;
use crate::id::{NodeId, Token};
use crate::object::Rank;
use crate::time::{Instant, Wall};

/// How far above its own token a contender follows a single node's word.
const JUMP_MAX: u64 = 1 << 20;
/// It follows a single node's word only up to so far ahead of its own wall clock.
const JUMP_AHEAD: Duration = Duration::from_hours(1);
/// A token so far ahead of the wall clock is no honest node's.
const HUGE_AHEAD: Duration = Duration::from_hours(48);

/// One attempt: what was asked, and what each node says.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) attempt: Attempt,
    pub(super) sub: u32,
    pub(super) token: Token,
    /// When the present token was asked for.
    pub(super) asked: Instant,
    /// How often a larger token was needed.
    pub(super) raised: u32,
    pub(super) nodes: Vec<Voice>,
    pub(super) renewal: Option<Renewal>,
    /// How many renewals were asked for.
    pub(super) renewals: u32,
}

/// What one node has said in an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Voice {
    /// About the present token.
    pub(super) said: Said,
    /// Whether it may have given its vote at some time of this attempt.
    pub(super) gave: bool,
    /// Whether it was told to forget the attempt: nothing that it says counts any more.
    pub(super) left: bool,
    /// The largest rank it has seen.
    pub(super) rank: Option<Rank>,
}

/// What one node has said about the present token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Said {
    #[default]
    Nothing,
    Free {
        held: Duration,
    },
    Locked {
        queued: bool,
        token: Token,
    },
    Stale(Token),
    Refused(LeaseRefusal),
}

/// A wish for more time.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    pub(super) sub: u32,
    pub(super) asked: Instant,
    pub(super) said: Vec<Wish>,
}

/// What became of a wish for more time at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The node has no vote to renew.
    NotAsked,
    /// It has not answered.
    Asked,
    /// It has.
    Granted,
    /// It has not.
    Denied,
}

impl Renewal {
    pub(super) fn count(&self, wish: Wish) -> usize {
        self.said.iter().filter(|said| **said == wish).count()
    }
}

/// The refusals that do not pass by themselves.
pub(super) fn lasting() -> impl Iterator<Item = LeaseRefusal> {
    [
        LeaseRefusal::NotPermitted,
        LeaseRefusal::Span,
        LeaseRefusal::TokenTooFar,
        LeaseRefusal::Name,
        LeaseRefusal::Infeasible,
    ]
    .into_iter()
}

/// Where an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Enough votes, which all last until then.
    Won(Instant),
    /// Too few are left.
    Lost,
    /// A larger token could still win.
    Stale,
    /// Enough nodes say that it will never be.
    Refused(LeaseRefusal),
    /// It depends on answers to come.
    Open,
}

impl Round {
    pub(super) fn new(attempt: Attempt, token: Token, asked: Instant, nodes: usize) -> Self {
        Self {
            attempt,
            sub: 0,
            token,
            asked,
            raised: 0,
            nodes: vec![Voice::default(); nodes],
            renewal: None,
            renewals: 0,
        }
    }

    /// Asks again under a larger token.
    pub(super) fn raise(&mut self, token: Token, asked: Instant) {
        self.sub += 1;
        self.raised += 1;
        self.token = token;
        self.asked = asked;
        for voice in &mut self.nodes {
            voice.said = Said::Nothing;
        }
    }

    /// Notes what a node answers to the present round: its first word counts, unless that was to
    /// wait.
    pub(super) fn note(&mut self, node: NodeId, answer: &LeaseAnswer, again: bool) {
        let Some(voice) = self.nodes.get_mut(node.index()) else {
            return;
        };
        let open = matches!(
            voice.said,
            Said::Nothing | Said::Locked { queued: true, .. }
        );
        if voice.left || (!open && !again) {
            return;
        }
        voice.said = match *answer {
            LeaseAnswer::Free { held, rank } => {
                voice.gave = true;
                voice.rank = rank;
                Said::Free { held }
            }
            LeaseAnswer::Locked {
                queued,
                token,
                rank,
                ..
            } => {
                voice.rank = rank;
                voice.gave |= queued;
                Said::Locked { queued, token }
            }
            LeaseAnswer::Stale { token } => {
                // A vote for an earlier token of this attempt stays given.
                voice.gave |= self.sub > 0;
                Said::Stale(token)
            }
            LeaseAnswer::Refused(why) => Said::Refused(why),
            LeaseAnswer::Released => return,
        };
    }

    fn count(&self, which: impl Fn(Said) -> bool) -> usize {
        self.nodes.iter().filter(|voice| which(voice.said)).count()
    }

    /// Whether some node keeps the request.
    pub(super) fn queued(&self) -> bool {
        self.count(|said| matches!(said, Said::Locked { queued: true, .. })) > 0
    }

    /// Until when each vote lasts for sure.
    fn ends(&self, config: &LeaseConfig, vote: Duration) -> Vec<Instant> {
        let mut ends: Vec<Instant> = self
            .nodes
            .iter()
            .filter_map(|voice| match voice.said {
                Said::Free { held } => Some(self.asked + config.sure(vote.saturating_add(held))),
                _ => None,
            })
            .collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends
    }

    /// What follows from what was heard. `over` says that no more answers are waited for, `least`
    /// how much must be left of a lease.
    pub(super) fn verdict(
        &self,
        config: &LeaseConfig,
        span: Duration,
        least: Instant,
        over: bool,
    ) -> Verdict {
        if let Some(refusal) = self.refused(config.faults.vouch()) {
            return Verdict::Refused(refusal);
        }
        let small = usize::from(config.rules.has(Plant::SmallFree));
        let free = config.faults.free() - small;
        let ends = self.ends(config, config.vote(span));
        // Each end counts the votes that last at least as long: so many make a lease.
        let enough = free.max(1) - 1;
        let end = if config.rules.has(Plant::HeldIgnored) && ends.len() > enough {
            ends.first()
        } else {
            ends.get(enough)
        };
        if let Some(end) = end.filter(|end| **end >= least) {
            return Verdict::Won(*end);
        }
        let good = ends.iter().filter(|end| **end >= least).count();
        let open =
            self.count(|said| matches!(said, Said::Nothing | Said::Locked { queued: true, .. }));
        if !over && good + open >= free {
            return Verdict::Open;
        }
        let stale = self.count(|said| matches!(said, Said::Stale(_)));
        let open = if over { 0 } else { open };
        // Votes that no longer last long enough are given anew with the larger token.
        if stale > 0 && ends.len() + open + stale >= free {
            return Verdict::Stale;
        }
        Verdict::Lost
    }

    /// The refusal that enough nodes give for ever.
    fn refused(&self, vouch: usize) -> Option<LeaseRefusal> {
        lasting().find(|why| self.count(|said| said == Said::Refused(*why)) >= vouch)
    }

    /// The verdict of the protocol as it was first published: the first quorum decides, and at
    /// most b of it may say no.
    pub(super) fn published(&self, config: &LeaseConfig) -> Verdict {
        let quorum = config.faults.mutex().unwrap_or(config.faults.nodes());
        let locked = self.count(|said| !matches!(said, Said::Nothing | Said::Free { .. }));
        let heard = locked + self.count(|said| matches!(said, Said::Free { .. }));
        if heard < quorum {
            return Verdict::Open;
        }
        if locked <= config.faults.liars() {
            return Verdict::Won(Instant::FAR);
        }
        Verdict::Lost
    }

    /// The tokens that nodes name, the largest first; a vote names the present one.
    fn tokens(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> = self
            .nodes
            .iter()
            .filter_map(|voice| match voice.said {
                Said::Free { .. } => Some(self.token),
                Said::Locked { token, .. } | Said::Stale(token) => Some(token),
                Said::Nothing | Said::Refused(_) => None,
            })
            .collect();
        tokens.sort_unstable_by(|a, b| b.cmp(a));
        tokens
    }

    /// The largest token that some honest node vouches for.
    pub(super) fn vouched(&self, config: &LeaseConfig) -> Token {
        let tokens = self.tokens();
        let place = if config.rules.has(Plant::TokenOfLargest) {
            0
        } else {
            config.faults.liars()
        };
        tokens.get(place).copied().unwrap_or_default()
    }

    /// The token to exceed next. Where honest nodes may be too few to vouch for the one that
    /// stands in the way, or did not answer, a single word counts for a bounded step.
    pub(super) fn known(&self, config: &LeaseConfig, over: bool, wall: Wall) -> Token {
        let vouched = self.vouched(config).max(self.token);
        let faults = config.faults;
        if !over && faults.nodes() > 5 * faults.liars() {
            return vouched;
        }
        let largest = self.tokens().first().copied().unwrap_or_default();
        let limit = self.token.0.saturating_add(JUMP_MAX);
        let bounded = largest.0.min(limit).min(wall.plus(JUMP_AHEAD).0);
        vouched.max(Token(bounded))
    }

    /// The largest rank that some honest node vouches for.
    pub(super) fn rank(&self, liars: usize) -> Option<Rank> {
        let mut ranks: Vec<Rank> = self.nodes.iter().filter_map(|voice| voice.rank).collect();
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        ranks.get(liars).copied()
    }

    /// Who differs from all others. `late` says that everybody has had the time to answer.
    pub(super) fn lies(&self, config: &LeaseConfig, wall: Wall, late: bool) -> Vec<(NodeId, Lie)> {
        let faults = config.faults;
        let honest = faults.nodes() - faults.liars();
        let free = self.count(|said| matches!(said, Said::Free { .. }));
        let heard = self.count(|said| said != Said::Nothing);
        let vouched = self.vouched(config);
        let judge = |voice: &Voice| match voice.said {
            Said::Nothing if late && heard >= honest => Some(Lie::Silent),
            Said::Locked { token, .. } | Said::Stale(token)
                if token > vouched && token.0 > wall.plus(HUGE_AHEAD).0 =>
            {
                Some(Lie::Huge)
            }
            // All that must be honest give their votes, and it does not.
            Said::Locked { .. } | Said::Stale(_) if free >= honest => Some(Lie::Forged),
            _ => None,
        };
        let voices = self.nodes.iter().enumerate();
        voices
            .filter_map(|(index, voice)| Some((NodeId::at(index), judge(voice)?)))
            .collect()
    }
}
