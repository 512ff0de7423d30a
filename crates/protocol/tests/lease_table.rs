//! Leases, one claim per test: nodes and contenders by hand, on a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{Faults, Lie};
use conclave_protocol::id::{ClientId, LinkId, Name, NodeId, Token};
use conclave_protocol::lease::plant::{Plant, Rules};
use conclave_protocol::lease::{
    Backoff, Contender, HandleAction, HandleRequest, HandleStanding, LeaseAnswer, LeaseAsk,
    LeaseConfig, LeaseHandle, LeaseKey, LeaseOut, LeaseRefusal, LeaseReply, LeaseServer,
    LeaseStart, Space, Standing, Terms,
};
use conclave_protocol::{Instant, Now, Wall};

const DELAY: Duration = Duration::from_millis(100);
const SPAN: Duration = Duration::from_secs(1);
const EPOCH: u64 = 1_000_000_000_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What all clocks show this long after the start.
fn at(since: Duration) -> Now {
    Now {
        mono: Instant::ZERO + since,
        wall: Wall(EPOCH + since.as_micros() as u64),
    }
}

fn key() -> LeaseKey {
    LeaseKey {
        space: Space::Lease,
        name: Name::new("job"),
    }
}

fn config(nodes: usize, liars: usize, rules: Rules) -> Arc<LeaseConfig> {
    Arc::new(LeaseConfig {
        delay: DELAY,
        drift_ppm: 0,
        rules,
        ..LeaseConfig::new(Faults::new(nodes, liars).expect("enough nodes"))
    })
}

fn terms() -> Terms {
    Terms {
        least: ms(1),
        ..Terms::new(SPAN)
    }
}

/// Honest nodes, and whatever the test makes of their words.
struct Nodes {
    config: Arc<LeaseConfig>,
    all: Vec<LeaseServer>,
}

impl Nodes {
    fn new(config: &Arc<LeaseConfig>) -> Self {
        let start = LeaseStart {
            opens: Instant::ZERO,
            mark: Token(0),
        };
        let one = |seed| LeaseServer::new(Arc::clone(config), start, seed);
        Self {
            config: Arc::clone(config),
            all: (0..config.faults.nodes() as u64).map(one).collect(),
        }
    }

    fn restart(&mut self, now: Now, node: usize, mark: Token) {
        let start = LeaseStart {
            opens: now.mono + self.config.quarantine(),
            mark,
        };
        self.all[node] = LeaseServer::new(Arc::clone(&self.config), start, 9);
    }

    /// What a node answers at once.
    fn ask(&mut self, now: Now, node: usize, link: u64, ask: &LeaseAsk) -> Vec<LeaseReply> {
        let mut out = LeaseOut::default();
        self.all[node].ask(now, LinkId(link), &key(), ask, None, &mut out);
        out.answers.into_iter().map(|(_, _, reply)| reply).collect()
    }

    fn wake(&mut self, now: Now, node: usize) -> Vec<(LinkId, LeaseReply)> {
        let mut out = LeaseOut::default();
        self.all[node].wake(now, &|_| None, &mut out);
        out.answers
            .into_iter()
            .map(|(link, _, reply)| (link, reply))
            .collect()
    }
}

struct Client {
    machine: Contender,
    link: u64,
    out: Vec<(NodeId, LeaseAsk)>,
}

impl Client {
    fn new(config: &Arc<LeaseConfig>, number: u8, terms: Terms) -> Self {
        let id = ClientId(u128::from(number));
        let seed = [number; 32];
        let machine = Contender::new(Arc::clone(config), key(), id, terms, 1, seed);
        Self {
            machine,
            link: u64::from(number),
            out: Vec::new(),
        }
    }

    fn start(&mut self, now: Now) -> Vec<(NodeId, LeaseAsk)> {
        self.machine.start(now, &mut self.out);
        self.sent()
    }

    fn sent(&mut self) -> Vec<(NodeId, LeaseAsk)> {
        std::mem::take(&mut self.out)
    }

    fn hear(&mut self, now: Now, node: usize, reply: &LeaseReply) {
        self.machine
            .heard(now, NodeId::at(node), reply, &mut self.out);
    }

    /// Sends everything to the nodes in `reach` and hears their answers at once.
    fn talk(&mut self, now: Now, nodes: &mut Nodes, reach: &[usize], asks: &[(NodeId, LeaseAsk)]) {
        for (node, ask) in asks {
            if reach.contains(&node.index()) {
                for reply in nodes.ask(now, node.index(), self.link, ask) {
                    self.hear(now, node.index(), &reply);
                }
            }
        }
    }

