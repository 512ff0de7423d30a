//! Reads locks and sessions: of this node in bounded pages, of all nodes by asking them.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use conclave_client::semaphore::slot_names;
use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lock::{Action, LockView, Reason};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::errors::{Failure, InTheWay};
use super::path::encode;
use super::text::Text;
use super::views::{ENTRIES_MAX, Entry, Local, Merged, is_partial, merge, millis, told};
use crate::shard::{Query, Report};

/// The most locks of one answer.
pub(crate) const LOCKS_MAX: usize = 1000;
/// The most requests of one lock in a list.
const LISTED_MAX: usize = 32;
/// The most pages that one list reads: about a million locks.
const PAGES_MAX: usize = 256;

/// Answers of all nodes, and who did not answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Whole<T> {
    #[serde(flatten)]
    pub(crate) what: T,
    /// Whether the nodes that did not answer may know of holders that are missing here.
    pub(crate) partial: bool,
    /// The nodes that did not answer, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) silent: Vec<Silent>,
}

/// A node that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Silent {
    pub(crate) node: u32,
    pub(crate) why: String,
}

/// A page of locks of one node, in the order of their names.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct LocalPage {
    pub(crate) locks: Vec<Local>,
    /// Whether there are more.
    pub(crate) more: bool,
    /// Whether some were not looked at, because there are too many.
    pub(crate) cut: bool,
}

/// A page of locks of all nodes, in the order of their names.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = Locks)]
pub(crate) struct Page {
    pub(crate) locks: Vec<Merged>,
    /// What to give as `cursor` for the next page; null at the end.
    #[schema(value_type = Option<String>, required = true)]
    pub(crate) next: Option<Cursor>,
}

/// The last name of a page. As text it is base64, which stands in a URL as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) Vec<u8>);

