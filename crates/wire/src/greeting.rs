//! The first frame in each direction of a connection: who speaks, which version, which
//! configuration. A greeting is answered by a reply before anything else is taken.

use conclave_protocol::id::{Incarnation, NodeId, Token};
use conclave_protocol::lock::ConfigId;
use conclave_protocol::membership::{Stage, Standing};
use thiserror::Error;

use crate::cluster::Facts;
use crate::codec::{WireError, split};
use crate::parts::node;
use crate::pb::{self, Bad, Reader};
use crate::version::{SPOKEN, VersionMismatch, VersionRange, choose};

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client or gateway.
    Client,
    /// Another node.
    Node(NodeId),
}

/// What the opening side says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The versions of the protocol that it speaks.
    pub versions: VersionRange,
    /// Who opens.
    pub role: Role,
    /// Whom it wants to reach.
    pub target: NodeId,
    /// Its process: random, so that two processes with one id are told apart.
    pub process: u128,
    /// The digest of its configuration.
    pub digest: [u8; 16],
    /// Its configuration, for telling what differs.
    pub facts: Facts,
    /// What shows who it is.
    pub credential: Option<Credential>,
    /// What the connection is for.
    pub service: Service,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Locks.
    #[default]
    Locks,
    /// Leases and objects.
    Keeper,
    /// What nodes of a hierarchy say to each other.
    Levels,
    /// How a node stands while configurations change: the reply says it, and nothing follows.
    Change,
    /// Something that this version does not know.
    Other(u32),
}

impl Service {
    fn number(self) -> u32 {
        match self {
            Self::Locks => 0,
            Self::Keeper => 1,
            Self::Levels => 2,
            Self::Change => 3,
            Self::Other(number) => number,
        }
    }

    fn of(number: u32) -> Self {
        match number {
            0 => Self::Locks,
            1 => Self::Keeper,
            2 => Self::Levels,
            3 => Self::Change,
            other => Self::Other(other),
        }
    }
}

/// A bearer token. It is sent over TLS alone, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(Box<[u8]>);

impl Credential {
    /// A credential of these bytes; none if they are too many, or no bytes at all.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = (1..=CREDENTIAL_MAX).contains(&bytes.len());
        fits.then(|| Self(bytes.into()))
    }

    /// Its bytes, for whoever checks them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Credential(..)")
    }
}

/// What the accepting side answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The version that the connection is served with, unless it is refused.
    pub version: u32,
    /// Which node it is.
    pub node: NodeId,
    /// Its process.
    pub process: u128,
    /// Why it refuses the connection, which it then closes.
    pub refusal: Option<Rejection>,
    /// How it stands, where that was asked.
    pub standing: Option<Standing>,
}

impl Greeting {
    /// The version in which a node of this build answers.
    pub fn choose_version(&self) -> Result<u32, Rejection> {
        choose(self.versions, SPOKEN).map_err(Rejection::Version)
    }
}

impl Reply {
    /// The version that the connection goes on with, if the node that was wanted accepts it.
    pub fn accepted_by(&self, wanted: NodeId) -> Result<u32, Rejection> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        if self.node != wanted {
            return Err(Rejection::OtherNode { node: self.node });
        }
        choose(SPOKEN, VersionRange::only(self.version)).map_err(Rejection::Version)
    }
}

/// Why a connection is refused before any message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rejection {
    /// The two sides have no version in common.
    #[error(transparent)]
    Version(VersionMismatch),
    /// It reached another node than it wanted.
    #[error("this is {node}; the address in the cluster file is wrong")]
    OtherNode {
        /// Which node this is.
        node: NodeId,
    },
    /// Two processes claim the same id.
    #[error("another process already serves as {node}; stop one of them")]
    Twin {
        /// Which id.
        node: NodeId,
    },
    /// The configurations differ.
    #[error(
        "the configurations differ; use the same cluster file and epoch everywhere, and no program \
         that is older than the file"
    )]
    Config {
        /// The node's configuration.
        facts: Facts,
    },
    /// The node has as many connections as it may.
    #[error("the node has too many connections; try again later")]
    Full,
    /// It has not shown who it is, or not in a way that the node accepts.
    #[error("not authenticated: the node knows no such token; ask its operator for a valid one")]
    Credential,
    /// What the certificate says and what is claimed do not go together.
    #[error("the node refuses the identity shown: {}", plain(why))]
    Identity {
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// It does not offer that service, or not to this opener.
    #[error("the node does not serve that: {}", plain(why))]
    Service {
        /// Why not, and what to do.
        why: String,
    },
    /// A reason that only newer nodes know.
    #[error(
        "the node refuses for reason {code}, which this build does not know: {}",
        plain(why)
    )]
    Other {
        /// Its number.
        code: u32,
        /// What the node says about it, if anything.
        why: String,
    },
}

/// The most bytes of a greeting or reply: whoever is not known yet gets little room.
pub const GREETING_MAX: usize = 1 << 16;

