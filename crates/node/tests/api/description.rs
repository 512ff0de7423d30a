//! The description of the API is true: what nodes answer is what it says, and it says all.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use super::harness::{Answer, Nodes, call, send, until};
use super::schema::differs;

/// What a call is, by its path in the description.
struct Told {
    document: Value,
    /// Calls whose good answers were compared.
    seen: BTreeSet<(String, String)>,
}

impl Told {
    fn of(nodes: &Nodes) -> Self {
        let document = nodes.get(1, "/v1/openapi.json").json;
        Self {
            document,
            seen: BTreeSet::new(),
        }
    }

    fn calls(&self) -> BTreeSet<(String, String)> {
        let paths = self.document["paths"].as_object().unwrap().iter();
        let calls = paths.flat_map(|(path, calls)| {
            let methods = calls.as_object().unwrap().keys();
            methods.map(move |method| (method.to_uppercase(), path.clone()))
        });
        calls.collect()
    }

    /// Compares an answer with what its call is said to answer.
    fn compare(&mut self, method: &str, path: &str, answer: &Answer) {
        let call = &self.document["paths"][path][method.to_lowercase()];
        let told = &call["responses"][answer.status.to_string()];
        assert!(told.is_object(), "{method} {path}: {answer:?}");
        let kind = answer
            .head
            .lines()
            .find_map(|line| line.strip_prefix("content-type: "));
        let kind = kind.unwrap().split(';').next().unwrap();
        let content = &told["content"][kind];
        assert!(content.is_object(), "{method} {path}: {kind}: {told}");
        if kind == "application/json" {
            let problem = differs(&self.document, &content["schema"], &answer.json);
            assert_eq!(problem, None, "{method} {path}: {}", answer.text);
        }
        if answer.status == 200 {
            self.seen.insert((method.to_owned(), path.to_owned()));
        }
    }
}

/// Calls a path that a template describes, and compares.
fn compare(
    nodes: &Nodes,
    told: &mut Told,
    method: &str,
    template: &str,
    path: &str,
    body: &Value,
) -> Answer {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let answer = call(nodes.api(1), method, path, &body);
    told.compare(method, template, &answer);
    answer
}

#[test]
fn what_nodes_answer_is_what_is_described() {
    let nodes = Nodes::start(3);
    let mut told = Told::of(&nodes);
    let none = Value::Null;
    for path in [
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/cluster",
        "/v1/openapi.json",
    ] {
        compare(&nodes, &mut told, "GET", path, path, &none);
    }
    let told = &mut told;
    locks(&nodes, told);
    leases(&nodes, told);
    objects(&nodes, told);
    for query in ["", "?local=true"] {
        for path in ["/v1/status", "/v1/sessions", "/v1/locks"] {
            compare(&nodes, told, "GET", path, &format!("{path}{query}"), &none);
        }
        let (template, path) = ("/v1/sessions/{id}/revoke", "/v1/sessions/ab/revoke");
        compare(
            &nodes,
            told,
            "POST",
            template,
            &format!("{path}{query}"),
            &none,
        );
    }
    watches(&nodes, told);
    assert_eq!(
        told.calls().difference(&told.seen).collect::<Vec<_>>(),
        Vec::<&(_, _)>::new()
    );
}

fn locks(nodes: &Nodes, told: &mut Told) {
    let acquire = "/v1/locks/{name}/acquire";
    let keep = "/v1/locks/keepalive";
    let release = "/v1/locks/release";
    let body = json!({
        "mode": {"group": {"base64": "/w=="}},
        "ttl_ms": 50_000, "note": "n", "id": "i", "owner": "o"
    });
    let held = compare(nodes, told, "POST", acquire, "/v1/locks/a/b/acquire", &body);
    let handle = json!({ "handle": held.json["handle"] });
    compare(nodes, told, "POST", keep, keep, &handle);
    let slot = json!({ "slots": 2, "wait_ms": 0 });
    compare(nodes, told, "POST", acquire, "/v1/locks/s/acquire", &slot);
    // Somebody waits, for whom there are more words.
    let wish = json!({ "ttl_ms": 50_000 }).to_string();
    let waiting = send(nodes.api(2), "POST", "/v1/locks/a/b/acquire", "", &wish);
    until("it waits", || {
        nodes.get(1, "/v1/locks/a/b").json["waiters"] != json!([])
    });
    let refused = compare(
        nodes,
        told,
        "POST",
        acquire,
        "/v1/locks/a/b/acquire",
        &json!({ "wait_ms": 0 }),
    );
    assert_eq!((refused.status, refused.code()), (409, "not_acquired"));
    for query in ["", "?local=1"] {
        let path = format!("/v1/locks/a/b{query}");
        let shown = compare(nodes, told, "GET", "/v1/locks/{name}", &path, &Value::Null);
        assert_eq!(shown.status, 200);
    }
    let page = compare(
        nodes,
        told,
        "GET",
        "/v1/locks",
        "/v1/locks?limit=1",
        &Value::Null,
    );
    assert!(page.json["next"].is_string(), "{page:?}");
    let next = format!(
        "/v1/locks?limit=1&cursor={}",
        page.json["next"].as_str().unwrap()
    );
    compare(nodes, told, "GET", "/v1/locks", &next, &Value::Null);
    drop(waiting);
    compare(nodes, told, "POST", release, release, &handle);
    compare(nodes, told, "POST", keep, keep, &handle);
    for (method, path, template, body) in [
        ("POST", "/v1/locks/%/acquire", acquire, json!({})),
        ("POST", acquire, acquire, json!({ "ttl_ms": 1 })),
        ("POST", acquire, acquire, json!([])),
        ("POST", release, release, json!({ "handle": "x" })),
        ("GET", "/v1/locks?limit=0", "/v1/locks", Value::Null),
        (
            "GET",
            "/v1/locks/a?local=2",
            "/v1/locks/{name}",
            Value::Null,
        ),
    ] {
        let answer = compare(nodes, told, method, template, path, &body);
        assert_eq!(answer.status, 400, "{method} {path}");
    }
    let refused = call(nodes.api(1), "DELETE", "/v1/locks", "");
    told.compare("GET", "/v1/locks", &refused);
    assert_eq!(refused.status, 405);
}

