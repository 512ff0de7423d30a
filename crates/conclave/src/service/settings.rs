//! What a node runs with: one TOML file, then the environment, then flags; the later wins.
//!
//! ```toml
//! id = 1
//! data = "data"                 # paths are relative to this file
//! cluster = "cluster.toml"      # or the cluster itself, as [cluster]
//! secret_file = "secret"        # the same on all nodes; seals handles
//! listen_peer = "0.0.0.0:7000"  # unless the node's addresses in the cluster file can be bound
//! listen_api = "0.0.0.0:8000"
//! api_names = ["locks.example"] # other names of the API's host, where callers are anonymous
//! insecure = true               # plain TCP where others can reach it
//! access = "access.toml"        # who may do what; without it nobody has to say who they are
//! audit = "audit.log"           # who was granted, lost and refused what
//! audit_mib = 256               # the most that it and its rotated files take of the disk
//! rejoin = "rejoin.token"       # as whom a node that lost its disk orders objects anew
//! tls.ca = "ca.pem"             # TLS: whom the node believes, and its own certificate
//! tls.cert = "node-1.pem"
//! tls.key = "node-1.key"
//! log = "info"
//! log_format = "text"
//! ```

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use conclave_client::Security;
use conclave_node::access::AccessFile;
use conclave_node::audit::{AuditOptions, BYTES_MAX};
use conclave_wire::Cluster;
use conclave_wire::handle::Key;
use serde::de::{MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};

use super::place::{Text, shown};
use crate::cli::Failure;

/// The fewest bytes of a secret.
const SECRET_MIN: usize = 16;
/// The most bytes of a secret.
const SECRET_MAX: u64 = 4096;

/// The file as it is written. Everything may be left out and given otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodeFile {
    id: Option<u32>,
    data: Option<PathBuf>,
    cluster: Option<ClusterEntry>,
    secret_file: Option<PathBuf>,
    listen_peer: Option<String>,
    listen_api: Option<String>,
    api_names: Option<ApiNames>,
    insecure: Option<bool>,
    log: Option<String>,
    log_format: Option<LogFormat>,
    history: Option<PathBuf>,
    access: Option<PathBuf>,
    audit: Option<PathBuf>,
    audit_mib: Option<u32>,
    rejoin: Option<PathBuf>,
    tls: TlsFile,
}

/// Names under which the API may be called besides those in the cluster file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub(crate) struct ApiNames(pub(crate) Vec<String>);

impl ApiNames {
    /// What such names are.
    const FORM: &str = "names of hosts without a port, or * for any";
}

impl TryFrom<Vec<String>> for ApiNames {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        let is_host = |name: &String| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            name == "*" || (!name.is_empty() && name.bytes().all(fits))
        };
        match names.iter().find(|name| !is_host(name)) {
            None => Ok(Self(names)),
            Some(wrong) => Err(format!("'{wrong}' is none of {}", Self::FORM)),
        }
    }
}

impl fmt::Display for ApiNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return out.write_str("none");
        }
        out.write_str(&self.0.join(", "))
    }
}

/// The files of TLS: all of them, or none.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TlsFile {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// The cluster: a file of its own, or written out in the node's file.
#[derive(Debug)]
enum ClusterEntry {
    File(PathBuf),
    Inline(Box<Cluster>),
}

impl<'de> Deserialize<'de> for ClusterEntry {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Entry;
        impl<'de> Visitor<'de> for Entry {
            type Value = ClusterEntry;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("the path of a cluster file, or a cluster")
            }

