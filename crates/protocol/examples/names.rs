//! Runs many distinct lock names through one node and shows that its memory stays flat; then
//! holds many locks at once and shows what each costs.
//!
//! `cargo run --release -p conclave-protocol --example names [NAMES] [HELD]`
#![allow(
    clippy::disallowed_methods,
    reason = "it measures; the machine is told its own time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant as Stopwatch};

use conclave_protocol::id::{ClientId, ConnNo, LinkId, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Bond, Config, ConfigId, LockNode, Message, Mode, NodeEffects, NodeInput, Priority,
    Quorums, SessionInfo, Start,
};
use conclave_protocol::{Instant, Machine, Now, Wall};

/// A node whose disk is instant, and one client.
struct Bench {
    node: LockNode,
    now: Now,
    out: NodeEffects,
    written: u64,
    steps: u64,
}

impl Bench {
    fn new() -> Self {
        let spec = conclave_quorum::text::parse("singleton(1)").expect("a known system");
        let read = |_: &str| -> Result<String, String> { Err("no files".into()) };
        let built = conclave_quorum::build::build(&spec, None, &read).expect("a known system");
        let quorums = Quorums::new(&built.system, &[]).expect("one node meets itself");
        let mut config = Config::new(quorums);
        config.observe = false;
        config.limits.requests_per_client = usize::MAX;
        config.limits.memory = usize::MAX;
        let now = Now {
            mono: Instant::from_nanos(1_000_000_000),
            wall: Wall(1_000_000_000_000),
        };
        let mut out = NodeEffects::new();
        let config = Arc::new(config);
        let node = LockNode::start(config, NodeId(0), 7, Start::Init, now, &mut out);
        let mut bench = Self {
            node,
            now,
            out,
            written: 0,
            steps: 0,
        };
        bench.persist();
        bench.say(Message::Hello {
            client: ClientId(1),
            conn: ConnNo(1),
            config: ConfigId::default(),
        });
        bench.say(Message::Open(SessionInfo {
            session: SessionId(1),
            ttl: Duration::from_secs(10),
            detached: false,
            owner: "names".into(),
            principal: Arc::default(),
        }));
        bench
    }

    fn say(&mut self, message: Message) {
        self.out.clear();
        self.now.mono = self.now.mono + Duration::from_nanos(100);
        let input = NodeInput::Receive(LinkId(1), message);
        self.node.handle(self.now, input, &mut self.out);
        self.steps += 1;
        self.persist();
    }

    fn persist(&mut self) {
        if !self.out.persist.is_empty() {
            self.written += self.out.persist.len() as u64;
            let durable = NodeInput::Durable(self.written);
            self.node.handle(self.now, durable, &mut self.out);
        }
    }

    /// Asks for a lock; the token to leave it with, if it was granted at once.
    fn acquire(&mut self, number: u64) -> Option<Token> {
        let ask = Ask {
            name: Name::new(format!("service/shard/{number}")),
            mode: Mode::Exclusive,
            session: SessionId(1),
            request: RequestNo(number),
            priority: Priority {
                t: self.now.wall.0,
                client: ClientId(1),
                request: RequestNo(number),
            },
            bond: Bond::Attached,
        };
        self.say(Message::Request {
            ask: Arc::new(ask),
            hint: Token(0),
            inside: None,
        });
        let sent = self.out.send_now.iter().chain(&self.out.send_durable);
        let mut floor = sent.filter_map(|envelope| match &envelope.message {
            Message::Locked { floor, .. } => Some(Token(floor.0 + 1)),
            _ => None,
        });
        floor.next_back()
    }

    fn release(&mut self, number: u64, token: Option<Token>) {
        self.say(Message::Done {
            session: SessionId(1),
            request: RequestNo(number),
            token,
        });
    }
}

/// Resident memory in bytes, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

fn report(what: &str, bench: &Bench, since: Stopwatch, steps: u64) {
    let each = since.elapsed().as_nanos() / u128::from(steps.max(1));
    let memory = resident().map_or_else(
        || "unknown".to_owned(),
        |bytes| format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    );
    let [locks, ..] = bench.node.kept();
    println!("{what}: {memory} resident, {locks} locks kept, {each} ns per step");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| {
        let given = arguments.next().and_then(|text| text.parse().ok());
        given.unwrap_or(usual)
    };
    let (names, held) = (number(10_000_000), number(1_000_000));
    let mut bench = Bench::new();
    let start = Stopwatch::now();
    let mut granted = 0_u64;
    for number in 1..=names {
        let token = bench.acquire(number);
        granted += u64::from(token.is_some());
        bench.release(number, token);
        if number % (names / 10).max(1) == 0 {
            let what = format!("{number} names, {granted} granted");
            report(&what, &bench, start, bench.steps);
        }
    }

    let before = resident();
    let (start, steps) = (Stopwatch::now(), bench.steps);
    let mut tokens = Vec::new();
    for number in names + 1..=names + held {
        tokens.push(bench.acquire(number));
    }
    report(
        &format!("{held} locks held"),
        &bench,
        start,
        bench.steps - steps,
    );
    if let (Some(before), Some(after)) = (before, resident()) {
        // The list of tokens above is not the node's.
        let own = size_of_val(tokens.as_slice()) as u64;
        let each = after.saturating_sub(before).saturating_sub(own) / held.max(1);
        println!("{each} bytes per held lock");
    }
    let (start, steps) = (Stopwatch::now(), bench.steps);
    for (number, token) in (names + 1..).zip(tokens) {
        bench.release(number, token);
    }
    report("all released", &bench, start, bench.steps - steps);
}
