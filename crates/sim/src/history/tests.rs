//! A good history holds, and each property has a bad one that is found.

use std::sync::Arc;

use conclave_protocol::lock::{Config, Policy, Quorums};
use serde_json::{Value, json};

use super::line::{ClientWord, HistoryError, Line, read};
use super::*;

fn config(change: impl FnOnce(&mut Policy)) -> Arc<Config> {
    let spec = conclave_quorum::text::parse("majority(3)").unwrap();
    let no_files = |_: &str| Err("no files here".to_owned());
    let built = conclave_quorum::build::build(&spec, None, &no_files).unwrap();
    let mut config = Config::new(Quorums::new(&built.system, &[]).unwrap());
    let mut policy = Policy::default();
    change(&mut policy);
    config.policies.push((Vec::new(), policy));
    Arc::new(config)
}

/// Lines written by hand. Client `c` asks in session `c`, request `c`; its grants have the number
/// of the round in which it asks.
#[derive(Default)]
struct Script {
    text: String,
    at: u64,
    mode: &'static str,
}

impl Script {
    fn new() -> Self {
        Self {
            text: String::new(),
            at: 0,
            mode: "exclusive",
        }
    }

    /// Writes one line, ten later than the last one, with more fields.
    fn line(&mut self, mut line: Value, more: &Value) -> &mut Self {
        self.at += 10;
        line["at"] = json!(self.at);
        for (key, value) in more.as_object().unwrap() {
            line[key] = value.clone();
        }
        self.text += &line.to_string();
        self.text.push('\n');
        self
    }

    fn node(&mut self, node: u32, event: &str, client: u32, grant: u64, more: &Value) -> &mut Self {
        let line = json!({
            "node": node, "event": event, "name": "x", "mode": self.mode,
            "session": format!("{client:x}"), "request": client, "bond": "attached",
            "priority": [client, format!("{client:x}"), client], "grant": grant,
        });
        self.line(line, more)
    }

    fn granted(&mut self, node: u32, client: u32, grant: u64) -> &mut Self {
        let more = json!({"floor": 0, "limit": 1000});
        self.node(node, "granted", client, grant, &more)
    }

    fn ended(&mut self, node: u32, client: u32, grant: u64, why: &str) -> &mut Self {
        self.node(node, "ended", client, grant, &json!({"why": why}))
    }

    fn client(&mut self, client: u32, event: &str, more: &Value) -> &mut Self {
        let line = json!({"client": client, "event": event, "key": 1, "name": "x"});
        self.line(line, more)
    }

    fn entered(
        &mut self,
        client: u32,
        token: u64,
        members: &[(u32, u64)],
        until: u64,
    ) -> &mut Self {
        let more = json!({"mode": self.mode, "token": token, "members": members, "until": until});
        self.client(client, "entered", &more)
    }

    fn acted(&mut self, client: u32, token: u64, admitted: bool) -> &mut Self {
        let more = json!({"token": token, "admitted": admitted});
        self.client(client, "acted", &more)
    }

    /// Client `client` holds the lock on nodes 1 and 2 with this token.
    fn holds(&mut self, client: u32, token: u64, until: u64) -> &mut Self {
        let grant = u64::from(client);
        self.granted(1, client, grant).granted(2, client, grant);
        self.entered(client, token, &[(1, grant), (2, grant)], until)
    }

    fn leaves(&mut self, client: u32, token: u64) -> &mut Self {
        let (grant, why) = (u64::from(client), format!("done:{token}"));
        self.client(client, "released", &json!({}));
        self.ended(1, client, grant, &why)
            .ended(2, client, grant, &why)
    }

    fn lines(&self) -> Vec<Line> {
        read("test", self.text.as_bytes()).unwrap()
    }

    fn verdict(&self) -> Verdict {
        check(&config(|_| {}), self.lines())
    }

    fn holds_good(&self) -> Verdict {
        let verdict = self.verdict();
        assert!(verdict.holds(), "{:?}", verdict.violations);
        verdict
    }

