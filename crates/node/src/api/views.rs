//! Locks as people see them: what one node knows, and what the nodes together say.
//!
//! A node knows its own queue only. Whoever asks any node about a lock gets the answers of all
//! nodes merged: a holder is a request that a quorum has granted; the rest waits, and its
//! position is the worst of all nodes. If the nodes that did not answer could change that, the
//! answer says that it is partial.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{Bond, EntryView, Label, LockView, Mode, Quorums, Reason};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::text::Text;
use super::why::{Cause, Gathered, Reasoned};

/// How the labels of gateways begin.
pub(crate) const GATEWAY: &str = "gateway n";
/// The most requests of one lock that a node tells.
pub(crate) const ENTRIES_MAX: usize = 1000;

/// With whom a lock may be shared, in JSON: `"exclusive"`, `"shared"` or `{"group": "g"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Mode)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModeText {
    #[default]
    Exclusive,
    Shared,
    Group(Text),
}

impl From<&Mode> for ModeText {
    fn from(mode: &Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Group(name) => Self::Group(Text(name.to_vec())),
        }
    }
}

impl From<&ModeText> for Mode {
    fn from(mode: &ModeText) -> Self {
        match mode {
            ModeText::Exclusive => Self::Exclusive,
            ModeText::Shared => Self::Shared,
            ModeText::Group(name) => Self::group(&name.0),
        }
    }
}

/// A request as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LocalEntry)]
pub(crate) struct Entry {
    /// Its session, in hex.
    pub(crate) session: String,
    /// Its number there.
    pub(crate) request: u64,
    pub(crate) mode: ModeText,
    /// The identity that its token fences.
    pub(crate) group: String,
    /// `attached`, `detached` or `named`.
    pub(crate) bond: String,
    /// When it was made, in microseconds since 1970 on the clock of the nodes.
    pub(crate) asked_us: u64,
    /// Breaks ties of equal times.
    pub(crate) client: String,
    /// The number of the grant; zero while it waits.
    pub(crate) grant: u64,
    /// The token it entered with, if the node knows.
    #[schema(required = true)]
    pub(crate) token: Option<u64>,
    pub(crate) owner: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) note: Option<Text>,
    /// Why it waits here, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) why: Option<Cause>,
    /// How long it has had its grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) granted_ms: Option<u64>,
    /// When its session ends if it is not renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) expires_ms: Option<u64>,
}

impl Entry {
    pub(crate) fn new(view: &EntryView, label: Option<&Label>) -> Self {
        let ask = &view.ask;
        Self {
            session: format!("{:x}", ask.session),
            request: ask.request.0,
            mode: ModeText::from(&ask.mode),
            group: ask.group().to_string(),
            bond: match ask.bond {
                Bond::Attached => "attached",
                Bond::Detached => "detached",
                Bond::Named => "named",
            }
            .to_owned(),
            asked_us: ask.priority.t,
            client: format!("{:x}", ask.priority.client),
            grant: view.grant.0,
            token: view.entered.map(|token| token.0),
            owner: label.map_or_else(String::new, |label| label.owner.to_string()),
            note: label
                .and_then(|label| label.note.as_ref())
                .map(|note| Text(note.to_vec())),
            why: None,
            granted_ms: None,
            expires_ms: None,
        }
    }

    /// Adds what the node says about its wait and its grant.
    pub(crate) fn explain(&mut self, reason: &Reason) {
        self.why = reason.why.map(Cause::from);
        self.granted_ms = reason.granted.map(millis);
        self.expires_ms = reason.expires.map(millis);
    }

    /// What tells it from all others.
    pub(crate) fn key(&self) -> (&str, u64) {
        (&self.session, self.request)
    }

    fn is_granted(&self) -> bool {
        self.grant > 0
    }
}

/// A lock as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LocalLock)]
pub(crate) struct Local {
    pub(crate) name: Text,
    /// Its requests, best first.
    pub(crate) entries: Vec<Entry>,
    /// How many more there are.
    pub(crate) omitted: usize,
    /// What the node is doing, if it does not grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) state: Option<String>,
    /// How long it grants nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) pause_ms: Option<u64>,
}

/// Whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Those requests of a view that are told: all that are granted before all that wait.
pub(crate) fn told(view: &LockView, max: usize) -> Vec<&EntryView> {
    let granted = view.entries.iter().filter(|entry| entry.grant.0 > 0);
    let granted = granted.take(max).count();
    let mut waiting = max - granted;
    let mut room = granted;
    let fits = view.entries.iter().filter(|entry| {
        let left = if entry.grant.0 > 0 {
            &mut room
        } else {
            &mut waiting
        };
        let fits = *left > 0;
        *left -= usize::from(fits);
        fits
    });
    fits.collect()
}

