//! What a cluster on this machine shall be, as flags: `up`, `chaos run` and `bench` share them.

use std::collections::BTreeMap;

use clap::Args;
use conclave_node::keeper::liar::Mode;
use conclave_wire::Span;
use conclave_wire::cluster::{ChoiceText, PolicyText, ProtocolText, RestartText};
use conclave_wire::faults::{FaultsText, ObjectsText};

use super::up::Restart;
use crate::cli::Failure;

/// How many nodes there are if neither a flag nor the quorum system says.
const NODES: u32 = 5;

/// The nodes of a cluster, its quorum system, and its policies.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Shape {
    /// How many nodes; without it as many as the quorum system says, else 5
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) nodes: Option<u32>,
    /// The quorum system; majority without it
    #[arg(long, value_name = "SYSTEM")]
    pub(crate) quorum: Option<String>,
    /// The groups that own the cartels of a group system, in order
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) groups: Vec<String>,
    /// What nodes keep on disk; pause without it
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) restart: Option<Restart>,
    /// Everybody speaks TLS, with certificates made for this cluster
    #[arg(long)]
    pub(crate) tls: bool,
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    #[arg(
        help = "A policy for names that begin with a prefix, as PREFIX:KEY=VALUE,…; may be \
        repeated. Keys: protocol (parallel or serial), max_inside, max_bypass"
    )]
    pub(crate) policy: Vec<PolicyText>,
    /// How many nodes may lie about leases and objects; none without it
    #[arg(long, value_name = "B")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) byzantine: Option<u32>,
    /// How attempts to order operations on objects end: vouched needs 6B+1 nodes, timed 4B+1;
    /// off keeps no objects and needs 3B+1
    #[arg(long, value_name = "HOW", value_parser = ordering)]
    pub(crate) ordering: Option<ObjectsText>,
    /// The longest lease; 60s without it
    #[arg(long, value_name = "SPAN", hide = true)]
    pub(crate) span_max: Option<Span>,
    #[arg(long, value_name = "ID=MODE", value_parser = liar)]
    #[arg(
        help = "A node that lies about leases and objects, to see what that does; may be \
        repeated. Modes: silent, stale, forge, equivocate, huge, locked, free, mix"
    )]
    pub(crate) liar: Vec<(u32, Mode)>,
}

impl Shape {
    /// What nodes keep on disk, as the cluster file says it.
    pub(crate) fn restart(&self) -> Option<RestartText> {
        self.restart.map(RestartText::from)
    }

    /// How many nodes the cluster has.
    pub(crate) fn size(&self) -> Result<u32, Failure> {
        let size = size(self.nodes, self.quorum.as_deref())?;
        if self.nodes.is_some() || self.quorum.is_some() {
            return Ok(size);
        }
        let times = match self.ordering.unwrap_or_default() {
            ObjectsText::Vouched => 6,
            ObjectsText::Timed => 4,
            ObjectsText::Off => 3,
        };
        Ok(size.max(times * self.byzantine.unwrap_or(0) + 1))
    }

    /// How many nodes may lie, as the cluster file says it.
    pub(crate) fn faults(&self) -> FaultsText {
        FaultsText {
            byzantine: self.byzantine,
            objects: self.ordering,
            span_max: self.span_max,
            ..FaultsText::default()
        }
    }

    /// Which nodes lie, and how.
    pub(crate) fn liars(&self, nodes: usize) -> Result<BTreeMap<u32, Mode>, Failure> {
        let liars: BTreeMap<u32, Mode> = self.liar.iter().copied().collect();
        let unknown = liars.keys().find(|id| **id == 0 || **id as usize > nodes);
        if let Some(id) = unknown {
            return Err(Failure::Input(format!(
                "--liar: node {id} is not one of 1 to {nodes}"
            )));
        }
        let allowed = self.byzantine.unwrap_or(0) as usize;
        if liars.len() > allowed {
            anstream::eprintln!(
                "{} nodes lie and only {allowed} may: nothing is promised; give --byzantine {}",
                liars.len(),
                liars.len()
            );
        }
        Ok(liars)
    }

    /// The quorum system's text form.
    pub(crate) fn system(&self) -> String {
        self.quorum.clone().unwrap_or_else(|| "majority".to_owned())
    }
}

