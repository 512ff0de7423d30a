//! Leases by their handles, which any node renews and releases.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conclave_wire::api::v1::leases_client::LeasesClient;
use conclave_wire::api::v1::{LeaseRequest, ReleaseLeaseRequest, RenewLeaseRequest};
use conclave_wire::lease_handle;
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;

use super::harness::{Answer, LONG_TTL, Nodes, PATIENCE, send};

impl Nodes {
    fn lease(&self, id: usize, name: &str, for_ms: u64, wait_ms: u64) -> Answer {
        let body = json!({ "for_ms": for_ms, "wait_ms": wait_ms });
        self.post(id, &format!("/v1/leases/{name}/acquire"), &body)
    }

    fn renew_lease(&self, id: usize, handle: &Value) -> Answer {
        self.post(id, "/v1/leases/renew", &json!({ "handle": handle }))
    }

    fn release_lease(&self, id: usize, handle: &Value) -> Answer {
        self.post(id, "/v1/leases/release", &json!({ "handle": handle }))
    }

    /// Waits until a lease can be taken, long before the last one ends by itself.
    fn until_leased(&self, id: usize, name: &str) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.lease(id, name, LONG_TTL, 0);
            if answer.status == 200 {
                return answer.json;
            }
            let waited = begun.elapsed().as_millis();
            assert!(waited < u128::from(LONG_TTL) / 2, "never: {answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_lease_is_renewed_and_released_through_any_node() {
    let mut nodes = Nodes::start(3);
    let held = nodes.until_leased(1, "a");
    let handle = &held["handle"];
    for id in [2, 3, 1] {
        let renewed = nodes.renew_lease(id, handle);
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert_eq!(renewed.json["token"], held["token"]);
        assert_eq!(renewed.json["handle"], *handle);
        assert_eq!(nodes.lease(id, "a", 1000, 0).status, 409);
    }
    let released = nodes.release_lease(3, handle);
    assert_eq!(released.json, json!({ "released": true }), "{released:?}");
    let gone = nodes.renew_lease(2, handle);
    assert_eq!((gone.status, gone.code()), (410, "ended"), "{gone:?}");
    let next = nodes.until_leased(2, "a");
    assert!(next["token"].as_u64() > held["token"].as_u64());
    // A second release does no harm to whoever has it now.
    assert_eq!(nodes.release_lease(1, handle).status, 200);
    assert_eq!(nodes.renew_lease(1, &next["handle"]).status, 200);
    // Nor does the end of the node that gave it out.
    drop(nodes.running[1].take());
    let renewed = nodes.renew_lease(1, &next["handle"]);
    assert_eq!(renewed.status, 200, "{renewed:?}");
    assert_eq!(nodes.lease(3, "a", 1000, 0).status, 409);
    assert_eq!(nodes.release_lease(3, &next["handle"]).status, 200);
    nodes.until_leased(1, "a");
}

#[test]
fn only_its_holder_uses_a_handle() {
    let nodes = Nodes::start(3);
    let held = nodes.until_leased(1, "a");
    let text = held["handle"].as_str().unwrap();
    let (config, handle) = lease_handle::open(&nodes.key, "anonymous", text).unwrap();
    let foreign = lease_handle::seal(&nodes.key, "somebody else", &config, &handle);
    let lock = nodes.lock(1, "a")["handle"].clone();
    for (handle, status, code) in [
        (json!(foreign), 403, "foreign_handle"),
        (lock, 400, "forged_handle"),
        (json!(text[1..]), 400, "forged_handle"),
        (json!("1-00"), 400, "forged_handle"),
    ] {
        for answer in [
            nodes.renew_lease(2, &handle),
            nodes.release_lease(2, &handle),
        ] {
            assert_eq!((answer.status, answer.code()), (status, code), "{answer:?}");
        }
    }
    // Of another configuration: its nodes may be others, and none of them is asked.
    let mut other = config;
    other.epoch += 1;
    let other = lease_handle::seal(&nodes.key, "anonymous", &other, &handle);
    assert_eq!(nodes.renew_lease(2, &json!(other)).code(), "ended");
    assert_eq!(nodes.renew_lease(2, &held["handle"]).status, 200);
}

#[tokio::test]
async fn leases_over_grpc_are_the_same_leases() {
    let nodes = Nodes::start(3);
    let client = async |id: usize| {
        let url = nodes.cluster.nodes[id - 1].api.clone();
        let endpoint = Channel::from_shared(url).unwrap().timeout(PATIENCE);
        LeasesClient::new(endpoint.connect().await.unwrap())
    };
    let (mut one, mut two) = (client(1).await, client(2).await);
    let wish = |wait_ms: u64| LeaseRequest {
        name: "a".into(),
        for_ms: Some(LONG_TTL),
        wait_ms: Some(wait_ms),
    };
    let wait = u64::try_from(PATIENCE.as_millis()).unwrap();
    let held = one.acquire(wish(wait)).await.unwrap().into_inner();
    let handle = held.handle.clone();
    assert!(held.valid_ms > 0);
    let renewed = two.renew(RenewLeaseRequest { handle }).await;
    let renewed = renewed.unwrap().into_inner();
    assert_eq!(renewed.token, held.token);
    assert_eq!(
        two.acquire(wish(0)).await.err().unwrap().code(),
        Code::Aborted
    );
    assert_eq!(nodes.renew_lease(3, &json!(held.handle)).status, 200);
    let handle = held.handle.clone();
    two.release(ReleaseLeaseRequest { handle }).await.unwrap();
    let handle = held.handle;
    let gone = two.renew(RenewLeaseRequest { handle }).await.err().unwrap();
    assert_eq!(gone.code(), Code::NotFound);
    // Whoever goes away while it waits leaves nothing behind.
    let held = one.acquire(wish(wait)).await.unwrap().into_inner();
    let gone = tokio::time::timeout(Duration::from_millis(300), two.acquire(wish(wait)));
    assert!(gone.await.is_err(), "somebody else has it");
    let handle = held.handle;
    one.release(ReleaseLeaseRequest { handle }).await.unwrap();
    one.acquire(wish(LONG_TTL / 2)).await.unwrap();
}

#[test]
fn a_lease_whose_answer_was_not_written_is_given_back() {
    let nodes = Nodes::start(3);
    for _ in 0..8 {
        let held = nodes.until_leased(1, "a");
        let body = json!({ "for_ms": LONG_TTL, "wait_ms": LONG_TTL }).to_string();
        let gone = send(nodes.api(2), "POST", "/v1/leases/a/acquire", "", &body);
        // The caller hangs up in the moment in which the lease becomes free.
        std::thread::scope(|scope| {
            scope.spawn(|| nodes.release_lease(1, &held["handle"]));
            drop(gone);
        });
        let next = nodes.until_leased(3, "a");
        nodes.release_lease(3, &next["handle"]);
    }
}

/// When a holder believed that it had the lease: from the answer to its own end of it.
struct Held {
    from: Instant,
    to: Instant,
    token: u64,
}

/// A holder that renews again and again through the nodes that `through` names.
fn hold(nodes: &Nodes, first: usize, through: impl Fn(usize) -> usize) -> Option<Held> {
    let deadline = |sent: Instant, told: &Value| {
        let ms = |field: &str| Duration::from_millis(told[field].as_u64().unwrap_or_default());
        sent + ms("waited_ms") + ms("valid_ms")
    };
    let sent = Instant::now();
    let answer = nodes.lease(first, "x", 1500, 500);
    let from = Instant::now();
    if answer.status != 200 {
        assert_eq!(answer.status, 409, "{answer:?}");
        return None;
    }
    let mut to = deadline(sent, &answer.json);
    for round in 0..12 {
        let sent = Instant::now();
        let renewed = nodes.renew_lease(through(round), &answer.json["handle"]);
        if renewed.status == 200 && Instant::now() < to {
            to = to.max(deadline(sent, &renewed.json));
        }
    }
    let given_back = Instant::now();
    nodes.release_lease(through(0), &answer.json["handle"]);
    Some(Held {
        from,
        to: to.min(given_back),
        token: answer.json["token"].as_u64().unwrap(),
    })
}

/// Holders of one lease that renew it while others take it and other leases through the same
/// nodes: never two at a time, and tokens that grow.
fn races(through: impl Fn(usize, usize) -> usize + Sync) {
    const HOLDERS: usize = 3;
    const LEASES: usize = 12;
    let nodes = Nodes::start(3);
    let held: Mutex<Vec<Held>> = Mutex::new(Vec::new());
    let over = || held.lock().unwrap().len() >= LEASES;
    let others = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for first in 1..=HOLDERS {
            let (nodes, held, through, over) = (&nodes, &held, &through, &over);
            scope.spawn(move || {
                while !over() && begun.elapsed() < PATIENCE {
                    let lease = hold(nodes, first, |round| through(first, round));
                    held.lock()
                        .unwrap()
                        .extend(lease.filter(|one| one.from < one.to));
                }
            });
        }
        for id in 1..=3 {
            let (nodes, over, others) = (&nodes, &over, &others);
            scope.spawn(move || {
                while !over() && begun.elapsed() < PATIENCE {
                    let taken = nodes.lease(id, &format!("y{id}"), 1000, 0);
                    nodes.release_lease(id, &taken.json["handle"]);
                    others.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let mut held = held.into_inner().unwrap();
    assert!(held.len() >= LEASES, "only {} leases", held.len());
    assert!(others.into_inner() > 0);
    held.sort_by_key(|lease| lease.from);
    for pair in held.windows(2) {
        let (one, next) = (&pair[0], &pair[1]);
        let overlap = one.to.saturating_duration_since(next.from);
        assert!(overlap.is_zero(), "two holders for {overlap:?}");
        assert!(
            one.token < next.token,
            "tokens {} and {}",
            one.token,
            next.token
        );
    }
}

#[test]
fn renewals_that_race_acquisitions_at_one_node_have_one_holder() {
    races(|first, _| first);
}

#[test]
fn renewals_that_race_acquisitions_at_all_nodes_have_one_holder() {
    races(|first, round| (first + round) % 3 + 1);
}