/// Who is inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Holder {
    pub(crate) mode: ModeText,
    /// The fencing token, once the holder has told it.
    #[schema(required = true)]
    pub(crate) token: Option<u64>,
    /// The identity that the token fences.
    pub(crate) group: String,
    pub(crate) owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) note: Option<Text>,
    pub(crate) session: String,
    /// Whether it is kept by a handle.
    pub(crate) by_handle: bool,
    /// When it asked for the lock, in microseconds since 1970 on the clock of the nodes.
    pub(crate) asked_us: u64,
    /// The nodes whose grant it has.
    pub(crate) nodes: Vec<u32>,
    /// Whether the nodes that answered are enough to know it.
    pub(crate) certain: bool,
    /// How long it has been inside, as far as the nodes remember.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) held_ms: Option<u64>,
    /// When the first of its nodes forgets it if it is not renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) expires_ms: Option<u64>,
}

/// Who waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Waiter {
    pub(crate) mode: ModeText,
    pub(crate) owner: String,
    pub(crate) session: String,
    /// When it asked for the lock, in microseconds since 1970 on the clock of the nodes.
    pub(crate) asked_us: u64,
    /// How many requests are before it at the worst node.
    pub(crate) position: u32,
    /// Why it waits, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) why: Option<Reasoned>,
}

/// A lock as the nodes together see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LockView)]
pub(crate) struct Merged {
    pub(crate) name: Text,
    pub(crate) holders: Vec<Holder>,
    /// In the order in which they are served.
    pub(crate) waiters: Vec<Waiter>,
    /// How many requests are not told.
    pub(crate) omitted: usize,
}

/// A request with everything that nodes say about it.
#[derive(Default)]
struct Known {
    entry: Option<Entry>,
    owner: String,
    granted: Vec<NodeId>,
    token: Option<u64>,
    position: usize,
    held_ms: Option<u64>,
    expires_ms: Option<u64>,
    causes: Vec<(NodeId, usize, Cause)>,
}

impl Known {
    fn hear(&mut self, node: NodeId, place: usize, entry: &Entry) {
        self.position = self.position.max(place);
        self.token = self.token.max(entry.token);
        if entry.is_granted() {
            self.granted.push(node);
        }
        // It was inside when the last of its nodes had granted it.
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        self.held_ms = least(self.held_ms, entry.granted_ms);
        self.expires_ms = least(self.expires_ms, entry.expires_ms);
        self.causes
            .extend(entry.why.clone().map(|cause| (node, place, cause)));
        // Where a gateway asked on behalf of a handle, the node knows the gateway alone.
        if self.owner.is_empty() || self.owner.starts_with(GATEWAY) {
            self.owner.clone_from(&entry.owner);
        }
        match &mut self.entry {
            // Whoever has the holder's own words is believed.
            Some(seen) if seen.note.is_some() || entry.note.is_none() => {}
            seen => *seen = Some(entry.clone()),
        }
    }
}

/// Puts together what nodes say about one lock. `silent` nodes did not answer.
pub(crate) fn merge(
    quorums: &Quorums,
    name: Text,
    answers: &[(NodeId, Local)],
    silent: &[NodeId],
) -> Merged {
    let mut known: BTreeMap<(u64, String, String, u64), Known> = BTreeMap::new();
    for (node, local) in answers {
        for (place, entry) in local.entries.iter().enumerate() {
            let key = (
                entry.asked_us,
                entry.client.clone(),
                entry.session.clone(),
                entry.request,
            );
            known.entry(key).or_default().hear(*node, place, entry);
        }
    }
    let mut waiting: Vec<Gathered> = Vec::new();
    let mut merged = Merged {
        name,
        omitted: answers
            .iter()
            .map(|(_, local)| local.omitted)
            .max()
            .unwrap_or(0),
        ..Merged::default()
    };
    for request in known.into_values() {
        let Some(entry) = request.entry else { continue };
        let mode = Mode::from(&entry.mode);
        let certain = quorums.served_by(&mode, request.granted.iter().copied());
        let reached = request.granted.iter().chain(silent).copied();
        let likely = request.token.is_some() && quorums.served_by(&mode, reached);
        if certain || likely {
            let mut nodes: Vec<u32> = request.granted.iter().map(|node| node.0 + 1).collect();
            nodes.sort_unstable();
            merged.holders.push(Holder {
                mode: entry.mode,
                token: request.token,
                group: entry.group,
                owner: request.owner,
                note: entry.note,
                session: entry.session,
                by_handle: entry.bond != "attached",
                asked_us: entry.asked_us,
                nodes,
                certain,
                held_ms: request.held_ms,
                expires_ms: request.expires_ms,
            });
        } else {
            merged.waiters.push(Waiter {
                mode: entry.mode,
                owner: request.owner,
                session: entry.session,
                asked_us: entry.asked_us,
                position: u32::try_from(request.position).unwrap_or(u32::MAX),
                why: None,
            });
            waiting.push(Gathered {
                granted: request.granted,
                causes: request.causes,
            });
        }
    }
    super::why::explain(&mut merged, &waiting, answers);
    merged
}

