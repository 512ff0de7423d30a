//! What the checkers remember together: who is inside, and which grant each holder rests on.
//!
//! One [`Book`] is shared by the checkers of a run. [`super::Grounded`] writes each fact into it
//! and therefore watches first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use conclave_protocol::id::{GrantNo, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{Ask, Bond, End, Group, LockView};
use conclave_protocol::table::Table;

use crate::fact::{Eyes, Fact, Holder, True, Violation};

/// The book as its readers share it.
pub type Book = Rc<RefCell<Ledger>>;

/// The place of a grant in the book. Places grow in the order in which grants were given, so at
/// one node they tell which of two grants came first, over all its lives.
pub type Place = u32;

/// A grant that a node gave.
#[derive(Clone, Debug)]
pub struct Given {
    /// Who gave it.
    pub node: NodeId,
    /// Its number there.
    pub grant: GrantNo,
    /// To which request.
    pub ask: Arc<Ask>,
    /// How it ended at the node, if it did.
    pub ended: Option<End>,
    /// The world or a caller broke its promise on purpose: whoever rests on it may be overlapped.
    pub waived: bool,
    /// The hold that rests on it, or rested on it last.
    hold: Option<u32>,
    /// An older grant with the same number, from an earlier life of the node.
    before: Option<Place>,
}

impl Given {
    /// Whether the node took the grant away, whatever its holder did.
    pub fn taken(&self) -> bool {
        use End::{Expired, Forgotten, Lapsed, Revoked};
        let taken = matches!(self.ended, Some(Expired | Lapsed | Forgotten | Revoked));
        taken || self.waived
    }
}

/// A holder that entered and was not yet told otherwise.
#[derive(Clone, Debug)]
pub struct Hold {
    /// Who.
    pub holder: Holder,
    /// Its group.
    pub group: Group,
    /// Its token.
    pub token: Token,
    /// The grants it rests on.
    pub members: Vec<Place>,
    /// Members it claims although no node gave them to it.
    pub groundless: Vec<(NodeId, GrantNo)>,
    /// Its request, as far as its grants tell.
    request: Option<(SessionId, RequestNo)>,
}

/// All of it.
#[derive(Debug)]
pub struct Ledger {
    given: Vec<Given>,
    by_number: Table<(NodeId, GrantNo), Place>,
    latest: BTreeMap<(NodeId, SessionId, RequestNo), Place>,
    holds: BTreeMap<u32, Hold>,
    by_holder: Table<Holder, u32>,
    by_name: Table<Name, Vec<u32>>,
    next_hold: u32,
    leaving: Option<u32>,
    seen: Option<Seen>,
}

/// The last view that a reader asked for, until the next fact.
#[derive(Debug)]
struct Seen {
    node: NodeId,
    name: Name,
    view: Option<Rc<LockView>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            given: Vec::new(),
            by_number: Table::new(1),
            latest: BTreeMap::new(),
            holds: BTreeMap::new(),
            by_holder: Table::new(2),
            by_name: Table::new(3),
            next_hold: 0,
            leaving: None,
            seen: None,
        }
    }
}

impl Ledger {
    /// Writes a fact down. A hold that ends with it can still be looked up until the next fact,
    /// but is no longer among those inside.
    pub fn write(&mut self, fact: &Fact) {
        self.seen = None;
        if let Some(gone) = self.leaving.take()
            && let Some(hold) = self.holds.remove(&gone)
        {
            self.by_holder.remove(&hold.holder);
        }
        match fact {
            Fact::Granted {
                node, ask, grant, ..
            } => self.give(*node, ask, *grant),
            Fact::Reclaimed {
                node, ask, grant, ..
            } => self.reclaim(*node, ask, *grant),
            Fact::NodeEnded {
                node,
                ask,
                grant,
                why,
            } if *grant != GrantNo(0) => self.end(*node, ask, *grant, *why),
            Fact::ExpiredBySpite { node, session } => self.spite(*node, *session),
            Fact::Entered {
                holder,
                group,
                token,
                members,
            } => self.enter(holder, group, *token, members),
            Fact::Moved {
                holder,
                token,
                members,
            } => self.shift(holder, *token, members),
            Fact::Released { holder } | Fact::Lost { holder } | Fact::Vanished { holder } => {
                self.leave(holder);
            }
            _ => {}
        }
    }

    /// A grant.
    pub fn given(&self, place: Place) -> &Given {
        &self.given[place as usize]
    }