    fn end(&self) -> Option<Instant> {
        match self.machine.standing() {
            Standing::Held { end, .. } => Some(*end),
            _ => None,
        }
    }

    fn token(&self) -> Option<Token> {
        match self.machine.standing() {
            Standing::Held { token, .. } => Some(*token),
            _ => None,
        }
    }
}

fn reply_to(ask: &LeaseAsk, answer: LeaseAnswer) -> LeaseReply {
    let LeaseAsk::Try(asked) = ask else {
        panic!("not a try: {ask:?}");
    };
    LeaseReply {
        attempt: asked.attempt,
        sub: asked.sub,
        answer,
    }
}

fn free() -> LeaseAnswer {
    LeaseAnswer::Free {
        held: Duration::ZERO,
        rank: None,
    }
}

fn locked(token: u64) -> LeaseAnswer {
    LeaseAnswer::Locked {
        queued: false,
        remaining: SPAN,
        token: Token(token),
        rank: None,
    }
}

/// One client, n=6, b=1: a lease in one round trip, whatever the liar says.
#[test]
fn alone_a_lease_takes_one_round_trip() {
    for lie in [Some(locked(0)), Some(free()), None] {
        let config = config(6, 1, Rules::default());
        let mut nodes = Nodes::new(&config);
        let mut client = Client::new(&config, 1, terms());
        let asks = client.start(at(ms(0)));
        if let Some(lie) = lie {
            client.hear(at(ms(1)), 5, &reply_to(&asks[5].1, lie));
        }
        client.talk(at(ms(150)), &mut nodes, &[0, 1, 2, 3, 4], &asks);
        let end = client.end().expect("a lease");
        assert!(end >= at(ms(150)).mono + SPAN, "{lie:?}");
    }
}

/// Votes given at 0 and a lease decided at two delays: the second client asks just after.
fn tight(rules: Rules) -> (Instant, Option<Instant>) {
    let config = config(6, 1, rules);
    let mut nodes = Nodes::new(&config);
    let mut first = Client::new(&config, 1, terms());
    let asks = first.start(at(ms(0)));
    first.talk(at(ms(0)), &mut nodes, &[0, 1, 2], &asks);
    assert_eq!(first.end(), None);
    // The last vote is given at once and heard two delays later; node 6 is silent.
    let late = nodes.ask(at(ms(0)), 3, 1, &asks[3].1);
    first.hear(at(ms(200)), 3, &late[0]);
    let end = first.end().expect("a lease");
    let again = SPAN + DELAY * 19 / 10 + Duration::from_micros(2);
    let mut second = Client::new(&config, 2, terms());
    let asks = second.start(at(again));
    second.talk(at(again), &mut nodes, &[0, 1, 2, 3, 4], &asks);
    (end, second.end().map(|_| at(again).mono))
}

#[test]
fn a_vote_outlasts_its_lease() {
    let (end, second) = tight(Rules::default());
    assert_eq!(second, None, "the votes last until {end}");
    let (end, second) = tight(Rules::planted(Plant::ShortVote));
    assert!(second.expect("votes too soon") < end);
    let (end, second) = tight(Rules::planted(Plant::BareSpan));
    assert!(second.expect("votes too soon") < end);
}

