//! Why a request waits, in words: what each node says, put together for people.

use std::fmt::Write as _;

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Why;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::text::Text;
use super::views::{Entry, Local, Merged, ModeText};

/// Why a request waits at one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Cause {
    pub(crate) code: String,
    /// The session of the request in its way, in hex, and that request's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) by: Option<(String, u64)>,
    /// The limit that is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) limit: Option<u32>,
}

impl From<Why> for Cause {
    fn from(why: Why) -> Self {
        let (code, by, limit) = match why {
            Why::Held(session, request) => ("held", Some((session, request)), None),
            Why::AskedBack(session, request) => ("asked_back", Some((session, request)), None),
            Why::DoorClosed(session, request) => ("door_closed", Some((session, request)), None),
            Why::BypassLimit(limit) => ("bypass_limit", None, Some(limit)),
            Why::MaxInside(limit) => ("max_inside", None, Some(limit)),
            Why::Turn => ("turn", None, None),
        };
        Self {
            code: code.to_owned(),
            by: by.map(|(session, request)| (format!("{session:x}"), request.0)),
            limit,
        }
    }
}

/// Why a request waits, as all nodes together say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Why)]
pub(crate) struct Reasoned {
    /// One word, for programs.
    pub(crate) code: String,
    /// One line, for people.
    pub(crate) text: String,
}

/// What nodes said about a waiting request.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) granted: Vec<NodeId>,
    /// Node, place in its queue and cause.
    pub(crate) causes: Vec<(NodeId, usize, Cause)>,
}

/// Says of each waiter why it waits. Nothing is said where no node told: in lists.
pub(super) fn explain(merged: &mut Merged, waiting: &[Gathered], answers: &[(NodeId, Local)]) {
    let paused = paused(answers);
    let explained = |merged: &Merged, place: usize, gathered: &Gathered| {
        let told = answers.iter().any(|(_, local)| local.state.is_some());
        if gathered.causes.is_empty() && !told {
            return None;
        }
        let mode = &merged.waiters[place].mode;
        let (code, what) = cause(mode, gathered, merged, answers);
        let others = match merged.waiters[place].position {
            0 => String::new(),
            1 => "behind 1 other; ".to_owned(),
            many => format!("behind {many} others; "),
        };
        Some(Reasoned {
            code,
            text: format!("{others}{what}{paused}"),
        })
    };
    let whys: Vec<_> = waiting
        .iter()
        .enumerate()
        .map(|(place, gathered)| explained(merged, place, gathered))
        .collect();
    for (waiter, why) in merged.waiters.iter_mut().zip(whys) {
        waiter.why = why;
    }
}

/// The nodes that grant nothing for now, in words.
fn paused(answers: &[(NodeId, Local)]) -> String {
    let mut text = String::new();
    for (node, local) in answers {
        let Some(state) = local.state.as_ref().filter(|state| *state != "serving") else {
            continue;
        };
        let number = node.0 + 1;
        let _ = write!(text, "; node {number} is {state}");
        if let Some(pause) = local.pause_ms {
            let _ = write!(text, " for {} s", pause.div_ceil(1000));
        }
    }
    text
}

/// What stands in the way, from the node where most are before it.
fn cause(
    mode: &ModeText,
    gathered: &Gathered,
    merged: &Merged,
    answers: &[(NodeId, Local)],
) -> (String, String) {
    let worst = gathered.causes.iter().max_by_key(|(_, place, _)| *place);
    let Some((node, _, cause)) = worst else {
        let nodes: Vec<String> = gathered
            .granted
            .iter()
            .map(|n| (n.0 + 1).to_string())
            .collect();
        let text = format!("granted by node {}, not by a quorum yet", nodes.join(", "));
        return ("gathering".to_owned(), text);
    };
    let number = node.0 + 1;
    let rival = cause.by.as_ref().and_then(|by| find(by, answers));
    let who = rival.map_or_else(|| "somebody else".to_owned(), named);
    let inside = rival.is_some_and(|rival| {
        let mut holders = merged.holders.iter();
        holders.any(|holder| holder.session == rival.session && holder.group == rival.group)
    });
    let limit = cause.limit.unwrap_or_default();
    let text = match cause.code.as_str() {
        "held" if inside => {
            let how = rival.map_or_else(String::new, |rival| how(&rival.mode, mode));
            format!("held by {who}{how}")
        }
        "held" => format!("node {number} granted {who}, who is not inside yet"),
        "asked_back" => format!("node {number} asked {who} for its grant back"),
        "door_closed" => format!("{who} of another group waits first: nobody joins before it"),
        "bypass_limit" => {
            format!("max_bypass {limit} reached: as many passed a waiting request as may")
        }
        "max_inside" => format!("max_inside {limit} reached at node {number}"),
        _ => format!("its turn at node {number}"),
    };
    (cause.code.clone(), text)
}