    /// The grant of this number that a node gave to a request.
    pub fn look_up(&self, node: NodeId, ask: &Ask, grant: GrantNo) -> Option<Place> {
        let own = request_of(ask);
        self.find(node, grant, |given| request_of(&given.ask) == own)
    }

    /// A holder that is inside, or that left with the present fact.
    pub fn hold(&self, holder: &Holder) -> Option<&Hold> {
        self.holds.get(self.by_holder.get(holder)?)
    }

    /// All who are inside, in the order of their entry.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        let all = self.holds.iter();
        all.filter(|(id, _)| self.leaving != Some(**id))
            .map(|(_, hold)| hold)
    }

    /// Who is inside a lock without being a member of `group`.
    pub fn rivals<'a>(
        &'a self,
        name: &Name,
        group: &'a Group,
    ) -> impl Iterator<Item = &'a Hold> + use<'a> {
        let ids = self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        let all = ids.iter().filter_map(|id| self.holds.get(id));
        all.filter(move |hold| hold.group != *group)
    }

    /// The hold inside that rests on this grant.
    pub fn rests_on(&self, place: Place) -> Option<&Hold> {
        let id = self.given(place).hold?;
        if self.leaving == Some(id) {
            return None;
        }
        let hold = self.holds.get(&id)?;
        hold.members.contains(&place).then_some(hold)
    }

    /// Whether the promise of a grant that this hold rests on was broken on purpose.
    pub fn waived(&self, hold: &Hold) -> bool {
        hold.members.iter().any(|&place| self.given(place).waived)
    }

    /// The grant of this number that the hold rests on.
    pub fn member(&self, hold: &Hold, node: NodeId, grant: GrantNo) -> Option<&Given> {
        let all = hold.members.iter().map(|&place| self.given(place));
        all.into_iter()
            .find(|given| given.node == node && given.grant == grant)
    }

    /// A lock as a node sees it; looked at only once per fact.
    pub fn view(&mut self, node: NodeId, name: &Name, eyes: &dyn Eyes) -> Option<Rc<LockView>> {
        if let Some(seen) = &self.seen
            && seen.node == node
            && seen.name == *name
        {
            return seen.view.clone();
        }
        let view = eyes.view(node, name).map(Rc::new);
        self.seen = Some(Seen {
            node,
            name: name.clone(),
            view: view.clone(),
        });
        view
    }

    fn give(&mut self, node: NodeId, ask: &Arc<Ask>, grant: GrantNo) {
        let place = self.given.len() as Place;
        let before = self.by_number.insert((node, grant), place);
        self.given.push(Given {
            node,
            grant,
            ask: ask.clone(),
            ended: None,
            waived: false,
            hold: None,
            before,
        });
        self.latest.insert((node, ask.session, ask.request), place);
    }

    /// A grant that goes on in another life of its node keeps its place in the order.
    fn reclaim(&mut self, node: NodeId, ask: &Arc<Ask>, grant: GrantNo) {
        let found = self.latest.get(&(node, ask.session, ask.request)).copied();
        let Some(place) = found else {
            return self.give(node, ask, grant);
        };
        let given = &mut self.given[place as usize];
        given.ended = None;
        if given.grant != grant {
            given.grant = grant;
            given.before = self.by_number.insert((node, grant), place);
        }
        if given.waived {
            // Its rival got this node because of the broken promise, and now loses it again.
            let group = ask.group();
            let rivals = self.rivals(&ask.name, &group);
            let places: Vec<Place> = rivals.flat_map(|hold| hold.members.clone()).collect();
            for place in places {
                let given = &mut self.given[place as usize];
                given.waived |= given.node == node;
            }
        }
    }

    fn end(&mut self, node: NodeId, ask: &Ask, grant: GrantNo, why: End) {
        let Some(place) = self.look_up(node, ask, grant) else {
            return;
        };
        let in_use = self.rests_on(place).is_some();
        let given = &mut self.given[place as usize];
        given.ended = Some(why);
        // The handle of one attempt releases all attempts of a session that its caller named.
        let released = matches!(why, End::Done(_) | End::Cancelled);
        let by_sibling = in_use && released && ask.bond == Bond::Named;
        given.waived |= why == End::Revoked || by_sibling;
    }

    fn spite(&mut self, node: NodeId, session: SessionId) {
        let all = (node, session, RequestNo(0))..=(node, session, RequestNo(u64::MAX));
        for place in self.latest.range(all).map(|(_, &place)| place) {
            let given = &mut self.given[place as usize];
            given.waived |= given.ended.is_none();
        }
    }

    fn enter(
        &mut self,
        holder: &Holder,
        group: &Group,
        token: Token,
        members: &[(NodeId, GrantNo)],
    ) {
        self.leave(holder);
        if let Some(gone) = self.leaving.take() {
            self.holds.remove(&gone);
        }
        let id = self.next_hold;
        self.next_hold += 1;
        let request = self.request(&holder.name, group, members);
        self.holds.insert(
            id,
            Hold {
                holder: holder.clone(),
                group: group.clone(),
                token,
                members: Vec::new(),
                groundless: Vec::new(),
                request,
            },
        );
        self.by_holder.insert(holder.clone(), id);
        if let Some(inside) = self.by_name.get_mut(&holder.name) {
            inside.push(id);
        } else {
            self.by_name.insert(holder.name.clone(), vec![id]);
        }
        self.shift(holder, token, members);
    }

    fn shift(&mut self, holder: &Holder, token: Token, members: &[(NodeId, GrantNo)]) {
        let Some(&id) = self.by_holder.get(holder) else {
            return;
        };
        let Some(mut hold) = self.holds.remove(&id) else {
            return;
        };
        hold.token = token;
        hold.members.clear();
        hold.groundless.clear();
        for &(node, grant) in members {
            let fits = |given: &Given| {
                given.ask.name == holder.name
                    && given.ask.group() == hold.group
                    && hold.request.is_none_or(|own| own == request_of(&given.ask))
            };
            if let Some(place) = self.find(node, grant, fits) {
                self.given[place as usize].hold = Some(id);
                hold.members.push(place);
            } else {
                hold.groundless.push((node, grant));
            }
        }
        self.holds.insert(id, hold);
    }

    fn leave(&mut self, holder: &Holder) {
        let Some(&id) = self.by_holder.get(holder) else {
            return;
        };
        self.leaving = Some(id);
        if let Some(inside) = self.by_name.get_mut(&holder.name) {
            inside.retain(|&other| other != id);
            if inside.is_empty() {
                self.by_name.remove(&holder.name);
            }
        }
    }

    /// The newest grant of this number that fits. Numbers may begin anew in another life.
    fn find(&self, node: NodeId, grant: GrantNo, fits: impl Fn(&Given) -> bool) -> Option<Place> {
        let mut next = self.by_number.get(&(node, grant)).copied();
        while let Some(place) = next {
            let given = self.given(place);
            if given.grant == grant && fits(given) {
                return Some(place);
            }
            next = given.before;
        }
        None
    }

    /// The one request to which all these grants were given, if there is one; else the request of
    /// the first that fits.
    fn request(
        &self,
        name: &Name,
        group: &Group,
        members: &[(NodeId, GrantNo)],
    ) -> Option<(SessionId, RequestNo)> {
        if let Group::Request(session, request) = group {
            return Some((*session, *request));
        }
        let fits = |given: &Given| given.ask.name == *name && given.ask.group() == *group;
        let mut first = None;
        for &(node, grant) in members {
            let mut next = self.by_number.get(&(node, grant)).copied();
            while let Some(place) = next {
                let given = self.given(place);
                let own = request_of(&given.ask);
                let same = |given: &Given| request_of(&given.ask) == own;
                if given.grant == grant && fits(given) {
                    let mut all = members.iter();
                    if all.all(|&(node, grant)| self.find(node, grant, same).is_some()) {
                        return Some(own);
                    }
                    first = first.or(Some(own));
                }
                next = given.before;
            }
        }
        first
    }
}

