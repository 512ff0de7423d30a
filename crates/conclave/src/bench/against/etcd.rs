//! etcd's lock service: the server queues by keys below the lock's name. A key belongs to a lease,
//! so every task has one of its own, kept alive as a session would.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conclave_client::Security;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::servers::{self, Servers};
use super::site::{Place, Site, System, Wanted};
use crate::bench::load::{self, Company};
use crate::cli::Failure;
use crate::service::http;
use crate::service::usage;

use etcdserverpb::lease_client::LeaseClient;
use etcdserverpb::maintenance_client::MaintenanceClient;
use etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, StatusRequest};
use v3lockpb::lock_client::LockClient;
use v3lockpb::{LockRequest, UnlockRequest};

/// Leases and who leads.
mod etcdserverpb {
    #![allow(missing_docs, unreachable_pub, unused_qualifications)]
    #![allow(unnameable_types, dead_code, clippy::pedantic, clippy::all)]
    tonic::include_proto!("etcdserverpb");
}

/// The lock service.
mod v3lockpb {
    #![allow(missing_docs, unreachable_pub, unused_qualifications)]
    #![allow(unnameable_types, dead_code, clippy::pedantic, clippy::all)]
    tonic::include_proto!("v3lockpb");
}

/// Seconds that a lease lasts.
const TTL_S: i64 = 10;
/// How often leases are kept alive: three times in their life, as etcd's own client does.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// How long a call may take that has to wait for nobody.
const CALL: Duration = Duration::from_secs(2);

/// A cluster.
#[derive(Debug)]
pub(super) struct Etcd {
    servers: Servers,
    /// Where clients are served.
    ports: Vec<u16>,
}

impl Etcd {
    fn endpoint(port: u16) -> Result<Endpoint, String> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
        endpoint.map_err(|error| error.to_string())
    }
}

/// The lease of one task.
#[derive(Debug)]
struct Lease {
    id: AtomicI64,
    /// The server knows it no more.
    gone: AtomicBool,
}

/// All tasks share a connection per server; each call goes to the one that is least busy.
#[derive(Clone)]
pub(super) struct Taker {
    lock: LockClient<Channel>,
    leases: LeaseClient<Channel>,
    lease: Arc<Lease>,
    patience: Duration,
    /// Ends with the last taker.
    _keeper: Arc<Keeper>,
}

/// Keeps the leases of all tasks alive.
struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_alive(mut client: LeaseClient<Channel>, leases: Arc<Mutex<Vec<Arc<Lease>>>>) {
    loop {
        tokio::time::sleep(KEEP_ALIVE).await;
        let all: Vec<Arc<Lease>> = {
            let leases = leases.lock().unwrap_or_else(PoisonError::into_inner);
            leases.clone()
        };
        let ids = all.iter().map(|lease| lease.id.load(Ordering::Relaxed));
        let wishes = ids.map(|id| LeaseKeepAliveRequest { id });
        let wishes = stream::iter(wishes.collect::<Vec<_>>());
        let exchange = async {
            let mut answers = client.lease_keep_alive(wishes).await?.into_inner();
            while let Some(answer) = answers.message().await? {
                if answer.ttl <= 0 {
                    let mut ours = all.iter();
                    let ours = ours.find(|one| one.id.load(Ordering::Relaxed) == answer.id);
                    if let Some(lease) = ours {
                        lease.gone.store(true, Ordering::Relaxed);
                    }
                }
            }
            Ok::<(), Status>(())
        };
        // A server that does not answer is another one's task in three seconds.
        let _ = timeout(CALL, exchange).await;
    }
}

async fn grant(client: &mut LeaseClient<Channel>) -> Result<i64, String> {
    let wish = LeaseGrantRequest { ttl: TTL_S, id: 0 };
    let answer = timeout(CALL, client.lease_grant(wish)).await;
    let answer = answer.map_err(|_| "no lease in time".to_owned())?;
    let answer = answer.map_err(|status| status.message().to_owned())?;
    Ok(answer.into_inner().id)
}

/// A lock that is held: its key, and the revision of the store when it was acquired.
#[derive(Debug)]
pub(super) struct Held {
    key: Vec<u8>,
    revision: u64,
}

impl load::Taker for Taker {
    type Held = Held;

    async fn acquire(&self, name: &str, _: Company) -> Result<Held, String> {
        if self.lease.gone.swap(false, Ordering::Relaxed) {
            let id = grant(&mut self.leases.clone()).await?;
            self.lease.id.store(id, Ordering::Relaxed);
        }
        let wish = LockRequest {
            name: name.as_bytes().to_vec(),
            lease: self.lease.id.load(Ordering::Relaxed),
        };
        let mut client = self.lock.clone();
        let answer = timeout(self.patience, client.lock(wish)).await;
        let answer = answer.map_err(|_| "not acquired in time".to_owned())?;
        let answer = answer.map_err(|status| {
            if status.message().contains("lease not found") {
                self.lease.gone.store(true, Ordering::Relaxed);
            }
            status.message().to_owned()
        })?;
        let answer = answer.into_inner();
        let header = answer.header.unwrap_or_default();
        Ok(Held {
            key: answer.key,
            revision: header.revision.unsigned_abs(),
        })
    }