/// A vote is free again strictly after what it lasts.
#[test]
fn the_end_of_a_vote_is_exact() {
    let config = config(6, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let mut first = Client::new(&config, 1, terms());
    let asks = first.start(at(ms(0)));
    nodes.ask(at(ms(0)), 0, 1, &asks[0].1);
    let last = config.vote(SPAN);
    for (when, answered) in [(last, false), (last + Duration::from_nanos(1), true)] {
        let mut second = Client::new(&config, 2, terms());
        let asks = second.start(at(when));
        let reply = nodes.ask(at(when), 0, 2, &asks[0].1);
        let free = matches!(reply[0].answer, LeaseAnswer::Free { .. });
        assert_eq!(free, answered, "{when:?}");
    }
}

/// Two slow nodes' votes for the first attempt come during the second: they count for nothing.
fn late_votes(rules: Rules) -> bool {
    let config = config(11, 1, rules);
    let mut client = Client::new(&config, 1, terms());
    let first = client.start(at(ms(0)));
    for node in [0, 1, 2, 3, 4, 5, 6, 9] {
        client.hear(at(ms(100)), node, &reply_to(&first[node].1, locked(0)));
    }
    let Standing::Waiting { until } = *client.machine.standing() else {
        panic!("{:?}", client.machine.standing());
    };
    let again = until.since(Instant::ZERO);
    client.sent();
    let second = client.start(at(again));
    for node in [0, 1, 2, 3, 4, 9] {
        client.hear(at(again), node, &reply_to(&second[node].1, free()));
    }
    for node in [7, 8] {
        client.hear(at(again), node, &reply_to(&first[node].1, free()));
    }
    client.end().is_some()
}

#[test]
fn a_late_vote_for_an_older_attempt_does_not_count() {
    assert!(!late_votes(Rules::default()));
    assert!(late_votes(Rules::planted(Plant::LateFree)));
    assert!(late_votes(Rules::published()));
}

/// Votes of a list that are given at different times last until the earliest lapses.
#[test]
fn delayed_votes_count_from_when_they_were_given() {
    let patient = Terms {
        patience: SPAN * 10,
        ..terms()
    };
    for (rules, fooled) in [
        (Rules::default(), false),
        (Rules::planted(Plant::HeldIgnored), true),
    ] {
        let config = config(4, 1, rules);
        let mut nodes = Nodes::new(&config);
        // Node n gave its vote to somebody else 300 n ms after the start.
        for node in 0..4usize {
            let now = at(ms(300 * node as u64));
            let mut other = Client::new(&config, 10 + node as u8, terms());
            let asks = other.start(now);
            nodes.ask(now, node, 9, &asks[node].1);
        }
        let mut client = Client::new(&config, 1, patient);
        let sent = at(ms(1000));
        let asks = client.start(sent);
        client.talk(sent, &mut nodes, &[0, 1, 2, 3], &asks);
        let mut decided = None;
        for millis in 1000..6000 {
            let now = at(ms(millis));
            for node in 0..4 {
                for (_, reply) in nodes.wake(now, node) {
                    client.hear(now, node, &reply);
                }
            }
            client.machine.wake(now, &mut client.out);
            if client.end().is_some() && decided.is_none() {
                decided = Some(now);
            }
        }
        // Three votes are given by 1.8 s; the first of them lapses at 2.4 s.
        let decided = decided.expect("a lease").mono;
        assert_eq!(decided, at(ms(1801)).mono);
        let earliest = at(ms(1201)).mono + config.vote(SPAN);
        client.machine = {
            let mut again = Client::new(&config, 1, patient);
            again.start(sent);
            again.machine
        };
        let held = |millis: u64| LeaseAnswer::Free {
            held: ms(millis),
            rank: None,
        };
        for (node, millis) in [(0, 201), (1, 501), (2, 801)] {
            client.hear(at(ms(1801)), node, &reply_to(&asks[node].1, held(millis)));
        }
        let end = client.end().expect("a lease");
        assert_eq!(end > earliest, fooled, "{end} {earliest}");
    }
}

/// A lie about how long a request was kept spoils only the liar's own vote.
#[test]
fn lies_about_held_do_not_lengthen_a_lease() {
    let config = config(4, 1, Rules::default());
    let mut client = Client::new(&config, 1, terms());
    let asks = client.start(at(ms(0)));
    let held = LeaseAnswer::Free {
        held: Duration::MAX,
        rank: None,
    };
    client.hear(at(ms(10)), 0, &reply_to(&asks[0].1, held));
    client.hear(at(ms(10)), 1, &reply_to(&asks[1].1, free()));
    client.hear(at(ms(10)), 2, &reply_to(&asks[2].1, free()));
    assert_eq!(
        client.end(),
        Some(Instant::ZERO + config.sure(config.vote(SPAN)))
    );
}

/// The designated client polls through the lapse of a lock and is in within six delays.
#[test]
fn the_designated_client_enters_soon_after_the_lapse() {
    let config = config(6, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    for node in 0..6 {
        let when = at(ms(node as u64 * 30));
        let mut other = Client::new(&config, 20 + node as u8, terms());
        let asks = other.start(when);
        nodes.ask(when, node, 9, &asks[node].1);
    }
    let designated = Terms {
        designated: true,
        ..terms()
    };
    let mut client = Client::new(&config, 1, designated);
    let mut asks = client.start(at(ms(700)));
    let lapse = ms(150) + config.vote(SPAN);
    let mut entered = None;
    for millis in 700..4000 {
        let now = at(ms(millis));
        client.machine.wake(now, &mut client.out);
        asks.extend(client.sent());
        let batch = std::mem::take(&mut asks);
        client.talk(now, &mut nodes, &[0, 1, 2, 3, 4], &batch);
        asks.extend(client.sent());
        if client.end().is_some() {
            entered = Some(ms(millis));
            break;
        }
    }
    assert!(entered.expect("in") <= lapse + DELAY * 6);
}

/// A short request does not enter a long lease.
#[test]
fn the_span_that_was_granted_counts() {
    for (rules, wrong) in [
        (Rules::default(), false),
        (Rules::planted(Plant::RequesterSpan), true),
    ] {
        let config = config(6, 1, rules);
        let mut nodes = Nodes::new(&config);
        let long = Terms {
            span: SPAN * 10,
            ..terms()
        };
        let short = Terms {
            span: SPAN / 2,
            ..terms()
        };
        let mut first = Client::new(&config, 1, long);
        let asks = first.start(at(ms(0)));
        first.talk(at(ms(0)), &mut nodes, &[0, 1, 2, 3, 4, 5], &asks);
        assert!(first.end().is_some());
        for (millis, free) in [(5000, wrong), (10_200, wrong), (10_201, true)] {
            let mut second = Client::new(&config, 2, short);
            let now = at(ms(millis));
            let asks = second.start(now);
            second.talk(now, &mut nodes, &[0, 1, 2, 3, 4, 5], &asks);
            assert_eq!(second.end().is_some(), free, "{millis} {rules:?}");
            let mut out = Vec::new();
            second.machine.release(now, &mut out);
            second.talk(now, &mut nodes, &[0, 1, 2, 3, 4, 5], &out);
        }
    }
}

/// b+1 nodes restart during a lease: they give no vote before it has ended.
#[test]
fn a_restart_does_not_give_a_vote_twice() {
    for (rules, wrong) in [
        (Rules::default(), false),
        (Rules::planted(Plant::NoQuarantine), true),
    ] {
        let config = config(4, 1, rules);
        let mut nodes = Nodes::new(&config);
        let mut first = Client::new(&config, 1, terms());
        let asks = first.start(at(ms(0)));
        first.talk(at(ms(0)), &mut nodes, &[0, 1, 2], &asks);
        let marks = [nodes.all[0].mark(), nodes.all[1].mark()];
        assert!(marks[0] > first.token().expect("a lease"));
        let now = at(ms(100));
        nodes.restart(now, 0, marks[0]);
        nodes.restart(now, 1, marks[1]);
        let mut second = Client::new(&config, 2, terms());
        let asks = second.start(now);
        second.talk(now, &mut nodes, &[0, 1, 3], &asks);
        let raised = second.sent();
        second.talk(now, &mut nodes, &[0, 1, 3], &raised);
        assert_eq!(second.end().is_some(), wrong);
        let opens = ms(100) + config.quarantine();
        let mut third = Client::new(&config, 3, terms());
        let asks = third.start(at(opens));
        third.talk(at(opens), &mut nodes, &[0, 1, 2], &asks);
        assert!(third.token().expect("a lease") > first.token().expect("one too"));
    }
}

/// A node whose mark was lost would grant a token again; one that kept it says stale.
#[test]
fn tokens_do_not_go_back_over_a_restart() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let mut first = Client::new(&config, 1, terms());
    let asks = first.start(at(ms(0)));
    first.talk(at(ms(0)), &mut nodes, &[0, 1, 2], &asks);
    let before = first.token().expect("a lease");
    for node in 0..4 {
        let mark = nodes.all[node].mark();
        nodes.restart(at(ms(0)), node, mark);
    }
    // The second client's wall clock stands still: its first guess is the first one's token.
    let later = Now {
        mono: Instant::ZERO + config.quarantine(),
        wall: at(ms(0)).wall,
    };
    let mut second = Client::new(&config, 2, terms());
    let asks = second.start(later);
    second.talk(later, &mut nodes, &[0, 1, 2, 3], &asks);
    assert_eq!(second.end(), None);
    for _ in 0..60 {
        let raised = second.sent();
        second.talk(later, &mut nodes, &[0, 1, 2, 3], &raised);
        if let Standing::Waiting { .. } = second.machine.standing() {
            second.machine.start(later, &mut second.out);
        }
    }
    assert!(second.token().expect("a lease") > before);
}

/// A release of another attempt, or without the secret, is ignored.
#[test]
fn only_the_holder_releases() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let mut old = Client::new(&config, 1, terms());
    let asks = old.start(at(ms(0)));
    old.talk(at(ms(0)), &mut nodes, &[0, 1, 2, 3], &asks);
    let mut back = Vec::new();
    old.machine.release(at(ms(10)), &mut back);
    old.talk(at(ms(10)), &mut nodes, &[0, 1, 2, 3], &back);
    let mut new = Client::new(&config, 2, terms());
    let asks = new.start(at(ms(20)));
    new.talk(at(ms(20)), &mut nodes, &[0, 1, 2, 3], &asks);
    assert!(new.end().is_some(), "given back, so free at once");
    // The old release comes again, and somebody tries without the secret.
    old.talk(at(ms(30)), &mut nodes, &[0, 1, 2, 3], &back);
    let LeaseAsk::Try(asked) = &asks[0].1 else {
        panic!("a try");
    };
    let LeaseAsk::Release { secret, .. } = &back[0].1 else {
        panic!("a release");
    };
    let forged = LeaseAsk::Release {
        attempt: asked.attempt,
        secret: *secret,
    };
    for node in 0..4 {
        nodes.ask(at(ms(30)), node, 7, &forged);
    }
    let mut third = Client::new(&config, 3, terms());
    let asks = third.start(at(ms(40)));
    third.talk(at(ms(40)), &mut nodes, &[0, 1, 2, 3], &asks);
    assert_eq!(third.end(), None);
}

