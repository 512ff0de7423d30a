//! Acquire, keepalive and release.

use serde_json::{Value, json};

use super::harness::{LONG_TTL, Nodes, until};

#[test]
fn a_lock_is_taken_kept_and_released_through_any_node() {
    let nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    let token = held["token"].as_u64().unwrap();
    assert!(token > 0);
    assert!(held["group"].as_str().unwrap().starts_with("own:"));
    let valid = held["valid_ms"].as_u64().unwrap();
    assert!(valid > 0 && valid < LONG_TTL, "{held}");
    assert!(held["waited_ms"].is_u64());

    let busy = nodes.try_lock(2, "a");
    assert_eq!(
        (busy.status, busy.code()),
        (409, "not_acquired"),
        "{busy:?}"
    );
    assert_eq!(
        busy.json["holders"].as_array().unwrap().len(),
        1,
        "{busy:?}"
    );
    assert_eq!(busy.json["holders"][0]["token"], token);
    assert!(busy.json["position"].as_u64().unwrap() >= 1, "{busy:?}");

    let kept = nodes.keep(3, &held["handle"]);
    assert_eq!(kept.status, 200, "{kept:?}");
    for field in ["token", "group"] {
        assert_eq!(kept.json[field], held[field]);
    }
    assert!(kept.json["handle"].is_string() && kept.json["valid_ms"].is_u64());

    let released = nodes.release(2, &kept.json["handle"]);
    assert_eq!(
        (released.status, &released.json),
        (200, &json!({ "released": true }))
    );
    let again = nodes.release(1, &held["handle"]);
    assert_eq!(again.status, 200, "a release may be repeated: {again:?}");

    let next = nodes.until_free(2, "a");
    assert!(next["token"].as_u64().unwrap() > token, "tokens grow");
    let late = nodes.keep(1, &held["handle"]);
    assert_eq!((late.status, late.code()), (410, "lost"), "{late:?}");
    // Nor does releasing the old handle touch the new holder.
    nodes.release(3, &held["handle"]);
    assert_eq!(nodes.keep(3, &next["handle"]).status, 200);
}

#[test]
fn names_are_bytes_and_verbs_are_only_the_last_segment_of_a_post() {
    let nodes = Nodes::start(1);
    // Two paths of the same lock, and what it is called.
    let same = [
        ("a/b", "a%2Fb", json!("a/b")),
        ("keepalive", "%6beepalive", json!("keepalive")),
        ("release", "releas%65", json!("release")),
        ("x/acquire", "x%2facquire", json!("x/acquire")),
        ("acquire", "%61cquire", json!("acquire")),
        ("100%25", "%31%30%30%25", json!("100%")),
        ("gr%C3%BC%C3%9Fe", "%67r%C3%BC%C3%9Fe", json!("grüße")),
        ("%F0%9F%94%92", "%f0%9f%94%92", json!("\u{1f512}")),
        ("%FF%00", "%ff%00", json!({ "base64": "/wA=" })),
        ("//", "%2F%2F", json!("//")),
        ("..%2F..", "%2e%2e%2f%2e.", json!("../..")),
        ("a b".replace(' ', "%20").leak(), "a%20%62", json!("a b")),
    ];
    for (path, other, name) in same {
        let held = nodes.lock(1, path);
        assert_eq!(nodes.try_lock(1, other).code(), "not_acquired", "{other}");
        for path in [path, other] {
            let shown = nodes.get(1, &format!("/v1/locks/{path}"));
            assert_eq!(shown.json["name"], name, "{path}: {shown:?}");
            assert_eq!(shown.json["holders"].as_array().unwrap().len(), 1, "{path}");
        }
        nodes.release(1, &held["handle"]);
        nodes.until_free(1, other);
    }
}

#[test]
fn modes_decide_who_shares() {
    let nodes = Nodes::start(3);
    let take = |node: usize, name: &str, mode: Value| {
        let body = json!({ "mode": mode, "ttl_ms": LONG_TTL, "wait_ms": 0 });
        let answer = nodes.post(node, &format!("/v1/locks/{name}/acquire"), &body);
        (answer.status, answer.json["group"].clone())
    };
    let shared = json!("shared");
    assert_eq!(take(1, "r", shared.clone()), (200, json!("shared")));
    assert_eq!(take(2, "r", shared), (200, json!("shared")));
    assert_eq!(take(3, "r", json!("exclusive")).0, 409);
    let blue = json!({ "group": "blue" });
    assert_eq!(take(1, "g", blue.clone()), (200, json!("group:blue")));
    assert_eq!(take(2, "g", blue), (200, json!("group:blue")));
    assert_eq!(take(3, "g", json!({ "group": "red" })).0, 409);
    // A group of readers is not the readers.
    assert_eq!(take(3, "g", json!("shared")).0, 409);
    let bytes = json!({ "group": { "base64": "/w==" } });
    assert_eq!(take(1, "b", bytes), (200, json!("group:\\xff")));
}

