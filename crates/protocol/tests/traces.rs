//! Traces of the lock machines as text. Every file of `testdata` is a row of known errors, or a
//! pitfall, played step by step: blocks of commands, a line `----`, and what happened. With
//! `UPDATE=1` in the environment the test writes what happens now; the change is then reviewed.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Key, Name, SessionId, Token};
use conclave_protocol::lock::{
    Acquire, ClientEvent, ClientInput, Fence, Group, Mode, NodeInput, Plant, Policy, Protocol,
    Restart, Rules,
};
use harness::show::{Trace, number};
use harness::{CHARGED, Cluster, config};

#[test]
fn every_trace_is_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 27, "only {} traces", files.len());
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let before = std::fs::read_to_string(&file).unwrap();
        let after = replay(&name, &before);
        if before == after {
            continue;
        }
        if update {
            std::fs::write(&file, after).unwrap();
        } else {
            wrong.push(difference(&name, &before, &after));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn difference(name: &str, before: &str, after: &str) -> String {
    let mut text = format!("{name} differs (UPDATE=1 rewrites it):\n");
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    for line in old.iter().skip(same).take(8) {
        writeln!(text, "  - {line}").unwrap();
    }
    for line in new.iter().skip(same).take(8) {
        writeln!(text, "  + {line}").unwrap();
    }
    text
}

/// Plays a file and gives it back with what happened.
fn replay(file: &str, text: &str) -> String {
    let mut stage = Stage::default();
    let mut blocks = Vec::new();
    for block in text.split("\n\n") {
        let commands: Vec<&str> = block.lines().take_while(|line| *line != "----").collect();
        if commands.iter().all(|line| line.is_empty()) {
            continue;
        }
        let mut happened = Vec::new();
        for command in &commands {
            if !command.starts_with('#') && !command.is_empty() {
                stage.perform(file, command);
                happened.append(&mut stage.take());
            }
        }
        let comment_only = commands.iter().all(|line| line.starts_with('#'));
        let mut block = commands.join("\n");
        if !comment_only {
            block += "\n----";
            for line in happened {
                write!(block, "\n{line}").unwrap();
            }
        }
        blocks.push(block);
    }
    blocks.join("\n\n") + "\n"
}

/// What a file has set up so far.
struct Stage {
    system: String,
    groups: Vec<String>,
    clients: usize,
    policy: Policy,
    restart: Restart,
    rules: Rules,
    cluster: Option<Cluster>,
    /// Per client: what each key asked for.
    keys: BTreeMap<(usize, u64), Acquire>,
    /// The identity and token of whoever was inside.
    holders: BTreeMap<(usize, u64), (Group, Token)>,
    fence: Fence,
    counted: usize,
    /// The file and command under way, for complaints.
    place: String,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            system: "majority(3)".into(),
            groups: Vec::new(),
            clients: 2,
            policy: Policy::default(),
            restart: Restart::default(),
            rules: Rules::default(),
            cluster: None,
            keys: BTreeMap::new(),
            holders: BTreeMap::new(),
            fence: Fence::new(),
            counted: 0,
            place: String::new(),
        }
    }
}

impl Stage {
    fn cluster(&mut self) -> &mut Cluster {
        if self.cluster.is_none() {
            let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
            let mut shared = config(&self.system, &groups);
            shared.policies = vec![(Vec::new(), self.policy)];
            shared.restart = self.restart;
            shared.rules = self.rules;
            let mut cluster = Cluster::new(shared, self.clients);
            let mut trace = Trace::new(cluster.nodes.len());
            for (index, node) in cluster.nodes.iter().flatten().enumerate() {
                trace.life(index, node.incarnation());
            }
            cluster.trace = Some(trace);
            self.cluster = Some(cluster);
        }
        self.cluster.as_mut().unwrap()
    }

    fn take(&mut self) -> Vec<String> {
        let trace = self
            .cluster
            .as_mut()
            .and_then(|cluster| cluster.trace.as_mut());
        trace.map(Trace::take).unwrap_or_default()
    }

    fn say(&mut self, line: String) {
        self.cluster().trace.as_mut().unwrap().say(line);
    }

    fn perform(&mut self, file: &str, command: &str) {
        self.place = format!("{file}: {command}");
        let words: Vec<&str> = command.split_whitespace().collect();
        if !self.prepare(&words) && !self.act(&words) && !self.disturb(&words) {
            self.look(&words);
        }
        self.note_holders();
    }