fn request_of(ask: &Ask) -> (SessionId, RequestNo) {
    (ask.session, ask.request)
}

/// A holder in the words of a message.
pub(super) fn name_of(holder: &Holder) -> String {
    let Holder {
        client,
        life,
        key,
        name,
    } = holder;
    format!("client {client} (life {life}, key {key}, lock {name})")
}

/// The result of a checker that found something.
pub(super) fn broken(property: &'static str, at: True, what: String) -> Result<(), Violation> {
    Err(Violation { property, at, what })
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::Token;
    use conclave_protocol::lock::Mode;

    use super::super::fake::{ask, ended, entered, granted, holder, moved, released, spite};
    use super::*;

    /// Client 1 is inside on nodes 0 and 1, client 2 on node 2.
    fn book() -> Ledger {
        let mut book = Ledger::default();
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        book.write(&granted(0, &a, 1));
        book.write(&granted(1, &a, 1));
        book.write(&granted(2, &b, 1));
        book.write(&entered(&holder(1), &a, 5, &[(0, 1), (1, 1)]));
        book.write(&entered(&holder(2), &b, 6, &[(2, 1)]));
        book
    }

    fn waived(book: &Ledger, client: u32) -> Option<bool> {
        book.hold(&holder(client)).map(|hold| book.waived(hold))
    }

    fn reclaimed(node: u32, client: u32) -> Fact {
        Fact::Reclaimed {
            node: NodeId(node),
            ask: ask(client, &Mode::Exclusive),
            grant: GrantNo(1),
            token: Token(5),
        }
    }

    #[test]
    fn a_hold_that_ends_is_there_for_one_more_fact() {
        let mut book = book();
        book.write(&released(1));
        assert!(book.hold(&holder(1)).is_some());
        assert_eq!(book.holds().count(), 1);
        let group = ask(2, &Mode::Exclusive).group();
        assert_eq!(book.rivals(&holder(1).name, &group).count(), 0);
        assert!(book.rests_on(0).is_none());
        book.write(&Fact::Healed);
        assert!(book.hold(&holder(1)).is_none());
    }

    #[test]
    fn entering_again_forgets_the_first_time() {
        let mut book = book();
        book.write(&entered(
            &holder(1),
            &ask(1, &Mode::Exclusive),
            7,
            &[(0, 1)],
        ));
        assert_eq!(book.holds().count(), 2);
        assert_eq!(
            book.hold(&holder(1)).map(|hold| hold.members.len()),
            Some(1)
        );
        book.write(&released(1));
        book.write(&Fact::Healed);
        assert_eq!(book.holds().count(), 1);
    }

    #[test]
    fn spite_stays_with_the_grant() {
        let mut book = book();
        book.write(&spite(1, 1));
        assert_eq!(
            (waived(&book, 1), waived(&book, 2)),
            (Some(true), Some(false))
        );
        book.write(&moved(&holder(1), 5, &[(0, 1)]));
        assert_eq!(waived(&book, 1), Some(false));
        assert!(book.rests_on(1).is_none() && book.rests_on(0).is_some());
        book.write(&ended(0, &ask(1, &Mode::Exclusive), 1, End::Yielded));
        book.write(&spite(0, 1));
        assert_eq!(waived(&book, 1), Some(false), "it had ended before");
    }

    #[test]
    fn a_reclaimed_grant_keeps_its_place_and_its_past() {
        let mut book = book();
        let a = ask(1, &Mode::Exclusive);
        book.write(&ended(0, &a, 1, End::Expired));
        assert!(book.given(0).taken());
        book.write(&reclaimed(0, 1));
        assert!(!book.given(0).taken());
        assert_eq!(book.look_up(NodeId(0), &a, GrantNo(1)), Some(0));
        book.write(&reclaimed(0, 3));
        assert_eq!(
            book.look_up(NodeId(0), &ask(3, &Mode::Exclusive), GrantNo(1)),
            Some(3)
        );
    }

    #[test]
    fn a_rival_is_excused_when_a_holder_comes_back_out_of_spite() {
        for by_spite in [false, true] {
            let mut book = book();
            let b = ask(2, &Mode::Exclusive);
            if by_spite {
                book.write(&spite(0, 1));
            }
            book.write(&granted(0, &b, 2));
            book.write(&moved(&holder(2), 6, &[(0, 2), (2, 1)]));
            book.write(&reclaimed(0, 1));
            assert_eq!(waived(&book, 2), Some(by_spite));
            book.write(&moved(&holder(2), 6, &[(2, 1)]));
            assert_eq!(
                waived(&book, 2),
                Some(false),
                "the other node kept its word"
            );
        }
    }

    #[test]
    fn one_attempt_of_a_named_session_releases_the_others() {
        for (bond, why, excused) in [
            (Bond::Named, End::Cancelled, true),
            (Bond::Named, End::Done(Token(5)), true),
            (Bond::Named, End::Expired, false),
            (Bond::Attached, End::Cancelled, false),
        ] {
            let mut book = Ledger::default();
            let mut a = (*ask(1, &Mode::Exclusive)).clone();
            a.bond = bond;
            let a = Arc::new(a);
            book.write(&granted(0, &a, 1));
            book.write(&entered(&holder(1), &a, 5, &[(0, 1)]));
            book.write(&ended(0, &a, 1, why));
            assert_eq!(waived(&book, 1), Some(excused), "{bond:?} {why:?}");
        }
    }
}
