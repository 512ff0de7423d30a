//! What watchers are told: level-triggered, from nodes that meet every quorum, never back.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::time::Duration;

use conclave_protocol::id::{Key, LinkId, Name, Token, WatchNo};
use conclave_protocol::lock::{
    ClientEvent, ClientInput, Ended, Entered, Holder, LockNode, LockState, Message, Mode,
    NodeInput, Refusal, Sight, Start, Watch,
};
use harness::raw::{Raw, ask, open};
use harness::{Cluster, config};

const WATCH: u64 = 900;

fn watch_name(cluster: &mut Cluster, client: usize, name: &str) {
    let what = Watch::Name(Name::new(name));
    cluster.client(client, ClientInput::Watch(Key(WATCH), what));
    cluster.drain();
}

fn watch_prefix(cluster: &mut Cluster, client: usize, prefix: &str) {
    let what = Watch::Prefix(prefix.as_bytes().into());
    cluster.client(client, ClientInput::Watch(Key(WATCH), what));
    cluster.drain();
}

fn states(cluster: &Cluster, client: usize) -> Vec<LockState> {
    let seen = cluster.told.iter().filter_map(|(who, event)| match event {
        ClientEvent::Seen(key, state) if *who == client && key.0 == WATCH => Some(&**state),
        _ => None,
    });
    seen.cloned().collect()
}

fn last(cluster: &Cluster, client: usize) -> LockState {
    states(cluster, client).pop().unwrap()
}

fn synced(cluster: &Cluster, client: usize) -> Vec<bool> {
    let told = cluster.told.iter().filter_map(|(who, event)| match event {
        ClientEvent::Synced(_, partial) if *who == client => Some(*partial),
        _ => None,
    });
    told.collect()
}

fn tokens(state: &LockState) -> Vec<u64> {
    let holders = state.holders.iter();
    holders.map(|holder| holder.token.0).collect()
}

fn note(holder: &Holder) -> String {
    let note = holder.note.as_deref().unwrap_or_default();
    String::from_utf8_lossy(note).into_owned()
}

#[test]
fn a_watch_begins_with_the_present_and_follows() {
    for (system, groups) in [
        ("majority(5)", &[] as &[&str]),
        ("billiard(12)", &[]),
        ("surficial(groups=2, n=4)", &["g"]),
        ("tree(7)", &[]),
    ] {
        let mut cluster = Cluster::new(config(system, groups), 3);
        watch_name(&mut cluster, 0, "a");
        assert!(last(&cluster, 0).is_idle(), "{system}");
        assert_eq!(synced(&cluster, 0), [false], "{system}");
        for (client, mode) in [(1, Mode::Exclusive), (2, Mode::group("g"))] {
            cluster.acquire(client, 1, "a", mode.clone());
            cluster.drain();
            // Somebody watches: the holder does not wait for a heartbeat to say it is inside.
            cluster.pass(Duration::from_millis(20));
            let token = cluster.entered(client, 1).unwrap();
            assert_eq!(tokens(&last(&cluster, 0)), [token.0], "{system}");
            assert_eq!(last(&cluster, 0).holders[0].mode(), mode);
            cluster.release(client, 1);
            cluster.pass(Duration::from_millis(20));
            assert!(last(&cluster, 0).is_idle(), "{system}: told once as empty");
        }
        assert!(states(&cluster, 0).iter().all(|state| !state.partial));
        // One that comes later sees the present state first, and nothing of the past.
        cluster.acquire(1, 2, "a", Mode::Shared);
        cluster.pass(Duration::from_millis(300));
        let late = cluster.add_client();
        watch_name(&mut cluster, late, "a");
        let all = states(&cluster, late);
        assert_eq!(all.len(), 1, "{system}: {all:?}");
        assert_eq!(tokens(&all[0]), [cluster.entered(1, 2).unwrap().0]);
    }
}

#[test]
fn notes_are_shown_as_they_change() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    watch_name(&mut cluster, 0, "a");
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.drain();
    for text in ["one", "two", "three"] {
        let note = ClientInput::Note(Key(1), text.as_bytes().into());
        cluster.client(1, note);
        cluster.pass(Duration::from_millis(15));
        assert_eq!(super_note(&cluster), text);
    }
    // A note that was lost with its connection is said again on the next one.
    for node in 0..3 {
        cluster.wires.stall(1, node, true, true);
    }
    cluster.client(1, ClientInput::Note(Key(1), b"four".as_slice().into()));
    for link in cluster.wires.links_of(Some(1), None) {
        cluster.reset(link);
    }
    for node in 0..3 {
        cluster.wires.stall(1, node, true, false);
    }
    cluster.pass(Duration::from_secs(2));
    assert_eq!(super_note(&cluster), "four");
    let editions = states(&cluster, 0);
    let editions: Vec<u32> = editions
        .iter()
        .filter_map(|state| Some(state.leader()?.edition))
        .collect();
    assert!(editions.is_sorted(), "{editions:?}");
}

