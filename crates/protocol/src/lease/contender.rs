//! The client's side of a lease: asks all nodes, counts votes, waits and tries again.
//!
//! A lease is f votes for one attempt and one token. Each vote lasts for a known time on its
//! node's clock from a moment that is not before the question was sent, so the lease ends, on the
//! client's own clock, that time after the sending (less by what clocks may differ), however late
//! the answers came. A request that a node kept for a while counts from correspondingly later.

use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::Prng;

use super::config::{LeaseConfig, Terms};
use super::handle::LeaseHandle;
use super::message::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, LeaseReply, Secret, Try,
};
use super::plant::Plant;
use super::round::{Renewal, Round, Said, Verdict, Wish};
use crate::fault::Lie;
use crate::id::{ClientId, NodeId, Token};
use crate::object::Rank;
use crate::time::{Instant, Now, Wake};

/// How often one attempt asks again under a larger token.
const RAISES_MAX: u32 = 3;
/// How many lies are kept until somebody takes them.
const LIES_MAX: usize = 1024;

/// Messages to nodes.
pub type Asks = Vec<(NodeId, LeaseAsk)>;

/// Where the pursuit of a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is under way; [`Contender::start`] begins.
    Idle,
    /// An attempt is under way.
    Trying,
    /// An attempt has failed; the next one begins then, or when it is started.
    Waiting {
        /// When it begins by itself.
        until: Instant,
    },
    /// The lease is held.
    Held {
        /// Its fencing token.
        token: Token,
        /// It ends then or before, on the client's clock. Check it before every protected action.
        end: Instant,
        /// How many attempts it took.
        attempts: u32,
    },
    /// It was given back or given up, or enough nodes refuse it.
    Ended(Option<LeaseRefusal>),
}

/// One client's pursuit of one lease.
#[derive(Debug)]
pub struct Contender {
    config: Arc<LeaseConfig>,
    key: LeaseKey,
    client: ClientId,
    terms: Terms,
    seed: [u8; 32],
    rng: Prng,
    /// The number of the next attempt.
    number: u64,
    /// The largest token that is known to be used.
    known: Token,
    began: Instant,
    attempts: u32,
    failures: u32,
    standing: Standing,
    round: Option<Round>,
    rank: Option<Rank>,
    lies: Vec<(NodeId, Lie)>,
}

