//! Random values of every kind, drawn from a seed.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, Incarnation, Name, NodeId, RequestNo, SessionId, Token, WatchNo,
};
use conclave_protocol::lock::{
    Ask, Bond, Carried, Claim, ConfigId, Entered, Finished, GrantRef, Group, Handle, Holder,
    Message, Mode, NotNow, Priority, Record, Recovered, Report, Resume, SessionInfo, Sight,
    Snapshot, StoredConfig, StoredGrant, StoredRevocation, Travel, Watch,
};
use conclave_quorum::Prng;

use super::samples::refusals;
use crate::cluster::NODES_MAX;

/// How many kinds of messages [`Random::message`] knows.
const KINDS: usize = 37;

/// Draws values.
pub(super) struct Random(Prng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Prng::new(seed))
    }

    /// A number of any size; zero and the largest are not rare.
    fn number(&mut self) -> u64 {
        match self.0.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.0.below(64),
            3 => self.0.next_u64(),
            _ => self.0.below(300) as u64,
        }
    }

    fn flag(&mut self) -> bool {
        self.0.below(2) == 0
    }

    fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| value(self))
    }

    fn list<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = if self.flag() { 0 } else { self.0.below(9) };
        (0..length).map(|_| value(self)).collect()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.0.below(10) {
            0 => 0,
            1 => 126 + self.0.below(4),
            2 => 4096,
            _ => self.0.below(40),
        };
        (0..length).map(|_| self.0.next_u64() as u8).collect()
    }

    fn id(&mut self) -> u128 {
        // Few ids, so that sequences mention them again; now and then a fresh one.
        match self.0.below(6) {
            0 => u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64()),
            _ => self.0.below(5) as u128,
        }
    }

    fn session(&mut self) -> SessionId {
        SessionId(self.id())
    }

    fn request(&mut self) -> RequestNo {
        RequestNo(self.number())
    }

    fn token(&mut self) -> Token {
        Token(self.number())
    }

    fn node(&mut self) -> NodeId {
        NodeId(self.0.below(NODES_MAX) as u32)
    }

    fn life(&mut self) -> Incarnation {
        Incarnation(self.number())
    }

    fn wall(&mut self) -> Wall {
        Wall(self.number())
    }

    fn span(&mut self) -> Duration {
        Duration::from_nanos(self.number())
    }

    fn grant(&mut self) -> GrantRef {
        GrantRef {
            session: self.session(),
            request: self.request(),
            grant: GrantNo(self.number()),
        }
    }

    fn ask(&mut self) -> Arc<Ask> {
        let request = self.request();
        Arc::new(Ask {
            name: Name::new(self.bytes()),
            mode: match self.0.below(3) {
                0 => Mode::Exclusive,
                1 => Mode::Shared,
                _ => Mode::group(self.bytes()),
            },
            session: self.session(),
            request,
            priority: Priority {
                t: self.number(),
                client: ClientId(self.id()),
                request: if self.flag() { request } else { self.request() },
            },
            bond: [Bond::Attached, Bond::Detached, Bond::Named][self.0.below(3)],
        })
    }

    fn info(&mut self) -> SessionInfo {
        let owner = self.bytes();
        let owner: String = owner.iter().map(|byte| char::from(byte & 0x7f)).collect();
        SessionInfo {
            session: self.session(),
            ttl: self.span(),
            detached: self.flag(),
            owner: owner.into(),
            principal: if self.flag() {
                "alice".into()
            } else {
                Arc::default()
            },
        }
    }

    fn entered(&mut self) -> Entered {
        Entered {
            grant: self.grant(),
            token: self.token(),
            note: self.option(|random| random.bytes().into()),
            edition: self.number() as u32,
        }
    }

    fn finished(&mut self) -> Finished {
        Finished {
            session: self.session(),
            request: self.request(),
            token: self.option(Self::token),
        }
    }

    fn claim(&mut self) -> Claim {
        Claim {
            ask: self.ask(),
            hint: self.token(),
            seen: GrantNo(self.number()),
            holding: self.flag(),
            inside: self.option(Self::token),
            raising: self.option(Self::token),
            fresh: self.flag(),
            members: self.nodes(),
        }
    }

    fn nodes(&mut self) -> Vec<NodeId> {
        (0..self.0.below(4)).map(|_| self.node()).collect()
    }

    fn carried(&mut self) -> Carried {
        Carried {
            node: self.node(),
            incarnation: self.life(),
            grant: GrantNo(self.number()),
            floor: self.token(),
            limit: self.token(),
        }
    }

    fn config(&mut self) -> ConfigId {
        ConfigId {
            epoch: self.number(),
            digest: self.id().to_le_bytes(),
        }
    }

    fn resume(&mut self) -> Resume {
        Resume {
            sessions: self.list(Self::info),
            live: self.list(Self::claim),
            done: self.list(Self::finished),
            last: self.flag(),
        }
    }

    fn recovered(&mut self) -> Recovered {
        Recovered {
            node: self.node(),
            recovering: self.flag(),
            served: self.flag(),
            floor: self.token(),
            limit: self.token(),
            incarnation: self.life(),
            clock: Wall(self.number()),
        }
    }

    fn travel(&mut self) -> Travel {
        Travel {
            ask: self.ask(),
            hint: self.token(),
            route: self.list(Self::node).into(),
            grants: self.list(Self::carried),
        }
    }

    /// A message.
    pub(super) fn message(&mut self) -> Message {
        let kind = self.0.below(KINDS);
        let (session, request, token) = (self.session(), self.request(), self.token());
        let (grant, why) = (self.grant(), refusals()[self.0.below(19)].1);
        let (node, incarnation, clock) = (self.node(), self.life(), self.wall());
        match kind {
            0 => Message::Hello {
                client: ClientId(self.id()),
                conn: ConnNo(self.number()),
                config: self.config(),
            },
            1 => Message::Resume(Box::new(self.resume())),
            2 => Message::Open(self.info()),
            3 => Message::Request {
                ask: self.ask(),
                hint: token,
                inside: self.flag().then(|| self.nodes()),
            },
            4 => Message::Yield(grant),
            5 => Message::Done {
                session,
                request,
                token: self.option(Self::token),
            },
            6 => Message::Raise { grant, token },
            7 => Message::Entered(Box::new(self.entered())),
            8 => Message::Heartbeat {
                beat: self.number(),
                entered: self.list(Self::entered),
            },
            9 => Message::Keepalive { grant, token },
            10 => Message::Finish {
                session,
                request,
                token: self.option(Self::token),
            },
            11 => Message::Welcome {
                node,
                incarnation,
                clock,
            },
            12 => Message::Refused(why),
            13 => Message::Locked {
                grant,
                floor: token,
                limit: self.token(),
                incarnation,
                clock,
            },
            _ => self.message_of_a_node(kind, session, request),
        }
    }

    fn message_of_a_node(&mut self, kind: usize, session: SessionId, no: RequestNo) -> Message {
        let (node, incarnation, clock) = (self.node(), self.life(), self.wall());
        let (grant, request) = (self.grant(), no);
        match kind {
            14 => Message::Queued {
                session,
                request,
                position: self.number() as u32,
            },
            15 => Message::NotNow {
                session,
                request,
                why: [NotNow::Pausing, NotNow::Draining][self.0.below(2)],
                retry: self.span(),
            },
            16 => Message::Inquire(grant),
            17 => Message::Raised {
                grant,
                token: self.token(),
            },
            18 => Message::Noted(grant),
            19 => Message::Beat {
                beat: self.number(),
                clock,
                noted: self.list(Self::grant),
            },
            20 => Message::Kept(grant),
            21 => Message::Dead {
                session,
                request: self.option(Self::request),
            },
            22 => Message::Denied {
                session,
                request: self.option(Self::request),
                why: refusals()[self.0.below(19)].1,
            },
            23 => Message::Draining,
            24 => Message::Recover { node, incarnation },
            25 => Message::Recovered(self.recovered()),
            26 => Message::Alive { node, incarnation },
            27 => Message::Travel(Box::new(self.travel())),
            28 => Message::Carried {
                session,
                request,
                grants: self.list(Self::carried),
            },
            _ => self.message_of_a_watch(kind),
        }
    }

    fn message_of_a_watch(&mut self, kind: usize) -> Message {
        let watch = WatchNo(self.number());
        match kind {
            29 => Message::Watch {
                watch,
                what: if self.flag() {
                    Watch::Name(Name::new(self.bytes()))
                } else {
                    Watch::Prefix(self.bytes().into())
                },
            },
            30 => Message::Unwatch { watch },
            32 => Message::Revoked(self.session()),
            31 => Message::Watched(self.grant()),
            35 => Message::ConfirmGrant(self.ask()),
            36 => Message::GrantConfirmed {
                session: self.session(),
                request: self.request(),
                granted: self.flag().then(|| self.flag()),
            },
            34 => Message::TokenClock {
                clock: self.wall(),
                asks: self.flag(),
            },
            _ => Message::Seen {
                watch,
                sight: Box::new(match self.0.below(4) {
                    0 => Sight::Begin,
                    1 => Sight::Synced,
                    2 => Sight::Refused(refusals()[self.0.below(19)].1),
                    _ => Sight::State(Report {
                        name: Name::new(self.bytes()),
                        holders: self.list(Self::holder),
                        more: self.number() as u32,
                        waiting: self.number() as u32,
                    }),
                }),
            },
        }
    }

    fn holder(&mut self) -> Holder {
        let (session, request) = (self.session(), self.request());
        let group = match self.0.below(4) {
            0 => Group::Request(session, request),
            1 => Group::Session(session),
            2 => Group::Shared,
            _ => Group::Named(self.bytes().into()),
        };
        Holder {
            session,
            request,
            group,
            token: self.token(),
            asked: self.wall(),
            owner: self.info().owner,
            note: self.option(|random| random.bytes().into()),
            edition: self.number() as u32,
        }
    }

    fn stored(&mut self) -> StoredGrant {
        StoredGrant {
            ask: self.ask(),
            session: self.info(),
            client: ClientId(self.id()),
            grant: GrantNo(self.number()),
            floor: self.token(),
            limit: self.token(),
            named: self.token(),
            entered: self.flag(),
        }
    }

    fn stored_config(&mut self) -> StoredConfig {
        StoredConfig {
            id: self.config(),
            text: format!("{:?}", self.number()).into(),
            before: self.node().0,
        }
    }

    /// A record.
    pub(super) fn record(&mut self) -> Record {
        match self.0.below(12) {
            0 => Record::Incarnation(self.life()),
            1 => Record::Ceiling {
                ceiling: self.token(),
                clock: Wall(self.number()),
            },
            2 => Record::LongestTtl(self.span()),
            3 => Record::DefaultFloor(self.token()),
            4 => Record::Clean(Box::new(Snapshot {
                grants: self.list(Self::stored),
                floor: self.token(),
                grant: GrantNo(self.number()),
            })),
            5 => Record::Unclean,
            6 => Record::Grant(Box::new(self.stored())),
            7 => Record::Revoked(Box::new(StoredRevocation {
                session: self.session(),
                by: self.info().owner,
                known: self.flag(),
            })),
            8 => Record::RevocationEnded(self.session()),
            9 => Record::Config(Box::new(self.stored_config())),
            10 => Record::Adopting(Box::new(self.stored_config())),
            _ => Record::GrantEnded(self.session(), self.request()),
        }
    }

    /// A handle.
    pub(super) fn handle(&mut self) -> Handle {
        Handle {
            config: self.config(),
            ask: self.ask(),
            token: self.token(),
            ttl: self.span(),
            grants: self.list(|random| {
                let grant = GrantNo(random.number());
                (random.node(), random.life(), grant)
            }),
        }
    }
}
