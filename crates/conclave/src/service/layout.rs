//! The files of a cluster on this machine: `cluster.toml`, `secret`, and `nodeK.toml` with its
//! data in `nodeK` for every node, so that each node can be started by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use conclave_client::secure::Identity;
use conclave_node::access::hash_of;
use conclave_node::keeper::liar::Mode;
use conclave_wire::Cluster;
use conclave_wire::cluster::{LimitsText, Node, Times};
use tempfile::TempDir;

use super::check_config::hex;
use super::find::{Target, TlsFiles, bearer};
use super::place::{Text, shown};
use super::settings::{Overrides, Settings};
use super::shape::Shape;
use super::token::fresh;
use crate::certs::{Authority, Pair, Valid};
use crate::cli::Failure;

/// How often ports are tried before giving up.
const TRIES: usize = 1000;
/// Where certificates are, below the cluster's directory.
const TLS: &str = "tls";
/// The client that has a certificate, or a token.
const CLIENT: &str = "local";
/// Where its token is, below the cluster's directory.
const TOKEN: &str = "token";
/// What the nodes of a private cluster read.
const ACCESS: &str = "access.toml";
/// Days that the certificates of a cluster on this machine are valid for.
const DAYS: u32 = 3650;

/// What a new cluster shall be.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Its nodes, its quorum system and its policies.
    pub(crate) shape: Shape,
    /// The times of the cluster.
    pub(crate) times: Times,
    /// What nodes log.
    pub(crate) log: Option<String>,
    /// Whether nodes write histories for the checkers.
    pub(crate) history: bool,
    /// The access file of all nodes.
    pub(crate) access: Option<PathBuf>,
    /// Whether a token is made for this user, and everybody else is refused.
    pub(crate) private: bool,
    /// Whether nodes write audit logs.
    pub(crate) audit: bool,
}

/// The files of a cluster.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Where they are.
    pub(crate) folder: PathBuf,
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// Whether it was made just now: its nodes have never run.
    pub(crate) new: bool,
    /// The addresses of all nodes, taken so that nobody else gets them.
    listeners: Vec<(TcpListener, TcpListener)>,
    temporary: Option<TempDir>,
    liars: BTreeMap<u32, Mode>,
}

impl Layout {
    /// Makes a cluster in this directory, or takes the one that is there; without a directory in
    /// one that is removed at the end.
    pub(crate) fn open(folder: Option<&Path>, wish: &Wish) -> Result<Self, Failure> {
        let (folder, temporary) = if let Some(folder) = folder {
            private_folder(folder)?;
            let whole = fs::canonicalize(folder);
            (whole.map_err(|error| wrong(folder, &error))?, None)
        } else {
            let made = tempfile::Builder::new().prefix("conclave-").tempdir();
            let made = made.map_err(|error| wrong(&std::env::temp_dir(), &error))?;
            (made.path().to_owned(), Some(made))
        };
        let path = folder.join("cluster.toml");
        let new = !path.exists();
        let (cluster, listeners) = if new {
            let (cluster, listeners) = wish.cluster()?;
            write(&folder.join("secret"), &secret()?)?;
            if wish.tls() {
                certify(&folder, &cluster)?;
            }
            if wish.private {
                let token = fresh()?;
                write(&folder.join(TOKEN), &format!("{token}\n"))?;
                write(&folder.join(ACCESS), &access_text(&token))?;
            }
            for node in &cluster.nodes {
                write(&node_file(&folder, node.id), &wish.node_text(node.id))?;
            }
            // Last, for it says that all the others are there.
            write(&path, &cluster.to_toml())?;
            (cluster, listeners)
        } else {
            let cluster = Text::read(&path)?.cluster()?;
            wish.fits(&cluster, &path)?;
            if wish.private && !folder.join(TOKEN).exists() {
                return Err(Failure::Input(format!(
                    "--private: the cluster in '{}' has no token; leave the flag out, or use \
                     another --data",
                    shown(&path.display().to_string())
                )));
            }
            let listeners = bind_all(&cluster)?;
            (cluster, listeners)
        };
        Ok(Self {
            folder,
            liars: wish.shape.liars(cluster.nodes.len())?,
            cluster,
            new,
            listeners,
            temporary,
        })
    }