    /// Commands before the cluster is there.
    fn prepare(&mut self, words: &[&str]) -> bool {
        match words {
            ["system", system, groups @ ..] => {
                (*system).clone_into(&mut self.system);
                self.groups = groups.iter().map(|&group| group.to_owned()).collect();
            }
            ["clients", count] => self.clients = count.parse().unwrap(),
            ["protocol", "serial"] => self.policy.protocol = Protocol::Serial,
            ["protocol", "parallel"] => self.policy.protocol = Protocol::Parallel,
            ["disk", "durable"] => self.restart = Restart::Durable,
            ["plant", name] => self.rules = Rules::planted(Plant::named(name).unwrap()),
            ["policy", settings @ ..] => {
                for setting in settings {
                    let (what, value) = setting.split_once('=').unwrap();
                    let value = value.parse().unwrap_or(u32::MAX);
                    match what {
                        "max_inside" => self.policy.max_inside = value,
                        "max_bypass" => self.policy.max_bypass = value,
                        _ => panic!("{}", self.place),
                    }
                }
            }
            _ => return false,
        }
        assert!(self.cluster.is_none(), "too late: {}", self.place);
        true
    }

    /// What the clients' callers do.
    fn act(&mut self, words: &[&str]) -> bool {
        match words {
            ["acquire", who, name, rest @ ..] => self.acquire(who, name, rest),
            ["cancel", who] => {
                let (client, key) = self.key(who);
                self.cluster().client(client, ClientInput::Cancel(Key(key)));
            }
            ["release", who] => {
                let (client, key) = self.key(who);
                self.cluster().release(client, key);
            }
            ["keep", who, through] => {
                let (client, key) = self.key(who);
                let gateway = Self::index(through, 'c');
                let handle = self.cluster().handle(client, key).unwrap();
                let fresh = self.fresh_key(gateway, handle.ask.name.clone());
                let keep = ClientInput::Keep(fresh, Box::new(handle), Arc::default());
                self.cluster().client(gateway, keep);
            }
            ["finish", who, through] => {
                let (client, key) = self.key(who);
                let gateway = Self::index(through, 'c');
                let handle = self.cluster().handle(client, key).unwrap();
                let fresh = self.fresh_key(gateway, handle.ask.name.clone());
                let finish = ClientInput::Finish(fresh, Box::new(handle));
                self.cluster().client(gateway, finish);
            }
            _ => return false,
        }
        self.cluster().settle();
        true
    }

    fn fresh_key(&mut self, client: usize, name: Name) -> Key {
        let last = self.keys.keys().filter(|(who, _)| *who == client);
        let key = last.map(|(_, key)| *key).max().unwrap_or(0) + 1;
        let wish = Acquire::new(name, Mode::Shared, Duration::from_secs(10));
        self.keys.insert((client, key), wish);
        Key(key)
    }

    fn acquire(&mut self, who: &str, name: &str, rest: &[&str]) {
        let client = Self::index(who, 'c');
        let key = self.fresh_key(client, Name::new(name));
        let (mode, rest) = match rest {
            ["shared", rest @ ..] => (Mode::Shared, rest),
            ["group", group, rest @ ..] => (Mode::group(group), rest),
            ["exclusive", rest @ ..] => (Mode::Exclusive, rest),
            _ => panic!("{}", self.place),
        };
        let mut wish = Acquire::new(Name::new(name), mode, Duration::from_secs(10));
        for option in rest {
            match option.split_once('=') {
                Some(("ttl", ttl)) => wish.ttl = span(ttl),
                Some(("wait", wait)) => {
                    wish.deadline = Some(self.cluster().now.mono + span(wait));
                }
                None if *option == "try" => wish.attempt = true,
                None if *option == "detached" => {
                    let session = SessionId((client as u128 + 1) << 32 | u128::from(key.0));
                    wish.detach = Some((session, false));
                }
                _ => panic!("{}", self.place),
            }
        }
        self.keys.insert((client, key.0), wish.clone());
        self.cluster()
            .client(client, ClientInput::Acquire(key, wish));
    }

