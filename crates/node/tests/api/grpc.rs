//! The same over gRPC, with the generated client.

use std::time::Duration;

use conclave_wire::api::v1::cluster_client::ClusterClient;
use conclave_wire::api::v1::locks_client::LocksClient;
use conclave_wire::api::v1::{
    AcquireRequest, DescribeRequest, GetRequest, KeepAliveRequest, ListRequest, Mode,
    ReleaseRequest, SessionsRequest, Shared, StatusRequest, acquire_event, mode, node_status,
};
use tonic::Code;
use tonic::transport::Channel;

use super::harness::{LONG_TTL, Nodes, PATIENCE, until};

async fn channel(nodes: &Nodes, id: usize) -> Channel {
    let url = nodes.cluster.nodes[id - 1].api.clone();
    let endpoint = Channel::from_shared(url).unwrap().timeout(PATIENCE);
    endpoint.connect().await.unwrap()
}

async fn locks(nodes: &Nodes, id: usize) -> LocksClient<Channel> {
    LocksClient::new(channel(nodes, id).await)
}

fn wish(name: &str, wait_ms: u64) -> AcquireRequest {
    AcquireRequest {
        name: name.into(),
        ttl_ms: Some(LONG_TTL),
        wait_ms: Some(wait_ms),
        owner: Some("over grpc".into()),
        ..AcquireRequest::default()
    }
}

fn code(status: &tonic::Status) -> (Code, String) {
    let code = status.metadata().get("conclave-code");
    let code = code.map_or("none", |code| code.to_str().unwrap());
    (status.code(), code.to_owned())
}

#[tokio::test]
async fn locks_over_grpc_are_the_same_locks() {
    let nodes = Nodes::start(3);
    let mut one = locks(&nodes, 1).await;
    let mut two = locks(&nodes, 2).await;
    let held = one.acquire(wish("a", 0)).await.unwrap().into_inner();
    assert!(held.token > 0 && held.valid_ms > 0 && held.valid_ms < LONG_TTL);
    assert_eq!(nodes.try_lock(3, "a").code(), "not_acquired");
    let busy = two.acquire(wish("a", 0)).await.unwrap_err();
    assert_eq!(code(&busy), (Code::Aborted, "not_acquired".into()));

    let handle = held.handle.clone();
    let kept = two
        .keep_alive(KeepAliveRequest { handle })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((kept.token, &kept.group), (held.token, &held.group));
    // A handle is the same on both doors.
    assert_eq!(nodes.keep(3, &kept.handle.clone().into()).status, 200);

    let name = b"a".to_vec();
    let shown = two.get(GetRequest { name }).await.unwrap().into_inner();
    assert!(!shown.partial && shown.silent.is_empty());
    assert_eq!(shown.holders[0].token, Some(held.token));
    assert_eq!(shown.holders[0].owner, "over grpc");
    let listed = two.list(ListRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.locks.len(), 1);
    assert_eq!(listed.next, None);

    for _ in 0..2 {
        let handle = kept.handle.clone();
        one.release(ReleaseRequest { handle }).await.unwrap();
    }
    let next = two.acquire(wish("a", 30_000)).await.unwrap().into_inner();
    assert!(next.token > held.token);
    let handle = held.handle;
    let lost = one
        .keep_alive(KeepAliveRequest { handle })
        .await
        .unwrap_err();
    assert_eq!(code(&lost), (Code::NotFound, "lost".into()));
}

#[tokio::test]
async fn mistakes_have_statuses() {
    let nodes = Nodes::start(1);
    let mut locks = locks(&nodes, 1).await;
    let empty = locks.acquire(wish("", 0)).await.unwrap_err();
    assert_eq!(code(&empty), (Code::InvalidArgument, "bad_name".into()));
    let long = locks
        .acquire(wish("a", LONG_TTL * 100 + 1))
        .await
        .unwrap_err();
    assert_eq!(code(&long), (Code::InvalidArgument, "wait_too_long".into()));
    let handle = "nonsense".to_owned();
    let forged = locks.release(ReleaseRequest { handle }).await.unwrap_err();
    assert_eq!(
        code(&forged),
        (Code::InvalidArgument, "forged_handle".into())
    );
    let limit = Some(100_000);
    let list = ListRequest {
        limit,
        ..ListRequest::default()
    };
    let limit = locks.list(list).await.unwrap_err();
    assert_eq!(code(&limit), (Code::InvalidArgument, "bad_request".into()));
    let mut unknown = tonic::client::Grpc::new(channel(&nodes, 1).await);
    unknown.ready().await.unwrap();
    let path = "/conclave.v1.Nothing/Here".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<GetRequest, GetRequest>::default();
    let request = tonic::Request::new(GetRequest::default());
    let answer = unknown.unary(request, path, codec).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_stream_tells_the_position_and_then_the_lock() {
    let nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    let mut locks = locks(&nodes, 2).await;
    let stream = locks.acquire_stream(wish("a", 100_000)).await;
    let mut stream = stream.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap().event;
    assert_eq!(first, Some(acquire_event::Event::Position(1)));
    nodes.release(3, &held["handle"]);
    let mut last = None;
    while let Some(event) = stream.message().await.unwrap() {
        last = event.event;
    }
    let Some(acquire_event::Event::Acquired(acquired)) = last else {
        panic!("{last:?}");
    };
    assert!(Some(acquired.token) > held["token"].as_u64());
    let handle = acquired.handle.into();
    assert_eq!(nodes.keep(1, &handle).status, 200);
    // One that ends without the lock ends with its status.
    let mut stream = locks
        .acquire_stream(wish("a", 100))
        .await
        .unwrap()
        .into_inner();
    let end = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no status"),
            Err(status) => break status,
        }
    };
    assert_eq!(code(&end), (Code::Aborted, "not_acquired".into()));
}