impl Contender {
    /// A client that wants a lease. `number` is larger than that of every attempt it has made
    /// before; `seed` is random and never leaves the client.
    pub fn new(
        config: Arc<LeaseConfig>,
        key: LeaseKey,
        client: ClientId,
        terms: Terms,
        number: u64,
        seed: [u8; 32],
    ) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&seed);
        hasher.update(b"waits");
        hasher.update(&number.to_le_bytes());
        hasher.update(key.name.bytes());
        let mut chance = [0; 8];
        hasher.finalize_xof().fill(&mut chance);
        Self {
            config,
            key,
            client,
            terms,
            seed,
            rng: Prng::new(u64::from_le_bytes(chance)),
            number,
            known: Token::default(),
            began: Instant::ZERO,
            attempts: 0,
            failures: 0,
            standing: Standing::Idle,
            round: None,
            rank: None,
            lies: Vec::new(),
        }
    }

    /// Where it stands.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// What renews and releases the lease elsewhere; none if it is not held.
    pub fn handle(&self) -> Option<LeaseHandle> {
        let Standing::Held {
            token, attempts, ..
        } = self.standing
        else {
            return None;
        };
        let round = self.round.as_ref()?;
        let voices = round.nodes.iter().enumerate();
        // A node that has not answered may have given its vote.
        let may =
            voices.filter(|(_, voice)| !voice.left && (voice.gave || voice.said == Said::Nothing));
        let secret = |(index, _)| {
            let node = NodeId::at(index);
            (node, self.secret(round, node))
        };
        Some(LeaseHandle {
            name: self.key.name.clone(),
            attempt: round.attempt,
            token,
            span: self.terms.span,
            attempts,
            secrets: may.map(secret).collect(),
        })
    }

    /// The number of the next attempt, for a contender that follows this one.
    pub fn next_number(&self) -> u64 {
        self.number
    }

    /// The largest rank that an honest node has seen, as told in the attempt that won.
    pub fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// How many attempts have failed since it began.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether a renewal is under way.
    pub fn renewing(&self) -> bool {
        let round = self.round.as_ref();
        round.is_some_and(|round| round.renewal.is_some())
    }

    /// The nodes that were seen to differ from all others, since this was asked last.
    pub fn take_lies(&mut self) -> Vec<(NodeId, Lie)> {
        std::mem::take(&mut self.lies)
    }

    /// When it must be woken.
    pub fn next_wake(&self) -> Option<Wake> {
        let wake = |at, reason| Some(Wake { at, reason });
        match &self.standing {
            Standing::Idle | Standing::Ended(_) => None,
            Standing::Trying => {
                let round = self.round.as_ref()?;
                (!self.config.rules.paper).then_some(())?;
                wake(self.patience_ends(round), "an attempt is over")
            }
            Standing::Waiting { until } => wake(*until, "the next attempt begins"),
            Standing::Held { end, .. } => {
                let renewal = self.round.as_ref().and_then(|round| round.renewal.as_ref());
                let over = renewal.map(|renewal| renewal.asked + self.config.round_trip());
                match over.filter(|over| over < end) {
                    Some(over) => wake(over, "a renewal is over"),
                    None => wake(*end, "the lease ends"),
                }
            }
        }
    }

    /// Begins an attempt, unless one is under way, the lease is held, or it has ended.
    pub fn start(&mut self, now: Now, out: &mut Asks) {
        match self.standing {
            Standing::Idle => {
                self.began = now.mono;
                self.attempts = 0;
                self.failures = 0;
            }
            Standing::Waiting { .. } => {}
            Standing::Trying | Standing::Held { .. } | Standing::Ended(_) => return,
        }
        let attempt = Attempt {
            client: self.client,
            number: self.number,
        };
        self.number = self.number.saturating_add(1);
        self.attempts = self.attempts.saturating_add(1);
        let token = self.next_token(now);
        let nodes = self.config.faults.nodes();
        self.round = Some(Round::new(attempt, token, now.mono, nodes));
        self.standing = Standing::Trying;
        self.rank = None;
        self.ask_all(now, out);
    }

    /// A node answers.
    pub fn heard(&mut self, now: Now, node: NodeId, reply: &LeaseReply, out: &mut Asks) {
        let held = matches!(self.standing, Standing::Held { .. });
        let trying = self.standing == Standing::Trying;
        let rules = self.config.rules;
        let Some(round) = &mut self.round else {
            return;
        };
        if node.index() >= round.nodes.len() || reply.attempt.client != self.client {
            return;
        }
        let late = rules.paper
            || (rules.has(Plant::LateFree) && matches!(reply.answer, LeaseAnswer::Free { .. }));
        let ours = reply.attempt == round.attempt;
        if trying && (late || (ours && reply.sub == round.sub)) {
            round.note(node, &reply.answer, late);
            self.judge(now, false, out);
        } else if held && ours && reply.sub == round.sub {
            // Too late to matter, but it has a vote to give back, and was not silent.
            round.note(node, &reply.answer, false);
        } else if held && ours {
            self.renewed(now, node, reply, out);
        }
    }

    /// A connection to a node is new: it is asked again what it has not answered.
    pub fn opened(&mut self, now: Now, node: NodeId, out: &mut Asks) {
        let Some(round) = self
            .round
            .as_ref()
            .filter(|round| node.index() < round.nodes.len())
        else {
            return;
        };
        if self.standing == Standing::Trying {
            let said = round.nodes[node.index()].said;
            // What a node keeps it forgets with the connection.
            if matches!(said, Said::Nothing | Said::Locked { queued: true, .. }) {
                out.push((node, self.question(round, node, now)));
            }
        } else if let Some(renewal) = &round.renewal
            && renewal.said[node.index()] == Wish::Asked
        {
            out.push((node, self.wish(round, renewal.sub, node)));
        }
    }

    /// The time of [`Self::next_wake`] has come, or may have.
    pub fn wake(&mut self, now: Now, out: &mut Asks) {
        match self.standing {
            Standing::Idle | Standing::Ended(_) => {}
            Standing::Trying => {
                let ends = self.round.as_ref().map(|round| self.patience_ends(round));
                let over = ends.is_some_and(|ends| now.mono >= ends);
                if over && !self.config.rules.paper {
                    self.judge(now, true, out);
                }
            }
            Standing::Waiting { until } => {
                if now.mono >= until {
                    self.start(now, out);
                }
            }
            Standing::Held { end, .. } => {
                if now.mono >= end {
                    self.lapse(now);
                    return;
                }
                let trip = self.config.round_trip();
                if let Some(round) = &mut self.round
                    && round
                        .renewal
                        .as_ref()
                        .is_some_and(|renewal| now.mono >= renewal.asked + trip)
                {
                    round.renewal = None;
                }
            }
        }
    }

    /// Asks for more time: if enough nodes agree, [`Standing::Held`] has a later end. Nothing
    /// happens while a renewal is under way, or if the lease is not held.
    pub fn renew(&mut self, now: Now, out: &mut Asks) {
        let Standing::Held { end, .. } = self.standing else {
            return;
        };
        if now.mono >= end {
            self.lapse(now);
            return;
        }
        self.count_lies(now);
        let Some(round) = self.round.as_mut().filter(|round| round.renewal.is_none()) else {
            return;
        };
        round.renewals = round.renewals.saturating_add(1);
        let said = round.nodes.iter().map(|voice| {
            if voice.gave {
                Wish::Asked
            } else {
                Wish::NotAsked
            }
        });
        let renewal = Renewal {
            sub: round.sub.saturating_add(round.renewals),
            asked: now.mono,
            said: said.collect(),
        };
        round.renewal = Some(renewal.clone());
        let Some(round) = &self.round else {
            return;
        };
        for (index, wish) in renewal.said.iter().enumerate() {
            let node = NodeId::at(index);
            if *wish == Wish::Asked {
                out.push((node, self.wish(round, renewal.sub, node)));
            }
        }
    }

    /// Gives the lease back, or gives up: this ends it.
    pub fn release(&mut self, now: Now, out: &mut Asks) {
        self.count_lies(now);
        self.give_back(out);
        self.round = None;
        if !matches!(self.standing, Standing::Ended(_)) {
            self.standing = Standing::Ended(None);
        }
    }

    fn next_token(&mut self, now: Now) -> Token {
        if self.config.rules.paper {
            return Token::default();
        }
        let token = Token(now.wall.0.max(self.known.0.saturating_add(1)));
        self.known = token;
        token
    }

    /// Until when an attempt waits for answers.
    fn patience_ends(&self, round: &Round) -> Instant {
        let trip = self.config.round_trip();
        let patience = if self.config.rules.has(Plant::FromDecision) {
            self.terms.span.saturating_mul(8)
        } else if round.queued() {
            self.terms.patience.max(trip)
        } else {
            trip
        };
        round.asked + patience
    }

    fn ask_all(&self, now: Now, out: &mut Asks) {
        let Some(round) = &self.round else {
            return;
        };
        let nodes = (0..round.nodes.len()).map(NodeId::at);
        out.extend(nodes.map(|node| (node, self.question(round, node, now))));
    }

    fn question(&self, round: &Round, node: NodeId, now: Now) -> LeaseAsk {
        LeaseAsk::Try(Try {
            attempt: round.attempt,
            sub: round.sub,
            token: round.token,
            span: self.terms.span,
            seal: self.secret(round, node).seal(),
            patience: self.terms.patience,
            waited: now.mono.since(self.began),
        })
    }

    fn wish(&self, round: &Round, sub: u32, node: NodeId) -> LeaseAsk {
        LeaseAsk::Renew {
            attempt: round.attempt,
            sub,
            secret: self.secret(round, node),
        }
    }

    fn secret(&self, round: &Round, node: NodeId) -> Secret {
        Secret::new(&self.seed, &self.key, round.attempt, node)
    }

    /// Decides whether the attempt is won, lost or needs a larger token.
    fn judge(&mut self, now: Now, over: bool, out: &mut Asks) {
        let Some(round) = &self.round else {
            return;
        };
        let least = if self.config.rules.has(Plant::FromDecision) {
            Instant::ZERO
        } else {
            now.mono + self.terms.least.max(Duration::from_nanos(1))
        };
        let verdict = if self.config.rules.paper {
            round.published(&self.config)
        } else {
            round.verdict(&self.config, self.terms.span, least, over)
        };
        match verdict {
            Verdict::Open => {}
            Verdict::Won(end) => self.win(now, end, out),
            Verdict::Stale if round.raised < RAISES_MAX => {
                let known = round.known(&self.config, over, now.wall);
                self.known = self.known.max(known);
                let token = self.next_token(now);
                if let Some(round) = &mut self.round {
                    round.raise(token, now.mono);
                }
                self.ask_all(now, out);
            }
            Verdict::Stale | Verdict::Lost => self.fail(now, out),
            Verdict::Refused(why) => {
                self.give_back(out);
                self.round = None;
                self.standing = Standing::Ended(Some(why));
            }
        }
    }

    fn win(&mut self, now: Now, end: Instant, out: &mut Asks) {
        let rules = self.config.rules;
        let Some(round) = &self.round else {
            return;
        };
        let end = if rules.paper || rules.has(Plant::FromDecision) {
            now.mono + self.terms.span
        } else {
            end
        };
        self.rank = round.rank(self.config.faults.liars());
        self.known = self.known.max(round.vouched(&self.config));
        self.standing = Standing::Held {
            token: round.token,
            end,
            attempts: self.attempts,
        };
        // Where the request still waits it would lock others out for nothing. Such a node may
        // give its vote before it hears this and forget it afterwards: it has no part in the
        // lease.
        let mut left = Vec::new();
        for (index, voice) in round.nodes.iter().enumerate() {
            let waits = matches!(voice.said, Said::Locked { queued: true, .. });
            if waits && !rules.paper {
                let node = NodeId::at(index);
                out.push((node, self.farewell(round, node)));
                left.push(index);
            }
        }
        if let Some(round) = &mut self.round {
            for index in left {
                round.nodes[index].left = true;
                round.nodes[index].gave = false;
            }
        }
        self.note_lies(now, false);
    }

    fn fail(&mut self, now: Now, out: &mut Asks) {
        self.count_lies(now);
        if self.terms.release || self.terms.designated {
            self.give_back(out);
        }
        let asked = self.round.as_ref().map_or(now.mono, |round| round.asked);
        if let Some(round) = &self.round {
            self.known = self.known.max(round.vouched(&self.config));
        }
        self.round = None;
        self.failures = self.failures.saturating_add(1);
        let until = if self.terms.designated && !self.config.rules.paper {
            now.mono.max(asked + self.config.delay)
        } else {
            let wait = self
                .terms
                .backoff
                .draw(self.floor(), self.failures, &mut self.rng);
            now.mono + wait
        };
        self.standing = Standing::Waiting { until };
    }

    /// The shortest wait: without releases a contender must not meet the votes it got before.
    fn floor(&self) -> Duration {
        if let Some(floor) = self.terms.floor {
            return floor;
        }
        let trip = self.config.round_trip();
        if self.terms.release && !self.config.rules.paper {
            return trip;
        }
        self.terms.span.saturating_add(trip).saturating_add(trip)
    }

    /// Releases every vote that the attempt may have.
    fn give_back(&self, out: &mut Asks) {
        let Some(round) = self.round.as_ref().filter(|_| !self.config.rules.paper) else {
            return;
        };
        for (index, voice) in round.nodes.iter().enumerate() {
            let node = NodeId::at(index);
            if voice.gave || voice.said == Said::Nothing {
                out.push((node, self.farewell(round, node)));
            }
        }
    }

    fn farewell(&self, round: &Round, node: NodeId) -> LeaseAsk {
        LeaseAsk::Release {
            attempt: round.attempt,
            secret: self.secret(round, node),
        }
    }

    /// A node answers a renewal.
    fn renewed(&mut self, now: Now, node: NodeId, reply: &LeaseReply, out: &mut Asks) {
        let Standing::Held {
            token,
            end,
            attempts,
        } = self.standing
        else {
            return;
        };
        if now.mono >= end {
            self.wake(now, out);
            return;
        }
        let Some(round) = &mut self.round else {
            return;
        };
        let Some(renewal) = &mut round.renewal else {
            return;
        };
        if reply.sub != renewal.sub || renewal.said[node.index()] != Wish::Asked {
            return;
        }
        let agrees = matches!(reply.answer, LeaseAnswer::Free { .. });
        renewal.said[node.index()] = if agrees { Wish::Granted } else { Wish::Denied };
        let free = self.config.faults.free();
        let granted = renewal.count(Wish::Granted);
        if granted >= free {
            let from_answer = self.config.rules.has(Plant::RenewFromAnswer);
            let from = if from_answer { now.mono } else { renewal.asked };
            let vote = self.config.vote(self.terms.span);
            let end = end.max(from + self.config.sure(vote));
            round.renewal = None;
            self.standing = Standing::Held {
                token,
                end,
                attempts,
            };
        } else if granted + renewal.count(Wish::Asked) < free {
            round.renewal = None;
        }
    }

    /// The lease has ended by itself.
    fn lapse(&mut self, now: Now) {
        self.count_lies(now);
        self.round = None;
        self.standing = Standing::Idle;
    }

    /// Counts who has not answered, now that everybody has had the time.
    fn count_lies(&mut self, now: Now) {
        let trip = self.config.round_trip();
        let held = matches!(self.standing, Standing::Held { .. });
        let Some(round) = &self.round else {
            return;
        };
        let late = now.mono >= round.asked + trip;
        // What was said was counted when the lease was won.
        if !held || late {
            self.note_lies(now, late);
        }
    }

    fn note_lies(&mut self, now: Now, late: bool) {
        let Some(round) = self.round.as_ref().filter(|_| !self.config.rules.paper) else {
            return;
        };
        let won = matches!(self.standing, Standing::Held { .. });
        let lies = round.lies(&self.config, now.wall, late);
        // A lease that was won has told of everything but silence already.
        let new = lies
            .into_iter()
            .filter(|(_, lie)| !won || !late || *lie == Lie::Silent);
        self.lies.extend(new);
        self.lies.truncate(LIES_MAX);
    }
}