/// The most bytes of a credential.
pub const CREDENTIAL_MAX: usize = 1024;

/// The most facts of a configuration, and the most bytes of a field and of a value.
const FACTS_MAX: (usize, usize, usize) = (64, 100, 4096);

/// The most bytes of the words of a rejection.
const WHY_MAX: usize = 1024;

/// Appends a greeting as a frame.
pub fn encode_greeting(greeting: &Greeting, out: &mut Vec<u8>) {
    frame(out, |out| {
        let versions = greeting.versions;
        pb::uint(out, 1, u64::from(versions.oldest()));
        if let Role::Node(node) = greeting.role {
            pb::uint_always(out, 2, u64::from(node.0));
        }
        pb::uint(out, 3, u64::from(greeting.target.0));
        pb::id(out, 4, greeting.process);
        pb::bytes(out, 5, &greeting.digest);
        put_facts(out, 6, &greeting.facts);
        if let Some(credential) = &greeting.credential {
            pb::bytes(out, 7, credential.bytes());
        }
        pb::uint(out, 8, u64::from(greeting.service.number()));
        if versions.newest() != versions.oldest() {
            pb::uint(out, 10, u64::from(versions.newest()));
        }
    });
}

/// The greeting at the start of `bytes` and its length; none if it is not whole yet.
pub fn decode_greeting(bytes: &[u8]) -> Result<Option<(Greeting, usize)>, WireError> {
    let Some((body, length)) = split(bytes, GREETING_MAX)? else {
        return Ok(None);
    };
    Ok(Some((greeting(Reader::new(body))?, length)))
}

/// Appends a reply as a frame.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    frame(out, |out| {
        pb::uint(out, 1, u64::from(reply.version));
        pb::uint(out, 2, u64::from(reply.node.0));
        pb::id(out, 3, reply.process);
        if let Some(rejection) = &reply.refusal {
            pb::message(out, 4, |out| put_rejection(out, rejection));
        }
        if let Some(standing) = &reply.standing {
            pb::message(out, 5, |out| put_standing(out, standing));
        }
    });
}

/// The reply at the start of `bytes` and its length; none if it is not whole yet.
pub fn decode_reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, WireError> {
    let Some((body, length)) = split(bytes, GREETING_MAX)? else {
        return Ok(None);
    };
    Ok(Some((reply(Reader::new(body))?, length)))
}

fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

// Greetings of other versions are read as far as they can be, so that the version is what is
// complained about: only what has a wrong form is damaged, nothing that is missing.

fn greeting(mut from: Reader<'_>) -> Result<Greeting, Bad> {
    let (mut oldest, mut newest) = (0, 0);
    let mut greeting = Greeting {
        versions: VersionRange::only(0),
        role: Role::Client,
        target: NodeId(0),
        process: 0,
        digest: [0; 16],
        facts: Facts::new(),
        credential: None,
        service: Service::Locks,
    };
    while let Some((field, value)) = from.next()? {
        match field {
            1 => oldest = value.small()?,
            2 => greeting.role = Role::Node(node(value)?),
            3 => greeting.target = node(value)?,
            4 => greeting.process = value.id()?,
            5 => greeting.digest = value.sixteen()?,
            6 => fact(value.message()?, &mut greeting.facts)?,
            7 => greeting.credential = Credential::new(value.bytes(CREDENTIAL_MAX)?),
            8 => greeting.service = Service::of(value.small()?),
            10 => newest = value.small()?,
            _ => {}
        }
    }
    greeting.versions = VersionRange::new(oldest, newest);
    Ok(greeting)
}

fn reply(mut from: Reader<'_>) -> Result<Reply, Bad> {
    let mut reply = Reply {
        version: 0,
        node: NodeId(0),
        process: 0,
        refusal: None,
        standing: None,
    };
    while let Some((field, value)) = from.next()? {
        match field {
            1 => reply.version = value.small()?,
            2 => reply.node = node(value)?,
            3 => reply.process = value.id()?,
            4 => reply.refusal = Some(rejection(value.message()?)?),
            5 => reply.standing = Some(standing(value.message()?)?),
            _ => {}
        }
    }
    Ok(reply)
}

fn put_standing(out: &mut Vec<u8>, standing: &Standing) {
    pb::uint(out, 1, standing.config.epoch);
    pb::bytes(out, 2, &standing.config.digest);
    let stage = match standing.stage {
        Stage::Serving => 0,
        Stage::Waiting => 1,
        Stage::Waited => 2,
        Stage::Joining => 3,
    };
    pb::uint(out, 3, stage);
    pb::fixed(out, 4, standing.floor.0);
    pb::fixed(out, 5, standing.mark.0);
    pb::uint(out, 6, standing.objects);
    pb::uint(out, 7, u64::from(standing.before));
    pb::fixed(out, 8, standing.life.0);
}

