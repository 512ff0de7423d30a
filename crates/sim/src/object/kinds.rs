//! The objects of simulated runs.
//!
//! A **ledger** writes down every operation with its place and what came of it, so that the order
//! of all operations can be read from any of its states. A **toy** is one of the usual kinds, for
//! histories that only an order can explain.

use std::sync::Arc;

use conclave_protocol::object::envelope::{Batch, Outcome, Wish, encode_outcomes};
use conclave_protocol::object::kind::DATA;
use conclave_protocol::object::{Cell, Context, Draft, Kind, Span, State, Value};

use crate::linear::{Action, Bytes, Reply};

/// A kind that writes down what is done to it. An operation is an [`Entry`]; what comes of it is
/// its place, and a random number if it asks for one.
#[derive(Clone, Copy, Debug)]
pub struct Ledger;

/// An operation on a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Whose.
    pub client: u32,
    /// Which one of its operations; no two of a client are the same.
    pub number: u32,
    /// Whether a random number is part of what comes of it.
    pub random: bool,
}

/// What came of an operation on a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its place, from 0.
    pub place: u64,
    /// The random number, or zero.
    pub random: u64,
}

impl Entry {
    /// As bytes.
    pub fn body(self) -> Arc<[u8]> {
        let mut body = Vec::with_capacity(9);
        body.extend(self.client.to_le_bytes());
        body.extend(self.number.to_le_bytes());
        body.push(u8::from(self.random));
        body.into()
    }

    /// From bytes.
    pub fn read(body: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, random] = *body else {
            return None;
        };
        Some(Self {
            client: u32::from_le_bytes([a, b, c, d]),
            number: u32::from_le_bytes([e, f, g, h]),
            random: random == 1,
        })
    }
}

impl Placed {
    fn bytes(self) -> Vec<u8> {
        [self.place.to_le_bytes(), self.random.to_le_bytes()].concat()
    }

    /// From bytes.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            place: number(bytes.get(..8)?)?,
            random: number(bytes.get(8..)?)?,
        })
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The cell that says how many entries there are.
const COUNT: &[u8] = b"n";

fn entry_cell(place: u64) -> Vec<u8> {
    let mut cell = vec![b'e'];
    cell.extend(place.to_be_bytes());
    cell
}

impl Kind for Ledger {
    fn name(&self) -> &'static str {
        "sim.ledger"
    }

    fn apply(&self, body: &[u8], draft: &mut Draft<'_>, context: &mut Context) -> Vec<u8> {
        let Some(entry) = Entry::read(body) else {
            return Vec::new();
        };
        let place = draft
            .get(COUNT)
            .and_then(|count| number(&count))
            .unwrap_or(0);
        let random = if entry.random { context.chance | 1 } else { 0 };
        let result = Placed { place, random }.bytes();
        let written = [body, result.as_slice()].concat();
        let kept =
            draft.set(&entry_cell(place), &written) && draft.set(COUNT, &(place + 1).to_le_bytes());
        if kept { result } else { Vec::new() }
    }

    fn reads(&self, _: &[u8]) -> Option<Vec<Span>> {
        None
    }
}

impl Ledger {
    /// What to read for the number of entries.
    pub fn count_span() -> Span {
        one_cell(COUNT)
    }

    /// The number of entries that a read has given.
    pub fn count_read(cells: &[(Cell, Value)]) -> u64 {
        cells
            .first()
            .and_then(|(_, count)| number(count))
            .unwrap_or(0)
    }

    /// How many entries a state has.
    pub fn count(state: &State) -> u64 {
        let cell = [&[DATA], COUNT].concat();
        state
            .get(&cell)
            .and_then(|count| number(count))
            .unwrap_or(0)
    }

    /// The entry at a place of a state.
    pub fn entry(state: &State, place: u64) -> Option<(Entry, Placed)> {
        let cell = [&[DATA], entry_cell(place).as_slice()].concat();
        let written = state.get(&cell)?;
        let (body, result) = written.split_at_checked(9)?;
        Some((Entry::read(body)?, Placed::read(result)?))
    }
}

/// The client that forged operations are said to be from; there is none of that number.
pub const NOBODY: u32 = u32::MAX;

