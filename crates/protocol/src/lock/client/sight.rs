//! One watched lock, put together from what several nodes see.
//!
//! A holder is reported by nodes of its quorum, each as late as its connection. Two of them may
//! contradict each other: one still has a holder that is gone, another has its successor. The
//! tokens decide: whoever conflicts with a larger token that was seen is of the past. What was
//! shown is remembered, so that a watcher never goes back, whichever node it hears next.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::id::{Name, NodeId, RequestNo, SessionId, Token};
use crate::lock::floor::Floors;
use crate::lock::watch::{Holder, LockState, Report};

/// What is known about one lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// What each node said last; a node that said *idle* is left out.
    reports: BTreeMap<NodeId, Report>,
    /// The tokens that were shown.
    floors: Floors,
    /// What was shown last.
    shown: Option<LockState>,
}

impl Known {
    /// A lock that was shown before, with what must not be shown again.
    pub(super) fn again(floors: Floors) -> Self {
        Self {
            floors,
            ..Self::default()
        }
    }

    pub(super) fn hear(&mut self, node: NodeId, report: Report) {
        if report.is_idle() {
            self.reports.remove(&node);
        } else {
            self.reports.insert(node, report);
        }
    }

    /// Forgets what nodes said that do not pass; `true` if there was any.
    pub(super) fn forget(&mut self, keep: impl Fn(NodeId) -> bool) -> bool {
        let before = self.reports.len();
        self.reports.retain(|node, _| keep(*node));
        self.reports.len() != before
    }

    /// What was shown last.
    pub(super) fn shown(&self) -> Option<&LockState> {
        self.shown.as_ref()
    }

    /// Whether no node says anything about it and nothing is shown.
    pub(super) fn is_over(&self) -> bool {
        self.reports.is_empty() && self.shown.as_ref().is_none_or(LockState::is_idle)
    }

    pub(super) fn floors(self) -> Floors {
        self.floors
    }

    /// How the lock looks now, if that is news. `forgets` is a planted bug: nothing that was
    /// shown counts.
    pub(super) fn look(&mut self, name: &Name, partial: bool, forgets: bool) -> Option<LockState> {
        if forgets {
            self.floors = Floors::default();
        }
        let mut holders = self.candidates(forgets);
        holders.retain(|holder| holder.token > self.floors.other(&holder.group));
        if let Some(first) = holders.first().map(|first| first.group.clone()) {
            // Whoever conflicts with the largest token is of the past.
            holders.retain(|holder| holder.group == first);
        }
        for holder in &holders {
            self.floors.record(&holder.group, holder.token);
        }
        let reports = self.reports.values();
        let state = LockState {
            name: name.clone(),
            more: reports.clone().map(|report| report.more).max().unwrap_or(0),
            waiting: reports.map(|report| report.waiting).max().unwrap_or(0),
            holders,
            partial,
        };
        if self.shown.as_ref() == Some(&state) {
            return None;
        }
        self.shown = Some(state.clone());
        Some(state)
    }

    /// Everyone who is reported, each with the newest that any node knows, largest token first.
    fn candidates(&self, forgets: bool) -> Vec<Holder> {
        let mut found: BTreeMap<(SessionId, RequestNo), Holder> = BTreeMap::new();
        let reported = self.reports.values().flat_map(|report| &report.holders);
        for holder in reported.clone() {
            let id = (holder.session, holder.request);
            match found.get_mut(&id) {
                None => {
                    found.insert(id, holder.clone());
                }
                Some(known) => renew(known, holder),
            }
        }
        let before = self.shown.iter().flat_map(|shown| &shown.holders);
        for holder in before.filter(|_| !forgets) {
            if let Some(known) = found.get_mut(&(holder.session, holder.request)) {
                renew(known, holder);
            }
        }
        // One that moves is inside, but a watcher that does not know its token cannot tell
        // whether it is of the past.
        let known = found.into_values().filter(|holder| holder.token > Token(0));
        let mut holders: Vec<Holder> = known.collect();
        holders.sort_by_key(|holder| (Reverse(holder.token), holder.session, holder.request));
        holders
    }
}

