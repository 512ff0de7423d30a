//! Objects over HTTP: `POST /v1/objects/KIND/NAME` does an operation, `GET` reads. Names are as
//! those of locks.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use conclave_client::keeper::Keeper;
use conclave_client::{Handle, Object};
use conclave_protocol::id::Name;
use conclave_protocol::object::kinds::{self, Bytes, Entry, When};
use conclave_protocol::object::kinds::{LIST_MAX, Model, counter, log, map, queue, register};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, read, refuse};
use super::path::{check, decode};
use super::text::Text;

/// What the path of an object begins with.
const OBJECTS: &str = "/v1/objects/";

/// What can be asked of an object of some kind.
#[derive(Debug)]
pub(crate) enum Op<T> {
    /// An operation of the kind.
    Own(T),
    /// Who may write and read it from now on.
    Acl(Vec<String>, Vec<String>),
    /// It is emptied, and forgets its kind.
    Delete,
}

/// The body of an operation; which fields it has depends on `op`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OpBody {
    op: String,
    amount: Option<i64>,
    key: Option<Text>,
    value: Option<Text>,
    if_version: Option<u64>,
    if_absent: bool,
    prefix: Option<Text>,
    after: Option<Text>,
    limit: Option<u32>,
    from: Option<u64>,
    to: Option<u64>,
    write: Vec<String>,
    read: Vec<String>,
}

/// Everything under `/v1/objects/`.
pub(crate) async fn objects(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let result = call(&app, request).await;
    result.unwrap_or_else(|failure| refuse(&app, failure))
}

async fn call(app: &Arc<App>, request: Request<Body>) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let caller = Caller::of(&parts.extensions)?;
    let path = parts.uri.path().strip_prefix(OBJECTS);
    let path = path.ok_or(Failure::NotFound)?;
    let (kind, raw) = path.split_once('/').ok_or(Failure::NotFound)?;
    let name = check(decode(raw)?, app.config.limits.name_bytes)?;
    let body = if parts.method == Method::POST {
        read(app, body, false).await?
    } else if parts.method == Method::GET {
        asked(kind, &parts)?
    } else {
        return Err(Failure::WrongMethod);
    };
    let keeper = app.keeper(&caller)?;
    let told = match kind {
        "counter" => counter_call(&keeper, &name, &body).await?,
        "map" => map_call(&keeper, &name, body).await?,
        "queue" => queue_call(&keeper, &name, body).await?,
        "log" => log_call(&keeper, &name, body).await?,
        "register" => register_call(&keeper, &name, body).await?,
        _ => return Err(Failure::NotFound),
    };
    Ok(Json(told).into_response())
}

/// What a GET asks for.
fn asked(kind: &str, parts: &Parts) -> Result<OpBody, Failure> {
    let query = Query::read(parts)?;
    query.only(match kind {
        "map" => &["key", "prefix", "after", "limit"][..],
        "log" => &["from", "limit"],
        _ => &[],
    })?;
    let text = |field: &str| query.get(field).map(|bytes| Text(bytes.to_vec()));
    let number = |field: &str| -> Result<Option<u64>, Failure> {
        let Some(bytes) = query.get(field) else {
            return Ok(None);
        };
        let number = std::str::from_utf8(bytes).ok();
        let number = number.and_then(|text| text.parse().ok());
        let wrong = || Failure::BadRequest(format!("{field} must be a whole number"));
        number.ok_or_else(wrong).map(Some)
    };
    let op = match kind {
        "map" if query.get("key").is_none() => "list",
        "queue" => "len",
        "log" => "read",
        _ => "get",
    };
    Ok(OpBody {
        op: op.to_owned(),
        key: text("key"),
        prefix: text("prefix"),
        after: text("after"),
        limit: number("limit")?.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
        from: number("from")?,
        ..OpBody::default()
    })
}

impl OpBody {
    fn needs<T>(field: Option<T>, name: &str) -> Result<T, Failure> {
        field.ok_or_else(|| Failure::BadRequest(format!("this operation needs '{name}'")))
    }

    fn when(&self) -> When {
        match self.if_version {
            Some(version) => When::Version(version),
            None if self.if_absent => When::Absent,
            None => When::Always,
        }
    }

    /// What all kinds can do.
    fn common<T>(&self, kinds: &str) -> Result<Op<T>, Failure> {
        match self.op.as_str() {
            "acl" => Ok(Op::Acl(self.write.clone(), self.read.clone())),
            "delete" => Ok(Op::Delete),
            other => {
                let known = format!("'{other}' is none of {kinds}, acl, delete");
                Err(Failure::BadRequest(format!("op: {known}")))
            }
        }
    }
}

/// Does an operation on an object of a kind; none for what all kinds can do.
pub(crate) async fn work<M: Model + Default>(
    keeper: &Keeper,
    name: &Name,
    op: Op<M::Op>,
) -> Result<Option<M::Answer>, Failure>
where
    Object<M>: Handle,
{
    let object: Object<M> = keeper.object(name.bytes());
    match op {
        Op::Own(op) => Ok(Some(object.call(op).await?)),
        Op::Acl(write, read) => {
            object.set_acl(write, read).await?;
            Ok(None)
        }
        Op::Delete => {
            object.delete().await?;
            Ok(None)
        }
    }
}

