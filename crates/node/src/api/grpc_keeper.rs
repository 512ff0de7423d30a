//! Leases and objects over gRPC.

use std::sync::Arc;
use std::time::Duration;

use conclave_client::clock;
use conclave_client::keeper::Keeper;
use conclave_protocol::id::Name;
use conclave_protocol::object::kinds::{self, Bytes, LIST_MAX, When};
use conclave_protocol::object::kinds::{counter, log, map, queue, register};
use conclave_wire::api::v1;
use conclave_wire::api::v1::leases_server::{Leases, LeasesServer};
use conclave_wire::api::v1::objects_server::{Objects, ObjectsServer};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::App;
use super::admit::Caller;
use super::answer::Answer;
use super::deliver::Escort;
use super::errors::Failure;
use super::gateway::Taken;
use super::grpc::{arrived, refuse};
use super::keepers::{ended, too_late};
use super::objects::{Op, work};
use super::path::check;

/// Adds the services of leases and objects.
pub(super) fn services(routes: Routes, app: &Arc<App>) -> Routes {
    let max = app.limits.body;
    let leases = LeasesServer::new(Service(app.clone())).max_decoding_message_size(max);
    let objects = ObjectsServer::new(Service(app.clone())).max_decoding_message_size(max);
    routes.add_service(leases).add_service(objects)
}

/// Both services of a node.
#[derive(Clone, Debug)]
struct Service(Arc<App>);

/// What the holder of a lease is told; none if nothing is left of it.
fn leased(answer: Answer) -> Option<v1::Leased> {
    let (valid_ms, waited_ms) = answer.times(clock::now().mono)?;
    Some(v1::Leased {
        handle: answer.handle,
        token: answer.token,
        valid_ms,
        attempts: answer.attempts.unwrap_or_default(),
        waited_ms,
    })
}

#[tonic::async_trait]
impl Leases for Service {
    async fn acquire(
        &self,
        request: Request<v1::LeaseRequest>,
    ) -> Result<Response<v1::Leased>, Status> {
        let app = &self.0;
        let take = async {
            let caller = Caller::of(request.extensions())?;
            let ask = request.get_ref();
            let name = check(ask.name.clone(), app.config.limits.name_bytes)?;
            let span = ask.for_ms.map(Duration::from_millis);
            let wait = ask.wait_ms.map(Duration::from_millis);
            let arrived = arrived(request.extensions());
            let taken = app.take_lease(arrived, &caller, &name, span, wait);
            let Taken { answer, guard } = taken.await?;
            let mut response = Response::new(leased(answer).ok_or_else(too_late)?);
            response.extensions_mut().insert(Escort::new(guard));
            Ok(response)
        };
        take.await.map_err(|failure| refuse(app, failure))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewLeaseRequest>,
    ) -> Result<Response<v1::Leased>, Status> {
        let app = &self.0;
        let renew = async {
            let caller = Caller::of(request.extensions())?;
            let arrived = arrived(request.extensions());
            let handle = &request.get_ref().handle;
            let answer = app.renew_lease(arrived, &caller, handle).await?;
            leased(answer).map(Response::new).ok_or_else(ended)
        };
        renew.await.map_err(|failure| refuse(app, failure))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseLeaseRequest>,
    ) -> Result<Response<v1::ReleaseLeaseResponse>, Status> {
        let app = &self.0;
        let release = async {
            let caller = Caller::of(request.extensions())?;
            app.release_lease(&caller, &request.get_ref().handle).await
        };
        release
            .await
            .map(|()| Response::new(v1::ReleaseLeaseResponse {}))
            .map_err(|failure| refuse(app, failure))
    }
}

fn nothing() -> Failure {
    Failure::BadRequest("op: nothing is asked for".to_owned())
}

/// An answer that belongs to another operation.
fn wrong() -> Failure {
    Failure::NotReady("out of step with an object".to_owned())
}

fn when(when: Option<v1::When>) -> When {
    match when {
        Some(v1::When {
            version: Some(version),
            ..
        }) => When::Version(version),
        Some(v1::When { absent: true, .. }) => When::Absent,
        _ => When::Always,
    }
}

fn entry(key: &[u8], entry: &kinds::Entry) -> v1::Entry {
    v1::Entry {
        key: key.to_vec(),
        value: entry.value.to_vec(),
        version: entry.version,
    }
}

impl Service {
    /// The client of a caller, and the name that it asks about.
    fn asked<T>(&self, request: &Request<T>, name: &[u8]) -> Result<(Keeper, Name), Failure> {
        let caller = Caller::of(request.extensions())?;
        let name = check(name.to_vec(), self.0.config.limits.name_bytes)?;
        Ok((self.0.keeper(&caller)?, name))
    }

    async fn on_counter(
        &self,
        request: Request<v1::CounterRequest>,
    ) -> Result<v1::CounterResponse, Failure> {
        let (keeper, name) = self.asked(&request, &request.get_ref().name)?;
        let op = match request.into_inner().op.ok_or_else(nothing)? {
            v1::counter_request::Op::Add(amount) => counter::Op::Add(amount),
            v1::counter_request::Op::Get(_) => counter::Op::Get,
        };
        let value = work::<kinds::Counter>(&keeper, &name, Op::Own(op)).await?;
        let value = value.ok_or_else(wrong)?;
        Ok(v1::CounterResponse { value })
    }