    /// The properties that it breaks, each once.
    fn broken(&self) -> Vec<&'static str> {
        properties(&self.verdict())
    }
}

fn properties(verdict: &Verdict) -> Vec<&'static str> {
    let mut all: Vec<_> = verdict.violations.iter().map(|one| one.property).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(verdict.broken > 0, !all.is_empty());
    all
}

#[test]
fn a_good_history_holds_and_is_counted() {
    let mut script = Script::new();
    for node in 1..=3 {
        script.line(
            json!({"node": node, "event": "start", "incarnation": 1}),
            &json!({}),
        );
        script.line(json!({"node": node, "event": "serving"}), &json!({}));
    }
    script.client(1, "asked", &json!({"mode": "exclusive"}));
    script.holds(1, 5, 1000).acted(1, 5, true);
    script
        .client(1, "moved", &json!({"until": 2000}))
        .leaves(1, 5);
    script.at = 5_000;
    script.holds(2, 6, 9_000).acted(2, 6, true).leaves(2, 6);
    script.granted(2, 3, 3).granted(3, 3, 3);
    let more = json!({
        "mode": "exclusive", "token": 7, "members": [[2, 3], [3, 3]], "until": 20_000,
        "kind": "thin", "life": 2,
    });
    script.client(3, "entered", &more);
    script.line(
        json!({"client": 3, "life": 2, "event": "vanished"}),
        &json!({}),
    );
    script.ended(2, 3, 3, "expired").ended(3, 3, 3, "expired");
    script.line(json!({"node": 3, "event": "start"}), &json!({}));
    script.line(json!({"event": "healed"}), &json!({}));
    let verdict = script.holds_good();
    assert_eq!(verdict.lines, script.text.lines().count());
    assert_eq!(verdict.all.acquisitions, 3);
    assert_eq!(
        (verdict.smart.acquisitions, verdict.thin.acquisitions),
        (2, 1)
    );
    let pause = verdict.smart.longest_pause;
    assert!(pause > Duration::from_nanos(4_900), "{pause:?}");
    assert_eq!(verdict.thin.longest_pause, Duration::ZERO);
    assert_eq!(verdict.locks[&Name::new("x")], 3);
    assert_eq!(
        (verdict.admitted, verdict.refused, verdict.crashes),
        (2, 0, 1)
    );
    assert_eq!(verdict.left_out, ["structure", "migration", "memory"]);
    assert!(verdict.checked.contains(&"exclusion") && verdict.checked.contains(&QUORUM));
}

#[test]
fn the_order_of_files_does_not_matter() {
    let mut script = Script::new();
    script.holds(1, 5, 1000).leaves(1, 5).holds(2, 6, 2000);
    let mut lines = script.lines();
    lines.reverse();
    assert!(check(&config(|_| {}), lines).holds());
}

#[test]
fn an_overlap_is_found() {
    let mut script = Script::new();
    script.holds(1, 5, 1000);
    script
        .granted(3, 2, 2)
        .granted(2, 2, 2)
        .entered(2, 6, &[(2, 2), (3, 2)], 1000);
    assert_eq!(script.broken(), ["exclusion", "lost-in-time"]);

    // Without a single grant known, the clients' word is enough.
    let mut script = Script::new();
    script.entered(1, 5, &[], 1000).entered(2, 6, &[], 1000);
    assert_eq!(script.broken(), ["exclusion"]);
}

#[test]
fn an_overlap_that_a_later_line_shows_is_found() {
    let mut script = Script::new();
    script.entered(1, 5, &[], 15);
    script.entered(2, 6, &[], 1000);
    script.holds_good();
    script.client(1, "moved", &json!({"until": 500}));
    assert_eq!(script.broken(), ["exclusion"]);
}

#[test]
fn members_of_a_group_share() {
    for (mode, broken) in [("shared", false), ("group:a", false), ("exclusive", true)] {
        let mut script = Script::new();
        script.mode = mode;
        script.entered(1, 5, &[], 1000).entered(2, 5, &[], 1000);
        assert_eq!(!script.verdict().holds(), broken, "{mode}");
    }
}

