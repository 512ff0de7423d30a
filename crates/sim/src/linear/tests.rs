//! The checker finds what is wrong and lets pass what is right.

use conclave_quorum::Prng;

use super::models::check;
use super::{Action, Bytes, Call, Reply, Verdict};

const STEPS: u64 = 5_000_000;

type Calls = Vec<Call<Action, Reply>>;

fn value(number: u64) -> Bytes {
    number.to_le_bytes().as_slice().into()
}

fn some(number: u64) -> Reply {
    Reply::Value(Some(value(number)))
}

fn call(client: u64, began: u64, ended: u64, op: Action, result: Reply) -> Call<Action, Reply> {
    Call {
        client,
        began,
        op,
        ended: Some((ended, result)),
    }
}

fn open(client: u64, began: u64, op: Action) -> Call<Action, Reply> {
    Call {
        client,
        began,
        op,
        ended: None,
    }
}

fn fits(calls: &[Call<Action, Reply>]) -> bool {
    match check(calls, STEPS) {
        Verdict::Linearizable => true,
        Verdict::Broken(_) => false,
        Verdict::Unknown => panic!("the search was given up: {:?}", calls[0].op),
    }
}

#[test]
fn a_stale_read_is_found() {
    let set = |at, number| call(1, at, at + 1, Action::Set(value(number)), Reply::Done);
    let stale = [set(0, 1), set(2, 2), call(2, 4, 5, Action::Get, some(1))];
    assert!(!fits(&stale));
    let fresh = [
        set(0, 1),
        set(2, 2),
        call(2, 3, 5, Action::Get, some(1)),
        call(2, 6, 7, Action::Get, some(2)),
    ];
    assert!(
        fits(&fresh),
        "the read may come before the write that it overlaps"
    );
}

/// Two reads that disagree about which of two concurrent writes came first.
#[test]
fn reads_that_disagree_about_the_order_are_found() {
    let calls = [
        call(1, 0, 10, Action::Set(value(1)), Reply::Done),
        call(2, 0, 10, Action::Set(value(2)), Reply::Done),
        call(3, 11, 12, Action::Get, some(1)),
        call(4, 13, 14, Action::Get, some(2)),
    ];
    assert!(!fits(&calls));
    assert!(fits(&calls[..3]));
}

#[test]
fn a_lost_update_is_found() {
    let add = |client, result| call(client, 0, 10, Action::Add(1), Reply::Number(result));
    assert!(!fits(&[add(1, 1), add(2, 1)]));
    assert!(fits(&[add(1, 2), add(2, 1)]));
    let swap = |client, to| {
        let op = Action::Swap(value(0), None, value(to));
        call(client, 0, 10, op, Reply::Was(true))
    };
    assert!(!fits(&[swap(1, 1), swap(2, 2)]));
}

#[test]
fn what_is_popped_twice_is_found() {
    let push = call(1, 0, 1, Action::Push(value(7)), Reply::Done);
    let pop = |client, at| call(client, at, at + 5, Action::Pop, some(7));
    assert!(fits(&[push.clone(), pop(2, 2)]));
    assert!(!fits(&[push.clone(), pop(2, 2), pop(3, 3)]));
    let order = [
        push,
        call(1, 2, 3, Action::Push(value(8)), Reply::Done),
        call(2, 4, 5, Action::Pop, some(8)),
    ];
    assert!(!fits(&order), "the first in is the first out");
}

#[test]
fn a_log_has_one_place_for_each_item() {
    let append = |client, number, place| {
        call(
            client,
            0,
            10,
            Action::Append(value(number)),
            Reply::Number(place),
        )
    };
    assert!(fits(&[append(1, 1, 1), append(2, 2, 0)]));
    assert!(!fits(&[append(1, 1, 0), append(2, 2, 0)]));
    let read = |items: &[(u64, u64)]| {
        let items = items.iter().map(|(place, item)| (*place, value(*item)));
        call(
            3,
            20,
            21,
            Action::Read(0, 10),
            Reply::Items(items.collect()),
        )
    };
    let both = [append(1, 1, 1), append(2, 2, 0)];
    assert!(fits(
        &[both.to_vec(), vec![read(&[(0, 2), (1, 1)])]].concat()
    ));
    assert!(!fits(
        &[both.to_vec(), vec![read(&[(0, 1), (1, 2)])]].concat()
    ));
    assert!(!fits(&[both.to_vec(), vec![read(&[(0, 2)])]].concat()));
    let trim = call(3, 12, 13, Action::Trim(1), Reply::Done);
    assert!(fits(&[both.to_vec(), vec![trim, read(&[(1, 1)])]].concat()));
}

