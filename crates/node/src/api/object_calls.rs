//! What counters, registers and maps are asked over HTTP, and what they answer.

use axum::Json;
use axum::response::{IntoResponse, Response};
use conclave_protocol::lock::PRINCIPAL_MAX;
use conclave_protocol::object::acl::ACL_MAX;
use conclave_protocol::object::kinds::{self, Bytes, Entry, LIST_MAX};
use conclave_protocol::object::kinds::{counter, map, register};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};

use super::errors::Failure;
use super::objects::{Ask, Op, when, work};
use super::openapi::LockName;
use super::refusals::{Keeping, Looking, Posting};
use super::text::Text;

/// The schema of one side of an access list.
pub(super) fn names() -> Array {
    let name = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(PRINCIPAL_MAX));
    ArrayBuilder::new()
        .items(name)
        .max_items(Some(ACL_MAX))
        .description(Some("256 names at most, with those of the other list."))
        .build()
}

pub(super) fn bytes(text: Text) -> Bytes {
    text.0.into()
}

pub(super) fn text(bytes: &[u8]) -> Text {
    Text(bytes.to_vec())
}

fn found(entry: Option<Entry>) -> (Option<Text>, u64) {
    entry.map_or((None, 0), |entry| (Some(text(&entry.value)), entry.version))
}

/// What a counter can do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum CounterOp {
    /// Adds `amount`, 1 if left out.
    Add { amount: Option<i64> },
    /// Reads it.
    Get {},
    /// Says who may change it beside its creator, and who may see it; `*` is everybody.
    Acl {
        #[serde(default)]
        #[schema(schema_with = names)]
        write: Vec<String>,
        #[serde(default)]
        #[schema(schema_with = names)]
        read: Vec<String>,
    },
    /// Empties it; it forgets its kind.
    Delete {},
}

impl From<CounterOp> for Op<counter::Op> {
    fn from(op: CounterOp) -> Self {
        match op {
            CounterOp::Add { amount } => Self::Own(counter::Op::Add(amount.unwrap_or(1))),
            CounterOp::Get {} => Self::Own(counter::Op::Get),
            CounterOp::Acl { write, read } => Self::Acl(write, read),
            CounterOp::Delete {} => Self::Delete,
        }
    }
}

/// What a counter answers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum CounterAnswer {
    /// What it is now.
    Value { value: i64 },
    /// After `acl` and `delete`.
    Done { done: bool },
}

impl From<Option<<kinds::Counter as kinds::Model>::Answer>> for CounterAnswer {
    fn from(answer: Option<<kinds::Counter as kinds::Model>::Answer>) -> Self {
        match answer {
            None => Self::Done { done: true },
            Some(value) => Self::Value { value },
        }
    }
}

/// Changes or reads a counter.
#[utoipa::path(
    post,
    path = "/v1/objects/counter/{name}",
    params(LockName),
    request_body = CounterOp,
    responses((status = 200, description = "It is done.", body = CounterAnswer), Posting, Keeping),
)]
pub(super) async fn change_counter(mut ask: Ask) -> Result<Response, Failure> {
    let op: CounterOp = ask.op().await?;
    let answer = work::<kinds::Counter>(&ask.keeper, &ask.name, op.into()).await?;
    Ok(Json(CounterAnswer::from(answer)).into_response())
}

/// Reads a counter.
#[utoipa::path(
    get,
    path = "/v1/objects/counter/{name}",
    params(LockName),
    responses(
        (status = 200, description = "What is there.", body = CounterAnswer),
        Looking, Keeping,
    ),
)]
pub(super) async fn read_counter(ask: Ask) -> Result<Response, Failure> {
    ask.query.only(&[])?;
    let op = counter::Op::Get;
    let answer = work::<kinds::Counter>(&ask.keeper, &ask.name, Op::Own(op)).await?;
    Ok(Json(CounterAnswer::from(answer)).into_response())
}

