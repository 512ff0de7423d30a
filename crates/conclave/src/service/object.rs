//! `conclave object`: replicated objects on the command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Args, Subcommand};
use conclave_client::{Client, Counter, Handle, Log, Map, Object as Opened, ObjectError, Trouble};
use conclave_client::{Queue, Register};
use conclave_protocol::object::kinds::{Bytes, Entry, LIST_MAX, Model, When};
use conclave_wire::Span;
use serde_json::{Value, json};

use super::find::{Endpoints, not_connected};
use super::runtime;
use super::signals::Stops;
use super::watch::text;
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Object {
    #[command(subcommand)]
    kind: Kind,
    /// How long an operation may take
    #[arg(long, value_name = "SPAN", default_value = "30s", global = true)]
    wait: Span,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// A whole number that is added to
    Counter {
        /// The object
        name: OsString,
        #[command(subcommand)]
        verb: CounterVerb,
    },
    /// Keys and values; every entry has the version at which it was written
    Map {
        /// The object
        name: OsString,
        #[command(subcommand)]
        verb: MapVerb,
    },
    /// Items that leave in the order in which they came
    Queue {
        /// The object
        name: OsString,
        #[command(subcommand)]
        verb: QueueVerb,
    },
    /// Entries that are appended, read by number and cut off at the front
    Log {
        /// The object
        name: OsString,
        #[command(subcommand)]
        verb: LogVerb,
    },
    /// One value
    Register {
        /// The object
        name: OsString,
        #[command(subcommand)]
        verb: RegisterVerb,
    },
    /// Say who may read and write an object beside its creator
    Acl {
        /// The object
        name: OsString,
        /// Who may change it, comma separated; '*' is everybody
        #[arg(long, value_name = "WHO,…", value_delimiter = ',')]
        write: Vec<String>,
        /// Who may see it, comma separated
        #[arg(long, value_name = "WHO,…", value_delimiter = ',')]
        read: Vec<String>,
    },
    /// Empty an object and forget its kind
    Delete {
        /// The object
        name: OsString,
    },
}

#[derive(Debug, Subcommand)]
enum CounterVerb {
    /// Add one
    Incr,
    /// Add a number
    Add {
        /// The number
        #[arg(allow_negative_numbers = true)]
        amount: i64,
    },
    /// Print the number
    Get,
}

#[derive(Debug, Subcommand)]
enum MapVerb {
    /// Set a key and print the entry's version
    Set {
        /// The key
        #[arg(id = "entry", value_name = "KEY")]
        key: OsString,
        /// The value
        value: OsString,
        #[command(flatten)]
        when: Condition,
    },
    /// Print what a key has
    Get {
        /// The key
        #[arg(id = "entry", value_name = "KEY")]
        key: OsString,
    },
    /// Print keys and what they have
    List {
        /// Only keys that begin so
        #[arg(long, value_name = "P", default_value = "")]
        prefix: OsString,
        /// Only keys after this one
        #[arg(long, value_name = "K")]
        after: Option<OsString>,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
    },
    /// Take a key away and print what it had
    Remove {
        /// The key
        #[arg(id = "entry", value_name = "KEY")]
        key: OsString,
        #[command(flatten)]
        when: Condition,
    },
    /// Print a key, or all, whenever it changes
    Watch {
        /// The key
        #[arg(id = "entry", value_name = "KEY")]
        key: Option<OsString>,
        /// Print what is now, and end
        #[arg(long)]
        once: bool,
    },
}

#[derive(Debug, Args)]
struct Condition {
    /// Only if it has this version
    #[arg(long, value_name = "N", conflicts_with = "if_absent")]
    if_version: Option<u64>,
    /// Only if there is nothing
    #[arg(long)]
    if_absent: bool,
}

impl Condition {
    fn when(&self) -> When {
        match self.if_version {
            Some(version) => When::Version(version),
            None if self.if_absent => When::Absent,
            None => When::Always,
        }
    }
}

#[derive(Debug, Subcommand)]
enum QueueVerb {
    /// Append an item and print its number
    Push {
        /// The item
        item: OsString,
    },
    /// Take the first item and print it
    Pop,
    /// Print the first item
    Peek,
    /// Print how many items there are
    Len,
}

