//! Clients that live long while nodes move to other addresses, or the cluster is given another
//! configuration.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Plan, in_time, plan_with, until_state};
use conclave_client::{Client, Counter, Guard};
use conclave_node::{Change, Node};
use conclave_wire::Cluster;

const TIMES: &str = "times = { ttl_max = \"2s\", link_ttl = \"500ms\", heartbeat = \"100ms\" }\n\
    faults = { span_max = \"2s\" }";
const TTL: Duration = Duration::from_secs(1);

/// Nodes with data directories, and where they are.
struct Nodes {
    plan: Plan,
    data: tempfile::TempDir,
    running: Vec<Node>,
}

impl Nodes {
    async fn start() -> Self {
        let mut nodes = Self {
            plan: plan_with(3, TIMES),
            data: tempfile::tempdir().unwrap(),
            running: Vec::new(),
        };
        nodes.start_again(None).await;
        nodes
    }

    fn count(&self) -> u32 {
        self.plan.cluster.nodes.len() as u32
    }

    /// Starts all nodes, each on a thread: those that change their configuration wait for others.
    async fn start_again(&mut self, change: Option<Change>) {
        let mut starts = Vec::new();
        for id in 1..=self.count() {
            let mut options = self
                .plan
                .options(id, &self.data.path().join(id.to_string()));
            options.change.clone_from(&change);
            options.init = change.is_none();
            starts.push(tokio::task::spawn_blocking(move || {
                Node::start(options).unwrap()
            }));
        }
        for start in starts {
            self.running.push(in_time("a start", start).await.unwrap());
        }
        for node in &self.running {
            until_state(node, "serving").await;
        }
    }

    async fn stop(&mut self) {
        for node in self.running.drain(..) {
            node.drain_and_stop();
            in_time("a stop", node.wait()).await.unwrap();
        }
    }

    /// Gives nodes other ports; the API stays where it is for those that keep it.
    fn moves(&mut self, keeps_api: &[u32]) {
        let mut cluster = self.plan.cluster.clone();
        for node in &mut cluster.nodes {
            let peer = TcpListener::bind("127.0.0.1:0").unwrap();
            node.peer = peer.local_addr().unwrap().to_string();
            let api = if keeps_api.contains(&node.id) {
                common::rebind(node.api.strip_prefix("http://").unwrap())
            } else {
                let api = TcpListener::bind("127.0.0.1:0").unwrap();
                node.api = format!("http://{}", api.local_addr().unwrap());
                api
            };
            self.plan.sockets[node.id as usize - 1] = Some((peer, api));
        }
        self.plan.cluster = cluster;
    }

    fn endpoint(&self, id: u32) -> String {
        self.plan.cluster.node(id).unwrap().api.clone()
    }

    fn write_file(&self, path: &Path) {
        std::fs::write(path, file(&self.plan.cluster)).unwrap();
    }
}

/// The file of a cluster, as its operator writes it.
fn file(cluster: &Cluster) -> String {
    let mut text = format!(
        "name = \"{}\"\nepoch = {}\nquorum = \"{}\"\n{TIMES}\n",
        cluster.name, cluster.epoch, cluster.quorum
    );
    for node in &cluster.nodes {
        let (id, peer, api) = (node.id, &node.peer, &node.api);
        let _ = writeln!(
            text,
            "[[nodes]]\nid = {id}\npeer = \"{peer}\"\napi = \"{api}\""
        );
    }
    text
}

/// Takes a lock; a moment without a quorum is no wonder while nodes move.
async fn take(client: &Client, name: &str) -> Guard {
    in_time("a lock", async {
        loop {
            if let Ok(guard) = client.lock(name).ttl(TTL).acquire_timeout(TTL).await {
                return guard;
            }
        }
    })
    .await
}

async fn count(client: &Client) -> i64 {
    in_time("an object", async {
        loop {
            match client.object::<Counter>("visits").incr().await {
                Ok(count) => return count,
                Err(error) => println!("{error}"),
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_nodes_that_moved_by_asking_its_endpoints() {
    let mut nodes = Nodes::start().await;
    let client = Client::connect([nodes.endpoint(1)]).await.unwrap();
    take(&client, "a").await.release().await.unwrap();
    assert_eq!(count(&client).await, 1);
    nodes.stop().await;
    nodes.moves(&[1]);
    nodes.start_again(None).await;
    take(&client, "a").await.release().await.unwrap();
    assert_eq!(count(&client).await, 2);
    // A quorum serves before the address of the last node is learnt.
    in_time("all addresses", async {
        while *client.cluster() != nodes.plan.cluster {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_nodes_that_moved_by_asking_the_nodes_that_it_knows() {
    let mut nodes = Nodes::start().await;
    let builder = Client::builder().cluster(nodes.plan.cluster.clone());
    let client = builder.connect().await.unwrap();
    take(&client, "a").await.release().await.unwrap();
    nodes.stop().await;
    nodes.moves(&[2]);
    nodes.start_again(None).await;
    take(&client, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_nodes_that_moved_in_its_cluster_file() {
    let mut nodes = Nodes::start().await;
    let path = nodes.data.path().join("cluster.toml");
    nodes.write_file(&path);
    let client = Client::builder()
        .cluster_file(&path)
        .connect()
        .await
        .unwrap();
    take(&client, "a").await.release().await.unwrap();
    nodes.stop().await;
    nodes.moves(&[]);
    nodes.write_file(&path);
    nodes.start_again(None).await;
    take(&client, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_goes_on_with_another_configuration() {
    let mut nodes = Nodes::start().await;
    let client = Client::connect([nodes.endpoint(1)]).await.unwrap();
    let held = take(&client, "a").await;
    let mut watch = client.watch("b");
    in_time("a state", watch.next()).await.unwrap();
    assert_eq!(count(&client).await, 1);
    let lease = in_time("a lease", client.lease("l").for_(TTL).acquire())
        .await
        .unwrap();
    nodes.stop().await;
    nodes.moves(&[1]);
    nodes.plan.cluster.epoch = 2;
    nodes.plan.cluster.quorum = "wheel".to_owned();
    let change = Change {
        abandon: Vec::new(),
        halt: Arc::default(),
    };
    nodes.start_again(Some(change)).await;
    in_time("the loss", held.lost()).await;
    assert!(!held.is_held());
    in_time("the end of the lease", lease.lost()).await;
    let guard = take(&client, "b").await;
    assert_eq!(client.cluster().epoch, 2);
    // A watch goes on under the new one.
    in_time("the holder", async {
        while watch.next().await.unwrap().holders.is_empty() {}
    })
    .await;
    guard.release().await.unwrap();
    assert!(count(&client).await >= 1);
}