/// What a register can do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum RegisterOp {
    /// Writes it.
    Set {
        value: Text,
        /// Only if what is there has this version.
        if_version: Option<u64>,
        /// Only if nothing is there.
        #[serde(default)]
        if_absent: bool,
    },
    /// Reads it.
    Get {},
    /// Says who may change it beside its creator, and who may see it; `*` is everybody.
    Acl {
        #[serde(default)]
        #[schema(schema_with = names)]
        write: Vec<String>,
        #[serde(default)]
        #[schema(schema_with = names)]
        read: Vec<String>,
    },
    /// Empties it; it forgets its kind.
    Delete {},
}

impl From<RegisterOp> for Op<register::Op> {
    fn from(op: RegisterOp) -> Self {
        match op {
            RegisterOp::Set {
                value,
                if_version,
                if_absent,
            } => Self::Own(register::Op::Set {
                value: bytes(value),
                when: when(if_version, if_absent),
            }),
            RegisterOp::Get {} => Self::Own(register::Op::Get),
            RegisterOp::Acl { write, read } => Self::Acl(write, read),
            RegisterOp::Delete {} => Self::Delete,
        }
    }
}

/// What a register answers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RegisterAnswer {
    /// The version that was written.
    Set { version: u64 },
    /// What is there; null and 0 if there is nothing.
    Found {
        #[schema(required = true)]
        value: Option<Text>,
        version: u64,
    },
    /// After `acl` and `delete`.
    Done { done: bool },
}

impl From<Option<<kinds::Register as kinds::Model>::Answer>> for RegisterAnswer {
    fn from(answer: Option<<kinds::Register as kinds::Model>::Answer>) -> Self {
        match answer {
            None => Self::Done { done: true },
            Some(register::Answer::Set(version)) => Self::Set { version },
            Some(register::Answer::Got(entry)) => {
                let (value, version) = found(entry);
                Self::Found { value, version }
            }
        }
    }
}

/// Changes or reads a register.
#[utoipa::path(
    post,
    path = "/v1/objects/register/{name}",
    params(LockName),
    request_body = RegisterOp,
    responses((status = 200, description = "It is done.", body = RegisterAnswer), Posting, Keeping),
)]
pub(super) async fn change_register(mut ask: Ask) -> Result<Response, Failure> {
    let op: RegisterOp = ask.op().await?;
    let answer = work::<kinds::Register>(&ask.keeper, &ask.name, op.into()).await?;
    Ok(Json(RegisterAnswer::from(answer)).into_response())
}

/// Reads a register.
#[utoipa::path(
    get,
    path = "/v1/objects/register/{name}",
    params(LockName),
    responses(
        (status = 200, description = "What is there.", body = RegisterAnswer),
        Looking, Keeping,
    ),
)]
pub(super) async fn read_register(ask: Ask) -> Result<Response, Failure> {
    ask.query.only(&[])?;
    let op = register::Op::Get;
    let answer = work::<kinds::Register>(&ask.keeper, &ask.name, Op::Own(op)).await?;
    Ok(Json(RegisterAnswer::from(answer)).into_response())
}

/// A key of a map and what is there.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MapEntry {
    key: Text,
    value: Text,
    version: u64,
}

/// What a map can do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum MapOp {
    /// Writes a key.
    Set {
        key: Text,
        value: Text,
        /// Only if what is there has this version.
        if_version: Option<u64>,
        /// Only if nothing is there.
        #[serde(default)]
        if_absent: bool,
    },
    /// Removes a key.
    Remove {
        key: Text,
        /// Only if what is there has this version.
        if_version: Option<u64>,
        /// Only if nothing is there.
        #[serde(default)]
        if_absent: bool,
    },
    /// Reads a key.
    Get { key: Text },
    /// Reads keys in their order.
    List {
        /// Only keys that begin with it.
        prefix: Option<Text>,
        /// Only keys after this one.
        after: Option<Text>,
        /// How many at most.
        limit: Option<u32>,
    },
    /// Says who may change it beside its creator, and who may see it; `*` is everybody.
    Acl {
        #[serde(default)]
        #[schema(schema_with = names)]
        write: Vec<String>,
        #[serde(default)]
        #[schema(schema_with = names)]
        read: Vec<String>,
    },
    /// Empties it; it forgets its kind.
    Delete {},
}

