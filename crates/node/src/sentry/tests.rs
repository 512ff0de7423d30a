#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use conclave_client::Security;
use conclave_wire::Cluster;
use conclave_wire::handle::Key;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::audit::AuditOptions;
use crate::store::{KeeperMemory, Memory, Store, StoreError};
use crate::{Node, NodeError, Options, StartError};

thread_local! {
    /// The thread or task that panics at once in nodes that this test starts.
    pub(super) static TRIP: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Nothing takes as long unless it hangs.
const PATIENCE: Duration = Duration::from_mins(1);

fn options(data: &std::path::Path) -> Options {
    let sockets = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (peer, api) = (sockets(), sockets());
    let text = format!(
        "name = \"test\"\nepoch = 1\nquorum = \"majority\"\n\
         [[nodes]]\nid = 1\npeer = \"{}\"\napi = \"http://{}\"\n",
        peer.local_addr().unwrap(),
        api.local_addr().unwrap()
    );
    Options {
        cluster: Cluster::parse(&text).unwrap(),
        id: 1,
        data: data.to_owned(),
        init: true,
        key: Key::new(b"secret"),
        peer,
        api,
        history: None,
        access: None,
        audit: Some(AuditOptions {
            path: data.join("audit"),
            bytes_max: 1 << 20,
        }),
        security: Security::default(),
        liar: None,
        rejoin: None,
        change: None,
        api_names: Vec::new(),
    }
}

fn start(store: impl Store + 'static) -> Result<(Node, tempfile::TempDir), StartError> {
    let data = tempfile::tempdir().unwrap();
    let keeper = Box::new(KeeperMemory::default());
    let clock = std::sync::Arc::new(conclave_client::clock::now);
    let node = Node::start_with(options(data.path()), Box::new(store), keeper, clock)?;
    Ok((node, data))
}

/// Which thread the node says to have ended by, and what it said.
async fn ended_by(node: &Node) -> (String, String) {
    let ended = tokio::time::timeout(PATIENCE, node.wait()).await;
    match ended.expect("the node goes on without the thread") {
        Err(NodeError::Panic { thread, words }) => (thread, words),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_panic_in_any_thread_ends_the_node() {
    let threads = [
        "shard-n1",
        "keeper-n1",
        "journal",
        "resolve",
        "audit",
        "others",
        "api",
    ];
    for name in threads {
        TRIP.set(Some(name));
        let (node, _data) = start(Memory::default()).unwrap();
        assert_eq!(
            ended_by(&node).await,
            (name.to_owned(), "tripped".to_owned())
        );
    }
    TRIP.set(None);
}

#[tokio::test]
async fn a_panic_in_the_thread_that_reads_the_access_file_ends_the_node() {
    let (node, _data) = start(Memory::default()).unwrap();
    // An access file wants TLS, of which this is no test.
    let gate = std::sync::Arc::new(crate::who::Gate::open());
    let mut shard = node.shard().clone();
    shard.trip("access");
    let _watch = crate::node::AccessWatch::spawn(gate, shard).unwrap();
    assert_eq!(ended_by(&node).await.0, "access");
}

/// A store with a fault.
struct Panics(Memory);

impl Store for Panics {
    fn load(&mut self) -> Result<Option<conclave_protocol::lock::Stored>, StoreError> {
        self.0.load()
    }

    fn write(&mut self, records: &[conclave_protocol::lock::Record]) -> Result<(), StoreError> {
        // Its first records are written before there is a journal.
        let journal = std::thread::current().name() == Some("journal");
        assert!(!journal, "a fault in the store");
        self.0.write(records)
    }
}

#[tokio::test]
async fn a_panic_while_records_are_written_ends_the_node() {
    let (node, _data) = start(Panics(Memory::default())).unwrap();
    let (thread, words) = ended_by(&node).await;
    assert_eq!((&*thread, &*words), ("journal", "a fault in the store"));
}

/// Asks for the page that panics, with both versions of HTTP.
async fn ask_for_trouble(api: SocketAddr, http2: bool) {
    if !http2 {
        let mut caller = tokio::net::TcpStream::connect(api).await.unwrap();
        let request = format!("GET /v1/panic HTTP/1.1\r\nhost: {api}\r\n\r\n");
        caller.write_all(request.as_bytes()).await.unwrap();
        let _ = caller.read_to_end(&mut Vec::new()).await;
        return;
    }
    let stream = tokio::net::TcpStream::connect(api).await.unwrap();
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut caller, connection) = shaken.await.unwrap();
    let connection = tokio::spawn(connection);
    let request = hyper::Request::get(format!("http://{api}/v1/panic"));
    let _ = caller
        .send_request(request.body(Empty::<Bytes>::new()).unwrap())
        .await;
    connection.abort();
}

#[tokio::test]
async fn a_panic_in_the_handler_of_a_request_ends_the_node() {
    for http2 in [false, true] {
        let (node, _data) = start(Memory::default()).unwrap();
        ask_for_trouble(node.api_addr(), http2).await;
        let (thread, words) = ended_by(&node).await;
        assert_eq!((&*thread, &*words), ("api", "asked for"), "http2: {http2}");
    }
}
