//! A client of a chaos run, in a process of its own so that it can be paused and killed. It takes
//! locks, uses the resource, and writes down everything it believes, with times.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use conclave_client::clock;
use conclave_protocol::Instant;
use conclave_quorum::Prng;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::cli::Failure;
use crate::service::thin::Thin;
use crate::service::{Target, TlsFlags};

/// How the client reaches the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// It talks to the quorum itself
    Smart,
    /// It talks to one gateway after the other
    Thin,
}

/// One client of a chaos run
#[derive(Clone, Debug, Args)]
pub(crate) struct ChaosClient {
    #[arg(long, value_enum)]
    kind: Kind,
    #[arg(long, value_delimiter = ',')]
    endpoints: Vec<String>,
    #[command(flatten)]
    tls: TlsFlags,
    #[arg(long)]
    history: PathBuf,
    #[arg(long)]
    fence: String,
    #[arg(long)]
    client: u32,
    #[arg(long)]
    life: u32,
    #[arg(long)]
    names: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    ttl_ms: u64,
    /// Take a lock that nobody else wants, again and again
    #[arg(long)]
    probe: bool,
}

impl ChaosClient {
    /// Runs until it is killed.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut player = Player::new(self.clone()).await?;
            match self.kind {
                Kind::Smart => player.play_smart().await,
                Kind::Thin => player.play_thin().await,
            }
        })
    }
}

struct Player {
    options: ChaosClient,
    log: File,
    rng: Prng,
    fence: BufReader<TcpStream>,
    key: u64,
    target: Target,
    nodes: Thin,
}

/// What the client wants next.
struct Wish {
    name: String,
    group: Option<&'static str>,
    shared: bool,
    hold: Duration,
}

impl Wish {
    /// The mode as histories tell it.
    fn mode(&self) -> String {
        match self.group {
            Some(group) => format!("group:{group}"),
            None if self.shared => "shared".to_owned(),
            None => "exclusive".to_owned(),
        }
    }
}