/// An operation on a ledger that nobody has submitted, as a client would submit it.
pub fn forged_body() -> Arc<[u8]> {
    let entry = Entry {
        client: NOBODY,
        number: 1,
        random: false,
    };
    let batch = Batch {
        kind: Ledger.name().to_owned(),
        code: Ledger.code(),
        wishes: vec![Wish::Operation(entry.body())],
    };
    batch.encode().into()
}

/// A result that nothing has led to.
pub fn forged_result() -> Arc<[u8]> {
    let placed = Placed {
        place: 1 << 40,
        random: 3,
    };
    encode_outcomes(&[Outcome::Result(placed.bytes().into())]).into()
}

/// Cells of a ledger with an entry that nobody has submitted.
pub fn forged_cells(base: &State) -> Vec<(Cell, Option<Value>)> {
    let place = Ledger::count(base);
    let entry = Entry {
        client: NOBODY,
        number: 2,
        random: false,
    };
    let own = |cell: &[u8]| -> Cell { [&[DATA], cell].concat().into() };
    let placed = Placed { place, random: 0 };
    let written = [&*entry.body(), placed.bytes().as_slice()].concat();
    let count = (place + 1).to_le_bytes();
    vec![
        (own(&entry_cell(place)), Some(written.into())),
        (own(COUNT), Some(count.as_slice().into())),
    ]
}

fn one_cell(cell: &[u8]) -> Span {
    Span {
        from: cell.into(),
        to: Some([cell, &[0]].concat().into()),
        limit: 1,
        backwards: false,
    }
}

/// A register, counter, map, queue or log, told apart by its operations.
#[derive(Clone, Copy, Debug)]
pub struct Toy;

impl Kind for Toy {
    fn name(&self) -> &'static str {
        "sim.toy"
    }

    fn apply(&self, body: &[u8], draft: &mut Draft<'_>, _: &mut Context) -> Vec<u8> {
        let Some(action) = read_action(body) else {
            return Vec::new();
        };
        act(&action, draft).map_or_else(Vec::new, |reply| write_reply(&reply))
    }

    fn reads(&self, body: &[u8]) -> Option<Vec<Span>> {
        Self::span(&read_action(body)?).map(|span| vec![span])
    }
}

impl Toy {
    /// What to read to know what an action would tell, if it changes nothing.
    pub fn span(action: &Action) -> Option<Span> {
        match action {
            Action::Get => Some(one_cell(b"v")),
            Action::Count => Some(one_cell(b"c")),
            Action::Look(key) => Some(one_cell(&key_cell(key))),
            _ => None,
        }
    }

    /// What an action that changes nothing tells, from the cell that was read.
    pub fn told(action: &Action, cells: &[(Cell, Value)]) -> Reply {
        let value = cells.first().map(|(_, value)| value.clone());
        match action {
            Action::Count => {
                let sum = value.and_then(|value| number(&value)).unwrap_or(0);
                Reply::Number(sum.cast_signed())
            }
            _ => Reply::Value(value),
        }
    }
}

fn key_cell(key: &[u8]) -> Vec<u8> {
    [b"m", key].concat()
}

fn item_cell(place: u64) -> Vec<u8> {
    let mut cell = vec![b'i'];
    cell.extend(place.to_be_bytes());
    cell
}