/// How many nodes a cluster has: what was asked for, else what the quorum system says.
pub(crate) fn size(nodes: Option<u32>, quorum: Option<&str>) -> Result<u32, Failure> {
    if let Some(nodes) = nodes {
        return Ok(nodes);
    }
    let Some(quorum) = quorum else {
        return Ok(NODES);
    };
    let spec = conclave_quorum::text::parse(quorum)
        .map_err(|error| Failure::Input(format!("--quorum: {error}")))?;
    let no_files = |_: &str| Err("write the system out".to_owned());
    let own = conclave_quorum::build::build(&spec, None, &no_files);
    let own = own.map(|built| built.system.nodes());
    Ok(own.map_or(NODES, |nodes| u32::try_from(nodes).unwrap_or(u32::MAX)))
}

/// How operations are ordered, as it is written on the command line.
fn ordering(text: &str) -> Result<ObjectsText, String> {
    match text {
        "vouched" => Ok(ObjectsText::Vouched),
        "timed" => Ok(ObjectsText::Timed),
        "off" => Ok(ObjectsText::Off),
        other => Err(format!("'{other}' is not vouched, timed or off")),
    }
}

/// A liar as it is written on the command line.
fn liar(text: &str) -> Result<(u32, Mode), String> {
    let (id, mode) = text.split_once('=').ok_or("write ID=MODE, as in 3=forge")?;
    let number = id.trim().parse();
    let number = number.map_err(|_| format!("'{id}' is no number of a node"))?;
    Ok((number, mode.trim().parse()?))
}

/// A policy as it is written on the command line.
fn policy(text: &str) -> Result<PolicyText, String> {
    let form = "write PREFIX:KEY=VALUE,…, as in 'jobs/:protocol=serial'";
    // A prefix may have colons of its own, keys and values have none.
    let (prefix, settings) = text.rsplit_once(':').ok_or(form)?;
    let mut policy = PolicyText {
        prefix: prefix.to_owned(),
        max_inside: None,
        max_bypass: None,
        protocol: None,
        choice: None,
    };
    for setting in settings.split(',') {
        let (key, value) = setting.split_once('=').ok_or(form)?;
        let number = || {
            let number = value.trim().parse();
            number.map_err(|_| format!("'{value}' is no number for {key}"))
        };
        match key.trim() {
            "max_inside" => policy.max_inside = Some(number()?),
            "max_bypass" => policy.max_bypass = Some(number()?),
            "protocol" => {
                policy.protocol = Some(match value.trim() {
                    "serial" => ProtocolText::Serial,
                    "parallel" => ProtocolText::Parallel,
                    other => return Err(format!("'{other}' is not parallel or serial")),
                });
            }
            "choice" => {
                policy.choice = Some(match value.trim() {
                    "shared" => ChoiceText::Shared,
                    "near" => ChoiceText::Near,
                    other => return Err(format!("'{other}' is not shared or near")),
                });
            }
            other => {
                return Err(format!(
                    "'{other}' is not one of protocol, choice, max_inside and max_bypass; {form}"
                ));
            }
        }
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_taken_as_people_write_them() {
        let serial = policy("a:b/:protocol=serial,max_bypass=0").unwrap();
        assert_eq!(serial.prefix, "a:b/");
        assert_eq!(serial.protocol, Some(ProtocolText::Serial));
        assert_eq!(serial.max_bypass, Some(0));
        assert_eq!(serial.max_inside, None);
        assert_eq!(policy(":max_inside=2").unwrap().prefix, "");
        let near = policy("eu/:choice=near").unwrap();
        assert_eq!(near.choice, Some(ChoiceText::Near));
        for text in [
            "",
            "a",
            "a:",
            "a:x=1",
            "a:max_inside=x",
            "a:protocol=both",
            "a:choice=far",
        ] {
            assert!(policy(text).is_err(), "{text}");
        }
    }

    #[test]
    fn liars_are_taken_as_people_write_them() {
        assert_eq!(liar("3=forge"), Ok((3, Mode::Forge)));
        for text in ["", "3", "x=forge", "3=honest", "-1=mix"] {
            assert!(liar(text).is_err(), "{text}");
        }
        let shape = Shape {
            byzantine: Some(1),
            liar: vec![(8, Mode::Mix)],
            ..Shape::default()
        };
        assert_eq!(shape.size().unwrap(), 7);
        assert!(shape.liars(7).is_err() && shape.liars(8).is_ok());
    }

    #[test]
    fn a_system_that_says_its_size_decides() {
        assert_eq!(size(None, None).unwrap(), 5);
        assert_eq!(size(None, Some("majority")).unwrap(), 5);
        assert_eq!(size(None, Some("billiard(12)")).unwrap(), 12);
        assert_eq!(size(None, Some("surficial(groups=2, n=4)")).unwrap(), 4);
        assert_eq!(size(Some(7), Some("tree")).unwrap(), 7);
        assert!(size(None, Some("nonsense(")).is_err());
    }
}