#[derive(Debug, Subcommand)]
enum LogVerb {
    /// Append an entry and print its number
    Append {
        /// The entry
        entry: OsString,
    },
    /// Print entries with their numbers
    Read {
        /// From this number on
        #[arg(long, value_name = "N", default_value_t = 0)]
        from: u64,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
    },
    /// Cut off all entries below a number, and print the first that is kept
    Trim {
        /// The number
        to: u64,
    },
    /// Print how many entries are kept
    Len,
}

#[derive(Debug, Subcommand)]
enum RegisterVerb {
    /// Set the value and print its version
    Set {
        /// The value
        value: OsString,
        #[command(flatten)]
        when: Condition,
    },
    /// Print the value
    Get,
}

/// What is printed at the end: for people, and for programs.
struct Told {
    plain: Vec<u8>,
    json: Value,
}

impl Told {
    fn number(name: &str, number: impl Into<Value>) -> Self {
        let number = number.into();
        Self {
            plain: format!("{number}\n").into_bytes(),
            json: json!({ name: number }),
        }
    }

    fn done() -> Self {
        Self {
            plain: Vec::new(),
            json: json!({ "done": true }),
        }
    }

    /// A value by itself.
    fn value(value: &[u8], json: Value) -> Self {
        let mut plain = value.to_vec();
        plain.push(b'\n');
        Self { plain, json }
    }
}

/// Why there is no answer.
enum Wrong {
    Object(ObjectError),
    /// There is no such key or value.
    Absent,
    Other(Failure),
}