            fn visit_str<E>(self, text: &str) -> Result<ClusterEntry, E> {
                Ok(ClusterEntry::File(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ClusterEntry, A::Error> {
                let cluster = Cluster::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ClusterEntry::Inline(Box::new(cluster)))
            }
        }
        input.deserialize_any(Entry)
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Flags that override the environment and the file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Overrides {
    /// The number of this node in the cluster, from 1
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) id: Option<u32>,
    /// This node is the one in the cluster file whose peer address begins with this host's name
    #[arg(long, conflicts_with = "id")]
    pub(crate) id_from_hostname: bool,
    /// Where the node keeps its records
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// The file with the secret that all nodes share
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Where peers and clients connect, host:port
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen_peer: Option<String>,
    /// Where the API is served, host:port
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen_api: Option<String>,
    #[arg(long = "api-name", value_name = "NAME,…", value_delimiter = ',')]
    #[arg(
        help = "A name under which the API may be called besides those in the cluster file; * is \
        any. Checked where callers are anonymous, for web pages can use names of their own"
    )]
    pub(crate) api_names: Vec<String>,
    /// Allow plain TCP on addresses that other machines can reach
    #[arg(long)]
    pub(crate) insecure: bool,
    /// TLS: the authorities whose certificates are believed
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// TLS: the node's certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// TLS: the key of the node's certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace, or directives by module
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// How log lines look
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// The access file: bearer tokens, and who may do what
    #[arg(long, value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// Write who was granted, lost and refused what to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// The most MiB of disk that the audit log takes, with its rotated files; 256 if not given
    #[arg(long, value_name = "MIB")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) audit_mib: Option<u32>,
    /// A file with the bearer token with which a node that lost its disk orders objects anew
    #[arg(long, value_name = "FILE")]
    pub(crate) rejoin: Option<PathBuf>,
    /// Write every grant and its end to this file, for the checkers
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) history: Option<PathBuf>,
    /// Whether the node may be missing in the cluster file, because the file is about to change.
    #[arg(skip)]
    pub(crate) leaves: bool,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A flag of the command.
    Flag(&'static str),
    /// A variable of the environment.
    Env(&'static str),
    /// A line of the node's file.
    File(usize),
    /// The node's entry in the cluster file.
    Cluster,
    /// Nobody said otherwise.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(out, "--{name}"),
            Self::Env(name) => write!(out, "{name}"),
            Self::File(line) => write!(out, "the file, line {line}"),
            Self::Cluster => write!(out, "the cluster file"),
            Self::Default => write!(out, "default"),
        }
    }
}

/// A value and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    pub(crate) from: Source,
}

/// What a node runs with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) id: Given<u32>,
    pub(crate) data: Given<PathBuf>,
    /// Where the cluster is described: a file, or none if in the node's own.
    pub(crate) cluster_file: Given<Option<PathBuf>>,
    pub(crate) cluster: Cluster,
    pub(crate) secret_file: Given<PathBuf>,
    pub(crate) listen_peer: Given<String>,
    pub(crate) listen_api: Given<String>,
    pub(crate) api_names: Given<ApiNames>,
    pub(crate) insecure: Given<bool>,
    /// CA, certificate and key; none if the node speaks plainly.
    pub(crate) tls: Option<[Given<PathBuf>; 3]>,
    pub(crate) security: Security,
    pub(crate) log: Given<String>,
    pub(crate) log_format: Given<LogFormat>,
    pub(crate) history: Option<PathBuf>,
    pub(crate) access: Option<Given<PathBuf>>,
    pub(crate) audit: Option<Given<PathBuf>>,
    pub(crate) audit_mib: Given<u32>,
    pub(crate) rejoin_file: Option<Given<PathBuf>>,
    pub(crate) rejoin: Option<Security>,
    pub(crate) key: Key,
    /// What works, but should be known.
    pub(crate) warnings: Vec<String>,
}