impl Player {
    async fn new(options: ChaosClient) -> Result<Self, Failure> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&options.history)?;
        let fence = TcpStream::connect(&options.fence).await?;
        fence.set_nodelay(true)?;
        let target = Target {
            urls: options.endpoints.clone(),
            security: options.tls.security()?,
        };
        Ok(Self {
            nodes: Thin::new(target.clone(), options.client as usize),
            target,
            rng: Prng::new(options.seed),
            fence: BufReader::new(fence),
            log,
            key: 0,
            options,
        })
    }

    fn wish(&mut self) -> Wish {
        if self.options.probe {
            // Many names, so that every node is met.
            let place = self.rng.below(64);
            return Wish {
                name: format!("probe/{}/{place}", self.options.client),
                group: None,
                shared: false,
                hold: Duration::ZERO,
            };
        }
        let name = format!("chaos/{}", self.rng.below(self.options.names as usize));
        let dice = self.rng.below(10);
        // Most holds are short; a few last longer than the link lease, so that faults meet them.
        let millis: usize = match self.rng.below(20) {
            0 => self.rng.below(1500),
            _ => self.rng.below(10),
        };
        Wish {
            name,
            group: match dice {
                0 | 1 => Some("red"),
                2 | 3 => Some("blue"),
                // Owns no cartel of any system.
                5 => Some("green"),
                _ => None,
            },
            shared: dice == 4,
            hold: Duration::from_millis(millis as u64),
        }
    }

    /// One line of history; `more` are the fields of this kind of event.
    fn tell(&mut self, event: &str, name: &str, more: &Value) -> Result<(), Failure> {
        self.tell_at(clock::now().mono, event, name, more)
    }

    fn tell_at(
        &mut self,
        at: Instant,
        event: &str,
        name: &str,
        more: &Value,
    ) -> Result<(), Failure> {
        let mut line = json!({
            "at": at.nanos(),
            "client": self.options.client,
            "life": self.options.life,
            "kind": match self.options.kind { Kind::Smart => "smart", Kind::Thin => "thin" },
            "key": self.key,
            "name": name,
            "event": event,
        });
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        // One write per line: what a killed process wrote stays.
        self.log.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }

    /// Shows the token to the resource, which decides and writes that down.
    async fn act(&mut self, name: &str, group: &str, token: u64) -> Result<(), Failure> {
        let (client, life, key) = (self.options.client, self.options.life, self.key);
        let line = format!("{client}\t{life}\t{key}\t{name}\t{group}\t{token}\n");
        self.fence.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        self.fence.read_line(&mut answer).await?;
        Ok(())
    }

    async fn play_smart(&mut self) -> Result<(), Failure> {
        let client = self.target.client().await;
        let client = client.map_err(Failure::input)?;
        loop {
            let wish = self.wish();
            if self.options.probe {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.key += 1;
            self.tell("asked", &wish.name, &json!({}))?;
            let lock = client.lock(&wish.name);
            let lock = lock.ttl(Duration::from_millis(self.options.ttl_ms));
            let lock = match wish.group {
                Some(group) => lock.group(group),
                None if wish.shared => lock.shared(),
                None => lock.exclusive(),
            };
            let guard = match lock.acquire_timeout(Duration::from_secs(5)).await {
                Ok(guard) => guard,
                Err(error) => {
                    let why = json!({"why": error.to_string()});
                    self.tell("ended", &wish.name, &why)?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let group = guard.group().to_string();
            let mut token = guard.token();
            let mode = wish.mode();
            let facts = |guard: &conclave_client::Guard| {
                json!({
                    "mode": mode,
                    "token": guard.token(),
                    "members": guard.members(),
                    "until": guard.until_nanos(),
                })
            };
            // The time is read before what is believed at it.
            let at = clock::now().mono;
            self.tell_at(at, "entered", &wish.name, &facts(&guard))?;
            self.act(&wish.name, &group, token).await?;
            let mut lost = Box::pin(guard.lost());
            let mut left = wish.hold;
            let held = loop {
                if left.is_zero() {
                    break guard.is_held();
                }
                let nap = left.min(Duration::from_millis(50));
                tokio::select! {
                    biased;
                    () = &mut lost => break false,
                    () = tokio::time::sleep(nap) => left -= nap,
                }
                if left.is_zero() {
                    break guard.is_held();
                }
                let at = clock::now().mono;
                if guard.is_held() {
                    token = guard.token();
                    self.tell_at(at, "moved", &wish.name, &facts(&guard))?;
                }
            };
            if held {
                self.act(&wish.name, &group, token).await?;
            }
            if held && guard.is_held() {
                self.tell("released", &wish.name, &json!({}))?;
                let _ = guard.release().await;
            } else {
                self.tell("lost", &wish.name, &json!({}))?;
                // Whoever was paused past its time tries to write all the same: the fence decides.
                self.act(&wish.name, &group, token).await?;
            }
        }
    }

    async fn play_thin(&mut self) -> Result<(), Failure> {
        loop {
            let wish = self.wish();
            if self.options.probe {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.key += 1;
            self.tell("asked", &wish.name, &json!({}))?;
            let mode = match wish.group {
                Some(group) => json!({"group": group}),
                None if wish.shared => json!("shared"),
                None => json!("exclusive"),
            };
            let wait_ms = if self.options.probe { 500 } else { 5000 };
            // With an id a request that is asked again, elsewhere, is not in its own way.
            let (client, life, key) = (self.options.client, self.options.life, self.key);
            let body = json!({
                "mode": mode, "ttl_ms": self.options.ttl_ms, "wait_ms": wait_ms,
                "id": format!("{client}/{life}/{key}"),
            });
            let path = format!("/v1/locks/{}/acquire", wish.name);
            let sent = clock::now().mono;
            let wait = Duration::from_millis(wait_ms);
            let answer = match self.nodes.post(&path, &body, wait).await {
                Some((200, answer)) => answer,
                other => {
                    let why = json!({"why": format!("{other:?}")});
                    self.tell("ended", &wish.name, &why)?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let Some(mut hold) = ThinHold::read(sent, &answer) else {
                return Err(Failure::input(format!("an odd answer: {answer}")));
            };
            if hold.left().is_zero() {
                // Too late to count: the lock is as good as lost.
                self.tell("ended", &wish.name, &json!({"why": "late"}))?;
                continue;
            }
            self.tell("entered", &wish.name, &hold.facts(&wish.mode()))?;
            self.act(&wish.name, &hold.group, hold.token).await?;
            let end = clock::now().mono + wish.hold;
            let renew = Duration::from_millis(self.options.ttl_ms / 3);
            while clock::now().mono < end && !hold.left().is_zero() {
                let nap = end.since(clock::now().mono).min(renew).min(hold.left());
                tokio::time::sleep(nap).await;
                if clock::now().mono < end {
                    self.renew(&wish, &mut hold).await?;
                }
            }
            if hold.left() > Duration::from_millis(50) {
                self.act(&wish.name, &hold.group, hold.token).await?;
            }
            let held = !hold.left().is_zero();
            self.tell(
                if held { "released" } else { "lost" },
                &wish.name,
                &json!({}),
            )?;
            let handle = json!({"handle": hold.handle});
            let released = self
                .nodes
                .post("/v1/locks/release", &handle, Duration::ZERO);
            let _ = released.await;
            // Another time another one.
            if self.rng.below(8) == 0 {
                self.nodes.turn();
            }
        }
    }

    async fn renew(&mut self, wish: &Wish, hold: &mut ThinHold) -> Result<(), Failure> {
        let sent = clock::now().mono;
        let body = json!({"handle": hold.handle});
        let renewed = self
            .nodes
            .post("/v1/locks/keepalive", &body, Duration::ZERO);
        match renewed.await {
            Some((200, answer)) => {
                if hold.left().is_zero() {
                    // Its time was over before the answer came: what it says does not count.
                    return Ok(());
                }
                if let Some(renewed) = ThinHold::read(sent, &answer) {
                    *hold = renewed;
                    self.tell("moved", &wish.name, &hold.facts(&wish.mode()))?;
                }
            }
            Some((410, _)) => hold.until = Instant::ZERO,
            // Another gateway may do better next time.
            _ => {}
        }
        Ok(())
    }
}

/// A lock held by handle, as the thin client counts it.
struct ThinHold {
    handle: String,
    group: String,
    token: u64,
    until: Instant,
}

impl ThinHold {
    fn read(sent: Instant, answer: &Value) -> Option<Self> {
        let millis = |field: &str| answer[field].as_u64().map(Duration::from_millis);
        Some(Self {
            handle: answer["handle"].as_str()?.to_owned(),
            group: answer["group"].as_str()?.to_owned(),
            token: answer["token"].as_u64()?,
            until: sent + millis("waited_ms")? + millis("valid_ms")?,
        })
    }

    fn left(&self) -> Duration {
        self.until.since(clock::now().mono)
    }

    fn facts(&self, mode: &str) -> Value {
        json!({"mode": mode, "token": self.token, "until": self.until.nanos()})
    }
}