fn leases(nodes: &Nodes, told: &mut Told) {
    let acquire = "/v1/leases/{name}/acquire";
    let body = json!({ "for_ms": 30_000, "wait_ms": 10_000 });
    let held = compare(nodes, told, "POST", acquire, "/v1/leases/l/acquire", &body);
    let handle = json!({ "handle": held.json["handle"] });
    let (renew, release) = ("/v1/leases/renew", "/v1/leases/release");
    compare(nodes, told, "POST", renew, renew, &handle);
    let refused = compare(
        nodes,
        told,
        "POST",
        acquire,
        "/v1/leases/l/acquire",
        &json!({ "wait_ms": 0 }),
    );
    assert_eq!(refused.status, 409);
    compare(nodes, told, "POST", release, release, &handle);
    let ended = compare(nodes, told, "POST", renew, renew, &handle);
    assert_eq!(ended.status, 410);
}

fn objects(nodes: &Nodes, told: &mut Told) {
    let steps = [
        (
            "counter",
            vec![json!({"op": "add", "amount": -3}), json!({"op": "get"})],
        ),
        (
            "register",
            vec![
                json!({"op": "get"}),
                json!({"op": "set", "value": "v"}),
                json!({"op": "get"}),
            ],
        ),
        (
            "map",
            vec![
                json!({"op": "set", "key": "k", "value": {"base64": "/w=="}, "if_absent": true}),
                json!({"op": "set", "key": "k", "value": "v", "if_version": 0}),
                json!({"op": "get", "key": "k"}),
                json!({"op": "list", "prefix": "k", "limit": 1}),
                json!({"op": "remove", "key": "k"}),
                json!({"op": "remove", "key": "k"}),
            ],
        ),
        (
            "queue",
            vec![
                json!({"op": "pop"}),
                json!({"op": "push", "value": "v"}),
                json!({"op": "peek"}),
                json!({"op": "len"}),
                json!({"op": "pop"}),
            ],
        ),
        (
            "log",
            vec![
                json!({"op": "append", "value": "v"}),
                json!({"op": "read", "from": 0}),
                json!({"op": "len"}),
                json!({"op": "trim", "to": 1}),
            ],
        ),
    ];
    for (kind, ops) in steps {
        let (template, path) = (
            format!("/v1/objects/{kind}/{{name}}"),
            format!("/v1/objects/{kind}/{kind}"),
        );
        let last = [
            json!({"op": "acl", "write": ["*"], "read": ["ada"]}),
            json!({"op": "what"}),
        ];
        for op in ops.into_iter().chain(last) {
            compare(nodes, told, "POST", &template, &path, &op);
        }
        compare(nodes, told, "GET", &template, &path, &Value::Null);
        compare(
            nodes,
            told,
            "POST",
            &template,
            &path,
            &json!({"op": "delete"}),
        );
    }
}

/// Watches never end: their heads and first events are compared.
fn watches(nodes: &Nodes, told: &mut Told) {
    nodes.lock(1, "w");
    let state = told.document["components"]["schemas"]["LockState"].clone();
    for (template, path) in [
        ("/v1/watch", "/v1/watch?prefix=w"),
        ("/v1/locks/{name}/watch", "/v1/locks/w/watch"),
    ] {
        let mut lines = BufReader::new(send(nodes.api(1), "GET", path, "", "")).lines();
        let mut head = Vec::new();
        for line in lines.by_ref().map(Result::unwrap) {
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        let answer = Answer::parse(format!("{}\r\n\r\n", head.join("\n")).as_bytes());
        told.compare("GET", template, &answer);
        let data = lines
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
        let event: Value = serde_json::from_str(&data.unwrap()).unwrap();
        assert_eq!(differs(&told.document, &state, &event), None, "{event}");
    }
}

#[test]
fn every_call_that_is_described_is_there_and_takes_only_what_it_says() {
    let nodes = Nodes::start(1);
    let told = Told::of(&nodes);
    for (method, template) in told.calls() {
        let path = template.replace("{name}", "a").replace("{id}", "ab");
        let call_of = &told.document["paths"][&template][method.to_lowercase()];
        assert!(call_of["summary"].is_string(), "{method} {template}");
        if template.ends_with("watch") {
            continue;
        }
        let answer = call(nodes.api(1), &method, &path, "");
        assert!(
            ![404, 405].contains(&answer.status),
            "{method} {path}: {answer:?}"
        );
        let body = call_of["requestBody"].is_object();
        if body {
            let answer = call(nodes.api(1), &method, &path, r#"{"nothing_like_this":1}"#);
            assert_eq!(answer.code(), "bad_request", "{method} {path}: {answer:?}");
        }
        let parameters = call_of["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
            let name = parameter["name"].as_str().unwrap();
            let answer = call(nodes.api(1), &method, &format!("{path}?{name}=%"), "");
            let message = answer.json["error"]["message"].as_str().unwrap_or_default();
            assert!(
                message.starts_with(name),
                "{method} {path}: {name}: {answer:?}"
            );
        }
    }
}
