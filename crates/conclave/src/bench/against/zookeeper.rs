//! ZooKeeper's lock recipe: a child that is ephemeral and numbered; whoever has the smallest
//! number holds the lock, the others watch the one before them. Exclusive locks are taken by the
//! recipe of the client library, shared ones by the published recipe for them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error, LockPrefix, OwnedLockClient};

use super::servers::{self, Servers};
use super::site::{Place, Site, System, Wanted};
use crate::bench::load::{self, Company};
use crate::cli::Failure;

/// How long a session lives without a word.
const SESSION: Duration = Duration::from_secs(10);
/// How many folders of locks are made at the same time.
const MAKERS: usize = 256;

/// The programs of ZooKeeper: Java, and the archives.
pub(super) fn programs(place: &Place) -> Option<(PathBuf, Vec<PathBuf>)> {
    let java = servers::find("java", place).or_else(|| servers::find_usual("java"))?;
    let archive = servers::find("zookeeper.jar", place)?;
    // Without it the server would say nothing at all.
    let voice = servers::find("slf4j-simple.jar", place);
    Some((java, [Some(archive), voice].into_iter().flatten().collect()))
}

/// An ensemble.
#[derive(Debug)]
pub(super) struct Zookeeper {
    servers: Servers,
    ports: Vec<u16>,
}

/// A session that tasks share; there is one per server.
#[derive(Clone)]
pub(super) struct Taker {
    session: Arc<Mutex<Client>>,
    /// The servers that it knows.
    known: Arc<str>,
    patience: Duration,
}

/// A lock that is held. Dropped, it is given back, in the background.
pub(super) enum Held {
    Exclusive(OwnedLockClient),
    Shared(Child),
}

/// A numbered child of ours, deleted when it is dropped.
pub(super) struct Child {
    client: Client,
    path: String,
    number: u64,
}