impl Cursor {
    /// The name that the text of a cursor stands for.
    pub(crate) fn read(text: &[u8]) -> Result<Vec<u8>, Failure> {
        let problem = "cursor must be the next of a page";
        let name = URL_SAFE_NO_PAD.decode(text);
        name.map_err(|_| Failure::BadRequest(problem.to_owned()))
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

/// What a list is asked for.
#[derive(Clone, Debug)]
pub(crate) struct ListQuery {
    pub(crate) prefix: Vec<u8>,
    /// Only names after this one.
    pub(crate) after: Option<Vec<u8>>,
    pub(crate) limit: usize,
}

impl App {
    /// Reads something from the machine.
    pub(crate) async fn inspect(&self, query: Query) -> Result<Report, Failure> {
        let report = self.shard.inspect(query).await;
        report.ok_or_else(|| Failure::NotReady("stopped".to_owned()))
    }

    /// A lock as this node sees it.
    pub(crate) async fn local_lock(&self, name: &Name) -> Result<Local, Failure> {
        let view = match self.inspect(Query::Lock(name.clone())).await? {
            Report::Lock(Some(view)) => view,
            _ => LockView::default(),
        };
        let mut local = self.local(name, &view, ENTRIES_MAX).await?;
        let report = self.inspect(Query::Reasons(name.clone())).await?;
        if let Report::Reasons {
            state,
            pause,
            reasons,
        } = report
        {
            local.state = Some(state.to_owned());
            local.pause_ms = pause.map(millis);
            let known: BTreeMap<(String, u64), Reason> = reasons
                .into_iter()
                .map(|reason| ((format!("{:x}", reason.session), reason.request.0), reason))
                .collect();
            for entry in &mut local.entries {
                let key = (entry.session.clone(), entry.request);
                if let Some(reason) = known.get(&key) {
                    entry.explain(reason);
                }
            }
        }
        Ok(local)
    }

    async fn local(&self, name: &Name, view: &LockView, max: usize) -> Result<Local, Failure> {
        let told = told(view, max);
        let of = told
            .iter()
            .map(|entry| (entry.ask.session, entry.ask.request));
        let mut labels = Vec::new();
        if !told.is_empty()
            && let Report::Labels(known) = self.inspect(Query::Labels(of.collect())).await?
        {
            labels = known;
        }
        let label = |place: usize| labels.get(place).and_then(Option::as_ref);
        let entries = told.iter().enumerate();
        Ok(Local {
            name: Text(name.bytes().to_vec()),
            entries: entries
                .map(|(place, entry)| Entry::new(entry, label(place)))
                .collect(),
            omitted: view.entries.len() - told.len(),
            ..Local::default()
        })
    }

    /// A lock as all nodes see it.
    pub(crate) async fn whole_lock(
        &self,
        name: &Name,
        caller: &Caller,
    ) -> Result<Whole<Merged>, Failure> {
        let path = format!("/v1/locks/{}?local=true", encode(name.bytes()));
        let others = self.fetch.all::<Local>(&path, caller);
        let (own, others) = tokio::join!(self.local_lock(name), others);
        let (answers, silent) = self.sort(own?, others);
        let (name, quiet) = (Text(name.bytes().to_vec()), quiet(&silent));
        let merged = merge(&self.config.quorums, name, &answers, &quiet);
        Ok(self.whole(merged, &answers, silent))
    }

    /// Who is in the way of a request, as far as can be told quickly.
    pub(crate) async fn in_the_way(
        &self,
        name: &Name,
        caller: &Caller,
        position: Option<u32>,
    ) -> InTheWay {
        let Ok(whole) = self.whole_lock(name, &Caller::itself()).await else {
            return InTheWay::default();
        };
        let before = whole.what.holders.len() + whole.what.waiters.len();
        // Who it is, is told to those who may read it.
        let reads = self.may(caller, Action::Read, name);
        InTheWay {
            position: position.unwrap_or(u32::try_from(before).unwrap_or(u32::MAX)),
            holders: if reads {
                whole.what.holders
            } else {
                Vec::new()
            },
        }
    }

    /// Who has the slots of a semaphore, as far as can be told quickly.
    pub(crate) async fn in_the_slots(
        &self,
        name: &Name,
        slots: u32,
        caller: &Caller,
        position: Option<u32>,
    ) -> InTheWay {
        let mut prefix = name.bytes().to_vec();
        prefix.push(b'~');
        let query = ListQuery {
            prefix,
            after: None,
            limit: LOCKS_MAX,
        };
        let Ok(whole) = self.whole_locks(&query, caller).await else {
            return InTheWay::default();
        };
        let names = slot_names(name.bytes(), slots);
        let mine = |lock: &Merged| names.iter().any(|name| name.bytes() == lock.name.0);
        let locks = whole.what.locks.into_iter().filter(mine);
        InTheWay {
            position: position.unwrap_or_default(),
            holders: locks.flat_map(|lock| lock.holders).collect(),
        }
    }

    /// Locks of this node in the order of their names.
    pub(crate) async fn local_locks(
        &self,
        query: &ListQuery,
        caller: &Caller,
    ) -> Result<LocalPage, Failure> {
        // The machine keeps no order: the smallest names of all pages are kept while reading.
        let mut best: BTreeMap<Name, LockView> = BTreeMap::new();
        let mut page = LocalPage::default();
        let mut from = 0;
        for number in 0.. {
            let ask = Query::Locks {
                prefix: query.prefix.clone(),
                from,
                limit: LOCKS_MAX,
            };
            let Report::Locks(some, next) = self.inspect(ask).await? else {
                break;
            };
            for (name, view) in some {
                let after = query.after.as_deref();
                let before = after.is_some_and(|after| name.bytes() <= after);
                if before || !self.may(caller, Action::Read, &name) {
                    continue;
                }
                best.insert(name, view);
                if best.len() > query.limit {
                    page.more = true;
                    best.pop_last();
                }
            }
            match next {
                Some(next) if number + 1 < PAGES_MAX => from = next,
                Some(_) => {
                    page.cut = true;
                    break;
                }
                None => break,
            }
        }
        for (name, view) in best {
            page.locks.push(self.local(&name, &view, LISTED_MAX).await?);
        }
        Ok(page)
    }

    /// Locks of all nodes in the order of their names.
    pub(crate) async fn whole_locks(
        &self,
        query: &ListQuery,
        caller: &Caller,
    ) -> Result<Whole<Page>, Failure> {
        let mut path = format!(
            "/v1/locks?local=true&limit={}&prefix={}",
            query.limit,
            encode(&query.prefix)
        );
        if let Some(after) = &query.after {
            path.push_str("&cursor=");
            path.push_str(&URL_SAFE_NO_PAD.encode(after));
        }
        let own = self.local_locks(query, caller);
        let (own, others) = tokio::join!(own, self.fetch.all::<LocalPage>(&path, caller));
        let (answers, silent) = self.sort(own?, others);
        let quiet = quiet(&silent);
        let mut by_name: BTreeMap<Text, Vec<(NodeId, Local)>> = BTreeMap::new();
        let mut last: Option<Text> = None;
        let mut cut = false;
        for (node, page) in &answers {
            cut |= page.cut;
            // Beyond the last name of a page that goes on, that node's locks are not known.
            if page.more
                && let Some(end) = page.locks.last()
                && last.as_ref().is_none_or(|last| end.name < *last)
            {
                last = Some(end.name.clone());
            }
            for lock in &page.locks {
                let all = by_name.entry(lock.name.clone()).or_default();
                all.push((*node, lock.clone()));
            }
        }
        let mut page = Page::default();
        let mut more = last.is_some();
        for (name, of) in by_name {
            let beyond = last.as_ref().is_some_and(|last| name > *last);
            if beyond || page.locks.len() >= query.limit {
                more = true;
                break;
            }
            page.locks
                .push(merge(&self.config.quorums, name, &of, &quiet));
        }
        if more && let Some(end) = page.locks.last() {
            page.next = Some(Cursor(end.name.0.clone()));
        }
        let mut whole = self.whole(page, &answers, silent);
        whole.partial |= cut;
        Ok(whole)
    }

    /// Splits what nodes said from who did not.
    fn sort<T>(
        &self,
        own: T,
        others: Vec<(NodeId, Result<T, String>)>,
    ) -> (Vec<(NodeId, T)>, Vec<Silent>) {
        let mut answers = vec![(NodeId(self.id.saturating_sub(1)), own)];
        let mut silent = Vec::new();
        for (node, answer) in others {
            match answer {
                Ok(answer) => answers.push((node, answer)),
                Err(why) => silent.push(Silent {
                    node: node.0 + 1,
                    why,
                }),
            }
        }
        silent.sort_by_key(|silent| silent.node);
        (answers, silent)
    }

    fn whole<T, A>(&self, what: T, answers: &[(NodeId, A)], silent: Vec<Silent>) -> Whole<T> {
        let heard: Vec<NodeId> = answers.iter().map(|(node, _)| *node).collect();
        Whole {
            what,
            partial: is_partial(&self.config.quorums, &heard),
            silent,
        }
    }
}

fn quiet(silent: &[Silent]) -> Vec<NodeId> {
    let nodes = silent.iter().map(|silent| silent.node);
    nodes.map(|node| NodeId(node.saturating_sub(1))).collect()
}

/// The owner's label, cut to what a session may carry.
pub(crate) fn label(text: &str, max: usize) -> Arc<str> {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}
