//! `conclave status`, `locks`, `show` and `sessions`: what is going on in a cluster, as any of its
//! nodes tells.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use conclave_wire::Span;
use serde_json::Value;
use tokio::task::JoinSet;

use super::find::{Endpoints, Target};
use super::place::shown;
use super::{http, runtime};
use crate::cli::Failure;
use crate::output;

/// How long a node may take to answer; it asks the others meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// The shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// How a look is shown.
#[derive(Debug, Args)]
struct How {
    #[command(flatten)]
    endpoints: Endpoints,
    /// Look again and again, every second unless said otherwise
    #[arg(long, value_name = "SPAN", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1s")]
    watch: Option<Span>,
    /// Print JSON; with --watch a line each time
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Locks {
    /// Only locks whose name begins so
    prefix: Option<OsString>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The lock
    name: OsString,
    /// Mark the requests of this session: the beginning of its id
    #[arg(long, value_name = "S")]
    session: Option<String>,
    /// Mark the requests of this user on this machine
    #[arg(long)]
    mine: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Sessions {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    how: How,
}

impl Status {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let told = self.how.look("/v1/status", &status_text)?;
        // Scripts ask for the code: no quorum serves.
        if told["available"] == Value::Bool(false) {
            return Err(Failure::Exit(5));
        }
        Ok(())
    }
}

impl Locks {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let prefix = self
            .prefix
            .as_ref()
            .map_or(&b""[..], |text| text.as_bytes());
        let prefix = encoded(prefix);
        let path = format!("/v1/locks?limit={}&prefix={prefix}", self.limit);
        self.how.look(&path, &locks_text).map(drop)
    }
}

impl Show {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.name.is_empty() {
            return Err(Failure::input("NAME is empty: name a lock"));
        }
        let path = lock_path(self.name.as_bytes());
        let mark = Mark {
            session: self.session.clone(),
            owner: self.mine.then(own_prefix),
        };
        self.how
            .look(&path, &|told: &Value| show_text(told, &mark))
            .map(drop)
    }
}

/// Where a node tells about a lock.
pub(super) fn lock_path(name: &[u8]) -> String {
    format!("/v1/locks/{}", encoded(name))
}

/// Where a node tells about the slots of a semaphore.
pub(super) fn slots_path(name: &[u8]) -> String {
    format!("/v1/locks?limit=1000&prefix={}~", encoded(name))
}

/// How the labels of this user's requests on this machine begin.
fn own_prefix() -> String {
    let owner = conclave_client::default_owner();
    let end = owner.rfind(" pid ").map_or(owner.len(), |end| end + 5);
    owner[..end].to_owned()
}

/// Whose requests are marked.
#[derive(Debug, Default)]
struct Mark {
    session: Option<String>,
    owner: Option<String>,
}

impl Mark {
    /// The cell that names who made a request.
    fn cell(&self, request: &Value) -> String {
        let begins = |field: &str, with: &Option<String>| {
            let value = request[field].as_str();
            with.as_ref()
                .zip(value)
                .is_some_and(|(with, value)| value.starts_with(with.as_str()))
        };
        let marked = begins("session", &self.session) || begins("owner", &self.owner);
        let mark = if marked { "* " } else { "" };
        format!("{mark}{}", text(&request["owner"]))
    }
}

impl Sessions {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let path = format!("/v1/sessions?limit={}", self.limit);
        self.how.look(&path, &sessions_text).map(drop)
    }
}

impl How {
    /// Shows what nodes answer at this path, once or again and again.
    fn look(&self, path: &str, text: &dyn Fn(&Value) -> String) -> Result<Value, Failure> {
        let target = self.endpoints.find()?;
        runtime()?.block_on(async {
            let Some(Span(pause)) = self.watch else {
                let told = ask(&target, path).await?;
                self.print(&told, text)?;
                return Ok(told);
            };
            let clear = !self.json && io::stdout().is_terminal();
            loop {
                let told = ask(&target, path).await;
                if clear {
                    output::raw(b"\x1b[H\x1b[2J")?;
                }
                match told {
                    Ok(told) => self.print(&told, text)?,
                    // A cluster that is down now may be up at the next look.
                    Err(Failure::NoQuorum(message)) => anstream::eprintln!("error: {message}"),
                    Err(failure) => return Err(failure),
                }
                tokio::time::sleep(pause.max(PAUSE_MIN)).await;
            }
        })
    }

    fn print(&self, told: &Value, text: &dyn Fn(&Value) -> String) -> Result<(), Failure> {
        match (self.json, self.watch) {
            (true, None) => output::json(told),
            (true, Some(_)) => output::line(told.to_string()),
            (false, None) => output::line(text(told)),
            (false, Some(_)) => output::line(format!("{}\n", text(told))),
        }
    }
}