impl Drop for Child {
    fn drop(&mut self) {
        let (client, path) = (self.client.clone(), std::mem::take(&mut self.path));
        tokio::spawn(async move {
            while client.delete(&path, None).await == Err(Error::ConnectionLoss) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
}

/// The number at the end of a child's name.
fn number(path: &str) -> Option<u64> {
    let digits = path.len().checked_sub(10)?;
    path.get(digits..)?.parse().ok()
}

/// Whom a child has to wait for: a reader for the last writer before it, a writer for the last of
/// all.
fn before(children: &[String], own: u64, company: Company) -> Option<&str> {
    let older = children.iter().filter_map(|child| {
        let number = number(child).filter(|number| *number < own)?;
        let counts = company == Company::Alone || child.starts_with("write-");
        counts.then_some((number, child.as_str()))
    });
    older.max().map(|(_, child)| child)
}

impl Taker {
    async fn new(known: String, patience: Duration) -> Result<Self, Error> {
        Ok(Self {
            session: Arc::new(Mutex::new(connect(&known).await?)),
            known: known.into(),
            patience,
        })
    }

    fn client(&self) -> Client {
        let session = self.session.lock();
        session.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a new session where the servers have ended the one that was used.
    async fn renew(&self, ended: &Client) -> Result<(), Error> {
        let fresh = connect(&self.known).await?;
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        // Others may have been quicker.
        if session.session_id() == ended.session_id() {
            *session = fresh;
        }
        Ok(())
    }

    async fn exclusive(client: &Client, folder: &str) -> Result<Held, Error> {
        let prefix = LockPrefix::new_curator(folder, "lock-")?;
        let lock = client.lock(prefix, b"", Acls::anyone_all());
        Ok(Held::Exclusive(lock.await?.into_owned()))
    }

    /// The recipe for locks that readers share.
    async fn shared(client: &Client, folder: &str, company: Company) -> Result<Held, Error> {
        let kind = if company == Company::Alone {
            "write-"
        } else {
            "read-"
        };
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let mut path = format!("{folder}/{kind}");
        let (_, sequence) = client.create(&path, b"", &mode).await?;
        let _ = write!(path, "{sequence}");
        let child = Child {
            client: client.clone(),
            number: number(&path).ok_or(Error::RuntimeInconsistent)?,
            path,
        };
        loop {
            let children = client.list_children(folder).await?;
            let Some(older) = before(&children, child.number, company) else {
                return Ok(Held::Shared(child));
            };
            let older = format!("{folder}/{older}");
            if let (Some(_), watcher) = client.check_and_watch_stat(&older).await? {
                watcher.changed().await;
            }
        }
    }
}

impl load::Taker for Taker {
    type Held = Held;

    async fn acquire(&self, name: &str, company: Company) -> Result<Held, String> {
        let folder = format!("/{name}");
        let mixed = name.starts_with("bench/m/");
        let attempt = async {
            let client = self.client();
            let held = if mixed {
                Self::shared(&client, &folder, company).await
            } else {
                Self::exclusive(&client, &folder).await
            };
            if matches!(held, Err(Error::SessionExpired)) {
                self.renew(&client).await?;
            }
            held
        };
        let held = timeout(self.patience, attempt).await;
        let held = held.map_err(|_| "not acquired in time".to_owned())?;
        held.map_err(|error| error.to_string())
    }

    /// The library gives a lock back in the background, when it is dropped.
    async fn release(&self, held: Held) -> Result<(), String> {
        drop(held);
        Ok(())
    }

    /// The number of the child: it grows with every attempt at a lock.
    fn token(held: &Held) -> Option<u64> {
        match held {
            Held::Exclusive(lock) => number(lock.lock_path()).map(|number| number + 1),
            Held::Shared(child) => Some(child.number + 1),
        }
    }

    /// Readers share, groups do not.
    fn company(wanted: Company) -> Company {
        match wanted {
            Company::Alone | Company::Group(_) => Company::Alone,
            Company::Readers => Company::Readers,
        }
    }
}

impl Site for Zookeeper {
    type Taker = Taker;
    type Fleet = Servers;

    async fn start(place: &Place, _: System) -> Result<Self, Failure> {
        let (java, archives) =
            programs(place).ok_or_else(|| Failure::input("ZooKeeper is not installed"))?;
        let classes = std::env::join_paths(archives).map_err(Failure::input)?;
        let mut servers = Servers::new()?;
        let all = servers::free_ports(3 * place.nodes)?;
        let (ports, between) = all.split_at(place.nodes);
        let mut members = String::new();
        for (server, pair) in between.chunks(2).enumerate() {
            let id = server + 1;
            let _ = writeln!(members, "server.{id}=127.0.0.1:{}:{}", pair[0], pair[1]);
        }
        for (server, port) in ports.iter().enumerate() {
            let folder = servers.folder(server)?;
            fs::write(folder.join("myid"), format!("{}\n", server + 1))?;
            let settings = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={port}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=srvr,mntr\n{members}",
                folder.display()
            );
            fs::write(folder.join("zoo.cfg"), settings)?;
            let mut command = Command::new(&java);
            command.arg("-cp").arg(&classes);
            command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
            command.arg("-Dzookeeper.jmx.log4j.disable=true");
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
            command.arg(folder.join("zoo.cfg"));
            servers.spawn(command)?;
        }
        let ports = ports.to_vec();
        Ok(Self { servers, ports })
    }

    /// One session per server, so that all tasks together have a connection to each.
    async fn takers(&self, wanted: Wanted) -> Result<Vec<Taker>, String> {
        let addresses = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let addresses: Vec<String> = addresses.collect();
        let mut takers = Vec::new();
        for address in &addresses {
            let known = if wanted.roam {
                addresses.join(",")
            } else {
                address.clone()
            };
            let taker = Taker::new(known, wanted.patience).await;
            takers.push(taker.map_err(|error| error.to_string())?);
        }
        if let Some(taker) = takers.first() {
            make(&taker.client(), "bench/ready").await?;
        }
        Ok(takers)
    }

    /// A lock is a folder that lasts; the recipe does not make it for every cycle.
    async fn prepare(&self, names: &[String]) -> Result<(), String> {
        let wanted = Wanted {
            tasks: 1,
            patience: SESSION,
            roam: false,
        };
        let takers = self.takers(wanted).await?;
        let client = &takers.first().ok_or("there is no server")?.client();
        if let Some(first) = names.first() {
            make(client, first).await?;
        }
        let made = stream::iter(names).map(|name| make(client, name));
        let made: Vec<Result<(), String>> = made.buffer_unordered(MAKERS).collect().await;
        made.into_iter().collect()
    }

    fn fleet(&self) -> &Servers {
        &self.servers
    }

    fn fleet_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }

    async fn fsyncs(&self) -> Option<u64> {
        let mut sum = 0;
        for port in &self.ports {
            sum += syncs(&servers::ask(*port, "mntr").await.ok()?)?;
        }
        Some(sum)
    }

    async fn leader(&self) -> Result<usize, String> {
        let mut said = String::new();
        for (server, port) in self.ports.iter().enumerate() {
            let told = servers::ask(*port, "srvr").await;
            let told = told.unwrap_or_else(|why| why);
            if leads(&told) {
                return Ok(server);
            }
            told.lines()
                .last()
                .unwrap_or_default()
                .clone_into(&mut said);
        }
        Err(format!(
            "no server says that it leads; the last one said: {said}"
        ))
    }
}

async fn connect(known: &str) -> Result<Client, Error> {
    let connector = Client::connector().with_session_timeout(SESSION);
    connector.connect(known).await
}

/// Makes the folder of a lock, and those above it.
async fn make(client: &Client, name: &str) -> Result<(), String> {
    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let made = client.mkdir(&format!("/{name}"), &mode).await;
    made.map_err(|error| error.to_string())
}

/// Whether the answer to `srvr` is a leader's.
fn leads(told: &str) -> bool {
    let mode = told.lines().find_map(|line| line.strip_prefix("Mode:"));
    mode.is_some_and(|mode| ["leader", "standalone"].contains(&mode.trim()))
}

/// The syncs that the answer to `mntr` counts.
fn syncs(told: &str) -> Option<u64> {
    let mut lines = told.lines().filter_map(|line| line.split_once('\t'));
    let (_, count) = lines.find(|(key, _)| *key == "zk_cnt_fsynctime")?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_understood() {
        let told = "Zookeeper version: 3.8.0\nConnections: 1\nMode: leader\nNode count: 5\n";
        assert!(leads(told));
        assert!(!leads(&told.replace("leader", "follower")));
        assert!(!leads(
            "This ZooKeeper instance is not currently serving requests\n"
        ));
        let told = "zk_sum_fsynctime\t9\nzk_cnt_fsynctime\t44\nzk_version\t3.8.0\n";
        assert_eq!(syncs(told), Some(44));
        assert_eq!(
            syncs("srvr is not executed because it is not in the whitelist.\n"),
            None
        );
    }

    #[test]
    fn readers_wait_for_writers_and_writers_for_all() {
        let names = [
            "read-0000000003",
            "write-0000000005",
            "read-0000000007",
            "x",
        ];
        let children = names.map(str::to_owned);
        let wait = |own, company| before(&children, own, company);
        assert_eq!(wait(3, Company::Readers), None);
        assert_eq!(wait(5, Company::Alone), Some("read-0000000003"));
        assert_eq!(wait(7, Company::Readers), Some("write-0000000005"));
        assert_eq!(wait(9, Company::Alone), Some("read-0000000007"));
        assert_eq!(wait(9, Company::Readers), Some("write-0000000005"));
        assert_eq!(number("a/b-0000000012"), Some(12));
        assert_eq!(number("short"), None);
    }
}