    /// What the network, the nodes and time do.
    fn disturb(&mut self, words: &[&str]) -> bool {
        match words {
            ["deliver"] => self.cluster().drain(),
            ["deliver", way] => self.each_way(way, |cluster, client, node, up| {
                cluster.deliver_one(client, node, up);
            }),
            ["deliver", way, "all"] => self.each_way(way, Cluster::deliver_all),
            ["hold", way] if between(way).is_some() => {
                let (from, to) = between(way).unwrap();
                self.cluster().stall_nodes(from, to, true);
            }
            ["let", way] if between(way).is_some() => {
                let (from, to) = between(way).unwrap();
                self.cluster().stall_nodes(from, to, false);
            }
            ["hold", way] => self.each_way(way, |cluster, client, node, up| {
                cluster.wires.stall(client, node, up, true);
            }),
            ["let", way] => {
                self.each_way(way, |cluster, client, node, up| {
                    cluster.wires.stall(client, node, up, false);
                });
                self.cluster().settle();
            }
            ["reset", client, node] => {
                let link = self.link(client, node);
                self.cluster().reset(link);
            }
            ["sever", client, node] => {
                let link = self.link(client, node);
                self.cluster().sever(link);
            }
            ["late", way] => self.each_way(way, |cluster, client, node, _| {
                cluster.deliver_late(client, node);
            }),
            ["crash", node] => self.cluster().crash(Self::index(node, 'n')),
            ["restart", node] => self.cluster().restart(Self::index(node, 'n')),
            ["lose", node] => self.cluster().lose_disk(Self::index(node, 'n')),
            ["drain", node] => self
                .cluster()
                .node(Self::index(node, 'n'), NodeInput::Drain),
            ["stop", node] => self.cluster().node(Self::index(node, 'n'), NodeInput::Stop),
            ["expire", who, node] => {
                let (client, key) = self.key(who);
                let name = self.keys[&(client, key)].name.clone();
                let ask = self.cluster().clients[client].ask(Key(key), &name);
                let session = ask.unwrap().session;
                self.cluster()
                    .node(Self::index(node, 'n'), NodeInput::Expire(session));
            }
            ["pass", time] => self.cluster().pass(span(time)),
            ["pass", time, "without", who] => {
                let client = Self::index(who, 'c');
                self.cluster().pass_without(span(time), &[client]);
            }
            ["jump", time] => self.cluster().jump(span(time)),
            _ => return false,
        }
        true
    }

    /// What is asked about the state.
    fn look(&mut self, words: &[&str]) {
        match words {
            ["view", node, name] => {
                let node = Self::index(node, 'n');
                let cluster = self.cluster();
                let view = cluster.nodes[node].as_ref().unwrap();
                let view = view.view(&Name::new(name));
                cluster.trace.as_mut().unwrap().view(node, view.as_ref());
            }
            ["inside"] => self.inside(),
            ["write", who] => {
                let place = self.key(who);
                let (group, token) = self.holders[&place].clone();
                let admitted = self.fence.admit(&group, token);
                let word = if admitted { "admitted" } else { "refused" };
                self.say(format!("{who} writes token={}: {word}", number(token.0)));
            }
            ["count"] => self.count(),
            _ => panic!("no such command: {}", self.place),
        }
    }

    fn inside(&mut self) {
        let keys: Vec<(usize, u64)> = self.keys.keys().copied().collect();
        let mut lines = Vec::new();
        for (client, key) in keys {
            let name = self.keys[&(client, key)].name.clone();
            let cluster = self.cluster();
            let now = cluster.now.mono;
            let client_machine = &cluster.clients[client];
            let until = client_machine.held_until(Key(key), &name);
            let held = client_machine.held(Key(key), &name, now);
            if let Some((token, _)) = held.filter(|_| until.is_some_and(|until| until > now)) {
                let token = number(token.0);
                lines.push(format!("c{}/{key} inside {name} token={token}", client + 1));
            }
        }
        if lines.is_empty() {
            lines.push("nobody inside".into());
        }
        for line in lines {
            self.say(line);
        }
    }

    /// The messages since the last count, by kind.
    fn count(&mut self) {
        let from = self.counted;
        let delivered = &self.cluster().delivered;
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        let new = delivered.iter().skip(from);
        for kind in new.map(|one| one.message.kind()) {
            if CHARGED.contains(&kind) {
                *kinds.entry(kind).or_default() += 1;
            }
        }
        self.counted = delivered.len();
        let total: usize = kinds.values().sum();
        let kinds = kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        self.say(format!("{total} messages: {kinds}"));
    }