#[test]
fn a_paused_holder_whose_deadline_passed_is_outside() {
    let mut script = Script::new();
    script.holds(1, 5, 45);
    script.at = 50;
    script.ended(1, 1, 1, "expired").ended(2, 1, 1, "expired");
    script
        .holds(2, 6, 1000)
        .acted(2, 6, true)
        .acted(1, 5, false);
    script.client(1, "lost", &json!({}));
    let verdict = script.holds_good();
    assert_eq!((verdict.lost, verdict.refused), (1, 1));
}

#[test]
fn a_grant_taken_from_a_believer_is_found() {
    for why in ["expired", "lapsed"] {
        let mut script = Script::new();
        script.holds(1, 5, 1000).ended(2, 1, 1, why);
        assert_eq!(script.broken(), ["lost-in-time"], "{why}");
    }
    // With a third grant no single one is needed.
    let mut script = Script::new();
    script
        .holds(1, 5, 1000)
        .granted(3, 1, 1)
        .ended(2, 1, 1, "expired");
    script.holds_good();
    // An operator may take anything.
    let mut script = Script::new();
    script.holds(1, 5, 1000).ended(2, 1, 1, "revoked");
    script.holds_good();
}

#[test]
fn a_node_that_forgot_a_believer_in_a_crash_is_found() {
    let mut script = Script::new();
    script.line(json!({"node": 2, "event": "start"}), &json!({}));
    script.holds(1, 5, 1000);
    script.line(json!({"node": 2, "event": "start"}), &json!({}));
    script.holds_good();
    script.granted(2, 2, 9);
    assert_eq!(script.broken(), ["lost-in-time"]);
}

#[test]
fn a_holder_that_gave_up_before_its_caller_heard_is_outside() {
    let mut script = Script::new();
    script.holds(1, 5, 1000);
    script.ended(1, 1, 1, "done:5").ended(2, 1, 1, "done:5");
    script.holds(2, 6, 1000);
    script.holds_good();
    let before_it_heard = script.text.clone();
    script.client(1, "lost", &json!({}));
    script.holds_good();
    // If it says later that it holds on, it is believed, and found.
    script.text = before_it_heard;
    script.client(1, "moved", &json!({"until": 1000}));
    assert_eq!(script.broken(), ["exclusion", "quorum"]);
}

#[test]
fn tokens_that_go_back_are_found() {
    let mut script = Script::new();
    script.holds(1, 5, 1000).leaves(1, 5).holds(2, 5, 1000);
    assert_eq!(script.broken(), ["token-order"]);

    let mut script = Script::new();
    script
        .entered(1, 7, &[], 1000)
        .client(1, "released", &json!({}));
    script.entered(2, 6, &[], 1000);
    assert_eq!(script.broken(), ["token-order"]);
}

#[test]
fn a_hold_without_its_own_grants_is_found() {
    let mut script = Script::new();
    script
        .granted(1, 1, 1)
        .entered(1, 5, &[(1, 1), (2, 1)], 1000);
    assert_eq!(script.broken(), ["grounded", "quorum"]);
    let mut script = Script::new();
    script
        .granted(1, 1, 1)
        .granted(2, 2, 2)
        .entered(1, 5, &[(1, 1), (2, 2)], 1000);
    assert!(script.broken().contains(&"grounded"));
}

#[test]
fn a_hold_on_less_than_a_quorum_is_found() {
    let mut script = Script::new();
    script.granted(1, 1, 1).entered(1, 5, &[(1, 1)], 1000);
    assert_eq!(script.broken(), ["quorum"]);
}

#[test]
fn a_wrong_fence_is_found() {
    let mut script = Script::new();
    script.holds(1, 5, 1000).acted(1, 5, true).leaves(1, 5);
    script.holds(2, 6, 1000).acted(2, 6, true);
    script.holds_good();
    script.acted(1, 5, true);
    assert_eq!(script.broken(), ["admission"], "it admitted the past");

    let mut script = Script::new();
    script.holds(1, 5, 1000).acted(1, 5, false);
    assert_eq!(script.broken(), ["admission"], "it refused a holder");
}