/// The first good answer of any endpoint.
pub(super) async fn ask(target: &Target, path: &str) -> Result<Value, Failure> {
    let mut asked = JoinSet::new();
    for endpoint in &target.urls {
        let url = format!("{endpoint}{path}");
        let (endpoint, security) = (endpoint.clone(), target.security.clone());
        asked.spawn(async move {
            let answer = http::get(&url, &security, PATIENCE).await;
            (endpoint, answer)
        });
    }
    let mut troubles = Vec::new();
    while let Some(done) = asked.join_next().await {
        let Ok((endpoint, answer)) = done else {
            continue;
        };
        let trouble = match answer {
            Ok(answer) if answer.status == 200 => match answer.json() {
                Ok(told) => return Ok(told),
                Err(trouble) => trouble,
            },
            Ok(answer) if answer.status / 100 == 4 => {
                return Err(Failure::Input(answer.trouble()));
            }
            Ok(answer) => answer.trouble(),
            Err(trouble) => trouble,
        };
        troubles.push(format!("{endpoint}: {trouble}"));
    }
    troubles.sort();
    Err(Failure::NoQuorum(format!(
        "no endpoint answers ({}); is the cluster running?",
        shown(&troubles.join("; "))
    )))
}

fn status_text(told: &Value) -> String {
    let mut table = output::table(&[
        "NODE", "STATE", "LOCKS", "SESSIONS", "CLIENTS", "LEASES", "OBJECTS", "UP FOR", "API",
    ]);
    for node in list(&told["nodes"]) {
        let status = &node["status"];
        let state = match status["state"].as_str() {
            Some(state) => shown(state),
            None => format!("unreachable ({})", text(&node["why"])),
        };
        let up = status["uptime_ms"]
            .as_u64()
            .map_or(String::new(), span_text);
        table.add_row([
            text(&node["id"]),
            state,
            text(&status["locks"]),
            text(&status["sessions"]),
            text(&status["clients"]),
            text(&status["keeper"]["leases"]),
            objects_cell(&status["keeper"]),
            up,
            text(&node["api"]),
        ]);
    }
    let quorum = if told["available"] == Value::Bool(true) {
        "a quorum serves"
    } else {
        "NO QUORUM SERVES: no lock can be taken"
    };
    format!(
        "cluster '{}', epoch {}, {}: {quorum}\n\n{}{}{}{}",
        text(&told["cluster"]),
        text(&told["epoch"]),
        text(&told["quorum"]),
        table.trim_fmt(),
        levels_text(told),
        clocks_text(told),
        suspects_text(told)
    )
}

/// What nodes do in the clusters of a hierarchy; nothing where there is none.
fn levels_text(told: &Value) -> String {
    let mut table = output::table(&[
        "NODE",
        "CLUSTERS",
        "REPRESENTS",
        "CONSENTS",
        "WANTED",
        "OUT OF REACH",
    ]);
    let mut rows = 0;
    for node in list(&told["nodes"]) {
        let levels = &node["status"]["levels"];
        let seats = list(&levels["clusters"]);
        let Some(last) = seats.last() else { continue };
        rows += 1;
        let members = |seat: &Value| {
            let members: Vec<String> = list(&seat["members"]).iter().map(text).collect();
            format!("{}: {}", text(&seat["level"]), members.join(" "))
        };
        let clusters: Vec<String> = seats.iter().map(members).collect();
        let above = seats.iter().filter(|seat| seat["level"] != last["level"]);
        let runs = above.filter_map(|seat| seat["runs"].as_u64());
        let suspected: Vec<String> = list(&levels["suspected"]).iter().map(text).collect();
        table.add_row([
            text(&node["id"]),
            clusters.join(", "),
            runs.sum::<u64>().to_string(),
            text(&levels["held"]),
            text(&levels["wanted"]),
            suspected.join(" "),
        ]);
    }
    if rows == 0 {
        return String::new();
    }
    format!("\n\n{}", table.trim_fmt())
}

/// How many objects a node has, and what keeps it from serving them.
fn objects_cell(keeper: &Value) -> String {
    let behind = keeper["behind"].as_u64().unwrap_or(0);
    match keeper["serving"].as_bool() {
        Some(false) => "lost, rejoining".to_owned(),
        _ if behind > 0 => format!("{} ({behind} behind)", text(&keeper["objects"])),
        _ => text(&keeper["objects"]),
    }
}