    async fn on_register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<v1::RegisterResponse, Failure> {
        let (keeper, name) = self.asked(&request, &request.get_ref().name)?;
        let op = match request.into_inner().op.ok_or_else(nothing)? {
            v1::register_request::Op::Set(set) => register::Op::Set {
                value: set.value.into(),
                when: when(set.when),
            },
            v1::register_request::Op::Get(_) => register::Op::Get,
        };
        let answer = work::<kinds::Register>(&keeper, &name, Op::Own(op)).await?;
        Ok(match answer.ok_or_else(wrong)? {
            register::Answer::Set(version) => v1::RegisterResponse {
                version,
                entry: None,
            },
            register::Answer::Got(found) => v1::RegisterResponse {
                version: 0,
                entry: found.map(|found| entry(b"", &found)),
            },
        })
    }

    async fn on_map(&self, request: Request<v1::MapRequest>) -> Result<v1::MapResponse, Failure> {
        let (keeper, name) = self.asked(&request, &request.get_ref().name)?;
        let op = match request.into_inner().op.ok_or_else(nothing)? {
            v1::map_request::Op::Set(set) => map::Op::Set {
                key: set.key.into(),
                value: set.value.into(),
                when: when(set.when),
            },
            v1::map_request::Op::Remove(remove) => map::Op::Remove {
                key: remove.key.into(),
                when: when(remove.when),
            },
            v1::map_request::Op::Get(key) => map::Op::Get(key.into()),
            v1::map_request::Op::List(list) => map::Op::List {
                prefix: list.prefix.into(),
                after: list.after.map(Into::into),
                limit: list.limit.unwrap_or(LIST_MAX),
            },
        };
        let mut told = v1::MapResponse::default();
        let answer = work::<kinds::Map>(&keeper, &name, Op::Own(op)).await?;
        match answer.ok_or_else(wrong)? {
            map::Answer::Set(version) => told.version = version,
            map::Answer::Removed(found) | map::Answer::Got(found) => {
                let found = found.iter().map(|found| entry(b"", found));
                told.entries = found.collect();
            }
            map::Answer::Listed(list) => {
                let entries = list.entries.into_iter();
                told.entries = entries.map(|(key, found)| entry(&key, &found)).collect();
                told.more = list.more;
            }
        }
        Ok(told)
    }

    async fn on_queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<v1::QueueResponse, Failure> {
        let (keeper, name) = self.asked(&request, &request.get_ref().name)?;
        let op = match request.into_inner().op.ok_or_else(nothing)? {
            v1::queue_request::Op::Push(item) => queue::Op::Push(item.into()),
            v1::queue_request::Op::Pop(_) => queue::Op::Pop,
            v1::queue_request::Op::Peek(_) => queue::Op::Peek,
            v1::queue_request::Op::Len(_) => queue::Op::Len,
        };
        let mut told = v1::QueueResponse::default();
        let answer = work::<kinds::Queue>(&keeper, &name, Op::Own(op)).await?;
        match answer.ok_or_else(wrong)? {
            queue::Answer::Pushed(number) => told.number = number,
            queue::Answer::First(item) => told.value = item.to_vec(),
            queue::Answer::Len(len) => told.len = len,
        }
        Ok(told)
    }

    async fn on_log(&self, request: Request<v1::LogRequest>) -> Result<v1::LogResponse, Failure> {
        let (keeper, name) = self.asked(&request, &request.get_ref().name)?;
        let op = match request.into_inner().op.ok_or_else(nothing)? {
            v1::log_request::Op::Append(entry) => log::Op::Append(entry.into()),
            v1::log_request::Op::Read(read) => log::Op::Read {
                from: read.from,
                limit: read.limit.unwrap_or(LIST_MAX),
            },
            v1::log_request::Op::Trim(to) => log::Op::Trim(to),
            v1::log_request::Op::Len(_) => log::Op::Len,
        };
        let mut told = v1::LogResponse::default();
        let answer = work::<kinds::Log>(&keeper, &name, Op::Own(op)).await?;
        match answer.ok_or_else(wrong)? {
            log::Answer::Appended(number) => told.number = number,
            log::Answer::Trimmed(first) => told.first = first,
            log::Answer::Len(ends) => (told.first, told.next) = (ends.first, ends.next),
            log::Answer::Read(found) => {
                let entries = found.entries.into_iter();
                let entry = |(number, value): (u64, Bytes)| v1::LogEntry {
                    number,
                    value: value.to_vec(),
                };
                told.entries = entries.map(entry).collect();
                told.more = found.more;
            }
        }
        Ok(told)
    }

    fn told<T>(&self, answer: Result<T, Failure>) -> Result<Response<T>, Status> {
        answer
            .map(Response::new)
            .map_err(|failure| refuse(&self.0, failure))
    }
}

#[tonic::async_trait]
impl Objects for Service {
    async fn counter(
        &self,
        request: Request<v1::CounterRequest>,
    ) -> Result<Response<v1::CounterResponse>, Status> {
        let answer = self.on_counter(request).await;
        self.told(answer)
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let answer = self.on_register(request).await;
        self.told(answer)
    }

    async fn map(
        &self,
        request: Request<v1::MapRequest>,
    ) -> Result<Response<v1::MapResponse>, Status> {
        let answer = self.on_map(request).await;
        self.told(answer)
    }

    async fn queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::QueueResponse>, Status> {
        let answer = self.on_queue(request).await;
        self.told(answer)
    }

    async fn log(
        &self,
        request: Request<v1::LogRequest>,
    ) -> Result<Response<v1::LogResponse>, Status> {
        let answer = self.on_log(request).await;
        self.told(answer)
    }
}
