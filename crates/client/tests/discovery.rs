//! Learning the cluster from any of its nodes, and from what is not one.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{FakeCluster, soon};
use conclave_client::{Client, ConnectError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server that answers every request with this.
async fn server(status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let body = body.clone();
            tokio::spawn(async move {
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut asked).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                assert!(asked.starts_with(b"GET /v1/cluster HTTP/1.1\r\n"));
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(body.as_bytes()).await;
            });
        }
    });
    addr.to_string()
}

/// An address where nobody listens.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn any_endpoint_tells_and_each_failure_is_named() {
    let cluster = FakeCluster::start(3).await;
    let good = serde_json::to_string(&cluster.cluster).unwrap();
    let mut bad = cluster.cluster.clone();
    bad.quorum = "majority(7)".to_owned();
    let wrong = server("200 OK", serde_json::to_string(&bad).unwrap()).await;
    let missing = server("404 Not Found", String::new()).await;
    let other = server("200 OK", "<html>".to_owned()).await;
    let long = server("200 OK", " ".repeat(5 << 20)).await;
    let gone = nobody().await;

    let listed = format!("{wrong},{missing}, http://{other}/");
    let endpoints = [listed, long.clone(), gone.clone(), "https://h:1".to_owned()];
    let error = soon("no cluster", Client::connect(endpoints.clone()))
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Discover(_)));
    let text = error.to_string();
    for (endpoint, says) in [
        (wrong.as_str(), "quorum"),
        (&missing, "404"),
        (&other, "not a cluster"),
        (&long, "length limit"),
        (&gone, "refused"),
        ("https://h:1", "give --ca"),
    ] {
        let at = text
            .find(endpoint)
            .unwrap_or_else(|| panic!("{endpoint} in {text}"));
        assert!(text[at..].contains(says), "{endpoint}: {says} in {text}");
    }

    let right = server("200 OK", good).await;
    let endpoints = endpoints.into_iter().chain([right]);
    let client = soon("one is good", Client::connect(endpoints))
        .await
        .unwrap();
    assert_eq!(*client.cluster(), cluster.cluster);
    let guard = soon("acquire", client.lock("a").acquire()).await.unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_cluster_file_needs_no_endpoint() {
    let cluster = FakeCluster::start(3).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.toml");
    let error = Client::builder().cluster_file(&path).connect().await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("cluster.toml"), "{text}");
    std::fs::write(&path, "name = 3").unwrap();
    let error = Client::builder().cluster_file(&path).connect().await;
    assert!(matches!(error, Err(ConnectError::Cluster(_))));
    std::fs::write(&path, cluster.cluster.to_toml()).unwrap();
    let client = Client::builder()
        .cluster_file(&path)
        .connect()
        .await
        .unwrap();
    assert!(soon("acquire", client.lock("a").acquire()).await.is_ok());
    let none: [&str; 0] = [];
    let error = Client::connect(none).await.unwrap_err().to_string();
    assert!(error.contains("no endpoints given"), "{error}");
}