impl From<ObjectError> for Wrong {
    fn from(error: ObjectError) -> Self {
        Self::Object(error)
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

impl Object {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let target = self.endpoints.find()?;
        let done = runtime()?.block_on(async {
            let mut stops = Stops::new()?;
            let client = target.client().await;
            let client = client.map_err(|error| not_connected(&error))?;
            let done = tokio::select! {
                done = self.work(&client) => done,
                _ = stops.next() => Ok(Told { plain: Vec::new(), json: Value::Null }),
            };
            client.close().await;
            Ok::<_, Failure>(done)
        })?;
        match done {
            Ok(told) if self.json && told.json.is_null() => Ok(()),
            Ok(told) if self.json => output::line(told.json.to_string()),
            Ok(told) => output::raw(&told.plain),
            Err(Wrong::Other(failure)) => Err(failure),
            Err(Wrong::Absent) => self.fail("absent", "there is nothing of that name", 1),
            Err(Wrong::Object(error)) => {
                let code = match &error {
                    ObjectError::Kind(_) | ObjectError::OtherKind | ObjectError::Unknown(_) => 1,
                    ObjectError::TimedOut => 3,
                    ObjectError::Trouble(Trouble::NoQuorum { .. }) => 5,
                    _ => 2,
                };
                self.fail(error.name(), &error.to_string(), code)
            }
        }
    }

    fn fail(&self, name: &str, message: &str, code: u8) -> Result<(), Failure> {
        if self.json {
            output::line(json!({ "error": name, "message": message }).to_string())?;
            return Err(Failure::Exit(code));
        }
        let message = format!("{name}: {message}");
        Err(match code {
            1 => Failure::Failed(message),
            3 => Failure::NotAcquired(message),
            5 => Failure::NoQuorum(message),
            _ => Failure::Input(message),
        })
    }

    async fn work(&self, client: &Client) -> Result<Told, Wrong> {
        match &self.kind {
            Kind::Counter { name, verb } => {
                let counter: Counter = self.open(client, name);
                let number = match verb {
                    CounterVerb::Incr => counter.incr().await?,
                    CounterVerb::Add { amount } => counter.add(*amount).await?,
                    CounterVerb::Get => counter.get().await?,
                };
                Ok(Told::number("value", number))
            }
            Kind::Map { name, verb } => self.map(&self.open(client, name), verb).await,
            Kind::Queue { name, verb } => queue(&self.open(client, name), verb).await,
            Kind::Log { name, verb } => log(&self.open(client, name), verb).await,
            Kind::Register { name, verb } => register(&self.open(client, name), verb).await,
            Kind::Acl { name, write, read } => {
                self.on_any(client, name, Change::Acl(write, read)).await
            }
            Kind::Delete { name } => self.on_any(client, name, Change::Delete).await,
        }
    }

    fn open<T: Handle>(&self, client: &Client, name: &OsString) -> T {
        let model = T::Model::default();
        let object = client.object_of(name.as_bytes(), model);
        T::new(object.timeout(self.wait.0))
    }

    async fn map(&self, map: &Map, verb: &MapVerb) -> Result<Told, Wrong> {
        match verb {
            MapVerb::Set { key, value, when } => {
                let (key, value) = (key.as_bytes(), value.as_bytes());
                let version = map.set_when(key, value, when.when()).await?;
                Ok(Told::number("version", version))
            }
            MapVerb::Get { key } => {
                let entry = map.get(key.as_bytes()).await?.ok_or(Wrong::Absent)?;
                Ok(Told::value(&entry.value, entry_json(&entry)))
            }
            MapVerb::Remove { key, when } => {
                let removed = map.remove_when(key.as_bytes(), when.when()).await?;
                let entry = removed.ok_or(Wrong::Absent)?;
                Ok(Told::value(&entry.value, entry_json(&entry)))
            }
            MapVerb::List {
                prefix,
                after,
                limit,
            } => {
                let after = after.clone().map(OsString::into_vec);
                let (entries, more) = list(map, prefix.as_bytes(), after, *limit).await?;
                let mut plain = Vec::new();
                for (key, entry) in &entries {
                    plain.extend_from_slice(&line(key, Some(entry)));
                }
                let entries: Vec<Value> = entries
                    .iter()
                    .map(|(key, entry)| keyed(key, Some(entry)))
                    .collect();
                let json = json!({ "entries": entries, "more": more });
                Ok(Told { plain, json })
            }
            MapVerb::Watch { key, once } => match key {
                Some(key) => self.watch_key(map, key.as_bytes(), *once).await,
                None => self.watch_all(map, *once).await,
            },
        }
    }

    fn show(&self, key: &[u8], entry: Option<&Entry>) -> Result<(), Failure> {
        if self.json {
            output::line(keyed(key, entry).to_string())
        } else {
            output::raw(&line(key, entry))
        }
    }

    async fn watch_key(&self, map: &Map, key: &[u8], once: bool) -> Result<Told, Wrong> {
        let mut watch = map.watch_key(key).await?;
        loop {
            let entry = watch.next().await?;
            self.show(key, entry.as_ref())?;
            if once {
                return Ok(Told {
                    plain: Vec::new(),
                    json: Value::Null,
                });
            }
        }
    }

    async fn watch_all(&self, map: &Map, once: bool) -> Result<Told, Wrong> {
        let mut watch = map.watch().await?;
        let mut known: BTreeMap<Bytes, Entry> = BTreeMap::new();
        loop {
            watch.next().await?;
            let (entries, _) = list(map, b"", None, None).await?;
            let mut now: BTreeMap<Bytes, Entry> = entries.into_iter().collect();
            for key in known.keys().filter(|key| !now.contains_key(*key)) {
                self.show(key, None)?;
            }
            for (key, entry) in &now {
                if known.get(key) != Some(entry) {
                    self.show(key, Some(entry))?;
                }
            }
            std::mem::swap(&mut known, &mut now);
            if once {
                return Ok(Told {
                    plain: Vec::new(),
                    json: Value::Null,
                });
            }
        }
    }

    /// Changes an object whose kind is not known.
    async fn on_any(
        &self,
        client: &Client,
        name: &OsString,
        change: Change<'_>,
    ) -> Result<Told, Wrong> {
        let tried = try_change::<Counter>(self.open(client, name), change).await;
        let tried = match tried {
            Err(ObjectError::OtherKind) => try_change::<Map>(self.open(client, name), change).await,
            tried => tried,
        };
        let tried = match tried {
            Err(ObjectError::OtherKind) => {
                try_change::<Queue>(self.open(client, name), change).await
            }
            tried => tried,
        };
        let tried = match tried {
            Err(ObjectError::OtherKind) => try_change::<Log>(self.open(client, name), change).await,
            tried => tried,
        };
        let tried = match tried {
            Err(ObjectError::OtherKind) => {
                try_change::<Register>(self.open(client, name), change).await
            }
            tried => tried,
        };
        tried?;
        Ok(Told::done())
    }
}

/// A change that any kind of object can bear.
#[derive(Clone, Copy)]
enum Change<'a> {
    Acl(&'a [String], &'a [String]),
    Delete,
}