#[test]
fn whoever_waits_gets_the_lock_when_it_is_released() {
    let nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let body = json!({ "ttl_ms": LONG_TTL, "owner": "the waiter", "wait_ms": 100_000 });
            nodes.post(2, "/v1/locks/a/acquire", &body)
        });
        until("it waits", || {
            let shown = nodes.get(3, "/v1/locks/a");
            let waiters = shown.json["waiters"].as_array().map_or(0, Vec::len);
            waiters == 1 && shown.json["waiters"][0]["owner"] == "the waiter"
        });
        nodes.release(3, &held["handle"]);
        let got = waiter.join().unwrap();
        assert_eq!(got.status, 200, "{got:?}");
        assert!(got.json["token"].as_u64() > held["token"].as_u64());
    });
}

#[test]
fn a_wait_that_is_over_says_who_was_in_the_way() {
    let nodes = Nodes::start(3);
    let body = json!({ "ttl_ms": LONG_TTL, "owner": "cron@host", "note": "nightly" });
    let held = nodes.post(1, "/v1/locks/a/acquire", &body);
    assert_eq!(held.status, 200);
    let body = json!({ "ttl_ms": 1000, "wait_ms": 100 });
    let busy = nodes.post(2, "/v1/locks/a/acquire", &body);
    assert_eq!((busy.status, busy.code()), (409, "not_acquired"));
    let holder = &busy.json["holders"][0];
    assert_eq!(holder["owner"], "cron@host");
    assert_eq!(holder["note"], "nightly");
    assert_eq!(holder["token"], held.json["token"]);
    assert_eq!(holder["group"], held.json["group"]);
    assert_eq!(holder["by_handle"], true);
    assert_eq!(busy.json["position"], 1, "{busy:?}");
    // Whoever gave up waits no more.
    until("nobody waits", || {
        nodes.get(3, "/v1/locks/a").json["waiters"] == json!([])
    });
}

#[test]
fn an_empty_body_takes_all_defaults() {
    let nodes = Nodes::start(1);
    let held = super::harness::call(nodes.api(1), "POST", "/v1/locks/a/acquire", "");
    assert_eq!(held.status, 200, "{held:?}");
    let valid = held.json["valid_ms"].as_u64().unwrap();
    assert!(valid <= 10_000, "{valid}");
    let shown = nodes.get(1, "/v1/locks/a");
    let owner = shown.json["holders"][0]["owner"].as_str().unwrap();
    assert!(
        owner.starts_with("127.0.0.1:"),
        "the remote address: {owner}"
    );
}

#[test]
fn a_retry_with_the_same_id_does_not_exclude_itself() {
    let nodes = Nodes::start(3);
    let take = |node: usize, id: &str| {
        let body = json!({ "ttl_ms": LONG_TTL, "wait_ms": 0, "id": id });
        nodes.post(node, "/v1/locks/a/acquire", &body)
    };
    let first = take(1, "job 7");
    assert_eq!(first.status, 200, "{first:?}");
    let again = take(2, "job 7");
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(first.json["group"], again.json["group"]);
    assert_eq!(take(3, "job 8").code(), "not_acquired");
    // The same id means another session for another lock.
    let body = json!({ "ttl_ms": LONG_TTL, "wait_ms": 0, "id": "job 7" });
    let other = nodes.post(1, "/v1/locks/b/acquire", &body);
    assert_ne!(other.json["group"], first.json["group"]);
    // Releasing any of them releases them all.
    nodes.release(1, &again.json["handle"]);
    until("it is free", || take(3, "job 8").status == 200);
    assert_eq!(nodes.keep(2, &first.json["handle"]).status, 410);
    assert_eq!(nodes.keep(2, &other.json["handle"]).status, 200);
}

#[test]
fn a_handle_outlives_its_gateway_and_moves_to_other_nodes() {
    let mut nodes = Nodes::start(5);
    // Locks that rest on the node that will die.
    let names = (0..200).map(|number| format!("lock-{number}"));
    let mut held = Vec::new();
    for name in names {
        let taken = nodes.lock(1, &name);
        let shown = nodes.get(1, &format!("/v1/locks/{name}"));
        let on = shown.json["holders"][0]["nodes"]
            .as_array()
            .unwrap()
            .clone();
        if on.contains(&json!(1)) {
            held.push((name, taken));
        }
        if held.len() == 6 {
            break;
        }
    }
    assert_eq!(held.len(), 6);
    // The gateway dies, and with it a member of each of these holds.
    drop(nodes.running[0].take());
    for (name, held) in &held {
        let mut handle = held["handle"].clone();
        for gateway in [2, 3] {
            let kept = nodes.keep(gateway, &handle);
            assert_eq!(kept.status, 200, "{name}: {kept:?}");
            // It may grow: the floor of a stand-in may be above it.
            assert!(kept.json["token"].as_u64() >= held["token"].as_u64());
            handle = kept.json["handle"].clone();
        }
        assert_ne!(handle, held["handle"], "{name} has moved");
        let shown = nodes.get(4, &format!("/v1/locks/{name}"));
        let on = shown.json["holders"][0]["nodes"].as_array().unwrap().len();
        assert!(on >= 3, "{shown:?}");
        assert_eq!(nodes.try_lock(4, name).code(), "not_acquired");
        // The first handle still releases at the nodes it knows, the last one everywhere.
        assert_eq!(nodes.release(5, &held["handle"]).status, 200);
        assert_eq!(nodes.release(5, &handle).status, 200);
        nodes.until_free(4, name);
    }
}