/// Who differs from what enough others say, as all nodes together have seen it.
fn suspects_text(told: &Value) -> String {
    let mut seen: BTreeMap<u64, BTreeMap<String, u64>> = BTreeMap::new();
    for node in list(&told["nodes"]) {
        for suspect in list(&node["status"]["keeper"]["suspects"]) {
            let (node, count) = (suspect["node"].as_u64(), suspect["count"].as_u64());
            let kinds = seen.entry(node.unwrap_or(0)).or_default();
            *kinds.entry(text(&suspect["kind"])).or_default() += count.unwrap_or(0);
        }
    }
    let mut lines = String::new();
    for (node, kinds) in seen {
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, count)| format!("{kind} {count} times"))
            .collect();
        let line = format!(
            "\n\nsuspect: node {node} differs from what enough others say ({})",
            kinds.join(", ")
        );
        lines.push_str(&line);
    }
    lines
}

/// Nodes whose clocks keep them from taking part.
fn clocks_text(told: &Value) -> String {
    let mut lines = String::new();
    let mut refusing: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for node in list(&told["nodes"]) {
        let (id, status) = (text(&node["id"]), &node["status"]);
        if status["clock_ignored"] == Value::Bool(true) {
            let _ = write!(
                lines,
                "\n\nclock: node {id} is set to an impossible time, which is ignored; set its clock"
            );
        }
        for seen in list(&status["refusing"]) {
            let by = refusing.entry(seen["node"].as_u64().unwrap_or(0));
            by.or_default().push(id.clone());
        }
    }
    for (node, by) in refusing {
        let _ = write!(
            lines,
            "\n\nrefusing: node {node} refuses tokens that others know (seen by {}) and is \
             avoided; see that it can reach the other nodes",
            by.join(", ")
        );
    }
    lines
}

fn locks_text(told: &Value) -> String {
    let locks = list(&told["locks"]);
    if locks.is_empty() {
        return format!("no locks{}", footnotes(told));
    }
    let mut table = output::table(&["LOCK", "MODE", "HOLDERS", "TOKEN", "WAITING"]);
    for lock in locks {
        let holders = list(&lock["holders"]);
        let first = holders.first();
        let owners = match holders.len() {
            0 => "-".to_owned(),
            1 => text(&holders[0]["owner"]),
            many => format!("{} and {} more", text(&holders[0]["owner"]), many - 1),
        };
        let tokens = holders.iter().filter_map(|holder| holder["token"].as_u64());
        let token = tokens
            .max()
            .map_or("-".to_owned(), |token| token.to_string());
        table.add_row([
            text(&lock["name"]),
            first.map_or("-".to_owned(), |holder| mode(&holder["mode"])),
            owners,
            token,
            list(&lock["waiters"]).len().to_string(),
        ]);
    }
    let more = told["next"]
        .as_str()
        .map_or("", |_| "\n\nthere are more: raise --limit");
    format!("{}{more}{}", table.trim_fmt(), footnotes(told))
}

fn show_text(told: &Value, mark: &Mark) -> String {
    let (holders, waiters) = (list(&told["holders"]), list(&told["waiters"]));
    let name = text(&told["name"]);
    let mut out = match (holders.len(), waiters.len()) {
        (0, 0) => format!("'{name}' is free"),
        (held, waiting) => format!("'{name}': {held} inside, {waiting} waiting"),
    };
    if !holders.is_empty() {
        let header = [
            "INSIDE", "MODE", "TOKEN", "HELD FOR", "ENDS IN", "NODES", "NOTE",
        ];
        let mut table = output::table(&header);
        for holder in holders {
            let nodes: Vec<String> = list(&holder["nodes"]).iter().map(text).collect();
            let doubt = if holder["certain"] == Value::Bool(false) {
                " (perhaps)"
            } else {
                ""
            };
            table.add_row([
                format!("{}{doubt}", mark.cell(holder)),
                mode(&holder["mode"]),
                text(&holder["token"]),
                holder["held_ms"].as_u64().map_or(String::new(), span_text),
                holder["expires_ms"]
                    .as_u64()
                    .map_or(String::new(), span_text),
                nodes.join(" "),
                text(&holder["note"]),
            ]);
        }
        let _ = write!(out, "\n\n{}", table.trim_fmt());
    }
    if !waiters.is_empty() {
        let mut table = output::table(&["WAITING", "MODE", "BEFORE IT", "ASKED", "WHY"]);
        for waiter in waiters {
            table.add_row([
                mark.cell(waiter),
                mode(&waiter["mode"]),
                text(&waiter["position"]),
                ago(&waiter["asked_us"]),
                text(&waiter["why"]["text"]),
            ]);
        }
        let _ = write!(out, "\n\n{}", table.trim_fmt());
    }
    if let Some(omitted) = told["omitted"].as_u64().filter(|omitted| *omitted > 0) {
        let _ = write!(out, "\n\nand {omitted} more");
    }
    out + &footnotes(told)
}