    /// How a node lies, if it does.
    pub(crate) fn liar(&self, id: u32) -> Option<Mode> {
        self.liars.get(&id).copied()
    }

    /// What starts a node, honest or not.
    pub(crate) fn serve_args(&self, id: u32) -> Vec<OsString> {
        let mut args: Vec<OsString> = match self.liar(id) {
            None => vec!["serve".into()],
            Some(mode) => vec![
                "chaos".into(),
                "node".into(),
                "--lie".into(),
                mode.name().into(),
            ],
        };
        args.extend(["--config".into(), self.node_file(id).into_os_string()]);
        args
    }

    /// The file of a node.
    pub(crate) fn node_file(&self, id: u32) -> PathBuf {
        node_file(&self.folder, id)
    }

    /// What a node runs with. The environment is not for one of many nodes, so it is left out.
    pub(crate) fn settings(&self, id: u32) -> Result<Settings, Failure> {
        let text = Text::read(&self.node_file(id))?;
        Settings::gather(Some(&text), &self.folder, &Overrides::default(), &|_| None)
    }

    /// The command that starts a node by hand.
    pub(crate) fn serve_command(&self, id: u32) -> String {
        let binary = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("conclave"));
        let binary = binary.display().to_string();
        let file = self.node_file(id).display().to_string();
        format!("{} serve --config {}", quoted(&binary), quoted(&file))
    }

    /// The addresses of all nodes in the order of the cluster file, for whoever serves there.
    pub(crate) fn take_listeners(&mut self) -> Vec<(TcpListener, TcpListener)> {
        std::mem::take(&mut self.listeners)
    }

    /// The files with which clients show who they are; none if everybody speaks plainly.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        let files = Pair::of(&self.folder.join(TLS), &Identity::Client(CLIENT.to_owned()));
        speaks_tls(&self.cluster).then(|| TlsFiles {
            ca: self.folder.join(TLS).join("ca.pem"),
            cert: files.cert,
            key: files.key,
        })
    }

    /// The file with the token of this user; none if the cluster is not private.
    pub(crate) fn bearer_file(&self) -> Option<PathBuf> {
        let path = self.folder.join(TOKEN);
        path.exists().then_some(path)
    }

    /// How to talk to the nodes.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        let urls = self.cluster.nodes.iter().map(|node| node.api.clone());
        let files = self.tls_files();
        let security = files.map(|files| files.security()).transpose()?;
        let mut security = security.unwrap_or_default();
        if let Some(path) = self.bearer_file() {
            security = bearer(&path, security)?;
        }
        Ok(Target {
            urls: urls.collect(),
            security,
        })
    }

    /// Keeps the files although they are in a temporary directory.
    pub(crate) fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
    }
}

impl Wish {
    /// Whether everybody speaks TLS: tokens are shown over nothing else.
    fn tls(&self) -> bool {
        self.shape.tls || self.access.is_some() || self.private
    }

    /// A cluster on free ports of the loopback address.
    fn cluster(&self) -> Result<(Cluster, Vec<(TcpListener, TcpListener)>), Failure> {
        let nodes = self.shape.size()?;
        let scheme = if self.tls() { "https" } else { "http" };
        let mut ports = Ports::new();
        let mut cluster = Cluster {
            name: "local".to_owned(),
            epoch: 1,
            quorum: self.shape.system(),
            topology: None,
            coterie: None,
            groups: self.shape.groups.clone(),
            restart: self.shape.restart().unwrap_or_default(),
            times: self.times,
            limits: LimitsText::default(),
            faults: self.shape.faults(),
            policies: self.shape.policy.clone(),
            nodes: Vec::new(),
        };
        let mut listeners = Vec::new();
        for id in 1..=nodes {
            let (peer, api) = (ports.free()?, ports.free()?);
            cluster.nodes.push(Node {
                id,
                peer: peer.local_addr()?.to_string(),
                api: format!("{scheme}://{}", api.local_addr()?),
                place: None,
            });
            listeners.push((peer, api));
        }
        cluster.check().map_err(Failure::input)?;
        Ok((cluster, listeners))
    }

