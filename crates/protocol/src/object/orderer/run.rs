//! Operations turned into the cells that they change.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use conclave_quorum::Prng;

use crate::object::acl::{Acl, Want};
use crate::object::author::{self, Known, LastOp};
use crate::object::cells;
use crate::object::config::ObjectConfig;
use crate::object::envelope::{Batch, Fault, Outcome, Wish, encode_outcomes};
use crate::object::kind::{AUTHORS, Context, DATA, Draft, Kind, data};
use crate::object::message::{OpId, Pending};
use crate::object::plant::Plant;
use crate::object::state::{Delta, State};
use crate::time::Wall;

/// So many authors are looked at per version, to forget those that are long gone.
const AUTHORS_LOOK: usize = 4;
/// What an operation's record costs beside its result.
const RECORD_COST: usize = 64;

/// Whether an object of this state can be worked on with this kind.
pub(super) fn fits(state: &State, kind: &dyn Kind) -> bool {
    match state.get(cells::KIND) {
        None => true,
        Some(name) => **name == *kind.name().as_bytes() && code(state) <= kind.code(),
    }
}

fn code(state: &State) -> u32 {
    let code = state.get(cells::CODE);
    let bytes = code.and_then(|code| <[u8; 4]>::try_from(code.as_ref()).ok());
    bytes.map_or(0, u32::from_be_bytes)
}

/// Runs the operations that a state does not reflect, one after the other. None if there is none.
pub(super) fn run(
    base: &State,
    operations: &[Pending],
    kind: &dyn Kind,
    config: &ObjectConfig,
    wall: Wall,
    chance: &mut Prng,
) -> Option<Delta> {
    if !fits(base, kind) {
        return None;
    }
    // A sixteenth of the room, and of a delta half, is left for records of what was done.
    let room = (config.object_size_max / 16 * 15).saturating_sub(base.bytes());
    let mut draft = Draft::new(base, room.min(config.delta_size_max / 2));
    let mut done = 0;
    for pending in operations {
        if !runs(base, pending, kind) {
            continue;
        }
        let again = config.rules.has(Plant::RunAgain);
        let new = author::known(base, pending.op) == Known::New;
        if !again && (!new || seen_in(&draft, pending.op)) {
            continue;
        }
        let full = draft.noted() + config.result_size_max + RECORD_COST > config.delta_size_max / 2;
        if full && done > 0 {
            // The rest waits for the next version.
            break;
        }
        let mut run = Run {
            kind,
            config,
            wall,
            version: base.version() + 1,
            principal: &pending.principal,
            chance: &mut *chance,
        };
        run.operation(pending, &mut draft);
        done += 1;
    }
    if done == 0 {
        return None;
    }
    forget(base, &mut draft, config, wall, chance);
    Some(Delta::new(draft.finish()))
}

/// Whether this client can say what comes of an operation: with its own code, or because the
/// object is of another kind than the operation. Others are left to those who can.
fn runs(base: &State, pending: &Pending, kind: &dyn Kind) -> bool {
    let Some(batch) = Batch::decode(&pending.body) else {
        return true;
    };
    let same = batch.kind == kind.name();
    let made = base.get(cells::KIND).is_some();
    if same {
        batch.code <= kind.code()
    } else {
        made
    }
}

/// Whether the draft already has an operation of this author.
fn seen_in(draft: &Draft<'_>, op: OpId) -> bool {
    let cell = draft.raw_get(&author::cell(op.author));
    let last = cell
        .as_deref()
        .and_then(|cell| LastOp::read(cell).map(|last| last.number));
    last.is_some_and(|last| last >= op.number)
}

struct Run<'a> {
    kind: &'a dyn Kind,
    config: &'a ObjectConfig,
    wall: Wall,
    version: u64,
    principal: &'a Arc<str>,
    chance: &'a mut Prng,
}

