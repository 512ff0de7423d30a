//! Clients that do their worst with tokens, and with claims to be inside: they know everything and
//! their words take no time.

use std::sync::Arc;

use conclave_protocol::id::{ClientId, ConnNo, LinkId, Name, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Bond, Entered, GrantRef, Message, Mode, NodeInput, Priority, SessionInfo,
};

use super::World;
use crate::fact::Fact;

/// Connections of attackers have numbers that no other connection has.
pub(super) const LINKS: u64 = 1 << 40;
/// So many names of their own they use: more than nodes remember.
const NAMES: usize = 6;

impl World<'_> {
    /// An attacker takes a lock at one node, lifts its tokens as far as it can, and leaves.
    pub(super) fn attack(&mut self, node: u32) {
        let process = &self.nodes[node as usize];
        let Some(machine) = process.machine.as_ref() else {
            return;
        };
        if !process.ready || process.paused || machine.is_starting() {
            return;
        }
        self.attacks += 1;
        let link = LinkId(LINKS + self.attacks);
        let client = ClientId(u128::from(link.0) << 64);
        let session = SessionId(client.0 + 1);
        let own = self.mischief.chance(0.7);
        let name = if own {
            Name::new(format!("evil{}", self.mischief.below(NAMES)))
        } else {
            self.name(self.mischief.clone().below(self.options.names as usize) as u32)
        };
        let ask = Arc::new(Ask {
            name: name.clone(),
            mode: Mode::Exclusive,
            session,
            request: RequestNo(1),
            priority: Priority {
                t: machine.token_clock().0,
                client,
                request: RequestNo(1),
            },
            bond: Bond::Attached,
        });
        let ttl = std::time::Duration::from_millis(self.options.ttl_low_ms);
        self.note(Some(node), None, || format!("* an attacker takes {name}"));
        let hint = self.far_token(node, &name);
        let everywhere = self.config.quorums.all().collect();
        let inside = self.mischief.chance(0.3).then_some(everywhere);
        let words = [
            Message::Hello {
                client,
                conn: ConnNo(1),
                config: self.config.id,
            },
            Message::Open(SessionInfo {
                session,
                ttl,
                detached: false,
                owner: Arc::from("attacker"),
                principal: Arc::default(),
            }),
            Message::Request { ask, hint, inside },
        ];
        for word in words {
            self.attacker_says(node, link, word);
        }
        for _ in 0..3 {
            let Some(grant) = self.attackers_grant(node, session, &name) else {
                break;
            };
            let token = self.far_token(node, &name);
            let word = match self.mischief.below(4) {
                0 => Message::Entered(Box::new(Entered {
                    grant,
                    token,
                    note: None,
                    edition: 0,
                })),
                1 => Message::Done {
                    session,
                    request: RequestNo(1),
                    token: Some(token),
                },
                _ => Message::Raise { grant, token },
            };
            self.attacker_says(node, link, word);
        }
        // What it still holds ends as possibly used; most often it says so itself.
        if self.mischief.chance(0.8) {
            let token = Some(self.far_token(node, &name));
            let done = Message::Done {
                session,
                request: RequestNo(1),
                token,
            };
            self.attacker_says(node, link, done);
        }
        self.step_node(node, NodeInput::Closed(link));
        if self.watched {
            let node = conclave_protocol::id::NodeId(node);
            self.tell(&Fact::Attacked { node });
        }
    }

    fn attacker_says(&mut self, node: u32, link: LinkId, message: Message) {
        self.step_node(node, NodeInput::Receive(link, message));
    }

    /// The grant of an attacker, whether it was told of it or not.
    fn attackers_grant(&self, node: u32, session: SessionId, name: &Name) -> Option<GrantRef> {
        let machine = self.nodes[node as usize].machine.as_ref()?;
        let view = machine.view(name)?;
        let mut entries = view.entries.iter();
        let entry = entries.find(|entry| entry.ask.session == session && entry.grant.0 > 0)?;
        Some(GrantRef {
            session,
            request: RequestNo(1),
            grant: entry.grant,
        })
    }

    /// A token that does much harm if it is taken: at the bound, just beyond it, or far away.
    fn far_token(&mut self, node: u32, name: &Name) -> Token {
        let Some(machine) = self.nodes[node as usize].machine.as_ref() else {
            return Token(0);
        };
        let bound = machine.token_bound();
        let view = machine.view(name);
        let limits = view.iter().flat_map(|view| &view.entries);
        let limit = limits.map(|entry| entry.limit).max().unwrap_or_default();
        match self.mischief.below(8) {
            0 => Token(u64::MAX),
            1 => Token(bound.0.saturating_add(1)),
            2 => Token(
                bound
                    .0
                    .saturating_sub(self.mischief.below(2_000_000) as u64),
            ),
            3 => limit,
            4 => Token(limit.0.saturating_add(1)),
            _ => bound,
        }
    }
}