#[test]
fn policies_of_nodes_are_checked() {
    let mut script = Script::new();
    script.mode = "group:a";
    script.granted(1, 1, 1).granted(1, 2, 2);
    let limited = config(|policy| policy.max_inside = 1);
    assert_eq!(properties(&check(&limited, script.lines())), ["max-inside"]);
    script.holds_good();

    let strict = config(|policy| policy.max_bypass = 1);
    let mut script = Script::new();
    script.mode = "group:a";
    script.granted(1, 1, 1);
    let late = json!({"floor": 0, "limit": 9, "bypass": true});
    script.node(1, "granted", 2, 2, &late);
    assert!(check(&strict, script.lines()).holds());
    script.node(1, "granted", 3, 3, &late);
    assert_eq!(properties(&check(&strict, script.lines())), ["bypass"]);
}

#[test]
fn a_forgotten_request_is_found_once_faults_have_ended() {
    let mut script = Script::new();
    script.client(1, "asked", &json!({}));
    let verdict = script.holds_good();
    assert!(verdict.left_out.contains(&"no-forgotten"));
    script.line(json!({"event": "healed"}), &json!({}));
    assert_eq!(script.broken(), ["no-forgotten"]);
    script.client(1, "ended", &json!({}));
    script.holds_good();
}

#[test]
fn a_damaged_line_is_named() {
    let good = "{\"at\":1,\"node\":1,\"event\":\"serving\"}\n";
    for bad in [
        "{\"at\":1,\"node\":1,\"event\":\"dancing\"}",
        "{\"at\":1,\"node\":0,\"event\":\"serving\"}",
        "{\"at\":1,\"node\":1,\"event\":\"granted\"}",
        "{\"at\":-1,\"node\":1,\"event\":\"serving\"}",
        "{\"at\":1,\"client\":1,\"event\":\"entered\",\"key\":1,\"name\":\"x\"}",
        "{\"at\":1,\"client\":1,\"event\":\"asked\",\"name\":\"x\"}",
        "{\"at\":1,\"event\":\"hurt\"}",
        "{\"at\":1,\"nod",
        "\u{1}\u{2}",
        "[]",
    ] {
        let text = format!("{good}\n{bad}\n{good}");
        let error = read("here.jsonl", text.as_bytes()).unwrap_err();
        assert!(
            matches!(error, HistoryError::Damaged { line: 3, .. }),
            "{bad}"
        );
        let shown = error.to_string();
        assert!(
            shown.starts_with("line 3 of the history here.jsonl is damaged"),
            "{shown}"
        );
    }
}

#[test]
fn half_a_line_at_the_end_is_left_out() {
    let mut script = Script::new();
    script.holds(1, 5, 1000).leaves(1, 5);
    let whole = script.lines();
    let last = script.text.trim_end().rfind('\n').unwrap() + 1;
    for cut in last..script.text.len() - 1 {
        let lines = read("test", &script.text.as_bytes()[..cut]).unwrap();
        assert_eq!(lines, whole[..whole.len() - 1]);
    }
    let all = read("test", script.text.trim_end().as_bytes()).unwrap();
    assert_eq!(all, whole, "only its end of line is missing");
}

#[test]
fn lines_of_clients_come_back_as_written() {
    let mut line = ClientLine {
        at: 7,
        client: 3,
        kind: Kind::Thin,
        event: ClientWord::Entered,
        key: Some(u64::MAX),
        mode: Some("group:g".to_owned()),
        token: Some(1),
        members: vec![(1, u64::MAX)],
        until: Some(9),
        ..ClientLine::default()
    };
    for name in [b"a/b \"c\"".as_slice(), &[0xff, 0]] {
        (line.name, line.name_b64) = (None, None);
        line.set_lock(name);
        let text = serde_json::to_string(&line).unwrap();
        let back = line::parse(text.as_bytes()).unwrap();
        assert_eq!(back, Line::Client(line.clone()));
        assert_eq!(line.lock(), Some(Name::new(name)));
    }
}