/// A holder that slept past its end sees it, and the resource refuses its token.
#[test]
fn a_holder_that_slept_is_fenced_off() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let all = [0, 1, 2, 3];
    let mut first = Client::new(&config, 1, terms());
    let asks = first.start(at(ms(0)));
    first.talk(at(ms(0)), &mut nodes, &all, &asks);
    let (end, old) = (first.end().expect("held"), first.token().expect("held"));
    let late = at(ms(5000));
    let mut second = Client::new(&config, 2, terms());
    let asks = second.start(late);
    second.talk(late, &mut nodes, &all, &asks);
    let new = second.token().expect("held");
    let mut largest = new;
    assert!(late.mono >= end, "its own check fails");
    let admitted = old >= largest;
    largest = largest.max(old);
    assert!(!admitted && largest == new, "and the resource refuses it");
    first.machine.wake(late, &mut Vec::new());
    assert_eq!(*first.machine.standing(), Standing::Idle);
}

/// A liar names the largest token there is; one node genuinely refuses.
#[test]
fn a_huge_token_is_not_believed() {
    for (nodes, over) in [(6, false), (6, true), (4, false)] {
        let config = config(nodes, 1, Rules::default());
        let mut client = Client::new(&config, 1, terms());
        let asks = client.start(at(ms(0)));
        let LeaseAsk::Try(first) = &asks[0].1 else {
            panic!("a try");
        };
        let genuine = first.token.0 + 500;
        let stale = |token| LeaseAnswer::Stale {
            token: Token(token),
        };
        client.hear(at(ms(1)), 0, &reply_to(&asks[0].1, stale(u64::MAX)));
        client.hear(at(ms(1)), 1, &reply_to(&asks[1].1, stale(genuine)));
        let answered = if over { nodes - 1 } else { nodes };
        // One vote less than enough, so that the refusals stand in the way.
        for (node, (_, ask)) in asks.iter().enumerate().take(answered).skip(2) {
            let answer = if nodes == 6 && node == 2 && !over {
                locked(0)
            } else {
                free()
            };
            client.hear(at(ms(1)), node, &reply_to(ask, answer));
        }
        if over {
            client.machine.wake(at(ms(201)), &mut client.out);
        }
        let again = client.sent();
        let LeaseAsk::Try(second) = &again[0].1 else {
            panic!("a try");
        };
        assert_eq!(second.attempt, first.attempt);
        assert_eq!(second.sub, 1);
        let wall = if over { 201_000 } else { 1000 };
        if nodes == 6 && !over {
            assert_eq!(second.token.0, (genuine + 1).max(EPOCH + wall));
        } else {
            assert_eq!(second.token.0, first.token.0 + (1 << 20) + 1);
        }
    }
}