fn super_note(cluster: &Cluster) -> String {
    note(last(cluster, 0).leader().unwrap())
}

#[test]
fn a_prefix_is_listed_and_then_followed() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    for (key, name) in [(1, "jobs/a"), (2, "jobs/b"), (3, "other")] {
        cluster.acquire(1, key, name, Mode::Exclusive);
    }
    cluster.pass(Duration::from_millis(300));
    watch_prefix(&mut cluster, 0, "jobs/");
    let all = states(&cluster, 0);
    let names: Vec<String> = all.iter().map(|state| state.name.to_string()).collect();
    assert_eq!(names, ["jobs/a", "jobs/b"]);
    assert_eq!(synced(&cluster, 0), [false]);
    cluster.release(1, 1);
    cluster.acquire(1, 4, "jobs/c", Mode::Exclusive);
    cluster.pass(Duration::from_millis(50));
    let news: Vec<(String, usize)> = states(&cluster, 0)[2..]
        .iter()
        .map(|state| (state.name.to_string(), state.holders.len()))
        .collect();
    assert!(news.contains(&("jobs/a".to_owned(), 0)), "{news:?}");
    assert!(news.contains(&("jobs/c".to_owned(), 1)), "{news:?}");
    assert_eq!(last(&cluster, 0).name.to_string(), "jobs/c");
    cluster.client(0, ClientInput::Cancel(Key(WATCH)));
    cluster.drain();
    assert_eq!(cluster.ended(0, WATCH), Some(Ended::Cancelled));
    for node in cluster.nodes.iter().flatten() {
        assert_eq!(node.watches(), 0);
    }
}

#[test]
fn a_watch_asks_others_when_a_node_dies() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 2);
    watch_name(&mut cluster, 0, "a");
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_millis(50));
    let token = cluster.entered(1, 1).unwrap();
    let first = cluster.wires.links_of(Some(0), None).len();
    assert_eq!(first, 3, "no more than a quorum is asked");
    let watched: Vec<usize> = (0..5)
        .filter(|node| cluster.nodes[*node].as_ref().unwrap().watches() > 0)
        .collect();
    cluster.crash(watched[0]);
    cluster.crash(watched[1]);
    cluster.pass(Duration::from_millis(900));
    let all = states(&cluster, 0);
    assert!(all.iter().all(|state| !state.partial), "{all:?}");
    assert_eq!(tokens(all.last().unwrap()), [token.0]);
    // The third is one too many: it says so, and still shows what it knows.
    cluster.crash(watched[2]);
    cluster.pass(Duration::from_secs(2));
    assert!(last(&cluster, 0).partial);
    assert_eq!(synced(&cluster, 0), [false, true]);
    // Nodes that pause after their crash know too little to count.
    cluster.restart(watched[0]);
    cluster.pass(Duration::from_millis(800));
    assert!(last(&cluster, 0).partial);
    cluster.pass(Duration::from_secs(20));
    assert!(!last(&cluster, 0).partial);
    assert_eq!(synced(&cluster, 0), [false, true, false]);
    let shown: Vec<u64> = states(&cluster, 0)
        .iter()
        .filter_map(|state| Some(state.leader()?.token.0))
        .collect();
    assert!(shown.is_sorted(), "{shown:?}");
}

/// A node that is cut off from the holder's end still reports the old holder. Its successor has
/// been seen: the old one never comes back.
#[test]
fn a_late_node_never_brings_the_past_back() {
    for plant in [None, Some(conclave_protocol::lock::Plant::WatchForgets)] {
        let mut shared = config("majority(3)", &[]);
        if let Some(plant) = plant {
            shared.rules = conclave_protocol::lock::Rules::planted(plant);
        }
        let mut cluster = Cluster::new(shared, 3);
        watch_name(&mut cluster, 0, "a");
        cluster.acquire(1, 1, "a", Mode::Exclusive);
        cluster.pass(Duration::from_millis(50));
        let old = cluster.entered(1, 1).unwrap();
        let members = cluster.clients[1].held(Key(1), &Name::new("a"), cluster.now.mono);
        let late = members.unwrap().1[0].0.index();
        // The end of the first hold does not reach one of its nodes; others go on without it.
        cluster.wires.stall(1, late, true, true);
        cluster.release(1, 1);
        for node in 0..3 {
            cluster.wires.stall(2, late, node == late, true);
        }
        cluster.acquire(2, 1, "a", Mode::Exclusive);
        cluster.pass(Duration::from_millis(400));
        let new = cluster.entered(2, 1).unwrap();
        assert!(new > old);
        cluster.release(2, 1);
        cluster.pass(Duration::from_millis(100));
        let shown: Vec<u64> = states(&cluster, 0)
            .iter()
            .filter_map(|state| Some(state.leader()?.token.0))
            .collect();
        assert!(shown.contains(&new.0), "{shown:?}");
        assert_eq!(shown.is_sorted(), plant.is_none(), "{plant:?}: {shown:?}");
    }
}

