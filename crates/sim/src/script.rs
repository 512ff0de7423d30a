//! Faults of nodes that come at fixed moments: the schedule of a demonstration, in a simulated
//! world and with real processes alike.

use std::fmt;
use std::str::FromStr;

/// What is done to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They crash: `kill -9`.
    Kill,
    /// They start again on their old data.
    Start,
    /// They stand still: `SIGSTOP`.
    Freeze,
    /// They go on: `SIGCONT`.
    Resume,
    /// They are stopped gracefully: `SIGTERM`.
    Stop,
}

impl Action {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Kill, "kill"),
        (Self::Start, "start"),
        (Self::Freeze, "freeze"),
        (Self::Resume, "resume"),
        (Self::Stop, "stop"),
    ];

    fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(action, _)| *action == self);
        named.map_or("", |(_, name)| name)
    }
}

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in hundredths of the whole time.
    pub at: u32,
    /// What is done.
    pub action: Action,
    /// To which nodes, numbered from 1.
    pub nodes: Vec<u32>,
}

/// Steps in the order of time. Its text form is `10:kill:2,40:kill:1+4`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    steps: Vec<Step>,
}

impl Script {
    /// What `conclave demo` does to its five nodes. Between a start and the next fault there is
    /// time for the node to serve again.
    pub fn demo() -> Self {
        let step = |at, action, nodes: &[u32]| Step {
            at,
            action,
            nodes: nodes.to_vec(),
        };
        Self {
            steps: vec![
                step(10, Action::Kill, &[2]),
                step(20, Action::Start, &[2]),
                step(40, Action::Kill, &[1, 4]),
                step(50, Action::Start, &[1, 4]),
                step(70, Action::Freeze, &[3]),
                step(78, Action::Resume, &[3]),
                step(86, Action::Stop, &[5]),
                step(93, Action::Start, &[5]),
            ],
        }
    }

    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether nothing is done.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The largest number of a node.
    pub(crate) fn last_node(&self) -> u32 {
        let nodes = self.steps.iter().flat_map(|step| &step.nodes);
        nodes.copied().max().unwrap_or(0)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return out.write_str("none");
        }
        if *self == Self::demo() {
            return out.write_str("demo");
        }
        for (place, step) in self.steps.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            let nodes: Vec<String> = step.nodes.iter().map(u32::to_string).collect();
            let (at, action) = (step.at, step.action.name());
            write!(out, "{comma}{at}:{action}:{}", nodes.join("+"))?;
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => return Ok(Self::default()),
            "demo" => return Ok(Self::demo()),
            _ => {}
        }
        let mut steps: Vec<Step> = Vec::new();
        for part in text.split(',') {
            let step = read_step(part).ok_or_else(|| {
                format!(
                    "'{part}' is no step; give demo, or steps such as 10:kill:2,40:start:1+4 \
                     (hundredths of span_ms, then kill, start, freeze, resume or stop)"
                )
            })?;
            if steps.last().is_some_and(|last| last.at > step.at) {
                return Err(format!("'{part}' comes before the step in front of it"));
            }
            steps.push(step);
        }
        Ok(Self { steps })
    }
}

fn read_step(text: &str) -> Option<Step> {
    let (at, rest) = text.trim().split_once(':')?;
    let (action, nodes) = rest.split_once(':')?;
    let (action, _) = Action::ALL.iter().find(|(_, name)| *name == action)?;
    let nodes: Option<Vec<u32>> = nodes
        .split('+')
        .map(|node| node.parse().ok().filter(|node| *node > 0))
        .collect();
    Some(Step {
        at: at.parse().ok().filter(|at| *at <= 100)?,
        action: *action,
        nodes: nodes?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_it_is_shown() {
        for text in ["none", "demo", "10:kill:2,10:freeze:1+3,100:start:2"] {
            let script: Script = text.parse().unwrap();
            assert_eq!(script.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_script_is_named() {
        for text in [
            "",
            "kill:2",
            "10:kill",
            "10:melt:1",
            "101:kill:1",
            "5:kill:0",
        ] {
            assert!(text.parse::<Script>().unwrap_err().contains("is no step"));
        }
        let late = "20:kill:1,10:start:1".parse::<Script>();
        assert!(late.unwrap_err().contains("in front of it"));
    }
}