/// The node that names a token no clock can explain is told from the others.
#[test]
fn a_node_that_differs_is_named() {
    let config = config(6, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let lies = |lie: Option<LeaseAnswer>, nodes: &mut Nodes, number: u8| {
        let now = at(SPAN * 4 * u32::from(number));
        let mut client = Client::new(&config, number, terms());
        let asks = client.start(now);
        if let Some(lie) = lie {
            client.hear(now, 5, &reply_to(&asks[5].1, lie));
        }
        client.talk(now, nodes, &[0, 1, 2, 3, 4], &asks);
        client.machine.release(
            Now {
                mono: now.mono + DELAY * 3,
                ..now
            },
            &mut Vec::new(),
        );
        client.machine.take_lies()
    };
    let liar = NodeId::at(5);
    assert_eq!(lies(None, &mut nodes, 1), [(liar, Lie::Silent)]);
    assert_eq!(
        lies(Some(locked(u64::MAX)), &mut nodes, 2),
        [(liar, Lie::Huge)]
    );
    assert_eq!(lies(Some(free()), &mut nodes, 3), []);
}

/// A renewal counts from its sending, and only where nobody else was in between.
#[test]
fn a_renewal_extends_the_lease() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let all = [0, 1, 2, 3];
    let mut client = Client::new(&config, 1, terms());
    let asks = client.start(at(ms(0)));
    client.talk(at(ms(0)), &mut nodes, &all, &asks);
    let token = client.token();
    let mut wishes = Vec::new();
    client.machine.renew(at(ms(700)), &mut wishes);
    client.talk(at(ms(800)), &mut nodes, &all, &wishes);
    let end = client.end().expect("held");
    assert_eq!(end, at(ms(700)).mono + config.sure(config.vote(SPAN)));
    assert_eq!(client.token(), token);
    assert!(!client.machine.renewing());
    // Two nodes do not answer: the renewal fails and the lease keeps its end.
    let mut wishes = Vec::new();
    client.machine.renew(at(ms(1000)), &mut wishes);
    client.talk(at(ms(1000)), &mut nodes, &[0, 1], &wishes);
    assert!(client.machine.renewing());
    client.machine.wake(at(ms(1201)), &mut Vec::new());
    assert!(!client.machine.renewing());
    assert_eq!(client.end(), Some(end));
}