fn find<'a>(by: &(String, u64), answers: &'a [(NodeId, Local)]) -> Option<&'a Entry> {
    let mut entries = answers.iter().flat_map(|(_, local)| &local.entries);
    entries.find(|entry| entry.key() == (by.0.as_str(), by.1))
}

fn named(entry: &Entry) -> String {
    if entry.owner.is_empty() {
        format!("session {}", entry.session)
    } else {
        entry.owner.clone()
    }
}

fn how(theirs: &ModeText, mine: &ModeText) -> String {
    let plain = |mode: &ModeText| match mode {
        ModeText::Exclusive => "alone".to_owned(),
        ModeText::Shared => "shared".to_owned(),
        ModeText::Group(Text(group)) => format!("group {}", group.escape_ascii()),
    };
    if theirs == mine {
        return String::new();
    }
    format!(" ({}; this asks for {})", plain(theirs), plain(mine))
}

#[cfg(test)]
mod tests {
    use super::super::views::tests::{entry, local, merged};
    use super::*;

    fn waits(mut entry: Entry, code: &str, by: u64) -> Entry {
        entry.why = Some(Cause {
            code: code.to_owned(),
            by: Some((format!("{by:x}"), 1)),
            limit: None,
        });
        entry
    }

    fn why(locals: Vec<Local>) -> Reasoned {
        let answers: Vec<(NodeId, Local)> = locals
            .into_iter()
            .enumerate()
            .map(|(node, local)| (NodeId::at(node), local))
            .collect();
        let all = merged(&answers, &[]);
        all.waiters.last().unwrap().why.clone().unwrap()
    }

    #[test]
    fn a_holder_is_named_with_its_group() {
        let red = |grant| {
            let mut entry = entry(1000, grant, Some(7));
            entry.mode = ModeText::Group(Text(b"red".to_vec()));
            entry
        };
        let blue = || {
            let mut entry = waits(entry(2000, 0, None), "held", 1000);
            entry.mode = ModeText::Group(Text(b"blue".to_vec()));
            entry
        };
        let told = why(vec![
            local(vec![red(1), blue()]),
            local(vec![red(2), blue()]),
            local(vec![blue()]),
        ]);
        assert_eq!(told.code, "held");
        assert_eq!(
            told.text,
            "behind 1 other; held by owner 1000 (group red; this asks for group blue)"
        );
    }

    #[test]
    fn a_grant_that_was_asked_back_is_not_a_hold() {
        let told = why(vec![
            local(vec![entry(1000, 0, None), entry(2000, 1, None)]),
            local(vec![waits(entry(3000, 0, None), "asked_back", 2000)]),
            local(vec![]),
        ]);
        assert_eq!(told.code, "asked_back");
        assert_eq!(told.text, "node 2 asked owner 2000 for its grant back");
    }

    #[test]
    fn a_node_that_pauses_is_named() {
        let mut pausing = local(vec![]);
        pausing.state = Some("pausing".to_owned());
        pausing.pause_ms = Some(5_200);
        let told = why(vec![local(vec![entry(1000, 4, None)]), pausing]);
        assert_eq!(told.code, "gathering");
        assert_eq!(
            told.text,
            "granted by node 1, not by a quorum yet; node 2 is pausing for 6 s"
        );
    }
}
