//! Kinds of objects against plain models: ordered and read from their cells, the answers agree.

use std::collections::{BTreeMap, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;

use super::{
    Bytes, Cells, Code, Entry, LIST_BYTES, LIST_MAX, Model, Typed, VALUE_MAX, When, counter, log,
    map, queue, register, result,
};
use crate::object::kind::DATA;
use crate::object::{Cell, Context, Delta, Draft, Kind, KindError, Span, State, Value};
use crate::time::Wall;

fn bytes(text: &str) -> Bytes {
    text.as_bytes().into()
}

fn context(version: u64) -> Context {
    Context {
        principal: "test".into(),
        wall: Wall(0),
        chance: 7,
        version,
    }
}

/// The full name of a kind's cell.
fn full(cell: &[u8]) -> Cell {
    [&[DATA], cell].concat().into()
}

/// The cells of spans in a state, as nodes read them.
fn look(state: &State, spans: &[Span]) -> Vec<Vec<(Cell, Value)>> {
    let cells = |span: &Span| {
        assert!(!span.backwards);
        let to = span
            .to
            .as_ref()
            .map_or_else(|| [DATA + 1].into(), |to| full(to));
        state
            .cells(&full(&span.from), false)
            .take_while(|(cell, _)| **cell < to)
            .take(span.limit as usize)
            .map(|(cell, value)| (cell[1..].into(), value.clone()))
            .collect()
    };
    spans.iter().map(cells).collect()
}

/// Does batches of operations and asks `check` about every result. Before each batch, operations
/// that only read are answered from their cells, too.
fn run<M: Model + Copy>(
    model: M,
    batches: &[Vec<M::Op>],
    mut check: impl FnMut(u64, &M::Op, Result<M::Answer, KindError>),
) where
    M::Answer: PartialEq + std::fmt::Debug,
    M::Op: Clone + PartialEq + std::fmt::Debug,
{
    let kind = Typed(model);
    let mut state = State::new();
    for batch in batches {
        for op in batch {
            let body = op.encode();
            assert_eq!(M::Op::decode(&body).as_ref(), Some(op));
            let Some(spans) = kind.reads(&body) else {
                continue;
            };
            let mut draft = Draft::new(&state, 1 << 22);
            let ordered = kind.apply(&body, &mut draft, &mut context(state.version() + 1));
            assert!(draft.finish().is_empty(), "{op:?} wrote");
            let direct = model.answer(op, &look(&state, &spans));
            assert_eq!(result::<M::Answer>(&ordered), direct, "{op:?}");
        }
        let version = state.version() + 1;
        let mut draft = Draft::new(&state, 1 << 22);
        for op in batch {
            draft.begin();
            let done = kind.apply(&op.encode(), &mut draft, &mut context(version));
            assert!(!draft.refused());
            check(version, op, result(&done));
        }
        let writes = draft.finish();
        state = state.next(&Delta::new(writes)).expect("a version");
    }
}

fn value() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        9 => vec(any::<u8>(), 0..4).prop_map(Bytes::from),
        1 => Just(Bytes::from(vec![7; VALUE_MAX + 1])),
    ]
}

fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0u8), Just(b'a'), Just(255)], 0..3).prop_map(Bytes::from)
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        3 => Just(When::Always),
        1 => Just(When::Absent),
        2 => (0..20u64).prop_map(When::Version),
        1 => vec(any::<u8>(), 0..2).prop_map(|value| When::Value(value.into())),
    ]
}