/// Whether nodes that did not answer could know of a holder that nobody told of.
pub(crate) fn is_partial(quorums: &Quorums, heard: &[NodeId]) -> bool {
    !quorums.informed_by(heard.iter().copied())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn quorums() -> Quorums {
        let text = r#"
            name = "test"
            epoch = 1
            quorum = "majority"
            nodes = [
                { id = 1, peer = "127.0.0.1:1", api = "http://127.0.0.1:1" },
                { id = 2, peer = "127.0.0.1:2", api = "http://127.0.0.1:2" },
                { id = 3, peer = "127.0.0.1:3", api = "http://127.0.0.1:3" },
            ]
        "#;
        let cluster = conclave_wire::Cluster::parse(text).unwrap();
        cluster.config().unwrap().quorums
    }

    pub(in crate::api) fn entry(asked_us: u64, grant: u64, token: Option<u64>) -> Entry {
        Entry {
            session: format!("{asked_us:x}"),
            request: 1,
            mode: ModeText::Exclusive,
            group: "own:1".into(),
            bond: "detached".into(),
            asked_us,
            client: "c".into(),
            grant,
            token,
            owner: format!("owner {asked_us}"),
            note: None,
            why: None,
            granted_ms: None,
            expires_ms: None,
        }
    }

    pub(in crate::api) fn local(entries: Vec<Entry>) -> Local {
        Local {
            name: Text(b"a".to_vec()),
            entries,
            ..Local::default()
        }
    }

    pub(in crate::api) fn merged(answers: &[(NodeId, Local)], silent: &[NodeId]) -> Merged {
        merge(&quorums(), Text(b"a".to_vec()), answers, silent)
    }

    #[test]
    fn a_holder_is_whom_a_quorum_has_granted() {
        let answers = [
            (
                NodeId(0),
                local(vec![entry(1000, 5, None), entry(2000, 0, None)]),
            ),
            (
                NodeId(1),
                local(vec![entry(1000, 2, Some(77)), entry(2000, 0, None)]),
            ),
            (
                NodeId(2),
                local(vec![entry(3000, 1, None), entry(2000, 0, None)]),
            ),
        ];
        let all = merged(&answers, &[]);
        assert_eq!(all.holders.len(), 1);
        assert_eq!(all.holders[0].token, Some(77));
        assert_eq!(all.holders[0].nodes, [1, 2]);
        assert!(all.holders[0].certain);
        let waiting: Vec<u64> = all.waiters.iter().map(|one| one.asked_us).collect();
        assert_eq!(waiting, [2000, 3000]);
        assert_eq!(all.waiters[0].position, 1);
    }

    #[test]
    fn a_holder_that_silent_nodes_could_confirm_is_told_as_uncertain() {
        let answers = [(NodeId(0), local(vec![entry(1000, 5, Some(9))]))];
        let all = merged(&answers, &[NodeId(1)]);
        assert_eq!(all.holders.len(), 1);
        assert!(!all.holders[0].certain);
        // One grant of three, and nobody is silent: it is not inside.
        let all = merged(&answers, &[]);
        assert_eq!((all.holders.len(), all.waiters.len()), (0, 1));
    }

    #[test]
    fn the_owner_of_a_handle_is_not_its_gateway() {
        let mut moved = entry(1000, 3, Some(9));
        moved.owner = "gateway n2".into();
        moved.note = Some(Text(b"hello".to_vec()));
        let answers = [
            (NodeId(0), local(vec![entry(1000, 5, Some(9))])),
            (NodeId(1), local(vec![moved])),
        ];
        let all = merged(&answers, &[]);
        assert_eq!(all.holders[0].owner, "owner 1000");
        assert_eq!(all.holders[0].note, Some(Text(b"hello".to_vec())));
    }

    #[test]
    fn a_minority_of_answers_is_partial() {
        let quorums = quorums();
        assert!(is_partial(&quorums, &[NodeId(0)]));
        assert!(!is_partial(&quorums, &[NodeId(0), NodeId(2)]));
    }

    #[test]
    fn granted_requests_are_told_before_waiting_ones() {
        use conclave_protocol::id::{ClientId, GrantNo, Name, RequestNo, SessionId, Token};
        use conclave_protocol::lock::{Ask, Priority};
        let one = |number: u64, grant: u64| EntryView {
            ask: std::sync::Arc::new(Ask {
                name: Name::new("a"),
                mode: Mode::Exclusive,
                session: SessionId(1),
                request: RequestNo(number),
                priority: Priority {
                    t: number,
                    client: ClientId(1),
                    request: RequestNo(number),
                },
                bond: Bond::Attached,
            }),
            grant: GrantNo(grant),
            limit: Token(0),
            inquired: false,
            inside: false,
            entered: None,
        };
        let view = LockView {
            entries: vec![one(1, 0), one(2, 0), one(3, 8), one(4, 0)],
            ..LockView::default()
        };
        let numbers = |max| -> Vec<u64> {
            let told = told(&view, max);
            told.iter().map(|entry| entry.ask.request.0).collect()
        };
        assert_eq!(numbers(2), [1, 3]);
        assert_eq!(numbers(1), [3]);
        assert_eq!(numbers(9), [1, 2, 3, 4]);
        assert_eq!(numbers(0), [0; 0]);
    }
}