// The client needs a thread of its own to say that it gave up.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_waits_no_more() {
    let nodes = Nodes::start(1);
    let held = nodes.lock(1, "a");
    let mut locks = locks(&nodes, 1).await;
    let waits = locks.acquire(wish("a", 100_000));
    let given_up = tokio::time::timeout(Duration::from_millis(500), waits).await;
    assert!(given_up.is_err());
    until("nobody waits", || {
        nodes.get(1, "/v1/locks/a").json["waiters"] == serde_json::json!([])
    });
    nodes.release(1, &held["handle"]);
    nodes.until_free(1, "a");
}

#[tokio::test]
async fn modes_and_the_cluster() {
    let nodes = Nodes::start(3);
    let mut locks = locks(&nodes, 1).await;
    for _ in 0..2 {
        let kind = Some(mode::Kind::Shared(Shared {}));
        let wish = AcquireRequest {
            mode: Some(Mode { kind }),
            ..wish("r", 0)
        };
        let held = locks.acquire(wish).await.unwrap().into_inner();
        assert_eq!(held.group, "shared");
    }
    let mut cluster = ClusterClient::new(channel(&nodes, 2).await);
    let told = cluster
        .describe(DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    let json: conclave_wire::Cluster = serde_json::from_str(&told.cluster_json).unwrap();
    assert_eq!(json, nodes.cluster);
    assert_eq!(told.digest, nodes.cluster.digest());
    assert_eq!(told.nodes.len(), 3);
    let status = StatusRequest { local: false };
    let status = cluster.status(status).await.unwrap().into_inner();
    assert_eq!(status.nodes.len(), 3);
    for node in status.nodes {
        assert_eq!(node.state(), node_status::State::Serving);
    }
    let sessions = cluster.sessions(SessionsRequest::default()).await.unwrap();
    let sessions = sessions.into_inner().sessions;
    assert!(sessions.iter().any(|session| session.detached) || sessions.len() < 3);
}

/// The caller lets no byte of an answer through, and hangs up while its lock is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_answer_cannot_be_sent_is_released() {
    let nodes = Nodes::start(3);
    let url = nodes.cluster.nodes[0].api.clone();
    let endpoint = Channel::from_shared(url).unwrap();
    let shut = endpoint.initial_stream_window_size(0);
    let channel = shut.connect().await.unwrap();
    let locks = LocksClient::new(channel);
    for id in [None, Some("named".to_owned())] {
        let mut mine = locks.clone();
        let wish = AcquireRequest { id, ..wish("a", 0) };
        let call = tokio::spawn(async move { mine.acquire(wish).await });
        until("it is held", || {
            let shown = nodes.get(2, "/v1/locks/a");
            shown.json["holders"]
                .as_array()
                .is_some_and(|all| all.len() == 1)
        });
        assert_eq!(nodes.try_lock(2, "a").code(), "not_acquired");
        call.abort();
        let next = nodes.until_free(3, "a");
        nodes.release(3, &next["handle"]);
        nodes.release(3, &nodes.until_free(2, "a")["handle"]);
    }
}

#[tokio::test]
async fn a_page_of_another_site_is_refused_in_the_words_of_grpc() {
    let nodes = Nodes::start(1);
    let channel = channel(&nodes, 1).await;
    for (header, value, expected) in [
        ("origin", "http://evil.example", "foreign_origin"),
        ("sec-fetch-site", "cross-site", "foreign_origin"),
        ("referer", "http://evil.example/", "not_json"),
        ("host", "evil.example", "foreign_host"),
    ] {
        let sent = |mut request: tonic::Request<()>| {
            request
                .metadata_mut()
                .insert(header, value.parse().unwrap());
            Ok(request)
        };
        let mut locks = LocksClient::with_interceptor(channel.clone(), sent);
        let refused = locks.acquire(wish("a", 0)).await.unwrap_err();
        assert_eq!(code(&refused).1, expected, "{header}: {refused:?}");
    }
    assert_eq!(nodes.try_lock(1, "a").status, 200, "nobody took it");
}
