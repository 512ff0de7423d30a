//! Objects over HTTP: `POST /v1/objects/KIND/NAME` does an operation, `GET` reads. Names are as
//! those of locks. What each kind takes and answers is in `object_calls` and
//! `object_lists`.

use std::str::FromStr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request};
use axum::response::Response;
use conclave_client::keeper::Keeper;
use conclave_client::{Handle, Object};
use conclave_protocol::id::Name;
use conclave_protocol::lock::PRINCIPAL_MAX;
use conclave_protocol::object::acl::ACL_MAX;
use conclave_protocol::object::kinds::{Bytes, Model, When};
use serde::de::DeserializeOwned;

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, read, refuse};
use super::path::{check, decode};
use super::{object_calls as calls, object_lists as lists};

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
    let kind = Kind::read(kind).ok_or(Failure::NotFound)?;
    let name = check(decode(raw)?, app.config.limits.name_bytes)?;
    let (get, post) = (parts.method == Method::GET, parts.method == Method::POST);
    if !get && !post {
        return Err(Failure::WrongMethod { allow: "GET, POST" });
    }
    let query = Query::read(&parts)?;
    if post {
        query.only(&[])?;
    }
    let ask = Ask {
        keeper: app.keeper(&caller)?,
        name,
        query,
        body,
    };
    match (kind, get) {
        (Kind::Counter, true) => calls::read_counter(ask).await,
        (Kind::Counter, false) => calls::change_counter(ask).await,
        (Kind::Register, true) => calls::read_register(ask).await,
        (Kind::Register, false) => calls::change_register(ask).await,
        (Kind::Map, true) => calls::read_map(ask).await,
        (Kind::Map, false) => calls::change_map(ask).await,
        (Kind::Queue, true) => lists::read_queue(ask).await,
        (Kind::Queue, false) => lists::change_queue(ask).await,
        (Kind::Log, true) => lists::read_log(ask).await,
        (Kind::Log, false) => lists::change_log(ask).await,
    }
}

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Register,
    Map,
    Queue,
    Log,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Counter,
        Self::Register,
        Self::Map,
        Self::Queue,
        Self::Log,
    ];

    /// As it stands in a path.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Register => "register",
            Self::Map => "map",
            Self::Queue => "queue",
            Self::Log => "log",
        }
    }

    fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == text)
    }
}

/// What is asked of an object.
pub(super) struct Ask {
    pub(super) keeper: Keeper,
    pub(super) name: Name,
    pub(super) query: Query,
    body: Body,
}

impl Ask {
    pub(super) fn text(&self, field: &str) -> Option<Bytes> {
        self.query.get(field).map(Into::into)
    }

    pub(super) fn number<T: FromStr>(&self, field: &str) -> Result<Option<T>, Failure> {
        let Some(bytes) = self.query.get(field) else {
            return Ok(None);
        };
        let number = std::str::from_utf8(bytes).ok();
        let number = number.and_then(|text| text.parse().ok());
        let wrong =
            || Failure::BadRequest(format!("{field} must be a whole number, not too large"));
        number.ok_or_else(wrong).map(Some)
    }

    /// The operation in the body.
    pub(super) async fn op<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        read(std::mem::take(&mut self.body), false).await
    }
}

pub(super) fn when(version: Option<u64>, absent: bool) -> When {
    match version {
        Some(version) => When::Version(version),
        None if absent => When::Absent,
        None => When::Always,
    }
}

/// Refuses an access list that cannot be.
fn check_names(write: &[String], read: &[String]) -> Result<(), Failure> {
    let fits = |name: &String| (1..=PRINCIPAL_MAX).contains(&name.len());
    let few = write.len() + read.len() <= ACL_MAX;
    if few && write.iter().chain(read).all(fits) {
        return Ok(());
    }
    let problem = format!(
        "write and read have at most {ACL_MAX} names together, of 1 to {PRINCIPAL_MAX} bytes each"
    );
    Err(Failure::BadRequest(problem))
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
            check_names(&write, &read)?;
            object.set_acl(write, read).await?;
            Ok(None)
        }
        Op::Delete => {
            object.delete().await?;
            Ok(None)
        }
    }
}