fn batches<T: std::fmt::Debug + Clone>(
    op: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<Vec<T>>> {
    vec(vec(op, 0..4), 0..24)
}

/// The versions that a plain model gives: one more than the last, or the object's.
fn meets(when: &When, found: Option<&Entry>) -> Result<(), KindError> {
    let met = match (when, found) {
        (When::Always, _) | (When::Absent, None) => true,
        (When::Version(version), Some(entry)) => entry.version == *version,
        (When::Value(value), Some(entry)) => entry.value == *value,
        _ => false,
    };
    let found = found.map_or(0, |entry| entry.version);
    if met {
        Ok(())
    } else {
        Err(KindError::VersionMismatch { found })
    }
}

/// A plain map.
#[derive(Default)]
struct PlainMap {
    entries: BTreeMap<Vec<u8>, Entry>,
    last: u64,
}

impl PlainMap {
    fn apply(&mut self, object: u64, op: &map::Op) -> Result<map::Answer, KindError> {
        match op {
            map::Op::Set { key, value, when } => {
                if value.len() > VALUE_MAX {
                    return Err(KindError::TooLarge);
                }
                meets(when, self.entries.get(&key[..]))?;
                let version = object.max(self.last + 1);
                self.last = version;
                let value = value.clone();
                self.entries.insert(key.to_vec(), Entry { version, value });
                Ok(map::Answer::Set(version))
            }
            map::Op::Remove { key, when } => {
                meets(when, self.entries.get(&key[..]))?;
                Ok(map::Answer::Removed(self.entries.remove(&key[..])))
            }
            map::Op::Get(key) => Ok(map::Answer::Got(self.entries.get(&key[..]).cloned())),
            map::Op::List {
                prefix,
                after,
                limit,
            } => {
                let all: Vec<_> = self
                    .entries
                    .iter()
                    .filter(|(key, _)| key.starts_with(prefix))
                    .filter(|(key, _)| after.as_ref().is_none_or(|after| key[..] > after[..]))
                    .map(|(key, entry)| (Bytes::from(&key[..]), entry.clone()))
                    .collect();
                let taken = all.len().min(*limit as usize);
                Ok(map::Answer::Listed(map::List {
                    entries: all[..taken].to_vec(),
                    more: taken < all.len(),
                }))
            }
        }
    }
}

fn map_op() -> impl Strategy<Value = map::Op> {
    prop_oneof![
        4 => (key(), value(), when())
            .prop_map(|(key, value, when)| map::Op::Set { key, value, when }),
        2 => (key(), when()).prop_map(|(key, when)| map::Op::Remove { key, when }),
        1 => key().prop_map(map::Op::Get),
        2 => (key(), proptest::option::of(key()), 0..5u32).prop_map(|(prefix, after, limit)| {
            map::Op::List { prefix, after, limit }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_map_is_a_map(batches in batches(map_op())) {
        let mut plain = PlainMap::default();
        let mut given = std::collections::BTreeSet::new();
        run(map::Map, &batches, |version, op, answer| {
            assert_eq!(answer, plain.apply(version, op), "{op:?}");
            if let Ok(map::Answer::Set(version)) = answer {
                assert!(given.insert(version), "two entries have one version");
            }
        });
    }

    #[test]
    fn a_register_is_a_value(
        batches in batches(prop_oneof![
            3 => (value(), when()).prop_map(|(value, when)| register::Op::Set { value, when }),
            1 => Just(register::Op::Get),
        ])
    ) {
        let mut plain: Option<Entry> = None;
        run(register::Register, &batches, |object, op, answer| {
            let expected = match op {
                register::Op::Get => Ok(register::Answer::Got(plain.clone())),
                register::Op::Set { value, .. } if value.len() > VALUE_MAX => {
                    Err(KindError::TooLarge)
                }
                register::Op::Set { value, when } => meets(when, plain.as_ref()).map(|()| {
                    let last = plain.as_ref().map_or(0, |entry| entry.version);
                    let version = object.max(last + 1);
                    plain = Some(Entry { version, value: value.clone() });
                    register::Answer::Set(version)
                }),
            };
            assert_eq!(answer, expected, "{op:?}");
        });
    }

    #[test]
    fn a_counter_counts(
        batches in batches(prop_oneof![
            2 => (-5..5i64).prop_map(counter::Op::Add),
            1 => any::<i64>().prop_map(counter::Op::Add),
            1 => Just(counter::Op::Get),
        ])
    ) {
        let mut plain = 0i64;
        run(counter::Counter, &batches, |_, op, answer| {
            let expected = match op {
                counter::Op::Get => Ok(plain),
                counter::Op::Add(amount) => plain.checked_add(*amount).ok_or(KindError::Overflow),
            };
            plain = expected.unwrap_or(plain);
            assert_eq!(answer, expected, "{op:?}");
        });
    }

    #[test]
    fn a_queue_keeps_its_order(
        batches in batches(prop_oneof![
            3 => value().prop_map(queue::Op::Push),
            2 => Just(queue::Op::Pop),
            1 => Just(queue::Op::Peek),
            1 => Just(queue::Op::Len),
        ])
    ) {
        let (mut plain, mut pushed) = (VecDeque::<Bytes>::new(), 0);
        run(queue::Queue, &batches, |_, op, answer| {
            let expected = match op {
                queue::Op::Push(value) if value.len() > VALUE_MAX => Err(KindError::TooLarge),
                queue::Op::Push(value) => {
                    plain.push_back(value.clone());
                    pushed += 1;
                    Ok(queue::Answer::Pushed(pushed - 1))
                }
                queue::Op::Pop => {
                    let first = plain.pop_front().ok_or(KindError::Empty);
                    first.map(queue::Answer::First)
                }
                queue::Op::Peek => {
                    let first = plain.front().cloned().ok_or(KindError::Empty);
                    first.map(queue::Answer::First)
                }
                queue::Op::Len => Ok(queue::Answer::Len(plain.len() as u64)),
            };
            assert_eq!(answer, expected, "{op:?}");
        });
    }

    #[test]
    fn a_log_grows_and_is_cut(
        batches in batches(prop_oneof![
            4 => value().prop_map(log::Op::Append),
            2 => (0..20u64, 0..5u32).prop_map(|(from, limit)| log::Op::Read { from, limit }),
            1 => prop_oneof![0..20u64, Just(u64::MAX)].prop_map(log::Op::Trim),
            1 => Just(log::Op::Len),
        ])
    ) {
        let (mut plain, mut next) = (BTreeMap::<u64, Bytes>::new(), 0u64);
        run(log::Log, &batches, |_, op, answer| {
            let first = plain.keys().next().copied().unwrap_or(next);
            let expected = match op {
                log::Op::Append(value) if value.len() > VALUE_MAX => Err(KindError::TooLarge),
                log::Op::Append(value) => {
                    plain.insert(next, value.clone());
                    next += 1;
                    Ok(log::Answer::Appended(next - 1))
                }
                log::Op::Read { from, limit } => {
                    let mut all = plain.range(from..).map(|(at, value)| (*at, value.clone()));
                    let entries = all.by_ref().take(*limit as usize).collect();
                    let more = all.next().is_some();
                    Ok(log::Answer::Read(log::Entries { entries, more }))
                }
                log::Op::Trim(to) => {
                    plain.retain(|at, _| at >= to);
                    Ok(log::Answer::Trimmed(plain.keys().next().copied().unwrap_or(next)))
                }
                log::Op::Len => Ok(log::Answer::Len(log::Ends { first, next })),
            };
            assert_eq!(answer, expected, "{op:?}");
        });
    }

    #[test]
    fn any_bytes_are_safe(
        body in vec(any::<u8>(), 0..40),
        form in any::<bool>(),
        cells in vec((vec(any::<u8>(), 0..10), vec(any::<u8>(), 0..20)), 0..4),
        budget in 0..100usize,
    ) {
        let mut body = body;
        if form && !body.is_empty() {
            body[0] = 1;
        }
        let mut writes: Vec<_> = cells
            .iter()
            .map(|(cell, value)| (full(cell), Some(Value::from(&value[..]))))
            .collect();
        let odd = Value::from(cells.first().map_or(&[][..], |(cell, _)| cell));
        for name in [&b"v"[..], b"n", b"e"] {
            writes.push((full(name), Some(odd.clone())));
        }
        let state = State::new().next(&Delta::new(writes)).expect("a version");
        let kinds: [&dyn Kind; 5] = [
            &Typed(register::Register),
            &Typed(counter::Counter),
            &Typed(map::Map),
            &Typed(queue::Queue),
            &Typed(log::Log),
        ];
        for kind in kinds {
            let mut draft = Draft::new(&state, budget);
            let done = kind.apply(&body, &mut draft, &mut context(2));
            prop_assert!(!done.is_empty());
            if done.get(1) != Some(&0) && !draft.refused() {
                prop_assert!(draft.finish().is_empty(), "a failure wrote");
            }
            kind.reads(&body);
        }
        let found = [cells
            .iter()
            .map(|(cell, value)| (Cell::from(&cell[..]), Value::from(&value[..])))
            .collect()];
        answers(&body, &found);
        answers(&body, &[]);
    }
}

/// Answers from cells that no kind ever wrote.
fn answers(body: &[u8], cells: &Cells) {
    fn of<M: Model>(model: &M, body: &[u8], cells: &Cells) {
        if let Some(op) = M::Op::decode(body) {
            let _ = model.answer(&op, cells);
        }
        let _ = result::<M::Answer>(body);
    }
    of(&register::Register, body, cells);
    of(&counter::Counter, body, cells);
    of(&map::Map, body, cells);
    of(&queue::Queue, body, cells);
    of(&log::Log, body, cells);
}

#[test]
fn a_list_ends_when_it_is_full() {
    let model = map::Map;
    let set = |key: usize, size| map::Op::Set {
        key: bytes(&format!("{key:04}")),
        value: vec![1; size].into(),
        when: When::Always,
    };
    let list = |after: Option<&str>| map::Op::List {
        prefix: bytes(""),
        after: after.map(bytes),
        limit: u32::MAX,
    };
    let many: Vec<_> = (0..1500).map(|key| set(key, 1)).collect();
    let mut parts = Vec::new();
    run(
        model,
        &[many, vec![list(None), list(Some("0999"))]],
        |_, op, answer| {
            if let (map::Op::List { .. }, Ok(map::Answer::Listed(list))) = (op, answer) {
                parts.push((list.entries.len(), list.more));
            }
        },
    );
    assert_eq!(parts, [(LIST_MAX as usize, true), (500, false)]);
    let large: Vec<_> = (0..10).map(|key| set(key, LIST_BYTES / 5)).collect();
    let mut parts = Vec::new();
    run(model, &[large, vec![list(None)]], |_, op, answer| {
        if let (map::Op::List { .. }, Ok(map::Answer::Listed(list))) = (op, answer) {
            parts.push((list.entries.len(), list.more));
        }
    });
    assert_eq!(parts, [(4, true)]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let kind = Typed(queue::Queue);
    let state = State::new();
    // Enough for the ends of the queue, not for the item.
    let mut draft = Draft::new(&state, 40);
    draft.begin();
    let push = queue::Op::Push(vec![0; 30].into()).encode();
    let done = kind.apply(&push, &mut draft, &mut context(1));
    assert_eq!(result::<queue::Answer>(&done), Err(KindError::TooLarge));
    assert!(draft.refused());
}

#[test]
fn the_largest_answers_fit_into_a_result() {
    let entry = Entry {
        version: 1,
        value: vec![0; VALUE_MAX].into(),
    };
    let got = Ok(map::Answer::Removed(Some(entry)));
    assert!(got.encode().len() <= 64 << 10);
    let cells = (0..10_000u64).map(|at| (Cell::from(&at.to_be_bytes()[..]), Value::from([0; 9])));
    let list = map::Op::List {
        prefix: bytes(""),
        after: None,
        limit: LIST_MAX,
    };
    let answer = map::Map.answer(&list, &[cells.collect()]);
    assert!(answer.encode().len() <= 64 << 10);
}