/// Does an action; none if it does not fit.
fn act(action: &Action, draft: &mut Draft<'_>) -> Option<Reply> {
    let count = |draft: &mut Draft<'_>, cell: &[u8]| {
        let value = draft.get(cell);
        value.and_then(|value| number(&value)).unwrap_or(0)
    };
    let fits = |kept: bool, reply: Reply| kept.then_some(reply);
    match action {
        Action::Set(value) => fits(draft.set(b"v", value), Reply::Done),
        Action::Get => Some(Reply::Value(draft.get(b"v"))),
        Action::Add(more) => {
            let sum = count(draft, b"c").cast_signed().wrapping_add(*more);
            fits(draft.set(b"c", &sum.to_le_bytes()), Reply::Number(sum))
        }
        Action::Count => Some(Reply::Number(count(draft, b"c").cast_signed())),
        Action::Put(key, value) => fits(draft.set(&key_cell(key), value), Reply::Done),
        Action::Swap(key, expected, value) => {
            if draft.get(&key_cell(key)) != *expected {
                return Some(Reply::Was(false));
            }
            fits(draft.set(&key_cell(key), value), Reply::Was(true))
        }
        Action::Remove(key) => {
            let was = draft.get(&key_cell(key)).is_some();
            fits(draft.remove(&key_cell(key)), Reply::Was(was))
        }
        Action::Look(key) => Some(Reply::Value(draft.get(&key_cell(key)))),
        Action::Push(value) | Action::Append(value) => {
            let place = count(draft, b"t");
            let kept =
                draft.set(&item_cell(place), value) && draft.set(b"t", &(place + 1).to_le_bytes());
            let told = match action {
                Action::Push(_) => Reply::Done,
                _ => Reply::Number(place.cast_signed()),
            };
            fits(kept, told)
        }
        Action::Pop => {
            let place = count(draft, b"h");
            let Some(first) = draft.get(&item_cell(place)) else {
                return Some(Reply::Value(None));
            };
            let kept =
                draft.remove(&item_cell(place)) && draft.set(b"h", &(place + 1).to_le_bytes());
            fits(kept, Reply::Value(Some(first)))
        }
        Action::Read(from, most) => {
            let items = (*from..).take(*most);
            let items = items.map_while(|at| Some((at, draft.get(&item_cell(at))?)));
            Some(Reply::Items(items.collect()))
        }
        Action::List | Action::Trim(_) => None,
    }
}

/// An action as bytes: a letter, then its parts, each with its length before it.
pub fn write_action(action: &Action) -> Arc<[u8]> {
    let empty: &[u8] = &[];
    let text = |letter: u8, parts: &[&[u8]]| {
        let mut bytes = vec![letter];
        for part in parts {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(*part);
        }
        bytes
    };
    let bytes = match action {
        Action::Set(value) => text(b's', &[value]),
        Action::Get => text(b'g', &[]),
        Action::Add(more) => text(b'a', &[&more.to_le_bytes()]),
        Action::Count => text(b'c', &[]),
        Action::Put(key, value) => text(b'p', &[key, value]),
        Action::Swap(key, None, value) => text(b'n', &[key, value]),
        Action::Swap(key, Some(old), value) => text(b'w', &[key, old, value]),
        Action::Remove(key) => text(b'r', &[key]),
        Action::Look(key) => text(b'l', &[key]),
        Action::List => text(b'z', &[empty]),
        Action::Push(value) => text(b'u', &[value]),
        Action::Pop => text(b'o', &[]),
        Action::Append(value) => text(b'd', &[value]),
        Action::Read(from, most) => {
            text(b'e', &[&from.to_le_bytes(), &(*most as u64).to_le_bytes()])
        }
        Action::Trim(before) => text(b't', &[&before.to_le_bytes()]),
    };
    bytes.into()
}

fn parts(mut bytes: &[u8]) -> Option<Vec<Bytes>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at_checked(4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let (part, rest) = rest.split_at_checked(length)?;
        parts.push(part.into());
        bytes = rest;
    }
    Some(parts)
}

fn read_action(bytes: &[u8]) -> Option<Action> {
    let (letter, rest) = bytes.split_first()?;
    let parts = parts(rest)?;
    Some(match (letter, parts.as_slice()) {
        (b's', [value]) => Action::Set(value.clone()),
        (b'g', []) => Action::Get,
        (b'a', [more]) => Action::Add(number(more)?.cast_signed()),
        (b'c', []) => Action::Count,
        (b'p', [key, value]) => Action::Put(key.clone(), value.clone()),
        (b'n', [key, value]) => Action::Swap(key.clone(), None, value.clone()),
        (b'w', [key, old, value]) => Action::Swap(key.clone(), Some(old.clone()), value.clone()),
        (b'r', [key]) => Action::Remove(key.clone()),
        (b'l', [key]) => Action::Look(key.clone()),
        (b'u', [value]) => Action::Push(value.clone()),
        (b'o', []) => Action::Pop,
        (b'd', [value]) => Action::Append(value.clone()),
        (b'e', [from, most]) => Action::Read(number(from)?, number(most)? as usize),
        (b't', [before]) => Action::Trim(number(before)?),
        _ => return None,
    })
}