async fn try_change<T>(handle: T, change: Change<'_>) -> Result<(), ObjectError>
where
    T: Handle + std::ops::Deref<Target = Opened<T::Model>>,
    T::Model: Model,
{
    match change {
        Change::Acl(write, read) => handle.set_acl(write, read).await,
        Change::Delete => handle.delete().await,
    }
}

/// All entries, part by part, at most so many; and whether there are more.
async fn list(
    map: &Map,
    prefix: &[u8],
    mut after: Option<Vec<u8>>,
    limit: Option<u32>,
) -> Result<(Vec<(Bytes, Entry)>, bool), ObjectError> {
    let mut all = Vec::new();
    loop {
        let left = limit.map_or(u32::MAX, |limit| limit.saturating_sub(all.len() as u32));
        let part = map
            .list(prefix, after.as_deref(), left.min(LIST_MAX))
            .await?;
        let last = part.entries.last().map(|(key, _)| key.to_vec());
        all.extend(part.entries);
        let full = limit.is_some_and(|limit| all.len() >= limit as usize);
        if !part.more || full || last.is_none() {
            return Ok((all, part.more));
        }
        after = last;
    }
}

async fn queue(queue: &Queue, verb: &QueueVerb) -> Result<Told, Wrong> {
    let item = match verb {
        QueueVerb::Push { item } => {
            let number = queue.push(item.as_bytes()).await?;
            return Ok(Told::number("number", number));
        }
        QueueVerb::Len => return Ok(Told::number("len", queue.len().await?)),
        QueueVerb::Pop => queue.pop().await?,
        QueueVerb::Peek => queue.peek().await?,
    };
    let item = item.ok_or(ObjectError::Kind(
        conclave_protocol::object::KindError::Empty,
    ))?;
    Ok(Told::value(&item, json!({ "value": text(&item) })))
}

async fn log(log: &Log, verb: &LogVerb) -> Result<Told, Wrong> {
    match verb {
        LogVerb::Append { entry } => {
            let number = log.append(entry.as_bytes()).await?;
            Ok(Told::number("number", number))
        }
        LogVerb::Trim { to } => Ok(Told::number("first", log.trim(*to).await?)),
        LogVerb::Len => {
            let ends = log.ends().await?;
            let len = ends.next - ends.first;
            let mut told = Told::number("len", len);
            told.json = json!({ "len": len, "first": ends.first, "next": ends.next });
            Ok(told)
        }
        LogVerb::Read { from, limit } => {
            let (mut all, mut from) = (Vec::new(), *from);
            let more = loop {
                let left = limit.map_or(u32::MAX, |limit| limit.saturating_sub(all.len() as u32));
                let part = log.read_from(from, left.min(LIST_MAX)).await?;
                let last = part.entries.last().map(|(number, _)| *number);
                all.extend(part.entries);
                let full = limit.is_some_and(|limit| all.len() >= limit as usize);
                match last {
                    Some(last) if part.more && !full => from = last + 1,
                    _ => break part.more,
                }
            };
            let mut plain = Vec::new();
            for (number, entry) in &all {
                plain.extend_from_slice(format!("{number}\t").as_bytes());
                plain.extend_from_slice(entry);
                plain.push(b'\n');
            }
            let entry =
                |(number, entry): &(u64, Bytes)| json!({ "number": number, "value": text(entry) });
            let entries: Vec<Value> = all.iter().map(entry).collect();
            let json = json!({ "entries": entries, "more": more });
            Ok(Told { plain, json })
        }
    }
}

async fn register(register: &Register, verb: &RegisterVerb) -> Result<Told, Wrong> {
    match verb {
        RegisterVerb::Set { value, when } => {
            let value = Bytes::from(value.as_bytes());
            let version = register.set_when(&value, when.when()).await?;
            Ok(Told::number("version", version))
        }
        RegisterVerb::Get => {
            let (value, version) = register.get().await?.ok_or(Wrong::Absent)?;
            let json = json!({ "value": text(&value), "version": version });
            Ok(Told::value(&value, json))
        }
    }
}

fn line(key: &[u8], entry: Option<&Entry>) -> Vec<u8> {
    let mut line = key.to_vec();
    if let Some(entry) = entry {
        line.push(b'\t');
        line.extend_from_slice(&entry.value);
    }
    line.push(b'\n');
    line
}

fn keyed(key: &[u8], entry: Option<&Entry>) -> Value {
    json!({
        "key": text(key),
        "value": entry.map(|entry| text(&entry.value)),
        "version": entry.map(|entry| entry.version),
    })
}

fn entry_json(entry: &Entry) -> Value {
    json!({ "value": text(&entry.value), "version": entry.version })
}