fn sessions_text(told: &Value) -> String {
    let sessions = list(&told["sessions"]);
    if sessions.is_empty() {
        return format!("no sessions{}", footnotes(told));
    }
    let header = [
        "SESSION", "OWNER", "TTL", "RENEWED", "REQUESTS", "KEPT BY", "NODES",
    ];
    let mut table = output::table(&header);
    for session in sessions {
        let nodes: Vec<String> = list(&session["nodes"]).iter().map(text).collect();
        let by_handle = session["detached"] == Value::Bool(true);
        let renewed = session["age_ms"].as_u64().unwrap_or(0);
        table.add_row([
            text(&session["session"]),
            match session["principal"].as_str() {
                Some(principal) => format!("{principal}: {}", text(&session["owner"])),
                None => text(&session["owner"]),
            },
            session["ttl_ms"].as_u64().map_or(String::new(), span_text),
            format!("{} ago", span_text(renewed)),
            text(&session["requests"]),
            match (session["revoked"] == Value::Bool(true), by_handle) {
                (true, _) => "nobody: revoked",
                (false, true) => "a handle",
                (false, false) => "its client",
            }
            .to_owned(),
            nodes.join(" "),
        ]);
    }
    format!("{}{}", table.trim_fmt(), footnotes(told))
}

/// What a reader must know about an answer that is not whole.
fn footnotes(told: &Value) -> String {
    let mut out = String::new();
    if told["partial"] == Value::Bool(true) {
        out.push_str("\n\npartial: too few nodes answered to know every holder");
    }
    for silent in list(&told["silent"]) {
        let (node, why) = (text(&silent["node"]), text(&silent["why"]));
        let _ = write!(out, "\nnode {node} did not answer: {why}");
    }
    out
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A value in a cell. Names and labels are others' words: nothing in them reaches the terminal.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => shown(text),
        Value::Object(fields) => match fields.get("base64").and_then(Value::as_str) {
            Some(coded) => format!("base64:{}", shown(coded)),
            None => shown(&value.to_string()),
        },
        other => shown(&other.to_string()),
    }
}

fn mode(value: &Value) -> String {
    match value.get("group") {
        Some(group) => format!("group {}", text(group)),
        None => text(value),
    }
}

/// How long ago something was, given in microseconds since 1970.
fn ago(micros: &Value) -> String {
    let Some(then) = micros.as_u64() else {
        return String::new();
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
    format!("{} ago", span_text(now.saturating_sub(then) / 1000))
}

/// A span of time in its largest units.
pub(crate) fn span_text(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Bytes as a part of a URL.
fn encoded(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn others_words_do_not_reach_the_terminal() {
        let lock = json!({
            "name": "a\u{1b}[2Jb",
            "holders": [{ "mode": { "group": "g\n" }, "owner": "eve\u{7}", "token": 7 }],
            "waiters": [],
        });
        let told = json!({ "locks": [lock.clone()], "partial": true });
        let shown = locks_text(&told);
        assert!(
            shown.contains("group g") && shown.contains("partial"),
            "{shown}"
        );
        for text in [shown, show_text(&lock, &Mark::default())] {
            assert!(
                !text.contains('\u{1b}') && !text.contains('\u{7}'),
                "{text:?}"
            );
        }
        assert_eq!(text(&json!({ "base64": "/w==" })), "base64:/w==");
    }

    #[test]
    fn a_wait_is_told_with_its_time_and_its_cause() {
        let micros = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_micros();
        let asked = u64::try_from(micros).unwrap() - 300_000;
        let lock = json!({
            "name": "a",
            "holders": [{
                "mode": "exclusive", "owner": "ann@x pid 1", "token": 7, "session": "ab12",
                "held_ms": 61_000, "expires_ms": 9_500,
            }],
            "waiters": [{
                "mode": "exclusive", "owner": "bob@y pid 2", "session": "cd34", "position": 1,
                "asked_us": asked, "why": { "code": "held", "text": "held by ann" },
            }],
        });
        let mark = Mark {
            session: Some("ab".to_owned()),
            owner: Some("bob@y pid ".to_owned()),
        };
        let text = show_text(&lock, &mark);
        for word in ["1m01s", "9s", "held by ann", "ms ago", "* ann@x", "* bob@y"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!show_text(&lock, &Mark::default()).contains('*'));
    }

    #[test]
    fn names_travel_in_urls() {
        assert_eq!(encoded(b"a/b c\xff%"), "a%2Fb%20c%FF%25");
    }

    #[test]
    fn spans_are_told_in_two_units() {
        let spans = [0, 999, 1000, 61_000, 3_660_000, 90_000_000];
        let told = spans.map(span_text);
        assert_eq!(told, ["0ms", "999ms", "1s", "1m01s", "1h01m", "1d01h"]);
    }
}