fn write_reply(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Done => vec![b'd'],
        Reply::Value(None) => vec![b'n'],
        Reply::Value(Some(value)) => [b"v", &**value].concat(),
        Reply::Number(number) => [b"i", number.to_le_bytes().as_slice()].concat(),
        Reply::Was(was) => vec![b'w', u8::from(*was)],
        Reply::Items(items) => {
            let mut bytes = vec![b'l'];
            for (place, item) in items {
                bytes.extend(place.to_le_bytes());
                bytes.extend((item.len() as u32).to_le_bytes());
                bytes.extend(&**item);
            }
            bytes
        }
        Reply::Entries(_) => Vec::new(),
    }
}

/// What came of an action, from bytes.
pub fn read_reply(bytes: &[u8]) -> Option<Reply> {
    let (letter, rest) = bytes.split_first()?;
    Some(match letter {
        b'd' => Reply::Done,
        b'n' => Reply::Value(None),
        b'v' => Reply::Value(Some(rest.into())),
        b'i' => Reply::Number(number(rest)?.cast_signed()),
        b'w' => Reply::Was(rest == [1]),
        b'l' => {
            let mut items = Vec::new();
            let mut rest = rest;
            while !rest.is_empty() {
                let (place, after) = rest.split_at_checked(8)?;
                let (length, after) = after.split_at_checked(4)?;
                let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
                let (item, after) = after.split_at_checked(length)?;
                items.push((number(place)?, item.into()));
                rest = after;
            }
            Reply::Items(items)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use conclave_protocol::object::Delta;

    use super::*;

    #[test]
    fn a_ledger_has_every_operation_at_its_place() {
        let entry = |number| Entry {
            client: 7,
            number,
            random: number == 1,
        };
        let mut context = Context {
            principal: "a".into(),
            wall: conclave_protocol::Wall(0),
            chance: 40,
            version: 1,
        };
        let base = State::new();
        let mut draft = Draft::new(&base, 1000);
        for number in 0..3 {
            let result = Ledger.apply(&entry(number).body(), &mut draft, &mut context);
            assert_eq!(Placed::read(&result).unwrap().place, u64::from(number));
        }
        let mut writes = Vec::new();
        let mut from = Vec::new();
        while let Some((cell, value)) = draft.first(b"", &from, true) {
            from = cell.to_vec();
            let cell: Cell = [&[DATA], &*cell].concat().into();
            writes.push((cell, Some(value)));
        }
        let state = base.next(&Delta::new(writes)).unwrap();
        assert_eq!(Ledger::count(&state), 3);
        let (found, placed) = Ledger::entry(&state, 1).unwrap();
        assert_eq!((found, placed.random), (entry(1), 41));
    }

    #[test]
    fn actions_and_replies_read_back() {
        let some: Bytes = b"x".as_slice().into();
        let actions = [
            Action::Set(some.clone()),
            Action::Get,
            Action::Add(-3),
            Action::Count,
            Action::Put(some.clone(), some.clone()),
            Action::Swap(some.clone(), None, some.clone()),
            Action::Swap(some.clone(), Some(some.clone()), some.clone()),
            Action::Remove(some.clone()),
            Action::Look(some.clone()),
            Action::Push(some.clone()),
            Action::Pop,
            Action::Append(some.clone()),
            Action::Read(1, 2),
            Action::Trim(3),
        ];
        for action in actions {
            assert_eq!(read_action(&write_action(&action)), Some(action));
        }
        let replies = [
            Reply::Done,
            Reply::Value(None),
            Reply::Value(Some(some.clone())),
            Reply::Number(-1),
            Reply::Was(true),
            Reply::Items(vec![(4, some)]),
        ];
        for reply in replies {
            assert_eq!(read_reply(&write_reply(&reply)), Some(reply));
        }
        assert_eq!(read_action(b"s\x09\0\0\0"), None);
    }
}
