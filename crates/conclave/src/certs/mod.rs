//! `conclave certs`: an authority for a cluster, and certificates for its nodes and clients.

mod authority;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use conclave_client::secure::{Identity, Inspected};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output;
use crate::service::shown;

pub(crate) use authority::{Authority, Pair, Valid};

/// Make and look at certificates
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an authority for a cluster: ca.pem to give to everybody, ca.key to keep safe
    #[command(after_help = "Example:\n  conclave certs init --dir certs --cluster prod")]
    Init(Init),
    /// Make a certificate for a node
    #[command(
        after_help = "Example:\n  conclave certs node --dir certs --id 3 --host 10.0.0.3 --host \
        db3.example.org\n\nThe hosts are those of the node's API URL in the cluster file."
    )]
    Node(Node),
    /// Make a certificate for a client
    #[command(after_help = "Example:\n  conclave certs client --dir certs --name ci")]
    Client(Client),
    /// Give certificates a later end, with the same identity and hosts
    #[command(after_help = "Examples:\n  conclave certs renew certs/node-3.pem\n  \
        conclave certs renew certs/*.pem --days 90\n  \
        conclave certs renew certs/client-ci.pem --new-key\n\n\
        Key and authority stand beside the certificate. Nodes and clients that run take up the\n\
        new files by themselves within a few seconds.")]
    Renew(Renew),
    /// Tell what certificates say
    #[command(after_help = "Example:\n  conclave certs show certs/*.pem --json")]
    Show(Show),
}

/// How long a certificate is valid.
#[derive(Debug, Args)]
struct Until {
    #[arg(long, value_name = "N", help = "Valid for so many days from now")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=36_500))]
    days: Option<u32>,
    /// Valid until this time instead, as in 2027-01-31T00:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "days")]
    expires: Option<jiff::Timestamp>,
}

impl Until {
    fn valid(&self, usual: u32) -> Result<Valid, Failure> {
        let Some(expires) = self.expires else {
            return Ok(Valid::days(self.days.unwrap_or(usual)));
        };
        // From the second day after 1970, for it must begin before it ends.
        match u64::try_from(expires.as_second()) {
            Ok(until @ 172_800..) => Ok(Valid::until(until)),
            _ => Err(Failure::Input("--expires: too long ago".to_owned())),
        }
    }
}

/// Days that a node's or client's certificate is valid for.
const LEAF_DAYS: u32 = 365;
/// Days that an authority is valid for.
const CA_DAYS: u32 = 3650;

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Where to put it
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
    /// The name of the cluster, as in its cluster file
    #[arg(long, value_name = "NAME", default_value = "local")]
    cluster: String,
    #[command(flatten)]
    until: Until,
    /// Replace what is there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Node {
    /// Where the authority is, and where to put it
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
    /// The number of the node, from 1
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    id: u32,
    /// A host name or address of its API; may be given several times
    #[arg(long = "host", value_name = "HOST", required = true)]
    hosts: Vec<String>,
    #[command(flatten)]
    until: Until,
    /// Replace what is there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// Where the authority is, and where to put it
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
    /// The name of the client
    #[arg(long, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    until: Until,
    /// Replace what is there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// The certificates
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    until: Until,
    /// With a new key
    #[arg(long)]
    new_key: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The certificates
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a command about certificates.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Init(init) => {
            let valid = init.until.valid(CA_DAYS)?;
            Authority::create(&init.dir, &init.cluster, valid, init.force)?;
            made(&Pair::new(&init.dir, "ca"), init.json)
        }
        Command::Node(node) => {
            let hosts = authority::hosts(&node.hosts)?;
            let valid = node.until.valid(LEAF_DAYS)?;
            let authority = Authority::open(&node.dir)?;
            let who = Identity::Node(node.id);
            let files = authority.issue(&node.dir, &who, &hosts, valid, node.force)?;
            made(&files, node.json)
        }
        Command::Client(client) => {
            let who = authority::client_name(&client.name)?;
            let valid = client.until.valid(LEAF_DAYS)?;
            let authority = Authority::open(&client.dir)?;
            let files = authority.issue(&client.dir, &who, &[], valid, client.force)?;
            made(&files, client.json)
        }
        Command::Renew(renew) => {
            let mut all = Vec::new();
            for file in &renew.files {
                let usual = if authority::look(file)?.is_ca {
                    CA_DAYS
                } else {
                    LEAF_DAYS
                };
                let valid = renew.until.valid(usual)?;
                all.push((file, authority::renew(file, valid, renew.new_key)?));
            }
            tell(&all, renew.json)
        }
        Command::Show(show) => {
            let mut all = Vec::new();
            for file in &show.files {
                all.push((file, authority::look(file)?));
            }
            tell(&all, show.json)
        }
    }
}

fn made(files: &Pair, json: bool) -> Result<(), Failure> {
    let found = authority::look(&files.cert)?;
    let (cert, key) = (files.cert.display(), files.key.display());
    if json {
        let mut told = as_json(&files.cert, &found);
        told["key"] = json!(key.to_string());
        return output::json(&told);
    }
    let (who, until) = (who(&found), found.until_text());
    output::line(format!("{who}, valid until {until}\n  {cert}\n  {key}"))
}

fn tell(all: &[(&PathBuf, Inspected)], json: bool) -> Result<(), Failure> {
    if json {
        let all: Vec<Value> = all
            .iter()
            .map(|(file, found)| as_json(file, found))
            .collect();
        return output::json(&json!({ "certificates": all }));
    }
    let mut table = output::table(&["FILE", "IDENTITY", "HOSTS", "VALID UNTIL", "SIGNED BY"]);
    for (file, found) in all {
        table.add_row([
            shown(&file.display().to_string()),
            who(found),
            shown(&found.hosts.join(" ")),
            found.until_text(),
            shown(&found.issuer),
        ]);
    }
    output::print(&table)
}

fn who(found: &Inspected) -> String {
    match &found.certified {
        Some(certified) => shown(&certified.to_string()),
        None => shown(&found.subject),
    }
}

fn as_json(file: &Path, found: &Inspected) -> Value {
    let time = |seconds: i64| jiff::Timestamp::from_second(seconds).map(|time| time.to_string());
    let certified = found.certified.as_ref();
    json!({
        "certificate": file.display().to_string(),
        "cluster": certified.map(|certified| certified.cluster.clone()),
        "identity": certified.map(|certified| certified.who.to_string()),
        "authority": found.is_ca,
        "hosts": found.hosts,
        "subject": found.subject,
        "issuer": found.issuer,
        "valid_from": time(found.from).ok(),
        "valid_until": time(found.until).ok(),
    })
}
