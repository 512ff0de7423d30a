//! What queues and logs are asked over HTTP, and what they answer.

use axum::Json;
use axum::response::{IntoResponse, Response};
use conclave_protocol::object::kinds::{self, Bytes, LIST_MAX, log, queue};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::errors::Failure;
use super::object_calls::{bytes, names, text};
use super::objects::{Ask, Op, work};
use super::openapi::LockName;
use super::refusals::{Keeping, Looking, Posting};
use super::text::Text;

/// What a queue can do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum QueueOp {
    /// Adds something at the end.
    Push { value: Text },
    /// Takes the first.
    Pop {},
    /// Reads the first.
    Peek {},
    /// Reads how many there are.
    Len {},
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

impl From<QueueOp> for Op<queue::Op> {
    fn from(op: QueueOp) -> Self {
        match op {
            QueueOp::Push { value } => Self::Own(queue::Op::Push(bytes(value))),
            QueueOp::Pop {} => Self::Own(queue::Op::Pop),
            QueueOp::Peek {} => Self::Own(queue::Op::Peek),
            QueueOp::Len {} => Self::Own(queue::Op::Len),
            QueueOp::Acl { write, read } => Self::Acl(write, read),
            QueueOp::Delete {} => Self::Delete,
        }
    }
}

/// What a queue answers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum QueueAnswer {
    /// The number of what was added.
    Pushed { number: u64 },
    /// The first.
    First { value: Text },
    /// How many there are.
    Len { len: u64 },
    /// After `acl` and `delete`.
    Done { done: bool },
}

impl From<Option<<kinds::Queue as kinds::Model>::Answer>> for QueueAnswer {
    fn from(answer: Option<<kinds::Queue as kinds::Model>::Answer>) -> Self {
        match answer {
            None => Self::Done { done: true },
            Some(queue::Answer::Pushed(number)) => Self::Pushed { number },
            Some(queue::Answer::First(item)) => Self::First { value: text(&item) },
            Some(queue::Answer::Len(len)) => Self::Len { len },
        }
    }
}

/// Changes or reads a queue.
#[utoipa::path(
    post,
    path = "/v1/objects/queue/{name}",
    params(LockName),
    request_body = QueueOp,
    responses((status = 200, description = "It is done.", body = QueueAnswer), Posting, Keeping),
)]
pub(super) async fn change_queue(mut ask: Ask) -> Result<Response, Failure> {
    let op: QueueOp = ask.op().await?;
    let answer = work::<kinds::Queue>(&ask.keeper, &ask.name, op.into()).await?;
    Ok(Json(QueueAnswer::from(answer)).into_response())
}

/// Reads a queue.
#[utoipa::path(
    get,
    path = "/v1/objects/queue/{name}",
    params(LockName),
    responses((status = 200, description = "What is there.", body = QueueAnswer), Looking, Keeping),
)]
pub(super) async fn read_queue(ask: Ask) -> Result<Response, Failure> {
    ask.query.only(&[])?;
    let op = queue::Op::Len;
    let answer = work::<kinds::Queue>(&ask.keeper, &ask.name, Op::Own(op)).await?;
    Ok(Json(QueueAnswer::from(answer)).into_response())
}

/// A line of a log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogEntry {
    number: u64,
    value: Text,
}

/// What a log can do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum LogOp {
    /// Adds a line.
    Append { value: Text },
    /// Reads lines in their order.
    Read {
        /// The number of the first; the oldest if left out.
        from: Option<u64>,
        /// How many at most.
        limit: Option<u32>,
    },
    /// Forgets the lines before this number.
    Trim { to: u64 },
    /// Reads which lines there are.
    Len {},
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

impl From<LogOp> for Op<log::Op> {
    fn from(op: LogOp) -> Self {
        match op {
            LogOp::Append { value } => Self::Own(log::Op::Append(bytes(value))),
            LogOp::Read { from, limit } => Self::Own(log::Op::Read {
                from: from.unwrap_or(0),
                limit: limit.unwrap_or(LIST_MAX),
            }),
            LogOp::Trim { to } => Self::Own(log::Op::Trim(to)),
            LogOp::Len {} => Self::Own(log::Op::Len),
            LogOp::Acl { write, read } => Self::Acl(write, read),
            LogOp::Delete {} => Self::Delete,
        }
    }
}

/// What a log answers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum LogAnswer {
    /// The number of the new line.
    Appended { number: u64 },
    /// Lines, and whether there are more.
    Read { entries: Vec<LogEntry>, more: bool },
    /// The number of the first line that is left.
    Trimmed { first: u64 },
    /// The numbers of the first line and of the next that is added.
    Len { first: u64, next: u64 },
    /// After `acl` and `delete`.
    Done { done: bool },
}

impl From<Option<<kinds::Log as kinds::Model>::Answer>> for LogAnswer {
    fn from(answer: Option<<kinds::Log as kinds::Model>::Answer>) -> Self {
        match answer {
            None => Self::Done { done: true },
            Some(log::Answer::Appended(number)) => Self::Appended { number },
            Some(log::Answer::Trimmed(first)) => Self::Trimmed { first },
            Some(log::Answer::Len(ends)) => Self::Len {
                first: ends.first,
                next: ends.next,
            },
            Some(log::Answer::Read(found)) => {
                let each = |(number, value): &(u64, Bytes)| LogEntry {
                    number: *number,
                    value: text(value),
                };
                Self::Read {
                    entries: found.entries.iter().map(each).collect(),
                    more: found.more,
                }
            }
        }
    }
}

/// Changes or reads a log.
#[utoipa::path(
    post,
    path = "/v1/objects/log/{name}",
    params(LockName),
    request_body = LogOp,
    responses((status = 200, description = "It is done.", body = LogAnswer), Posting, Keeping),
)]
pub(super) async fn change_log(mut ask: Ask) -> Result<Response, Failure> {
    let op: LogOp = ask.op().await?;
    let answer = work::<kinds::Log>(&ask.keeper, &ask.name, op.into()).await?;
    Ok(Json(LogAnswer::from(answer)).into_response())
}

/// Reads a log.
#[utoipa::path(
    get,
    path = "/v1/objects/log/{name}",
    params(
        LockName,
        ("from" = Option<u64>, Query,
            description = "The number of the first; the oldest if left out."),
        ("limit" = Option<u32>, Query, description = "How many at most."),
    ),
    responses((status = 200, description = "What is there.", body = LogAnswer), Looking, Keeping),
)]
pub(super) async fn read_log(ask: Ask) -> Result<Response, Failure> {
    ask.query.only(&["from", "limit"])?;
    let op = log::Op::Read {
        from: ask.number("from")?.unwrap_or(0),
        limit: ask.number("limit")?.unwrap_or(LIST_MAX),
    };
    let answer = work::<kinds::Log>(&ask.keeper, &ask.name, Op::Own(op)).await?;
    Ok(Json(LogAnswer::from(answer)).into_response())
}