impl Run<'_> {
    /// One operation and the record of it.
    fn operation(&mut self, pending: &Pending, draft: &mut Draft<'_>) {
        let outcomes = match Batch::decode(&pending.body) {
            Some(batch) => self.batch(&batch, draft),
            None => vec![Outcome::Failed(Fault::Unreadable)],
        };
        let result = encode_outcomes(&outcomes);
        let record = LastOp {
            number: pending.op.number,
            millis: self.wall.0 / 1000,
            result: &result,
        };
        draft.note(&author::cell(pending.op.author), &record.write());
    }

    fn batch(&mut self, batch: &Batch, draft: &mut Draft<'_>) -> Vec<Outcome> {
        let mut room = self.config.result_size_max;
        let wishes = batch.wishes.iter();
        wishes
            .map(|wish| {
                draft.begin();
                let mut outcome = self.wish(wish, batch, draft);
                let size = match &outcome {
                    Outcome::Result(result) => result.len() + 5,
                    Outcome::Failed(_) => 5,
                };
                if draft.refused() || size > room {
                    outcome = Outcome::Failed(Fault::TooLarge);
                }
                if matches!(outcome, Outcome::Failed(_)) {
                    draft.undo();
                }
                room = room.saturating_sub(size.min(room));
                outcome
            })
            .collect()
    }

    /// Whether the object's owner lets it be changed in this name. Nodes ask this, too; but some
    /// that have not heard of the owner's last word yet may have taken the operation.
    fn is_let_in(&self, draft: &Draft<'_>) -> bool {
        let Some(acl) = draft.raw_get(cells::ACL) else {
            return true;
        };
        let creator = draft.raw_get(cells::CREATOR);
        creator.is_some_and(|creator| *creator == *self.principal.as_bytes())
            || Acl::read_cell(&acl).is_some_and(|acl| acl.names(self.principal, Want::Write))
            || self.config.rules.has(Plant::AclIgnored)
    }

    fn wish(&mut self, wish: &Wish, batch: &Batch, draft: &mut Draft<'_>) -> Outcome {
        if !self.is_let_in(draft) {
            return Outcome::Failed(Fault::NotPermitted);
        }
        let made = draft.raw_get(cells::KIND);
        let kind = self.kind.name();
        let same = made.as_deref().is_none_or(|made| made == kind.as_bytes());
        let ours = batch.kind == kind && batch.code <= self.kind.code();
        match wish {
            Wish::Operation(body) if same && ours => {
                if made.is_none() {
                    self.create(draft);
                }
                self.kind_runs(body, draft)
            }
            Wish::Operation(_) => Outcome::Failed(Fault::OtherKind),
            Wish::SetAcl(_) | Wish::Delete if !self.is_creator(draft) => {
                Outcome::Failed(Fault::NotPermitted)
            }
            Wish::SetAcl(acl) if Acl::read_cell(acl).is_some() => {
                if made.is_none() {
                    self.create(draft);
                }
                draft.raw_set(cells::ACL, Some(acl));
                Outcome::Result([].into())
            }
            Wish::SetAcl(_) => Outcome::Failed(Fault::Unreadable),
            Wish::Delete => {
                delete(draft);
                Outcome::Result([].into())
            }
        }
    }

    /// Whether it is in the creator's name, or nobody's object yet.
    fn is_creator(&self, draft: &Draft<'_>) -> bool {
        let creator = draft.raw_get(cells::CREATOR);
        creator.is_none_or(|creator| *creator == *self.principal.as_bytes())
    }

    fn create(&self, draft: &mut Draft<'_>) {
        draft.raw_set(cells::KIND, Some(self.kind.name().as_bytes()));
        draft.raw_set(cells::CODE, Some(&self.kind.code().to_be_bytes()));
        draft.raw_set(cells::CREATOR, Some(self.principal.as_bytes()));
        if draft.raw_get(cells::TOMBSTONE).is_some() {
            draft.raw_set(cells::TOMBSTONE, None);
        }
    }

    /// The kind's own code, which may be anybody's: if it fails, the operation does.
    fn kind_runs(&mut self, body: &[u8], draft: &mut Draft<'_>) -> Outcome {
        let mut context = Context {
            principal: self.principal.clone(),
            wall: self.wall,
            chance: self.chance.next_u64(),
            version: self.version,
        };
        let run = || self.kind.apply(body, draft, &mut context);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => Outcome::Result(result.into()),
            Err(_) => Outcome::Failed(Fault::Unreadable),
        }
    }
}

/// Takes away what is the object's, and leaves what its authors need.
fn delete(draft: &mut Draft<'_>) {
    for cell in [cells::KIND, cells::CODE, cells::CREATOR, cells::ACL] {
        draft.raw_set(cell, None);
    }
    let mut from: Arc<[u8]> = data(b"");
    while let Some((cell, _)) = draft.raw_first(&[DATA], &from, false) {
        if !draft.raw_set(&cell, None) {
            return;
        }
        from = cell;
    }
    draft.raw_set(cells::TOMBSTONE, Some(b"1"));
}