/// A node that kept the request of a lease won elsewhere was told to forget it, so its word does
/// not count in a renewal: the message may come after it has given its vote.
#[test]
fn a_node_that_was_told_to_forget_renews_nothing() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let patient = Terms {
        patience: SPAN * 4,
        ..terms()
    };
    let mut other = Client::new(&config, 2, terms());
    let asks = other.start(at(ms(0)));
    nodes.ask(at(ms(0)), 3, 2, &asks[3].1);
    let mut client = Client::new(&config, 1, patient);
    let asks = client.start(at(ms(500)));
    client.talk(at(ms(500)), &mut nodes, &[3], &asks);
    client.talk(at(ms(500)), &mut nodes, &[0, 1, 2], &asks);
    assert!(client.end().is_some());
    let farewell = client.sent();
    assert_eq!(farewell.len(), 1);
    // Before the farewell comes the vote is free, and the client is given it.
    let now = at(config.vote(SPAN) + ms(1));
    for (_, reply) in nodes.wake(now, 3) {
        client.hear(now, 3, &reply);
    }
    let mut wishes = Vec::new();
    client.machine.renew(now, &mut wishes);
    let asked: Vec<usize> = wishes.iter().map(|(node, _)| node.index()).collect();
    assert_eq!(asked, [0, 1, 2]);
}

/// What enough nodes refuse for ever ends the pursuit; what one refuses does not.
#[test]
fn refusals_of_enough_nodes_end_it() {
    let config = config(4, 1, Rules::default());
    let mut client = Client::new(&config, 1, terms());
    let asks = client.start(at(ms(0)));
    let no = LeaseAnswer::Refused(LeaseRefusal::NotPermitted);
    client.hear(at(ms(1)), 0, &reply_to(&asks[0].1, no));
    assert_eq!(*client.machine.standing(), Standing::Trying);
    client.hear(at(ms(1)), 1, &reply_to(&asks[1].1, no));
    let ended = Standing::Ended(Some(LeaseRefusal::NotPermitted));
    assert_eq!(*client.machine.standing(), ended);
    let mut far = Client::new(&config, 2, terms());
    let mut nodes = Nodes::new(&config);
    let ahead = Now {
        mono: Instant::ZERO,
        wall: Wall(EPOCH + 86_400_000_001),
    };
    let asks = far.start(ahead);
    far.talk(at(ms(0)), &mut nodes, &[0, 1, 2, 3], &asks);
    let ended = Standing::Ended(Some(LeaseRefusal::TokenTooFar));
    assert_eq!(*far.machine.standing(), ended);
}