    /// What is asked for must be what is there.
    fn fits(&self, cluster: &Cluster, path: &Path) -> Result<(), Failure> {
        let there = cluster.nodes.len();
        let shape = &self.shape;
        let nodes = shape.nodes.is_none_or(|nodes| nodes as usize == there);
        let quorum = shape
            .quorum
            .as_ref()
            .is_none_or(|quorum| *quorum == cluster.quorum);
        let groups = shape.groups.is_empty() || shape.groups == cluster.groups;
        let restart = shape
            .restart()
            .is_none_or(|restart| restart == cluster.restart);
        let policies = shape.policy.is_empty() || shape.policy == cluster.policies;
        let wrong = [
            (nodes, "--nodes", there.to_string()),
            (quorum, "--quorum", cluster.quorum.clone()),
            (groups, "--groups", cluster.groups.join(",")),
            (
                restart,
                "--restart",
                format!("{:?}", cluster.restart).to_lowercase(),
            ),
            (
                shape
                    .byzantine
                    .is_none_or(|b| b as usize == cluster.faults.byzantine()),
                "--byzantine",
                cluster.faults.byzantine().to_string(),
            ),
            (
                shape
                    .ordering
                    .is_none_or(|how| how == cluster.faults.objects()),
                "--ordering",
                format!("{:?}", cluster.faults.objects()).to_lowercase(),
            ),
            (policies, "--policy", format!("{:?}", cluster.policies)),
            (
                !self.tls() || speaks_tls(cluster),
                match (shape.tls, self.private) {
                    (true, _) => "--tls",
                    (_, true) => "--private",
                    _ => "--access",
                },
                "no TLS".to_owned(),
            ),
        ];
        let Some((_, flag, value)) = wrong.into_iter().find(|(fits, _, _)| !fits) else {
            return Ok(());
        };
        Err(Failure::Input(format!(
            "{flag}: the cluster in '{}' has '{}'; leave the flag out, or use another --data",
            shown(&path.display().to_string()),
            shown(&value)
        )))
    }

    fn node_text(&self, id: u32) -> String {
        let mut text = format!(
            "id = {id}\ndata = \"node{id}\"\ncluster = \"cluster.toml\"\nsecret_file = \"secret\"\n"
        );
        if let Some(log) = &self.log {
            let _ = writeln!(text, "log = {}", toml::Value::String(log.clone()));
        }
        if self.history {
            let _ = writeln!(text, "history = \"node{id}.history\"");
        }
        if self.private {
            let _ = writeln!(text, "access = \"{ACCESS}\"");
        } else if let Some(path) = &self.access {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let path = toml::Value::String(path.display().to_string());
            let _ = writeln!(text, "access = {path}");
        }
        if self.audit {
            let _ = writeln!(text, "audit = \"node{id}.audit\"");
        }
        if self.tls() {
            let _ = writeln!(
                text,
                "tls.ca = \"tls/ca.pem\"\ntls.cert = \"tls/node-{id}.pem\"\n\
                 tls.key = \"tls/node-{id}.key\""
            );
        }
        text
    }
}

/// An access file that lets in whoever has this token, and nobody else.
fn access_text(token: &str) -> String {
    let sha256 = hash_of(token);
    format!(
        "[[token]]\nprincipal = \"{CLIENT}\"\nsha256 = \"{sha256}\"\n\n\
         [[permission]]\nwho = \"{CLIENT}\"\nprefix = \"\"\n\
         may = [\"acquire\", \"read\", \"administer\"]\n"
    )
}

/// Whether the nodes of the cluster speak TLS.
fn speaks_tls(cluster: &Cluster) -> bool {
    let mut nodes = cluster.nodes.iter();
    nodes.all(|node| node.api.starts_with("https://"))
}