fn standing(mut from: Reader<'_>) -> Result<Standing, Bad> {
    let mut standing = Standing {
        config: ConfigId::default(),
        stage: Stage::Serving,
        floor: Token(0),
        mark: Token(0),
        objects: 0,
        before: 0,
        life: Incarnation::default(),
    };
    while let Some((field, value)) = from.next()? {
        match field {
            1 => standing.config.epoch = value.uint()?,
            2 => standing.config.digest = value.sixteen()?,
            3 => {
                standing.stage = match value.uint()? {
                    0 => Stage::Serving,
                    1 => Stage::Waiting,
                    2 => Stage::Waited,
                    3 => Stage::Joining,
                    _ => return Err(Bad("an unknown stage of a change")),
                };
            }
            4 => standing.floor = Token(value.fixed()?),
            5 => standing.mark = Token(value.fixed()?),
            6 => standing.objects = value.uint()?,
            7 => standing.before = value.small()?,
            8 => standing.life = Incarnation(value.fixed()?),
            _ => {}
        }
    }
    Ok(standing)
}

fn put_rejection(out: &mut Vec<u8>, rejection: &Rejection) {
    let code = match rejection {
        Rejection::Version(_) => 1,
        Rejection::OtherNode { .. } => 2,
        Rejection::Twin { .. } => 3,
        Rejection::Config { .. } => 4,
        Rejection::Full => 5,
        Rejection::Credential => 6,
        Rejection::Identity { .. } => 7,
        Rejection::Service { .. } => 8,
        Rejection::Other { code, .. } => *code,
    };
    pb::uint(out, 1, u64::from(code));
    match rejection {
        // The opener knows what it speaks itself.
        Rejection::Version(VersionMismatch { node, .. }) => {
            pb::uint(out, 2, u64::from(node.newest()));
            if node.oldest() != node.newest() {
                pb::uint(out, 6, u64::from(node.oldest()));
            }
        }
        Rejection::OtherNode { node } | Rejection::Twin { node } => {
            pb::uint(out, 3, u64::from(node.0));
        }
        Rejection::Config { facts } => put_facts(out, 4, facts),
        Rejection::Full | Rejection::Credential => {}
        Rejection::Identity { why } | Rejection::Service { why } | Rejection::Other { why, .. } => {
            pb::bytes(out, 5, clipped(why).as_bytes());
        }
    }
}

/// The words of another process, without what a terminal would obey.
fn plain(why: &str) -> String {
    why.replace(char::is_control, " ")
}

/// As much of the words as may be sent.
fn clipped(why: &str) -> &str {
    let mut end = why.len().min(WHY_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

fn rejection(mut from: Reader<'_>) -> Result<Rejection, Bad> {
    let (mut code, mut newest, mut oldest) = (0, 0, 0);
    let (mut place, mut facts, mut why) = (NodeId(0), Facts::new(), "");
    while let Some((field, value)) = from.next()? {
        match field {
            1 => code = value.small()?,
            2 => newest = value.small()?,
            3 => place = node(value)?,
            4 => fact(value.message()?, &mut facts)?,
            5 => why = value.text(WHY_MAX)?,
            6 => oldest = value.small()?,
            _ => {}
        }
    }
    Ok(match code {
        1 => Rejection::Version(VersionMismatch {
            // Whoever reads a rejection is the opener.
            opener: SPOKEN,
            // A node that says no oldest version speaks one only.
            node: match oldest {
                0 => VersionRange::only(newest),
                oldest => VersionRange::new(oldest, newest),
            },
        }),
        2 => Rejection::OtherNode { node: place },
        3 => Rejection::Twin { node: place },
        4 => Rejection::Config { facts },
        5 => Rejection::Full,
        6 => Rejection::Credential,
        7 => Rejection::Identity {
            why: why.to_owned(),
        },
        8 => Rejection::Service {
            why: why.to_owned(),
        },
        0 => return Err(Bad("a rejection without a reason")),
        // A newer node may refuse for reasons of its own, before any version is agreed on.
        code => Rejection::Other {
            code,
            why: why.to_owned(),
        },
    })
}

/// A map in protobuf is a list of pairs.
fn put_facts(out: &mut Vec<u8>, field: u32, facts: &Facts) {
    for (name, value) in facts {
        pb::message(out, field, |out| {
            pb::bytes(out, 1, name.as_bytes());
            pb::bytes(out, 2, value.as_bytes());
        });
    }
}

fn fact(mut from: Reader<'_>, facts: &mut Facts) -> Result<(), Bad> {
    let (most, field_bytes, value_bytes) = FACTS_MAX;
    let (mut name, mut text) = ("", "");
    while let Some((field, value)) = from.next()? {
        match field {
            1 => name = value.text(field_bytes)?,
            2 => text = value.text(value_bytes)?,
            _ => {}
        }
    }
    if facts.len() >= most {
        return Err(Bad("a configuration has too many facts"));
    }
    facts.insert(name.to_owned(), text.to_owned());
    Ok(())
}