/// A node keeps only so many names; tokens of forgotten ones bind all others.
#[test]
fn forgotten_names_leave_their_tokens() {
    let config = Arc::new(LeaseConfig {
        leases_max: 2,
        ..(*config(4, 1, Rules::default())).clone()
    });
    let start = LeaseStart {
        opens: Instant::ZERO,
        mark: Token(0),
    };
    let mut node = LeaseServer::new(Arc::clone(&config), start, 1);
    let mut ask = |when: Duration, wall: u64, name: &str| {
        let key = LeaseKey {
            space: Space::Lease,
            name: Name::new(name),
        };
        let now = Now {
            mono: Instant::ZERO + when,
            wall: Wall(EPOCH + wall),
        };
        let id = ClientId(when.as_nanos());
        let mut client = Contender::new(Arc::clone(&config), key.clone(), id, terms(), 1, [7; 32]);
        let mut asks = Vec::new();
        client.start(now, &mut asks);
        let mut out = LeaseOut::default();
        node.ask(now, LinkId(1), &key, &asks[0].1, None, &mut out);
        out.answers[0].2.answer
    };
    assert_eq!(ask(ms(1), 1000, "a"), free());
    assert_eq!(ask(ms(2), 10, "b"), free());
    assert_eq!(
        ask(ms(3), 10, "c"),
        LeaseAnswer::Refused(LeaseRefusal::Full)
    );
    assert_eq!(
        ask(ms(4000), 900, "c"),
        LeaseAnswer::Stale {
            token: Token(EPOCH + 1000)
        }
    );
    assert_eq!(ask(ms(4001), 1001, "c"), free());
    assert_eq!(
        ask(ms(4002), 1002, ""),
        LeaseAnswer::Refused(LeaseRefusal::Name)
    );
}

/// Whoever has waited longest is served first; a closed connection waits no more.
#[test]
fn waiting_requests_are_served_by_age() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let patient = Terms {
        patience: ms(2000),
        backoff: Backoff::Exponential { cap: 1 },
        ..terms()
    };
    let mut holder = Client::new(&config, 1, terms());
    let asks = holder.start(at(ms(0)));
    nodes.ask(at(ms(0)), 0, 1, &asks[0].1);
    for (number, millis) in [(5, 30), (4, 20), (3, 10)] {
        let mut client = Client::new(&config, number, patient);
        let asks = client.start(at(ms(millis)));
        let replies = nodes.ask(at(ms(millis)), 0, u64::from(number), &asks[0].1);
        let LeaseAnswer::Locked { queued, .. } = replies[0].answer else {
            panic!("{replies:?}");
        };
        assert!(queued);
    }
    nodes.all[0].closed(LinkId(3));
    assert_eq!(nodes.all[0].waiting(), 2);
    let mut back = Vec::new();
    holder.machine.release(at(ms(50)), &mut back);
    let mut out = LeaseOut::default();
    nodes.all[0].ask(at(ms(50)), LinkId(1), &key(), &back[0].1, None, &mut out);
    let (link, _, reply) = &out.answers[0];
    assert_eq!(*link, LinkId(4), "it came before the fifth");
    assert!(matches!(reply.answer, LeaseAnswer::Free { held, .. } if held == ms(30)));
    let wake = nodes.all[0].next_wake().expect("the fifth waits");
    assert_eq!(
        wake.at,
        Instant::ZERO + ms(50) + config.vote(SPAN) + Duration::from_nanos(1)
    );
    let late = Now {
        mono: Instant::ZERO + ms(2031),
        ..at(ms(0))
    };
    nodes.wake(late, 0);
    assert_eq!(
        (nodes.all[0].waiting(), nodes.all[0].next_wake()),
        (0, None)
    );
}

/// A lease of the first client at these nodes, and what has its handle.
fn handed(nodes: &mut Nodes, reach: &[usize]) -> LeaseHandle {
    let config = Arc::clone(&nodes.config);
    let mut client = Client::new(&config, 1, terms());
    let asks = client.start(at(ms(0)));
    client.talk(at(ms(0)), nodes, reach, &asks);
    client.machine.handle().expect("a lease")
}

/// Shows a handle to the nodes in `reach` on another connection, and says what came of it.
fn show(
    nodes: &mut Nodes,
    handle: &LeaseHandle,
    action: HandleAction,
    (asked, heard): (Now, Now),
    reach: &[usize],
) -> HandleStanding {
    let (config, mut asks) = (Arc::clone(&nodes.config), Vec::new());
    let patience = SPAN * 2;
    let handle = handle.clone();
    let mut request = HandleRequest::new(config, handle, action, 7, asked, patience, &mut asks);
    for (node, ask) in asks {
        if reach.contains(&node.index()) {
            for reply in nodes.ask(asked, node.index(), 99, &ask) {
                request.heard(heard, node, &reply);
            }
        }
    }
    request.standing()
}