    /// Remembers who was inside under which group, for writes after the hold.
    fn note_holders(&mut self) {
        let keys: Vec<(usize, u64)> = self.keys.keys().copied().collect();
        let Some(cluster) = &self.cluster else { return };
        for (client, key) in keys {
            let name = &self.keys[&(client, key)].name;
            let Some(ask) = cluster.clients[client].ask(Key(key), name) else {
                continue;
            };
            let token = cluster
                .told
                .iter()
                .rev()
                .find_map(|(who, event)| match event {
                    ClientEvent::Entered { key: of, token, .. }
                    | ClientEvent::Moved { key: of, token, .. }
                        if *who == client && of.0 == key =>
                    {
                        Some(*token)
                    }
                    _ => None,
                });
            if let Some(token) = token {
                self.holders.insert((client, key), (ask.group(), token));
            }
        }
    }

    fn link(&mut self, client: &str, node: &str) -> conclave_protocol::id::LinkId {
        let (client, node) = (Self::index(client, 'c'), Self::index(node, 'n'));
        let link = self.cluster().wires.link(client, node);
        link.unwrap_or_else(|| panic!("no connection: {}", self.place))
    }

    /// A client's place and one of its keys: `c1` means its last, `c1/2` its second.
    fn key(&self, who: &str) -> (usize, u64) {
        if let Some((client, key)) = who.split_once('/') {
            return (Self::index(client, 'c'), key.parse().unwrap());
        }
        let client = Self::index(who, 'c');
        let last = self.keys.keys().rev().find(|(other, _)| *other == client);
        *last.unwrap_or_else(|| panic!("no request: {}", self.place))
    }

    fn index(word: &str, kind: char) -> usize {
        let number = word.strip_prefix(kind).and_then(|rest| rest.parse().ok());
        let number: usize = number.unwrap_or_else(|| panic!("{word} is not a {kind}"));
        number - 1
    }

    /// Does something with every direction that `c1->n2` or `n*->c1` names.
    fn each_way(&mut self, way: &str, mut act: impl FnMut(&mut Cluster, usize, usize, bool)) {
        let (from, to) = way.split_once("->").unwrap();
        let up = from.starts_with('c');
        let (client, node) = if up { (from, to) } else { (to, from) };
        let cluster = self.cluster();
        let all = |word: &str, kind: char, count: usize| match word.strip_prefix(kind) {
            Some("*") => (0..count).collect(),
            _ => vec![Self::index(word, kind)],
        };
        let clients: Vec<usize> = all(client, 'c', cluster.clients.len());
        for client in clients {
            let nodes: Vec<usize> = all(node, 'n', cluster.nodes.len());
            for node in nodes {
                act(cluster, client, node, up);
            }
        }
    }
}

/// The two nodes of a way like `n1->n2`.
fn between(way: &str) -> Option<(usize, usize)> {
    let (from, to) = way.split_once("->")?;
    let node = |word: &str| word.strip_prefix('n')?.parse::<usize>().ok();
    Some((node(from)? - 1, node(to)? - 1))
}

fn span(text: &str) -> Duration {
    let (value, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap());
    let value: u64 = value.parse().unwrap();
    match unit {
        "us" => Duration::from_micros(value),
        "ms" => Duration::from_millis(value),
        "s" => Duration::from_secs(value),
        _ => panic!("{text} is not a time"),
    }
}

/// A trace that no broken rule changes would show nothing.
#[test]
fn planted_bugs_show_in_their_traces() {
    for (file, plant) in [
        ("s1_sanders_schedule.txt", "failed-rule"),
        ("g05_refill_after_cancel.txt", "literal-refill"),
        ("g07_locked_of_an_old_request.txt", "no-request-on-locked"),
        ("g08_late_bytes.txt", "no-conn-check"),
        (
            "gs3_unlock_overtakes_request.txt",
            "serial-unlock-without-request",
        ),
        ("t1_paused_holder_is_fenced.txt", "no-floor-on-expiry"),
        ("t2_restart_pauses_then_serves.txt", "pause-too-short"),
        ("t3_lost_disk.txt", "amnesia-zero-floor"),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let planted = text.replacen("\nclients", &format!("\nplant {plant}\nclients"), 1);
        assert_ne!(
            planted,
            replay(file, &planted),
            "{plant} leaves {file} as it was"
        );
    }
}