impl From<MapOp> for Op<map::Op> {
    fn from(op: MapOp) -> Self {
        match op {
            MapOp::Set {
                key,
                value,
                if_version,
                if_absent,
            } => Self::Own(map::Op::Set {
                key: bytes(key),
                value: bytes(value),
                when: when(if_version, if_absent),
            }),
            MapOp::Remove {
                key,
                if_version,
                if_absent,
            } => Self::Own(map::Op::Remove {
                key: bytes(key),
                when: when(if_version, if_absent),
            }),
            MapOp::Get { key } => Self::Own(map::Op::Get(bytes(key))),
            MapOp::List {
                prefix,
                after,
                limit,
            } => Self::Own(map::Op::List {
                prefix: bytes(prefix.unwrap_or_default()),
                after: after.map(bytes),
                limit: limit.unwrap_or(LIST_MAX),
            }),
            MapOp::Acl { write, read } => Self::Acl(write, read),
            MapOp::Delete {} => Self::Delete,
        }
    }
}

/// What a map answers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum MapAnswer {
    /// The version that was written.
    Set { version: u64 },
    /// What is or was there; null and 0 if there is nothing.
    Found {
        #[schema(required = true)]
        value: Option<Text>,
        version: u64,
    },
    /// Keys, and whether there are more.
    Listed { entries: Vec<MapEntry>, more: bool },
    /// After `acl` and `delete`.
    Done { done: bool },
}

impl From<Option<<kinds::Map as kinds::Model>::Answer>> for MapAnswer {
    fn from(answer: Option<<kinds::Map as kinds::Model>::Answer>) -> Self {
        match answer {
            None => Self::Done { done: true },
            Some(map::Answer::Set(version)) => Self::Set { version },
            Some(map::Answer::Removed(entry) | map::Answer::Got(entry)) => {
                let (value, version) = found(entry);
                Self::Found { value, version }
            }
            Some(map::Answer::Listed(list)) => {
                let each = |(key, found): &(Bytes, Entry)| MapEntry {
                    key: text(key),
                    value: text(&found.value),
                    version: found.version,
                };
                Self::Listed {
                    entries: list.entries.iter().map(each).collect(),
                    more: list.more,
                }
            }
        }
    }
}

/// Changes or reads a map.
#[utoipa::path(
    post,
    path = "/v1/objects/map/{name}",
    params(LockName),
    request_body = MapOp,
    responses((status = 200, description = "It is done.", body = MapAnswer), Posting, Keeping),
)]
pub(super) async fn change_map(mut ask: Ask) -> Result<Response, Failure> {
    let op: MapOp = ask.op().await?;
    let answer = work::<kinds::Map>(&ask.keeper, &ask.name, op.into()).await?;
    Ok(Json(MapAnswer::from(answer)).into_response())
}

/// Reads a map.
#[utoipa::path(
    get,
    path = "/v1/objects/map/{name}",
    params(
        LockName,
        ("key" = Option<String>, Query, description = "Reads this key alone."),
        ("prefix" = Option<String>, Query, description = "Only keys that begin with it."),
        ("after" = Option<String>, Query, description = "Only keys after this one."),
        ("limit" = Option<u32>, Query, description = "How many at most."),
    ),
    responses((status = 200, description = "What is there.", body = MapAnswer), Looking, Keeping),
)]
pub(super) async fn read_map(ask: Ask) -> Result<Response, Failure> {
    ask.query.only(&["key", "prefix", "after", "limit"])?;
    let limit = ask.number("limit")?.unwrap_or(LIST_MAX);
    let op = match ask.text("key") {
        Some(key) => map::Op::Get(key),
        None => map::Op::List {
            prefix: ask.text("prefix").unwrap_or_default(),
            after: ask.text("after"),
            limit,
        },
    };
    let answer = work::<kinds::Map>(&ask.keeper, &ask.name, Op::Own(op)).await?;
    Ok(Json(MapAnswer::from(answer)).into_response())
}