#[test]
fn a_handle_renews_from_the_send_whoever_took_the_lease() {
    let renewed = |rules| {
        let config = config(4, 1, rules);
        let mut nodes = Nodes::new(&config);
        let handle = handed(&mut nodes, &[0, 1, 2, 3]);
        let times = (at(ms(500)), at(ms(800)));
        let action = HandleAction::Renew;
        match show(&mut nodes, &handle, action, times, &[1, 2, 3]) {
            HandleStanding::Renewed { end } => end,
            other => panic!("{other:?}"),
        }
    };
    let vote = config(4, 1, Rules::default()).vote(SPAN);
    assert_eq!(renewed(Rules::default()), at(ms(500)).mono + vote);
    let late = renewed(Rules::planted(Plant::RenewFromAnswer));
    assert_eq!(late, at(ms(800)).mono + vote, "the checker must find this");
}

#[test]
fn a_handle_whose_votes_are_gone_renews_nothing() {
    let config = config(4, 1, Rules::default());
    let mut nodes = Nodes::new(&config);
    let handle = handed(&mut nodes, &[0, 1, 2, 3]);
    let now = at(ms(500));
    for node in [0, 1] {
        nodes.restart(now, node, Token(0));
    }
    let all = [0, 1, 2, 3];
    let renew = HandleAction::Renew;
    let gone = show(&mut nodes, &handle, renew, (now, now), &all);
    assert_eq!(gone, HandleStanding::Ended);
    // Two answers are missing: nobody can tell yet.
    let open = show(&mut nodes, &handle, renew, (now, now), &[2, 3]);
    assert_eq!(open, HandleStanding::Open);
    // A secret that was made up counts for nothing.
    let mut nodes = Nodes::new(&config);
    let mut forged = handed(&mut nodes, &all);
    for (_, secret) in &mut forged.secrets {
        secret.0[0] ^= 1;
    }
    let refused = show(&mut nodes, &forged, renew, (now, now), &all);
    assert_eq!(refused, HandleStanding::Ended);
    let release = HandleAction::Release;
    show(&mut nodes, &forged, release, (now, now), &all);
    let mut rival = Client::new(&config, 2, terms());
    let asks = rival.start(now);
    rival.talk(now, &mut nodes, &all, &asks);
    assert_eq!(rival.end(), None, "the votes are still given");
}

#[test]
fn a_release_by_handle_is_done_when_others_can_have_the_lease() {
    let config = config(4, 1, Rules::default());
    let now = at(ms(500));
    for reach in [&[1, 2, 3][..], &[2, 3]] {
        let mut nodes = Nodes::new(&config);
        let handle = handed(&mut nodes, &[0, 1, 2, 3]);
        // One vote that is left keeps nobody from three others.
        let stands = show(
            &mut nodes,
            &handle,
            HandleAction::Release,
            (now, now),
            reach,
        );
        let done = reach.len() == 3;
        assert_eq!(stands == HandleStanding::Released, done, "{stands:?}");
        let renew = (now, now);
        let renewed = show(
            &mut nodes,
            &handle,
            HandleAction::Renew,
            renew,
            &[0, 1, 2, 3],
        );
        assert_eq!(renewed, HandleStanding::Ended, "given back is given back");
    }
}

#[test]
fn a_handle_asks_again_where_a_connection_is_new_and_gives_up_in_time() {
    let config = config(3, 0, Rules::default());
    let mut nodes = Nodes::new(&config);
    let handle = handed(&mut nodes, &[0, 1, 2]);
    let (now, mut asks) = (at(ms(500)), Vec::new());
    let action = HandleAction::Renew;
    let mut request = HandleRequest::new(
        Arc::clone(&config),
        handle,
        action,
        1,
        now,
        ms(300),
        &mut asks,
    );
    assert_eq!(asks.len(), 3);
    let reply = nodes.ask(now, 0, 9, &asks[0].1);
    request.heard(now, NodeId(0), &reply[0]);
    let mut again = Vec::new();
    for node in 0..3 {
        request.opened(NodeId(node), &mut again);
    }
    let asked: Vec<usize> = again.iter().map(|(node, _)| node.index()).collect();
    assert_eq!(asked, [1, 2], "who has answered is not asked again");
    let wake = request.next_wake().expect("a time to give up").at;
    assert_eq!(wake, at(ms(800)).mono);
    request.wake(at(ms(799)));
    assert_eq!(request.standing(), HandleStanding::Open);
    request.wake(at(ms(800)));
    assert_eq!(request.standing(), HandleStanding::TimedOut);
}