/// Takes over what another node, or an earlier look, knows better.
fn renew(known: &mut Holder, other: &Holder) {
    known.token = known.token.max(other.token);
    if other.edition > known.edition || known.note.is_none() && other.edition == known.edition {
        known.note.clone_from(&other.note);
        known.edition = other.edition;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::mode::Group;
    use crate::time::Wall;

    const A: (u128, u64) = (1, 1);
    const B: (u128, u64) = (2, 1);

    fn holder((session, request): (u128, u64), token: u64) -> Holder {
        let (session, request) = (SessionId(session), RequestNo(request));
        Holder {
            session,
            request,
            group: Group::Request(session, request),
            token: Token(token),
            asked: Wall(1),
            owner: "someone".into(),
            note: None,
            edition: 0,
        }
    }

    fn noted(who: (u128, u64), token: u64, note: &str, edition: u32) -> Holder {
        let mut holder = holder(who, token);
        holder.note = Some(note.as_bytes().into());
        holder.edition = edition;
        holder
    }

    fn hear(known: &mut Known, node: u32, holders: &[Holder]) {
        let report = Report {
            name: Name::new("x"),
            holders: holders.to_vec(),
            more: 0,
            waiting: 0,
        };
        known.hear(NodeId(node), report);
    }

    fn look(known: &mut Known) -> Option<Vec<(u128, u64, Option<String>)>> {
        let state = known.look(&Name::new("x"), false, false)?;
        let show = |holder: &Holder| {
            let note = holder.note.as_ref();
            let note = note.map(|note| String::from_utf8_lossy(note).into_owned());
            (holder.session.0, holder.token.0, note)
        };
        Some(state.holders.iter().map(show).collect())
    }

    /// A node that is behind does not bring a holder of the past back.
    #[test]
    fn a_late_node_brings_nobody_back() {
        let mut known = Known::default();
        hear(&mut known, 0, &[holder(A, 5)]);
        hear(&mut known, 1, &[holder(A, 5)]);
        assert_eq!(look(&mut known), Some(vec![(1, 5, None)]));
        hear(&mut known, 1, &[holder(B, 8)]);
        assert_eq!(look(&mut known), Some(vec![(2, 8, None)]));
        hear(&mut known, 1, &[]);
        assert_eq!(look(&mut known), Some(vec![]), "node 0 is behind");
        assert_eq!(look(&mut known), None, "no news");
        let mut forgets = known.clone();
        let state = forgets.look(&Name::new("x"), false, true);
        assert_eq!(state.unwrap().holders.len(), 1, "the planted bug");
    }

    /// Notes go forward, whichever node is heard last.
    #[test]
    fn notes_never_go_back() {
        let mut known = Known::default();
        hear(&mut known, 0, &[noted(A, 5, "one", 0)]);
        hear(&mut known, 1, &[noted(A, 5, "one", 0)]);
        assert!(look(&mut known).is_some());
        hear(&mut known, 0, &[noted(A, 5, "three", 2)]);
        assert_eq!(
            look(&mut known),
            Some(vec![(1, 5, Some("three".to_owned()))])
        );
        hear(&mut known, 1, &[noted(A, 5, "two", 1)]);
        assert_eq!(look(&mut known), None);
        known.forget(|node| node == NodeId(1));
        assert_eq!(look(&mut known), None, "what was shown stays");
    }

    /// A holder that moves keeps its token in the eyes of a watcher that knows it.
    #[test]
    fn a_mover_stays() {
        let mut known = Known::default();
        hear(&mut known, 0, &[holder(A, 5)]);
        assert!(look(&mut known).is_some());
        hear(&mut known, 1, &[holder(A, 0)]);
        known.forget(|node| node == NodeId(1));
        assert_eq!(look(&mut known), None);
        let mut new = Known::default();
        hear(&mut new, 1, &[holder(A, 0)]);
        assert_eq!(look(&mut new), Some(vec![]));
    }

    /// Members of a group are shown together, and not after a conflicting holder was.
    #[test]
    fn members_of_a_group_share() {
        let member = |session: u128, group: &str, token| {
            let mut holder = holder((session, 1), token);
            holder.group = Group::Named(group.as_bytes().into());
            holder
        };
        let mut known = Known::default();
        hear(&mut known, 0, &[member(1, "g", 5), member(2, "g", 9)]);
        hear(&mut known, 1, &[member(3, "h", 4)]);
        assert_eq!(look(&mut known).unwrap().len(), 2);
        hear(&mut known, 0, &[member(1, "g", 5), member(4, "h", 12)]);
        assert_eq!(look(&mut known), Some(vec![(4, 12, None)]));
        hear(&mut known, 0, &[member(1, "g", 5), member(5, "g", 14)]);
        assert_eq!(look(&mut known), Some(vec![(5, 14, None)]));
    }
}