/// However often a lock changes, at most one change waits to be told, and what is told is how the
/// lock looks at that moment.
#[test]
fn changes_are_told_at_a_pace_and_newest_first() {
    let mut raw = Raw::new(config("majority(3)", &[]));
    raw.hello(1, 1, 1);
    raw.hello(2, 2, 1);
    raw.say(1, open(7, Duration::from_secs(10), false));
    let what = Watch::Prefix(b"".as_slice().into());
    let watch = WatchNo(5);
    raw.say(2, Message::Watch { watch, what });
    raw.pass(Duration::from_millis(20));
    raw.said.clear();
    for request in 1..=500 {
        let one = ask("a", 7, request);
        let (grant, floor, _) = raw_grant(&mut raw, &one);
        let token = Token(floor.0 + 1);
        let entered = Entered {
            grant,
            token,
            note: None,
            edition: 0,
        };
        raw.input(NodeInput::Receive(
            LinkId(1),
            Message::Entered(Box::new(entered)),
        ));
        raw.input(NodeInput::Receive(
            LinkId(1),
            harness::raw::done(&one, Some(token.0)),
        ));
    }
    let seen = seen_on(&raw, 2);
    assert!(seen.len() <= 1, "{} at once", seen.len());
    raw.said.clear();
    raw.pass(Duration::from_millis(10));
    let seen = seen_on(&raw, 2);
    assert_eq!(seen.len(), 1);
    let Sight::State(report) = &seen[0] else {
        panic!("{seen:?}")
    };
    assert!(report.is_idle(), "{report:?}");
}

fn raw_grant(
    raw: &mut Raw,
    ask: &std::sync::Arc<conclave_protocol::lock::Ask>,
) -> (conclave_protocol::lock::GrantRef, Token, Token) {
    let before = raw.said.len();
    let request = harness::raw::request(ask);
    raw.input(NodeInput::Receive(LinkId(1), request));
    let answers = raw.said[before..].iter();
    let found = answers.clone().find_map(|(_, answer)| match answer {
        Message::Locked {
            grant,
            floor,
            limit,
            ..
        } => Some((*grant, *floor, *limit)),
        _ => None,
    });
    found.unwrap()
}

fn seen_on(raw: &Raw, link: u64) -> Vec<Sight> {
    let here = raw.said.iter().filter(|(to, _)| to.0 == link);
    let seen = here.filter_map(|(_, message)| match message {
        Message::Seen { sight, .. } => Some((**sight).clone()),
        _ => None,
    });
    seen.collect()
}

/// A long list comes in parts, and a watch that falls far behind starts over with a list.
#[test]
fn a_watch_that_falls_behind_starts_over() {
    let mut shared = config("majority(3)", &[]);
    shared.limits.watch_changes = 10;
    shared.limits.requests_per_client = 100_000;
    let mut raw = Raw::new(shared);
    raw.hello(1, 1, 1);
    raw.hello(2, 2, 1);
    raw.say(1, open(7, Duration::from_secs(10), false));
    let many = 3000;
    for request in 1..=many {
        let one = ask(format!("jobs/{request}"), 7, request);
        raw_grant(&mut raw, &one);
    }
    let what = Watch::Prefix(b"jobs/".as_slice().into());
    raw.said.clear();
    let watch = WatchNo(5);
    raw.input(NodeInput::Receive(
        LinkId(2),
        Message::Watch { watch, what },
    ));
    let first = seen_on(&raw, 2).len() as u64;
    assert!(first > 100 && first < many, "{first} in the first part");
    while !seen_on(&raw, 2).contains(&Sight::Synced) {
        raw.pass(Duration::from_millis(10));
        raw.input(NodeInput::Receive(LinkId(1), beat()));
        raw.input(NodeInput::Receive(LinkId(2), beat()));
    }
    assert_eq!(seen_on(&raw, 2).len() as u64, many + 2, "each once");
    raw.said.clear();
    // More changes than may wait, between two times of telling.
    for request in many + 1..=many + 100 {
        let one = ask(format!("jobs/{request}"), 7, request);
        raw_grant(&mut raw, &one);
    }
    for _ in 0..20 {
        raw.pass(Duration::from_millis(10));
        raw.input(NodeInput::Receive(LinkId(1), beat()));
        raw.input(NodeInput::Receive(LinkId(2), beat()));
    }
    let seen = seen_on(&raw, 2);
    assert!(seen.contains(&Sight::Begin), "it starts over");
    assert_eq!(seen.last(), Some(&Sight::Synced));
    for request in 1..=many + 100 {
        let name = Name::new(format!("jobs/{request}"));
        let told = |sight: &Sight| matches!(sight, Sight::State(report) if report.name == name);
        assert!(seen.iter().any(told), "{name}");
    }
}

