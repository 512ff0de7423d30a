//! Sessions: those of this node in pages, and those of all nodes merged.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, refuse};
use super::look::Silent;
use super::openapi::Local;
use super::refusals::Looking;
use crate::shard::{Query as Ask, Report};

/// The most sessions of one answer.
pub(crate) const SESSIONS_MAX: usize = 1000;

/// A session in JSON.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionJson {
    pub(crate) session: String,
    pub(crate) owner: String,
    /// In whose name it asks; left out if nobody has to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) principal: String,
    /// Whether it was revoked: it is not renewed any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) detached: bool,
    pub(crate) requests: usize,
    /// How long ago it was renewed.
    pub(crate) age_ms: u64,
    /// The nodes that keep it.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) nodes: Vec<u32>,
}

/// A page of sessions.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Sessions)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionJson>,
    /// What to give as `cursor` for the next page; null at the end.
    #[schema(required = true)]
    pub(crate) next: Option<u32>,
    #[serde(default, skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(crate) silent: Vec<Silent>,
}

impl App {
    /// Sessions that this node keeps.
    pub(crate) async fn local_sessions(
        &self,
        from: u32,
        limit: usize,
        caller: &Caller,
    ) -> Result<SessionPage, Failure> {
        let ask = Ask::Sessions {
            from,
            limit,
            reader: caller.reader().cloned(),
        };
        let Report::Sessions(page, next) = self.inspect(ask).await? else {
            return Ok(SessionPage::default());
        };
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis());
        let sessions = page.iter().map(|session| SessionJson {
            session: format!("{:x}", session.session),
            owner: session.owner.to_string(),
            principal: session.principal.to_string(),
            revoked: session.revoked,
            ttl_ms: millis(session.ttl).unwrap_or(u64::MAX),
            detached: session.detached,
            requests: session.requests,
            age_ms: millis(session.age).unwrap_or(u64::MAX),
            nodes: vec![self.id],
        });
        Ok(SessionPage {
            sessions: sessions.collect(),
            next,
            silent: Vec::new(),
        })
    }

    /// Sessions of all nodes: the first page of each, one line per session. To read more than
    /// that, ask each node for its own.
    pub(crate) async fn whole_sessions(
        &self,
        limit: usize,
        caller: &Caller,
    ) -> Result<SessionPage, Failure> {
        let path = format!("/v1/sessions?local=true&limit={SESSIONS_MAX}");
        let own = self.local_sessions(0, SESSIONS_MAX, caller);
        let others = self.fetch.all::<SessionPage>(&path, caller);
        let (own, others) = tokio::join!(own, others);
        let mut all = std::collections::BTreeMap::new();
        let mut whole = SessionPage::default();
        let mut pages = vec![own?];
        for (node, page) in others {
            match page {
                Ok(page) => pages.push(page),
                Err(why) => whole.silent.push(Silent {
                    node: node.0 + 1,
                    why,
                }),
            }
        }
        for session in pages.into_iter().flat_map(|page| page.sessions) {
            match all.entry(session.session.clone()) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(session);
                }
                std::collections::btree_map::Entry::Occupied(mut seen) => {
                    let seen: &mut SessionJson = seen.get_mut();
                    seen.nodes.extend(session.nodes);
                    seen.requests = seen.requests.max(session.requests);
                    seen.age_ms = seen.age_ms.min(session.age_ms);
                    seen.revoked |= session.revoked;
                }
            }
        }
        whole.sessions = all.into_values().take(limit).collect();
        whole
            .sessions
            .iter_mut()
            .for_each(|one| one.nodes.sort_unstable());
        whole.silent.sort_by_key(|silent| silent.node);
        Ok(whole)
    }
}

/// Sessions of all nodes, merged.
///
/// With `local=true` those of this node in pages.
#[utoipa::path(
    get,
    path = "/v1/sessions",
    params(
        Local,
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000,
            description = "How many at most; 100 if left out."),
        ("cursor" = Option<u32>, Query,
            description = "`next` of the page before; with local=true only."),
    ),
    responses((status = 200, description = "Sessions.", body = SessionPage), Looking),
)]
pub(crate) async fn sessions(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let page = async {
        let query = Query::read(&parts)?;
        query.only(&["local", "limit", "cursor"])?;
        let caller = Caller::of(&parts.extensions)?;
        let limit = query.limit(100, SESSIONS_MAX)?;
        let cursor = query.get("cursor").map_or(Some(0), |text| {
            let text = std::str::from_utf8(text).ok()?;
            text.parse().ok()
        });
        let problem = || Failure::BadRequest("cursor must be the next of a page".to_owned());
        let cursor = cursor.ok_or_else(problem)?;
        if !query.flag("local")? {
            return app.whole_sessions(limit, &caller).await;
        }
        app.local_sessions(cursor, limit, &caller).await
    };
    match page.await {
        Ok(page) => Json(page).into_response(),
        Err(failure) => refuse(&app, failure),
    }
}