/// What was never answered may have happened, at any time after it began, or not.
#[test]
fn open_calls_may_or_may_not_be_done() {
    let set = open(1, 0, Action::Set(value(1)));
    let read = |at, result| call(2, at, at + 1, Action::Get, result);
    let none = Reply::Value(None);
    assert!(fits(&[set.clone(), read(5, none.clone())]));
    assert!(fits(&[
        set.clone(),
        read(5, none.clone()),
        read(50, some(1))
    ]));
    assert!(!fits(&[set.clone(), read(5, some(1)), read(50, none)]));
    let late = open(1, 7, Action::Set(value(1)));
    assert!(!fits(&[late, read(5, some(1))]), "not before it began");
}

#[test]
fn keys_of_a_map_are_checked_apart() {
    let put = |at, key, number| {
        let op = Action::Put(value(key), value(number));
        call(1, at, at + 1, op, Reply::Done)
    };
    let look = |at, key, number| call(2, at, at + 1, Action::Look(value(key)), some(number));
    let calls = [put(0, 1, 1), put(2, 2, 5), look(4, 1, 1), look(6, 2, 5)];
    assert!(fits(&calls));
    let mut wrong = calls.to_vec();
    wrong.push(put(8, 2, 6));
    wrong.push(look(10, 2, 5));
    let Verdict::Broken(broken) = check(&wrong, STEPS) else {
        panic!("a stale look");
    };
    assert_eq!(broken.stuck, 5, "the index is that of the whole history");
    let all = Reply::Entries(vec![(value(1), value(1)), (value(2), value(5))]);
    let mut listed = calls.to_vec();
    listed.push(call(3, 8, 9, Action::List, all));
    assert!(fits(&listed));
}

/// A history of a true object, whose operations overlap: each takes place at some moment of its
/// span, in the order of these moments.
fn true_history(kind: usize, clients: u64, count: usize, seed: u64) -> Calls {
    let mut rng = Prng::new(seed);
    let mut free = vec![0u64; clients as usize];
    // When each takes place, and the call.
    let mut planned: Vec<(u64, Call<Action, Reply>)> = Vec::new();
    for number in 0..count as u64 {
        let client = rng.below(free.len());
        let began = free[client] + rng.below(10) as u64;
        let moment = began + rng.below(40) as u64;
        let ended = moment + rng.below(40) as u64;
        free[client] = ended + 1;
        let op = draw(kind, number, &mut rng);
        planned.push((moment, call(client as u64, began, ended, op, Reply::Done)));
    }
    planned.sort_by_key(|(moment, _)| *moment);
    let mut state = Dumb::default();
    let mut calls = Vec::new();
    for (_, mut call) in planned {
        // One in a hundred is never answered; half of those are not done at all.
        // A lost pop hides an item that others have to be looked for behind.
        let lost = if call.op == Action::Pop { 0.0 } else { 0.01 };
        let open = rng.chance(lost);
        if open && rng.chance(0.5) {
            call.ended = None;
            calls.push(call);
            continue;
        }
        let reply = state.act(&call.op);
        call.ended = call.ended.filter(|_| !open).map(|(at, _)| (at, reply));
        calls.push(call);
    }
    calls
}

fn draw(kind: usize, number: u64, rng: &mut Prng) -> Action {
    let some = value(number);
    let key = value(rng.below(8) as u64);
    match (kind, rng.below(3)) {
        (0, 0) => Action::Set(some),
        (0, _) => Action::Get,
        (1, 0) => Action::Count,
        (1, _) => Action::Add(rng.below(5) as i64),
        (2, 0) => Action::Put(key, some),
        (2, 1) => Action::Swap(key, None, some),
        (2, _) => Action::Look(key),
        (3, 0) => Action::Pop,
        (3, _) => Action::Push(some),
        (_, 0) => Action::Read(number / 3, 4),
        (_, _) => Action::Append(some),
    }
}