fn bytes(text: Text) -> Bytes {
    text.0.into()
}

fn text(bytes: &[u8]) -> Value {
    serde_json::to_value(Text(bytes.to_vec())).unwrap_or_default()
}

fn entry(entry: &Entry) -> Value {
    json!({ "value": text(&entry.value), "version": entry.version })
}

fn done() -> Value {
    json!({ "done": true })
}

async fn counter_call(keeper: &Keeper, name: &Name, body: &OpBody) -> Result<Value, Failure> {
    let op = match body.op.as_str() {
        "add" => Op::Own(counter::Op::Add(body.amount.unwrap_or(1))),
        "get" => Op::Own(counter::Op::Get),
        _ => body.common("add, get")?,
    };
    let answer = work::<kinds::Counter>(keeper, name, op).await?;
    Ok(answer.map_or_else(done, |value| json!({ "value": value })))
}

async fn register_call(keeper: &Keeper, name: &Name, body: OpBody) -> Result<Value, Failure> {
    let when = body.when();
    let op = match body.op.as_str() {
        "set" => Op::Own(register::Op::Set {
            value: bytes(OpBody::needs(body.value, "value")?),
            when,
        }),
        "get" => Op::Own(register::Op::Get),
        _ => body.common("set, get")?,
    };
    Ok(match work::<kinds::Register>(keeper, name, op).await? {
        None => done(),
        Some(register::Answer::Set(version)) => json!({ "version": version }),
        Some(register::Answer::Got(Some(found))) => entry(&found),
        Some(register::Answer::Got(None)) => json!({ "value": null, "version": 0 }),
    })
}

async fn map_call(keeper: &Keeper, name: &Name, body: OpBody) -> Result<Value, Failure> {
    let when = body.when();
    let key = |key: Option<Text>| Ok::<_, Failure>(bytes(OpBody::needs(key, "key")?));
    let op = match body.op.as_str() {
        "set" => Op::Own(map::Op::Set {
            key: key(body.key)?,
            value: bytes(OpBody::needs(body.value, "value")?),
            when,
        }),
        "remove" => Op::Own(map::Op::Remove {
            key: key(body.key)?,
            when,
        }),
        "get" => Op::Own(map::Op::Get(key(body.key)?)),
        "list" => Op::Own(map::Op::List {
            prefix: bytes(body.prefix.unwrap_or_default()),
            after: body.after.map(bytes),
            limit: body.limit.unwrap_or(LIST_MAX),
        }),
        _ => body.common("set, remove, get, list")?,
    };
    Ok(match work::<kinds::Map>(keeper, name, op).await? {
        None => done(),
        Some(map::Answer::Set(version)) => json!({ "version": version }),
        Some(map::Answer::Removed(found) | map::Answer::Got(found)) => found.map_or_else(
            || json!({ "value": null, "version": 0 }),
            |found| entry(&found),
        ),
        Some(map::Answer::Listed(list)) => {
            let each = |(key, found): &(Bytes, Entry)| {
                let (key, value) = (text(key), text(&found.value));
                json!({ "key": key, "value": value, "version": found.version })
            };
            let entries: Vec<Value> = list.entries.iter().map(each).collect();
            json!({ "entries": entries, "more": list.more })
        }
    })
}

async fn queue_call(keeper: &Keeper, name: &Name, body: OpBody) -> Result<Value, Failure> {
    let op = match body.op.as_str() {
        "push" => Op::Own(queue::Op::Push(bytes(OpBody::needs(body.value, "value")?))),
        "pop" => Op::Own(queue::Op::Pop),
        "peek" => Op::Own(queue::Op::Peek),
        "len" => Op::Own(queue::Op::Len),
        _ => body.common("push, pop, peek, len")?,
    };
    Ok(match work::<kinds::Queue>(keeper, name, op).await? {
        None => done(),
        Some(queue::Answer::Pushed(number)) => json!({ "number": number }),
        Some(queue::Answer::First(item)) => json!({ "value": text(&item) }),
        Some(queue::Answer::Len(len)) => json!({ "len": len }),
    })
}

async fn log_call(keeper: &Keeper, name: &Name, body: OpBody) -> Result<Value, Failure> {
    let op = match body.op.as_str() {
        "append" => Op::Own(log::Op::Append(bytes(OpBody::needs(body.value, "value")?))),
        "read" => Op::Own(log::Op::Read {
            from: body.from.unwrap_or(0),
            limit: body.limit.unwrap_or(LIST_MAX),
        }),
        "trim" => Op::Own(log::Op::Trim(OpBody::needs(body.to, "to")?)),
        "len" => Op::Own(log::Op::Len),
        _ => body.common("append, read, trim, len")?,
    };
    Ok(match work::<kinds::Log>(keeper, name, op).await? {
        None => done(),
        Some(log::Answer::Appended(number)) => json!({ "number": number }),
        Some(log::Answer::Trimmed(first)) => json!({ "first": first }),
        Some(log::Answer::Len(ends)) => json!({ "first": ends.first, "next": ends.next }),
        Some(log::Answer::Read(found)) => {
            let each =
                |(number, value): &(u64, Bytes)| json!({ "number": number, "value": text(value) });
            let entries: Vec<Value> = found.entries.iter().map(each).collect();
            json!({ "entries": entries, "more": found.more })
        }
    })
}