fn beat() -> Message {
    Message::Heartbeat {
        beat: 1,
        entered: Vec::new(),
    }
}

#[test]
fn limits_are_refused_by_name() {
    let mut shared = config("majority(3)", &[]);
    shared.limits.watches_per_client = 2;
    shared.limits.watches = 3;
    let mut raw = Raw::new(shared);
    raw.hello(1, 1, 1);
    raw.hello(2, 2, 1);
    let watch = |raw: &mut Raw, link, no, name: &str| {
        let (watch, what) = (WatchNo(no), Watch::Name(Name::new(name)));
        let answers = raw.say(link, Message::Watch { watch, what });
        answers.iter().find_map(|answer| match answer {
            Message::Seen { sight, .. } => match &**sight {
                Sight::Refused(why) => Some(*why),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(watch(&mut raw, 1, 1, "a"), None);
    assert_eq!(watch(&mut raw, 1, 1, "b"), Some(Refusal::Unfit), "twice");
    assert_eq!(watch(&mut raw, 1, 2, ""), Some(Refusal::Size));
    assert_eq!(watch(&mut raw, 1, 2, "b"), None);
    assert_eq!(watch(&mut raw, 1, 3, "c"), Some(Refusal::WatchLimit));
    assert_eq!(watch(&mut raw, 2, 1, "a"), None);
    assert_eq!(watch(&mut raw, 2, 2, "b"), Some(Refusal::WatchLimit));
    let watch_no = WatchNo(1);
    raw.say(1, Message::Unwatch { watch: watch_no });
    assert_eq!(watch(&mut raw, 2, 2, "b"), None, "room again");
    raw.input(NodeInput::Closed(LinkId(2)));
    assert_eq!(raw.node.watches(), 1, "watches end with their connection");
}

/// A client whose nodes have no room for its watch is told so.
#[test]
fn a_refused_watch_ends() {
    let mut shared = config("majority(3)", &[]);
    shared.limits.watches = 0;
    let mut cluster = Cluster::new(shared, 1);
    watch_name(&mut cluster, 0, "a");
    let refused = Ended::Refused(Refusal::WatchLimit);
    assert_eq!(cluster.ended(0, WATCH), Some(refused));
    let mut small = config("majority(3)", &[]);
    small.limits.watched_locks = 3;
    let mut cluster = Cluster::new(small, 2);
    for key in 1..=5 {
        cluster.acquire(1, key, &format!("jobs/{key}"), Mode::Exclusive);
    }
    cluster.drain();
    watch_prefix(&mut cluster, 0, "jobs/");
    let refused = Ended::Refused(Refusal::WatchLimit);
    assert_eq!(cluster.ended(0, WATCH), Some(refused));
}

/// A node that lost its disk tells nothing before it serves again.
#[test]
fn a_recovering_node_is_not_heard() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_millis(300));
    for node in 0..3 {
        cluster.crash(node);
    }
    for node in 0..3 {
        let disk = cluster.disks[node].clone();
        cluster.start_node(node, Start::Disk(disk));
    }
    watch_name(&mut cluster, 0, "a");
    assert!(states(&cluster, 0).is_empty());
    cluster.pass(Duration::from_secs(3));
    assert!(last(&cluster, 0).partial);
    cluster.pass(Duration::from_secs(15));
    assert!(!last(&cluster, 0).partial);
}

/// However often a connection asks to watch the same, a change is told to it once.
#[test]
fn a_change_is_told_once_to_each_connection() {
    let mut raw = Raw::new(config("majority(3)", &[]));
    raw.hello(1, 1, 1);
    raw.say(1, open(7, Duration::from_secs(10), false));
    for link in 2..=6 {
        raw.hello(link, u128::from(link), 1);
        for no in 1..=4096 {
            let what = Watch::Prefix(b"".as_slice().into());
            let watch = WatchNo(no);
            raw.input(NodeInput::Receive(
                LinkId(link),
                Message::Watch { watch, what },
            ));
        }
    }
    assert_eq!(raw.node.watches(), 5);
    raw.pass(Duration::from_millis(20));
    raw.said.clear();
    raw_grant(&mut raw, &ask("a", 7, 1));
    raw.pass(Duration::from_millis(20));
    let told = (2..=6).map(|link| seen_on(&raw, link).len());
    assert_eq!(told.collect::<Vec<_>>(), [1; 5]);
}

/// Prefixes of many lengths would make a change of one lock cost as many messages.
#[test]
fn few_prefixes_of_one_lock_are_watched_on_a_connection() {
    let mut raw = Raw::new(config("majority(3)", &[]));
    raw.hello(1, 1, 1);
    raw.say(1, open(7, Duration::from_secs(10), false));
    raw.hello(2, 2, 1);
    let name = "x".repeat(1000);
    for length in 0..1000 {
        let (watch, what) = (
            WatchNo(length as u64 + 1),
            Watch::Prefix(name.as_bytes()[..length].into()),
        );
        raw.input(NodeInput::Receive(
            LinkId(2),
            Message::Watch { watch, what },
        ));
    }
    assert_eq!(raw.node.watches(), 16);
    raw.pass(Duration::from_millis(20));
    raw.said.clear();
    raw_grant(&mut raw, &ask(name, 7, 1));
    raw.pass(Duration::from_millis(20));
    assert_eq!(seen_on(&raw, 2).len(), 16);
    let watch = WatchNo(1);
    raw.say(2, Message::Unwatch { watch });
    let (watch, what) = (
        WatchNo(5000),
        Watch::Prefix(b"yyyyyyyyyyyyyyyyyyyy".as_slice().into()),
    );
    raw.say(2, Message::Watch { watch, what });
    assert_eq!(raw.node.watches(), 16, "room for another length");
}

/// All callers of a client that watch the same share one watch at the nodes.
#[test]
fn callers_that_watch_the_same_share_a_watch() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    let watch = |cluster: &mut Cluster, key| {
        let what = Watch::Prefix(b"jobs/".as_slice().into());
        cluster.client(0, ClientInput::Watch(Key(key), what));
        cluster.drain();
    };
    let seen = |cluster: &Cluster, key| {
        let told = cluster.told.iter().filter_map(|(who, event)| match event {
            ClientEvent::Seen(of, state) if *who == 0 && of.0 == key => Some(tokens(state)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    let is_synced = |cluster: &Cluster, key| {
        let mut told = cluster.told.iter();
        told.any(|(who, event)| *who == 0 && *event == ClientEvent::Synced(Key(key), false))
    };
    for key in 1..=50 {
        watch(&mut cluster, key);
    }
    let watches = |cluster: &Cluster| cluster.nodes.iter().flatten().map(LockNode::watches).sum();
    let at_nodes: usize = watches(&cluster);
    assert_eq!(at_nodes, 2, "one at each node of a quorum");
    cluster.acquire(1, 1, "jobs/1", Mode::Exclusive);
    cluster.pass(Duration::from_millis(50));
    let token = cluster.entered(1, 1).unwrap().0;
    for key in 1..=50 {
        assert!(is_synced(&cluster, key));
        assert_eq!(seen(&cluster, key).last(), Some(&vec![token]), "{key}");
    }
    // One that comes later is told what the others know; nobody depends on the first.
    cluster.client(0, ClientInput::Cancel(Key(1)));
    cluster.drain();
    assert_eq!(cluster.ended(0, 1), Some(Ended::Cancelled));
    watch(&mut cluster, 51);
    assert_eq!(seen(&cluster, 51), [vec![token]]);
    assert!(is_synced(&cluster, 51));
    cluster.release(1, 1);
    cluster.pass(Duration::from_millis(50));
    assert_eq!(seen(&cluster, 1).last(), Some(&vec![token]), "it has left");
    assert_eq!(seen(&cluster, 51).last(), Some(&vec![]));
    for key in 2..=51 {
        cluster.client(0, ClientInput::Cancel(Key(key)));
    }
    cluster.drain();
    cluster.pass(Duration::from_millis(50));
    let at_nodes: usize = watches(&cluster);
    assert_eq!(at_nodes, 0);
}