/// Makes an authority, and certificates for all nodes and for the clients of this user.
fn certify(folder: &Path, cluster: &Cluster) -> Result<(), Failure> {
    let folder = folder.join(TLS);
    let valid = Valid::days(DAYS);
    let authority = Authority::create(&folder, &cluster.name, valid, true)?;
    let hosts = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    for node in &cluster.nodes {
        authority.issue(&folder, &Identity::Node(node.id), &hosts, valid, true)?;
    }
    let client = Identity::Client(CLIENT.to_owned());
    authority.issue(&folder, &client, &[], valid, true)?;
    Ok(())
}

fn node_file(folder: &Path, id: u32) -> PathBuf {
    folder.join(format!("node{id}.toml"))
}

fn wrong(path: &Path, error: &io::Error) -> Failure {
    Failure::Input(format!("'{}': {error}", shown(&path.display().to_string())))
}

fn private_folder(folder: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(|error| wrong(folder, &error))
}

/// Writes a file that only this user can read.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| wrong(path, &error))
}

fn secret() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Failed(format!("no random numbers for a secret: {error}")))?;
    Ok(format!("{}\n", hex(&bytes)))
}

fn bind_all(cluster: &Cluster) -> Result<Vec<(TcpListener, TcpListener)>, Failure> {
    let bind = |id: u32, address: &str| {
        TcpListener::bind(address).map_err(|error| {
            Failure::Input(format!(
                "cannot listen on {} for node {id}: {error}; stop what uses it, or use another \
                 --data",
                shown(address)
            ))
        })
    };
    let nodes = cluster.nodes.iter();
    nodes
        .map(|node| {
            let api = node
                .api
                .split_once("://")
                .map_or(&*node.api, |(_, host)| host);
            Ok((bind(node.id, &node.peer)?, bind(node.id, api)?))
        })
        .collect()
}

/// Free ports. They lie below those that the system hands to outgoing connections, for a node that
/// is started again must find its port free.
struct Ports {
    range: (u16, u16),
    tried: BTreeSet<u16>,
}

impl Ports {
    fn new() -> Self {
        let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let first = text
            .ok()
            .and_then(|text| text.split_whitespace().next()?.parse().ok());
        let end: u16 = first.unwrap_or(32_768);
        Self {
            range: (10_000, end),
            tried: BTreeSet::new(),
        }
    }

    fn free(&mut self) -> Result<TcpListener, Failure> {
        let (from, to) = self.range;
        for _ in 0..TRIES {
            let mut bytes = [0; 2];
            if to <= from || getrandom::fill(&mut bytes).is_err() {
                break;
            }
            let port = from + u16::from_le_bytes(bytes) % (to - from);
            if self.tried.insert(port)
                && let Ok(listener) = TcpListener::bind(("127.0.0.1", port))
            {
                return Ok(listener);
            }
        }
        let any = TcpListener::bind(("127.0.0.1", 0));
        any.map_err(|error| Failure::Failed(format!("no free port on 127.0.0.1: {error}")))
    }
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/a/b-c.toml"), "/a/b-c.toml");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_cluster_is_found_again_as_it_was_made() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("cluster");
        let wish = Wish {
            shape: Shape {
                nodes: Some(3),
                ..Shape::default()
            },
            times: Times::default(),
            log: Some("debug".to_owned()),
            history: false,
            access: None,
            private: false,
            audit: false,
        };
        let first = Layout::open(Some(&folder), &wish).unwrap();
        assert!(first.new);
        let made = first.cluster.clone();
        let settings = first.settings(2).unwrap();
        assert_eq!(settings.id.value, 2);
        assert_eq!(settings.log.value, "debug");
        assert_eq!(settings.data.value, first.folder.join("node2"));
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        let taken = Layout::open(Some(&folder), &wish).unwrap_err();
        assert!(
            format!("{taken:?}").contains("cannot listen on"),
            "{taken:?}"
        );
        drop(first);
        let again = Layout::open(Some(&folder), &wish).unwrap();
        assert!(!again.new);
        assert_eq!(again.cluster, made);
        let other = Wish {
            shape: Shape {
                nodes: Some(4),
                ..Shape::default()
            },
            ..wish
        };
        let other = Layout::open(Some(&folder), &other).unwrap_err();
        assert!(format!("{other:?}").contains("--nodes"), "{other:?}");
    }
}