    async fn release(&self, held: Held) -> Result<(), String> {
        let mut client = self.lock.clone();
        let wish = UnlockRequest { key: held.key };
        let answer = timeout(CALL, client.unlock(wish)).await;
        let answer = answer.map_err(|_| "not released in time".to_owned())?;
        answer
            .map(|_| ())
            .map_err(|status| status.message().to_owned())
    }

    fn token(held: &Held) -> Option<u64> {
        Some(held.revision)
    }

    /// Its lock knows no company.
    fn company(_: Company) -> Company {
        Company::Alone
    }
}

impl Site for Etcd {
    type Taker = Taker;
    type Fleet = Servers;

    async fn start(place: &Place, _: System) -> Result<Self, Failure> {
        let program = servers::find("etcd", place);
        let program = program.ok_or_else(|| Failure::input("etcd is not installed"))?;
        let mut servers = Servers::new()?;
        let mut ports = servers::free_ports(2 * place.nodes)?;
        let peers = ports.split_off(place.nodes);
        let members = peers.iter().enumerate();
        let members = members.map(|(n, port)| format!("n{n}=http://127.0.0.1:{port}"));
        let members: Vec<String> = members.collect();
        for (server, (port, peer)) in ports.iter().zip(&peers).enumerate() {
            let (url, peer) = (
                format!("http://127.0.0.1:{port}"),
                format!("http://127.0.0.1:{peer}"),
            );
            let mut command = Command::new(&program);
            command.args(["--name", &format!("n{server}")]);
            command.arg("--data-dir");
            command.arg(servers.folder(server)?.join("data"));
            command.args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ]);
            command.args(["--listen-peer-urls", &peer]);
            command.args(["--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &members.join(",")]);
            command.args(["--initial-cluster-state", "new", "--log-level", "warn"]);
            command.args(["--logger", "zap"]);
            servers.spawn(command)?;
        }
        Ok(Self { servers, ports })
    }

    async fn takers(&self, wanted: Wanted) -> Result<Vec<Taker>, String> {
        let endpoints: Result<Vec<Endpoint>, String> =
            self.ports.iter().copied().map(Self::endpoint).collect();
        let channel = Channel::balance_list(endpoints?.into_iter());
        let leases = LeaseClient::new(channel.clone());
        let all = Arc::new(Mutex::new(Vec::new()));
        let keeper = tokio::spawn(keep_alive(leases.clone(), all.clone()));
        let keeper = Arc::new(Keeper(keeper));
        let mut takers = Vec::new();
        for _ in 0..wanted.tasks {
            let id = grant(&mut leases.clone()).await?;
            let lease = Arc::new(Lease {
                id: AtomicI64::new(id),
                gone: AtomicBool::new(false),
            });
            all.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(lease.clone());
            takers.push(Taker {
                lock: LockClient::new(channel.clone()),
                leases: leases.clone(),
                lease,
                patience: wanted.patience,
                _keeper: keeper.clone(),
            });
        }
        Ok(takers)
    }

    /// Ends the leases: they would otherwise run out while somebody else is measured.
    async fn close(&self, takers: Vec<Taker>) {
        let ends = takers.iter().map(|taker| async {
            let id = taker.lease.id.load(Ordering::Relaxed);
            let mut client = taker.leases.clone();
            let _ = timeout(CALL, client.lease_revoke(LeaseRevokeRequest { id })).await;
        });
        join_all(ends).await;
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
            let url = format!("http://127.0.0.1:{port}/metrics");
            let answer = http::get(&url, &Security::default(), CALL).await.ok()?;
            sum += syncs(&String::from_utf8_lossy(&answer.body));
        }
        Some(sum)
    }

    async fn leader(&self) -> Result<usize, String> {
        for (server, port) in self.ports.iter().enumerate() {
            let channel = Self::endpoint(*port)?.connect_lazy();
            let mut client = MaintenanceClient::new(channel);
            let answer = timeout(CALL, client.status(StatusRequest {})).await;
            let Ok(Ok(answer)) = answer else {
                continue;
            };
            let answer = answer.into_inner();
            let member = answer.header.unwrap_or_default().member_id;
            if member == answer.leader {
                return Ok(server);
            }
        }
        Err("no server says that it leads".to_owned())
    }
}

/// Syncs of the log and commits of the store, each of which syncs too.
fn syncs(metrics: &str) -> u64 {
    let log = usage::metric(metrics, "etcd_disk_wal_fsync_duration_seconds_count");
    log + usage::metric(metrics, "etcd_disk_backend_commit_duration_seconds_count")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_are_those_of_the_log_and_the_store() {
        let text = "# TYPE etcd_disk_wal_fsync_duration_seconds histogram\n\
            etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} 40\n\
            etcd_disk_wal_fsync_duration_seconds_sum 0.1\n\
            etcd_disk_wal_fsync_duration_seconds_count 50\n\
            etcd_disk_backend_commit_duration_seconds_count 7\n";
        assert_eq!(syncs(text), 57);
        assert_eq!(syncs("nothing 1\n"), 0);
    }
}