#[test]
fn a_slot_of_a_semaphore_is_taken_and_named() {
    let nodes = Nodes::start(3);
    let take = |node: usize, more: Value| {
        let mut body = json!({ "slots": 2, "ttl_ms": LONG_TTL, "wait_ms": 0 });
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        nodes.post(node, "/v1/locks/pool/acquire", &body)
    };
    let first = take(1, json!({}));
    let second = take(2, json!({}));
    assert_eq!((first.status, second.status), (200, 200), "{second:?}");
    let mut slots = [&first, &second].map(|one| one.json["slot"].as_u64().unwrap());
    slots.sort_unstable();
    assert_eq!(slots, [1, 2]);
    let third = take(3, json!({}));
    assert_eq!(
        (third.status, third.code()),
        (409, "not_acquired"),
        "{third:?}"
    );
    assert_eq!(third.json["holders"].as_array().map(Vec::len), Some(2));
    let slot = first.json["slot"].as_u64().unwrap();
    let shown = nodes.get(3, &format!("/v1/locks/pool~{slot}"));
    assert_eq!(shown.json["holders"].as_array().map(Vec::len), Some(1));
    nodes.release(3, &first.json["handle"]);
    until("it is free", || {
        let shown = nodes.get(3, &format!("/v1/locks/pool~{slot}"));
        shown.json["holders"].as_array().is_some_and(Vec::is_empty)
    });
    let again = take(3, json!({ "id": "me" }));
    assert_eq!(again.json["slot"], slot, "{again:?}");
    // A call that is repeated finds the slot it has.
    assert_eq!(take(1, json!({ "id": "me" })).json["slot"], slot);
    for (field, value) in [
        ("slots", json!(0)),
        ("slots", json!(65)),
        ("mode", json!("shared")),
    ] {
        assert_eq!(take(1, json!({ (field): value })).code(), "bad_request");
    }
}

#[test]
fn a_waiter_is_told_why() {
    let nodes = Nodes::start(3);
    let body = json!({ "mode": { "group": "red" }, "ttl_ms": LONG_TTL, "owner": "ann" });
    let held = nodes.post(1, "/v1/locks/a/acquire", &body);
    assert_eq!(held.status, 200, "{held:?}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let body = json!({ "ttl_ms": LONG_TTL, "wait_ms": 100_000 });
            nodes.post(2, "/v1/locks/a/acquire", &body)
        });
        let mut why = Value::Null;
        until("it waits", || {
            let shown = nodes.get(3, "/v1/locks/a");
            why = shown.json["waiters"][0]["why"].clone();
            why["code"] == "held"
        });
        let text = why["text"].as_str().unwrap();
        assert!(
            text.contains("held by ann (group red; this asks for alone)"),
            "{text}"
        );
        nodes.release(3, &held.json["handle"]);
        assert_eq!(waiter.join().unwrap().status, 200);
    });
}

/// A release of which no node heard is not called one.
#[test]
fn a_release_is_only_told_when_the_lock_is_free() {
    let mut nodes = Nodes::start(3);
    let held = nodes.lock(1, "a");
    drop(nodes.running[1].take());
    drop(nodes.running[2].take());
    let released = nodes.release(1, &held["handle"]);
    assert_eq!(
        (released.status, released.code()),
        (503, "not_released"),
        "{released:?}"
    );
    // What it says to do does no harm, and is as true the second time.
    let again = nodes.release(1, &held["handle"]);
    assert_eq!(again.code(), "not_released", "{again:?}");
}

/// One node of three that is gone stands in nobody's way.
#[test]
fn a_release_needs_no_node_that_others_can_do_without() {
    let mut nodes = Nodes::start(3);
    let names: Vec<String> = (0..6).map(|number| format!("a{number}")).collect();
    let held: Vec<Value> = names.iter().map(|name| nodes.lock(1, name)).collect();
    drop(nodes.running[2].take());
    for (name, held) in names.iter().zip(&held) {
        let released = nodes.release(1, &held["handle"]);
        assert_eq!(released.json, json!({ "released": true }), "{released:?}");
        nodes.until_free(2, name);
    }
}
