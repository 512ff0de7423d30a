//! One Redis: `SET name random NX PX`, given back by a script that compares and deletes. A client
//! that finds a lock taken tries again after a while; nobody is told when it is free.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use super::servers::{self, Servers};
use super::site::{Place, Site, System, Wanted};
use crate::bench::load::{self, Company};
use crate::cli::Failure;

/// How long a lock lasts that is not given back.
pub(super) const TTL_MS: u64 = 10_000;
/// A lock that is taken is tried again after up to so many milliseconds, at random.
const RETRY_MS: u64 = 20;
/// Deletes a lock if it is still ours.
const UNLOCK: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// Starts servers as their package would: snapshots now and then, no log of changes.
pub(super) fn spawn(place: &Place, count: usize) -> Result<(Servers, Vec<u16>), Failure> {
    let program = servers::find("redis-server", place);
    let program = program.ok_or_else(|| Failure::input("redis-server is not installed"))?;
    let mut servers = Servers::new()?;
    let ports = servers::free_ports(count)?;
    for (server, port) in ports.iter().enumerate() {
        let mut command = Command::new(&program);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.arg("--dir").arg(servers.folder(server)?);
        servers.spawn(command)?;
    }
    Ok((servers, ports))
}

/// The snapshots that servers have synced so far; nothing if they also keep a log of changes,
/// whose syncs they do not count.
pub(super) async fn fsyncs(ports: &[u16]) -> Option<u64> {
    let mut sum = 0;
    for port in ports {
        // The last command ends the connection, and with it the answer.
        let info = servers::ask(*port, "INFO persistence\r\nQUIT\r\n").await;
        sum += snapshots(&info.ok()?)?;
    }
    Some(sum)
}

fn snapshots(info: &str) -> Option<u64> {
    let value = |key: &str| info.lines().find_map(|line| line.trim().strip_prefix(key));
    if value("aof_enabled:")? != "0" {
        return None;
    }
    value("rdb_saves:")?.parse().ok()
}

/// A random delay before the next attempt.
pub(super) async fn pause() {
    let dice = getrandom::u32().unwrap_or(0);
    let millis = 1 + u64::from(dice) % RETRY_MS;
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// A connection that many tasks share.
#[derive(Clone)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// What the server calls the script.
    unlock: String,
}

impl Link {
    pub(super) async fn open(port: u16, answer: Duration) -> Result<Self, String> {
        let tell = |error: redis::RedisError| error.to_string();
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).map_err(tell)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(answer));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(tell)?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(UNLOCK);
        let unlock = load.query_async(&mut connection).await.map_err(tell)?;
        Ok(Self { connection, unlock })
    }

    /// Whether the lock is ours now.
    pub(super) async fn set(&self, name: &str, secret: &str) -> Result<bool, String> {
        let mut set = redis::cmd("SET");
        set.arg(name).arg(secret).arg("NX").arg("PX").arg(TTL_MS);
        let done: Result<Option<String>, _> = set.query_async(&mut self.connection.clone()).await;
        done.map(|done| done.is_some())
            .map_err(|error| error.to_string())
    }

    /// Whether the lock was still ours.
    pub(super) async fn unset(&self, name: &str, secret: &str) -> Result<bool, String> {
        let mut unset = redis::cmd("EVALSHA");
        unset.arg(&self.unlock).arg(1).arg(name).arg(secret);
        let done: Result<u32, _> = unset.query_async(&mut self.connection.clone()).await;
        done.map(|done| done == 1)
            .map_err(|error| error.to_string())
    }
}

/// A lock that is held: its name and the value that proves it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) secret: String,
}

/// A value that nobody else has.
pub(super) fn secret() -> Result<String, String> {
    let mut bytes = [0_u8; 20];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    let mut text = String::with_capacity(40);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// One server.
#[derive(Debug)]
pub(super) struct Redis {
    servers: Servers,
    ports: Vec<u16>,
}

/// All tasks share one connection.
#[derive(Clone)]
pub(super) struct Taker {
    link: Link,
    patience: Duration,
}

impl load::Taker for Taker {
    type Held = Held;

    async fn acquire(&self, name: &str, _: Company) -> Result<Held, String> {
        let name = name.to_owned();
        let secret = secret()?;
        let attempts = async {
            while !self.link.set(&name, &secret).await? {
                pause().await;
            }
            Ok(())
        };
        let done: Result<Result<(), String>, _> = timeout(self.patience, attempts).await;
        done.map_err(|_| "not acquired in time".to_owned())??;
        Ok(Held { name, secret })
    }

    async fn release(&self, held: Held) -> Result<(), String> {
        if self.link.unset(&held.name, &held.secret).await? {
            return Ok(());
        }
        Err("the lock was lost".to_owned())
    }

    fn token(_: &Held) -> Option<u64> {
        None
    }

    fn company(_: Company) -> Company {
        Company::Alone
    }
}

impl Site for Redis {
    type Taker = Taker;
    type Fleet = Servers;

    async fn start(place: &Place, _: System) -> Result<Self, Failure> {
        let (servers, ports) = spawn(place, 1)?;
        Ok(Self { servers, ports })
    }

    async fn takers(&self, wanted: Wanted) -> Result<Vec<Taker>, String> {
        let port = self.ports.first().copied().unwrap_or_default();
        let link = Link::open(port, Duration::from_secs(2)).await?;
        let patience = wanted.patience;
        Ok(vec![Taker { link, patience }])
    }

    fn fleet(&self) -> &Servers {
        &self.servers
    }

    fn fleet_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }

    async fn fsyncs(&self) -> Option<u64> {
        fsyncs(&self.ports).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_counted() {
        let info = "$99\r\n# Persistence\r\nrdb_saves:3\r\naof_enabled:0\r\n\r\n+OK\r\n";
        assert_eq!(snapshots(info), Some(3));
        assert_eq!(snapshots(&info.replace("enabled:0", "enabled:1")), None);
        assert_eq!(snapshots("-ERR no\r\n"), None);
    }

    #[test]
    fn secrets_differ() {
        assert_ne!(secret(), secret());
        assert_eq!(secret().map(|text| text.len()), Ok(40));
    }
}