/// Forgets a few authors that are long gone.
fn forget(
    base: &State,
    draft: &mut Draft<'_>,
    config: &ObjectConfig,
    wall: Wall,
    chance: &mut Prng,
) {
    let now = wall.0 / 1000;
    let early = config.rules.has(Plant::AuthorForgotten);
    let idle = if early {
        0
    } else {
        config.author_idle.as_millis() as u64
    };
    let mut floor = author::floor(base).unwrap_or(0);
    let place = u128::from(chance.next_u64()) << 64 | u128::from(chance.next_u64());
    let mut start = vec![AUTHORS];
    // Authors are ordered by their beginning: a time between the first and now, drawn evenly.
    let began = (now << 16 | 0xffff).max(1);
    let drawn = (place % (u128::from(began))) << 64;
    start.extend_from_slice(&drawn.to_be_bytes());
    let first = base.cells(&[AUTHORS], false);
    let drawn = base.cells(&start, false);
    let near = first.take(AUTHORS_LOOK).chain(drawn.take(AUTHORS_LOOK));
    draft.begin();
    for (cell, value) in near.map_while(|(cell, value)| Some((author::of_cell(cell)?, value))) {
        let last = LastOp::read(value).map_or(0, |last| last.millis);
        let name = author::cell(cell);
        let untouched = draft.raw_get(&name).as_ref() == Some(value);
        let spare = if early { 1 } else { idle };
        if untouched && now.saturating_sub(last) >= spare {
            let new = floor.max(cell.began());
            let fits = draft.raw_set(&name, None)
                && draft.raw_set(cells::FLOOR, Some(&author::floor_value(new)));
            if !fits {
                draft.undo();
                return;
            }
            // The bug that is planted forgets that it forgot.
            floor = if early { 0 } else { new };
        }
    }
    if early {
        draft.raw_set(cells::FLOOR, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Aborts, Faults};
    use crate::lease::LeaseConfig;
    use crate::object::envelope::decode_outcomes;
    use crate::object::kinds::{Code, Typed, counter};
    use crate::object::message::Author;

    fn pending(who: &str, author: u128, number: u64, wish: Wish) -> Pending {
        let batch = Batch {
            kind: "counter".to_owned(),
            code: 1,
            wishes: vec![wish],
        };
        Pending {
            op: OpId {
                author: Author(author << 80),
                number,
            },
            principal: who.into(),
            body: batch.encode().into(),
        }
    }

    fn add() -> Wish {
        Wish::Operation(counter::Op::Add(1).encode().into())
    }

    /// Lets operations be done upon a state, and gives what came of the last one.
    fn after(base: &State, operations: &[Pending]) -> (State, Outcome) {
        let faults = Faults::new(7, 1).expect("enough nodes");
        let lease = Arc::new(LeaseConfig::new(faults));
        let config = ObjectConfig::new(lease, Aborts::Vouched).expect("enough nodes");
        let kind = Typed(counter::Counter);
        let wall = Wall(1_000_000);
        let delta = run(base, operations, &kind, &config, wall, &mut Prng::new(1));
        let state = base
            .next(&delta.expect("something new"))
            .expect("a version");
        let last = operations.last().expect("an operation").op;
        let Known::Done(result) = author::known(&state, last) else {
            panic!("it was not done");
        };
        let outcome = decode_outcomes(&result).expect("outcomes").remove(0);
        (state, outcome)
    }

    #[test]
    fn whom_the_owner_does_not_let_in_changes_nothing_whatever_nodes_have_taken() {
        let acl = Acl {
            write: vec!["bob".into()],
            read: Vec::new(),
        };
        let acl = Wish::SetAcl(acl.write_cell().expect("small"));
        // In the very version that shuts her out, and later.
        let ops = [pending("ann", 1, 1, acl), pending("eve", 2, 1, add())];
        let (shut, outcome) = after(&State::new(), &ops);
        assert_eq!(outcome, Outcome::Failed(Fault::NotPermitted));
        let (state, outcome) = after(&shut, &[pending("eve", 2, 2, add())]);
        assert_eq!(outcome, Outcome::Failed(Fault::NotPermitted));
        assert!(state.cells(&[DATA], false).next().is_none());
        for (who, author) in [("ann", 3), ("bob", 4)] {
            let (_, outcome) = after(&shut, &[pending(who, author, 1, add())]);
            assert!(matches!(outcome, Outcome::Result(_)), "{who}");
        }
        let (_, outcome) = after(&shut, &[pending("bob", 4, 1, Wish::Delete)]);
        assert_eq!(outcome, Outcome::Failed(Fault::NotPermitted));
    }

    #[test]
    fn what_was_done_is_not_done_again() {
        let (once, _) = after(&State::new(), &[pending("ann", 1, 1, add())]);
        let again = [pending("ann", 1, 1, add()), pending("bob", 2, 1, add())];
        let (twice, _) = after(&once, &again);
        let number = twice.cells(&[DATA], false).next().expect("the number").1;
        assert_eq!(number[..], 2_i64.to_be_bytes());
    }
}