/// All kinds in one, told apart by their operations, with plain collections.
#[derive(Default)]
struct Dumb {
    value: Option<Bytes>,
    sum: i64,
    entries: std::collections::BTreeMap<Bytes, Bytes>,
    items: Vec<Bytes>,
    popped: usize,
}

impl Dumb {
    fn act(&mut self, op: &Action) -> Reply {
        match op {
            Action::Set(value) => self.value = Some(value.clone()),
            Action::Get => return Reply::Value(self.value.clone()),
            Action::Add(more) => {
                self.sum += more;
                return Reply::Number(self.sum);
            }
            Action::Count => return Reply::Number(self.sum),
            Action::Put(key, value) => {
                self.entries.insert(key.clone(), value.clone());
            }
            Action::Swap(key, expected, value) => {
                let was = self.entries.get(key) == expected.as_ref();
                if was {
                    self.entries.insert(key.clone(), value.clone());
                }
                return Reply::Was(was);
            }
            Action::Look(key) => return Reply::Value(self.entries.get(key).cloned()),
            Action::Push(value) => self.items.push(value.clone()),
            Action::Pop => {
                let first = self.items.get(self.popped).cloned();
                self.popped += usize::from(first.is_some());
                return Reply::Value(first);
            }
            Action::Append(value) => {
                self.items.push(value.clone());
                return Reply::Number(self.items.len() as i64 - 1);
            }
            Action::Read(from, most) => {
                let items = self
                    .items
                    .iter()
                    .enumerate()
                    .skip(*from as usize)
                    .take(*most);
                return Reply::Items(items.map(|(at, item)| (at as u64, item.clone())).collect());
            }
            Action::Remove(_) | Action::List | Action::Trim(_) => unreachable!("not drawn"),
        }
        Reply::Done
    }
}

#[test]
fn true_histories_of_thousands_of_operations_pass() {
    for kind in 0..5 {
        for seed in 0..3 {
            let calls = true_history(kind, 8, 2000, seed);
            assert!(fits(&calls), "kind {kind}, seed {seed}");
        }
    }
}

/// A pop without an answer may have taken what nobody has seen.
#[test]
fn a_lost_pop_explains_a_missing_item() {
    let push = |at, number| call(1, at, at + 1, Action::Push(value(number)), Reply::Done);
    let pop = |at, number| call(2, at, at + 1, Action::Pop, some(number));
    let lost = open(3, 5, Action::Pop);
    let calls = [
        push(0, 1),
        push(2, 2),
        push(4, 3),
        lost,
        pop(6, 1),
        pop(8, 3),
    ];
    assert!(fits(&calls));
    let without: Calls = calls
        .iter()
        .filter(|call| call.client != 3)
        .cloned()
        .collect();
    assert!(!fits(&without));
}

/// A result that is exchanged for another one is found nearly always; an exchange may be harmless.
#[test]
fn spoiled_histories_are_found() {
    for kind in [0, 1, 2, 3, 4] {
        let mut found = 0;
        for seed in 0..10 {
            let mut calls = true_history(kind, 4, 400, 100 + seed);
            let at = 100 + 20 * seed as usize;
            let wrong = match kind {
                0 | 2 | 3 => Reply::Value(Some(value(1 << 40))),
                1 => Reply::Number(-1),
                _ => Reply::Number(9999),
            };
            let reads = |call: &Call<Action, Reply>| match &call.ended {
                Some((_, reply)) => std::mem::discriminant(reply) == std::mem::discriminant(&wrong),
                None => false,
            };
            let Some(place) = (at..calls.len()).find(|at| reads(&calls[*at])) else {
                continue;
            };
            if let Some((_, reply)) = &mut calls[place].ended {
                *reply = wrong.clone();
            }
            found += u32::from(!fits(&calls));
        }
        assert_eq!(found, 10, "kind {kind}");
    }
}