/// The names of a setting: in the file, as a flag, in the environment.
#[derive(Clone, Copy)]
struct Names(&'static str, &'static str, &'static str);

const ID: Names = Names("id", "id", "CONCLAVE_ID");
const DATA: Names = Names("data", "data", "CONCLAVE_DATA");
const CLUSTER: Names = Names("cluster", "cluster", "CONCLAVE_CLUSTER");
const SECRET_FILE: Names = Names("secret_file", "secret-file", "CONCLAVE_SECRET_FILE");
const LISTEN_PEER: Names = Names("listen_peer", "listen-peer", "CONCLAVE_LISTEN_PEER");
const LISTEN_API: Names = Names("listen_api", "listen-api", "CONCLAVE_LISTEN_API");
const API_NAMES: Names = Names("api_names", "api-name", "CONCLAVE_API_NAMES");
const INSECURE: Names = Names("insecure", "insecure", "CONCLAVE_INSECURE");
const ACCESS: Names = Names("access", "access", "CONCLAVE_ACCESS");
const AUDIT: Names = Names("audit", "audit", "CONCLAVE_AUDIT");
const AUDIT_MIB: Names = Names("audit_mib", "audit-mib", "CONCLAVE_AUDIT_MIB");
const REJOIN: Names = Names("rejoin", "rejoin", "CONCLAVE_REJOIN");
const TLS_CA: Names = Names("tls.ca", "tls-ca", "CONCLAVE_TLS_CA");
const TLS_CERT: Names = Names("tls.cert", "tls-cert", "CONCLAVE_TLS_CERT");
const TLS_KEY: Names = Names("tls.key", "tls-key", "CONCLAVE_TLS_KEY");
const LOG: Names = Names("log", "log", "CONCLAVE_LOG");
const LOG_FORMAT: Names = Names("log_format", "log-format", "CONCLAVE_LOG_FORMAT");

/// Looks up one setting after the other.
struct Layers<'a> {
    text: Option<&'a Text>,
    base: &'a Path,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Layers<'_> {
    fn pick<T>(
        &self,
        Names(key, flag_name, env_name): Names,
        flag: Option<T>,
        file: Option<T>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Given<T>>, Failure> {
        if let Some(value) = flag {
            let from = Source::Flag(flag_name);
            return Ok(Some(Given { value, from }));
        }
        if let Some(text) = (self.env)(env_name) {
            let value = read(&text).map_err(|why| {
                Failure::Input(format!("{env_name}: '{}' is not {why}", shown(&text)))
            })?;
            let from = Source::Env(env_name);
            return Ok(Some(Given { value, from }));
        }
        let line = self.text.and_then(|text| text.line(key)).unwrap_or(0);
        let from = Source::File(line);
        Ok(file.map(|value| Given { value, from }))
    }

    /// A path; in the file it counts from where the file is.
    fn path(
        &self,
        names: Names,
        what: &str,
        flag: Option<&PathBuf>,
        file: Option<PathBuf>,
    ) -> Result<Given<PathBuf>, Failure> {
        let file = file.map(|path| self.base.join(path));
        self.pick(names, flag.cloned(), file, any_text)?
            .ok_or_else(|| self.missing(names, what))
    }

    /// The files of TLS: all, or none.
    fn tls(
        &self,
        flags: &Overrides,
        file: TlsFile,
    ) -> Result<Option<[Given<PathBuf>; 3]>, Failure> {
        let one = |names: Names, flag: &Option<PathBuf>, file: Option<PathBuf>| {
            let file = file.map(|path| self.base.join(path));
            self.pick(names, flag.clone(), file, any_text)
        };
        let ca = one(TLS_CA, &flags.tls_ca, file.ca)?;
        let cert = one(TLS_CERT, &flags.tls_cert, file.cert)?;
        let key = one(TLS_KEY, &flags.tls_key, file.key)?;
        let missing = |names: Names| self.missing(names, "TLS needs ca, cert and key");
        match (ca, cert, key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Ok(Some([ca, cert, key])),
            (None, ..) => Err(missing(TLS_CA)),
            (_, None, _) => Err(missing(TLS_CERT)),
            (.., None) => Err(missing(TLS_KEY)),
        }
    }

    /// A missing value that nothing replaces.
    fn missing(&self, Names(key, flag, env): Names, what: &str) -> Failure {
        let place = self.text.map_or(String::new(), |text| {
            format!("file '{}': ", shown(&text.file))
        });
        let way = if self.text.is_some() {
            format!("write {key} = …, or give --{flag} or {env}")
        } else {
            format!("give --{flag}, {env}, or a --config file with {key} = …")
        };
        Failure::Input(format!("{place}{key} is missing ({what}): {way}"))
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of all readers")]
fn any_text<T: From<String>>(text: &str) -> Result<T, String> {
    Ok(text.to_owned().into())
}

fn api_names(text: &str) -> Result<ApiNames, String> {
    let names = text.split(',').map(|name| name.trim().to_owned());
    ApiNames::try_from(names.collect::<Vec<_>>()).map_err(|_| ApiNames::FORM.to_owned())
}

fn number(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a number from 1".to_owned())
}

fn truth(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

fn format(text: &str) -> Result<LogFormat, String> {
    LogFormat::from_str(text, false).map_err(|_| "text or json".to_owned())
}

/// The value, or the one that holds when nobody says otherwise.
fn or<T>(given: Option<Given<T>>, value: T) -> Given<T> {
    let from = Source::Default;
    given.unwrap_or(Given { value, from })
}

impl Settings {
    /// Settings from the file (if any), the environment of this process, and flags.
    pub(crate) fn load(file: Option<&Path>, flags: &Overrides) -> Result<Self, Failure> {
        let env = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let text = file.map(Text::read).transpose()?;
        let base = file.and_then(Path::parent).unwrap_or(Path::new(""));
        Self::gather(text.as_ref(), base, flags, &env)
    }

    /// Settings from the text of a file whose paths count from `base`, an environment, and flags.
    pub(crate) fn gather(
        text: Option<&Text>,
        base: &Path,
        flags: &Overrides,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let file: NodeFile = text.map(Text::parse).transpose()?.unwrap_or_default();
        let layers = Layers { text, base, env };
        let id = if flags.id_from_hostname {
            None
        } else {
            let id = layers.pick(ID, flags.id, file.id, number)?;
            Some(id.ok_or_else(|| layers.missing(ID, "which node this is"))?)
        };
        let what = "where the node keeps its records";
        let data = layers.path(DATA, what, flags.data.as_ref(), file.data)?;
        let (cluster_file, cluster) = cluster(&layers, flags, file.cluster)?;
        let id = id.map_or_else(|| super::system::id_of_host(&cluster), Ok)?;
        let what = "a file of random text, the same on all nodes";
        let secret_file = flags.secret_file.as_ref();
        let secret_file = layers.path(SECRET_FILE, what, secret_file, file.secret_file)?;
        let peer = flags.listen_peer.clone();
        let peer = layers.pick(LISTEN_PEER, peer, file.listen_peer, any_text)?;
        let api = flags.listen_api.clone();
        let api = layers.pick(LISTEN_API, api, file.listen_api, any_text)?;
        let tls = layers.tls(flags, file.tls)?;
        let leaves = flags.leaves && cluster.node(id.value).is_none();
        let (listen_peer, listen_api) = if leaves {
            leaver(id.value, peer)?
        } else {
            addresses(&cluster, id.value, (peer, api), tls.is_some())?
        };
        let security = security(tls.as_ref(), &cluster, id.value)?;
        let names = match flags.api_names.as_slice() {
            [] => None,
            names => Some(ApiNames::try_from(names.to_vec()).map_err(Failure::Input)?),
        };
        let names = layers.pick(API_NAMES, names, file.api_names, api_names)?;
        let insecure = flags.insecure.then_some(true);
        let insecure = or(
            layers.pick(INSECURE, insecure, file.insecure, truth)?,
            false,
        );
        let log = layers.pick(LOG, flags.log.clone(), file.log, any_text)?;
        let log = or(log, "info".to_owned());
        super::logs::filter(&log.value)?;
        let log_format = layers.pick(LOG_FORMAT, flags.log_format, file.log_format, format)?;
        let (key, mut warnings) = secret(&secret_file.value)?;
        if tls.is_none() {
            let (peer, api) = (&listen_peer.value, &listen_api.value);
            warnings.extend(exposed(peer, api, insecure.value)?);
        }
        let access = file.access.map(|path| base.join(path));
        let access = layers.pick(ACCESS, flags.access.clone(), access, any_text)?;
        warnings.extend(access_warnings(access.as_ref(), tls.is_some())?);
        let audit = file.audit.map(|path| base.join(path));
        let audit = layers.pick(AUDIT, flags.audit.clone(), audit, any_text)?;
        let audit_mib = layers.pick(AUDIT_MIB, flags.audit_mib, file.audit_mib, number)?;
        let audit_mib = or(audit_mib, (BYTES_MAX >> 20) as u32);
        if audit_mib.value == 0 {
            let problem = "audit_mib = 0: the audit log needs at least 1 MiB";
            return Err(Failure::input(problem));
        }
        let rejoin = file.rejoin.map(|path| base.join(path));
        let rejoin_file = layers.pick(REJOIN, flags.rejoin.clone(), rejoin, any_text)?;
        let rejoin = match &rejoin_file {
            Some(path) => Some(super::find::bearer(&path.value, security.clone())?),
            None => None,
        };
        let history = file.history.map(|path| base.join(path));
        Ok(Self {
            id,
            data,
            cluster_file,
            cluster,
            secret_file,
            listen_peer,
            listen_api,
            api_names: or(names, ApiNames::default()),
            insecure,
            tls,
            security,
            log,
            log_format: or(log_format, LogFormat::Text),
            history: flags.history.clone().or(history),
            access,
            audit,
            audit_mib,
            rejoin_file,
            rejoin,
            key,
            warnings,
        })
    }

    /// Where the audit log goes, if one is written.
    pub(crate) fn audit_options(&self) -> Option<AuditOptions> {
        let path = self.audit.as_ref()?.value.clone();
        let bytes_max = u64::from(self.audit_mib.value) << 20;
        Some(AuditOptions { path, bytes_max })
    }

    /// Every value, as text, with its source, in the order of the file.
    pub(crate) fn listed(&self) -> Vec<(&'static str, String, String)> {
        fn row<T: ToString>(
            name: &'static str,
            given: &Given<T>,
        ) -> (&'static str, String, String) {
            (name, given.value.to_string(), given.from.to_string())
        }
        let path = |given: &Given<PathBuf>| Given {
            value: given.value.display().to_string(),
            from: given.from.clone(),
        };
        let inline = || "(in this file)".to_owned();
        let file = self.cluster_file.value.as_ref();
        let cluster = Given {
            value: file.map_or_else(inline, |path| path.display().to_string()),
            from: self.cluster_file.from.clone(),
        };
        let maybe = |given: &Option<Given<PathBuf>>| match given {
            Some(given) => path(given),
            None => Given {
                value: "none".to_owned(),
                from: Source::Default,
            },
        };
        let mut rows = vec![
            row("id", &self.id),
            row("data", &path(&self.data)),
            row("cluster", &cluster),
            row("secret_file", &path(&self.secret_file)),
            row("listen_peer", &self.listen_peer),
            row("listen_api", &self.listen_api),
            row("api_names", &self.api_names),
            row("insecure", &self.insecure),
            row("access", &maybe(&self.access)),
            row("audit", &maybe(&self.audit)),
            row("audit_mib", &self.audit_mib),
            row("rejoin", &maybe(&self.rejoin_file)),
            row("log", &self.log),
            row("log_format", &self.log_format),
        ];
        if let Some([ca, cert, key]) = &self.tls {
            rows.push(row("tls.ca", &path(ca)));
            rows.push(row("tls.cert", &path(cert)));
            rows.push(row("tls.key", &path(key)));
        }
        rows
    }
}

fn cluster(
    layers: &Layers<'_>,
    flags: &Overrides,
    file: Option<ClusterEntry>,
) -> Result<(Given<Option<PathBuf>>, Cluster), Failure> {
    let other = layers.pick(CLUSTER, flags.cluster.clone(), None, any_text::<PathBuf>)?;
    let line = layers.text.and_then(|text| text.line("cluster"));
    let from = Source::File(line.unwrap_or(0));
    let given = match (other, file) {
        (Some(given), _) => given,
        (None, Some(ClusterEntry::File(path))) => Given {
            value: layers.base.join(path),
            from,
        },
        (None, Some(ClusterEntry::Inline(mut cluster))) => {
            if let Some(text) = layers.text {
                text.check(&mut cluster, "cluster.")?;
            }
            return Ok((Given { value: None, from }, *cluster));
        }
        (None, None) => {
            return Err(layers.missing(CLUSTER, "the file that all nodes share"));
        }
    };
    let cluster = Text::read(&given.value)?.cluster()?;
    let given = Given {
        value: Some(given.value),
        from: given.from,
    };
    Ok((given, cluster))
}

/// Reads the access file, so that one that makes no sense is told before anything runs.
fn access_warnings(access: Option<&Given<PathBuf>>, tls: bool) -> Result<Vec<String>, Failure> {
    let Some(access) = access else {
        return Ok(Vec::new());
    };
    if !tls {
        let why = conclave_node::StartError::AccessWithoutTls;
        return Err(Failure::Input(format!(
            "access (from {}): {why}",
            access.from
        )));
    }
    let file = AccessFile::read(&access.value).map_err(|error| {
        let place = shown(&access.value.display().to_string());
        Failure::Input(format!("{place} (from {}): {error}", access.from))
    })?;
    let mut warnings = Vec::new();
    if file.is_empty() {
        warnings.push("the access file is empty: only certificates let anybody in".to_owned());
    } else if file.rules().is_open() {
        warnings.push(
            "the access file has no permission: everyone who shows who they are may do everything"
                .to_owned(),
        );
    }
    Ok(warnings)
}

/// How the node shows who it is: the certificate must be the node's own, and in time.
fn security(
    tls: Option<&[Given<PathBuf>; 3]>,
    cluster: &Cluster,
    id: u32,
) -> Result<Security, Failure> {
    let api = cluster.node(id).map_or("", |node| node.api.as_str());
    let Some([ca, cert, key]) = tls else {
        return Ok(Security::default());
    };
    let own = (cert.value.as_path(), key.value.as_path());
    let security = Security::from_files(&ca.value, Some(own));
    let security = security.map_err(|error| Failure::Input(shown(&error.to_string())))?;
    let certified = security.tls().and_then(|tls| tls.certified());
    conclave_node::fits_node(certified.as_ref(), &cluster.name, id).map_err(|problem| {
        let file = shown(&cert.value.display().to_string());
        let problem = shown(&problem);
        Failure::Input(format!(
            "tls.cert '{file}': {problem}; make it with 'conclave certs node --id {id}'"
        ))
    })?;
    if cluster.node(id).is_some() && !api.starts_with("https://") {
        return Err(Failure::Input(format!(
            "the API of node {id} is at '{}' in the cluster file, but the node speaks TLS: write \
             https:// there",
            shown(api)
        )));
    }
    Ok(security)
}

/// Where a node listens that the new cluster file no longer has: the others still ask it.
fn leaver(id: u32, peer: Option<Given<String>>) -> Result<(Given<String>, Given<String>), Failure> {
    let Some(peer) = peer else {
        return Err(Failure::Input(format!(
            "id {id} is not in the new cluster file: say with --listen-peer where the old one has \
             it, so that the others can ask it"
        )));
    };
    let api = Given {
        value: "127.0.0.1:0".to_owned(),
        from: Source::Default,
    };
    Ok((peer, api))
}

/// Where to listen: as given, else at the node's addresses in the cluster file.
fn addresses(
    cluster: &Cluster,
    id: u32,
    (peer, api): (Option<Given<String>>, Option<Given<String>>),
    tls: bool,
) -> Result<(Given<String>, Given<String>), Failure> {
    let Some(node) = cluster.node(id) else {
        return Err(Failure::Input(format!(
            "id {id}: the cluster '{}' has nodes 1 to {}",
            shown(&cluster.name),
            cluster.nodes.len()
        )));
    };
    let told = |value: String| Given {
        value,
        from: Source::Cluster,
    };
    let peer = peer.unwrap_or_else(|| told(node.peer.clone()));
    let api = match api {
        Some(given) => given,
        None => match host_of(&node.api, tls) {
            Some((rest, usual)) => {
                let host = rest.split('/').next().unwrap_or(rest);
                let port = host
                    .rsplit_once(':')
                    .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                told(if port {
                    host.to_owned()
                } else {
                    format!("{host}:{usual}")
                })
            }
            None => {
                return Err(Failure::Input(format!(
                    "listen_api is missing: the API of node {id} is at '{}', which something in \
                     front of the node must serve; say where the node itself listens",
                    shown(&node.api)
                )));
            }
        },
    };
    for (name, given) in [("listen_peer", &peer), ("listen_api", &api)] {
        let text = &given.value;
        let fits = text
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !fits {
            return Err(Failure::Input(format!(
                "{name}: '{}' is not host:port (from {})",
                shown(text),
                given.from
            )));
        }
    }
    Ok((peer, api))
}

/// The host of a URL that a node itself can serve, and the usual port.
fn host_of(api: &str, tls: bool) -> Option<(&str, u16)> {
    match api.strip_prefix("http://") {
        Some(rest) => Some((rest, 80)),
        None if tls => api.strip_prefix("https://").map(|rest| (rest, 443)),
        None => None,
    }
}

/// Whether only this machine can reach the address.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Plain TCP that others can reach must be asked for; it is a warning then.
fn exposed(peer: &str, api: &str, insecure: bool) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    for (name, address) in [("listen_peer", peer), ("listen_api", api)] {
        if is_loopback(address) {
            continue;
        }
        let what = format!(
            "{name} = '{}' is plain TCP, which others on the network can read and forge",
            shown(address)
        );
        if !insecure {
            return Err(Failure::Input(format!(
                "{what}: give the node a [tls] section ('conclave certs'), listen on a loopback \
                 address, or ask for it with insecure = true"
            )));
        }
        warnings.push(format!("{what}; keep the network closed"));
    }
    Ok(warnings)
}

/// The key made from the secret in this file, and what to know about the file.
fn secret(path: &Path) -> Result<(Key, Vec<String>), Failure> {
    let file = shown(&path.display().to_string());
    let wrong = |why: String| Failure::Input(format!("secret_file '{file}': {why}"));
    let found = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !found.is_file() || found.len() > SECRET_MAX {
        return Err(wrong(format!("not a file of at most {SECRET_MAX} bytes")));
    }
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let secret = bytes.trim_ascii();
    if secret.len() < SECRET_MIN {
        return Err(wrong(format!(
            "{} bytes are too few to be a secret; write at least {SECRET_MIN} random ones, the \
             same on all nodes",
            secret.len()
        )));
    }
    let mut warnings = Vec::new();
    if open_to_others(&found) {
        warnings.push(format!(
            "secret_file '{file}' can be read by other users; run: chmod 600 {file}"
        ));
    }
    Ok((Key::new(secret), warnings))
}

#[cfg(unix)]
fn open_to_others(found: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    found.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn open_to_others(_: &fs::Metadata) -> bool {
    false
}
