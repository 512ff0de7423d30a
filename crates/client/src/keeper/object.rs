//! Objects of any kind: what all handles have in common.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::Name;
use conclave_protocol::keeper::client::{ClientEvent, Command, Failure};
use conclave_protocol::object::acl::Acl;
use conclave_protocol::object::envelope::Wish;
use conclave_protocol::object::kinds::{Code, Model, Typed, result};
use conclave_protocol::object::{Kind, KindError, ObjectRefusal};

use super::error::{ObjectError, Trouble, trouble};
use super::{Job, Keeper, Source};

/// How long an operation may take unless its caller says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// A handle of an object whose kind is the model `M`. Cloning is cheap.
///
/// Every operation is done exactly once, in one order for all clients, whatever up to b nodes say.
#[derive(Debug)]
pub struct Object<M> {
    source: Source,
    name: Name,
    model: Arc<Typed<M>>,
    patience: Duration,
}

impl<M> Clone for Object<M> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            name: self.name.clone(),
            model: self.model.clone(),
            patience: self.patience,
        }
    }
}

/// An operation of which nobody knows yet whether it was done. As long as this is kept, the client
/// goes on asking for it; [`Object::resolve`] waits for what came of it. Dropping it stops that;
/// the operation may be done all the same.
#[derive(Debug)]
#[must_use = "resolve tells what came of it"]
pub struct Pending {
    job: Job,
}

impl Pending {
    /// Its number; no other operation of this client has it.
    pub fn id(&self) -> u64 {
        self.job.key().0
    }
}

/// What `Client::object` can make.
pub trait Handle: Sized {
    /// What it is a handle of.
    type Model: Model + Default;

    /// The handle of this object.
    fn new(object: Object<Self::Model>) -> Self;
}

impl<M: Model + Default> Handle for Object<M> {
    type Model = M;

    fn new(object: Self) -> Self {
        object
    }
}

impl<M: Model> Object<M> {
    pub(crate) fn open(source: Source, name: Name, model: M) -> Self {
        Self {
            source,
            name,
            model: Arc::new(Typed(model)),
            patience: PATIENCE,
        }
    }

    /// How long each operation may take.
    #[must_use]
    pub fn timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    fn kind(&self) -> Arc<dyn Kind> {
        self.model.clone()
    }

    async fn keeper(&self) -> Result<Keeper, ObjectError> {
        let keeper = self.source.keeper().await?;
        if keeper.object_config().is_none() {
            return Err(Trouble::NoObjects.into());
        }
        Ok(keeper)
    }

    /// Does an operation. One that only reads is answered from what enough nodes have committed,
    /// without being ordered, where that is possible.
    pub async fn call(&self, op: M::Op) -> Result<M::Answer, ObjectError> {
        match self.model.0.reads(&op) {
            Some(_) => self.read(&op).await.map(|(answer, _)| answer),
            None => self.submit(&op).await,
        }
    }

    /// Does an operation by ordering it among all others, even if it only reads.
    pub async fn submit(&self, op: &M::Op) -> Result<M::Answer, ObjectError> {
        let done = self.wish(Wish::Operation(op.encode().into())).await?;
        Ok(result(&done)?)
    }

    /// The answer to an operation that only reads, and the version of the object that it is about.
    pub async fn read(&self, op: &M::Op) -> Result<(M::Answer, u64), ObjectError> {
        let Some(spans) = self.model.0.reads(op) else {
            return Err(KindError::Unreadable.into());
        };
        let keeper = self.keeper().await?;
        let command = Command::Read {
            object: self.name.clone(),
            kind: self.kind(),
            spans,
        };
        let mut job = keeper.begin(command);
        let read = async {
            loop {
                match job.next().await {
                    Some(ClientEvent::Read { version, cells, .. }) => break Ok((version, cells)),
                    Some(ClientEvent::Failed { why, .. }) => break Err(failed(&keeper, why)),
                    Some(_) => {}
                    None => break Err(ended(&keeper)),
                }
            }
        };
        let read = tokio::time::timeout(self.patience, read).await;
        let (version, cells) = read.unwrap_or_else(|_| Err(late(&keeper)))?;
        Ok((self.model.0.answer(op, &cells)?, version))
    }

    /// Whom the object's owner lets read and write it: the creator, whoever administers the name,
    /// and these. `*` is everybody. Whoever may write may read.
    pub async fn set_acl(
        &self,
        write: impl IntoIterator<Item = impl AsRef<str>>,
        read: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<(), ObjectError> {
        let write = write.into_iter().map(|who| Arc::from(who.as_ref()));
        let read = read.into_iter().map(|who| Arc::from(who.as_ref()));
        let acl = Acl {
            write: write.collect(),
            read: read.collect(),
        };
        let cell = acl.write_cell().ok_or(KindError::TooLarge)?;
        self.wish(Wish::SetAcl(cell)).await.map(drop)
    }

    /// Empties the object and forgets its kind. Its versions go on.
    pub async fn delete(&self) -> Result<(), ObjectError> {
        self.wish(Wish::Delete).await.map(drop)
    }

    async fn wish(&self, wish: Wish) -> Result<Arc<[u8]>, ObjectError> {
        let keeper = self.keeper().await?;
        let job = keeper.begin(Command::Submit {
            object: self.name.clone(),
            kind: self.kind(),
            wish,
        });
        self.settle(&keeper, job).await
    }

    async fn settle(&self, keeper: &Keeper, mut job: Job) -> Result<Arc<[u8]>, ObjectError> {
        let done = async {
            loop {
                match job.next().await {
                    Some(ClientEvent::Done { result, .. }) => break Ok(result),
                    Some(ClientEvent::Failed { why, .. }) => break Err(failed(keeper, why)),
                    Some(_) => {}
                    None => break Err(ended(keeper)),
                }
            }
        };
        let done = tokio::time::timeout(self.patience, done).await;
        done.unwrap_or(Err(ObjectError::Unknown(Pending { job })))
    }

    /// Waits once more, as long as any operation may take, for what came of an operation.
    pub async fn resolve(&self, pending: Pending) -> Result<M::Answer, ObjectError> {
        let keeper = self.keeper().await?;
        let done = self.settle(&keeper, pending.job).await?;
        Ok(result(&done)?)
    }

    /// Tells of changes to the object.
    pub async fn watch(&self) -> Result<ObjectWatch<M>, ObjectError> {
        let keeper = self.keeper().await?;
        let job = keeper.begin(Command::Watch {
            object: self.name.clone(),
            kind: self.kind(),
        });
        Ok(ObjectWatch {
            keeper,
            job,
            model: PhantomData,
        })
    }
}

/// Tells of changes to an object.
#[derive(Debug)]
pub struct ObjectWatch<M> {
    keeper: Keeper,
    job: Job,
    model: PhantomData<fn(M)>,
}

impl<M> ObjectWatch<M> {
    /// The version of the object, now and after every change; versions may be skipped. Cancelling
    /// the future loses nothing.
    pub async fn next(&mut self) -> Result<u64, ObjectError> {
        loop {
            match self.job.next().await {
                Some(ClientEvent::Changed { version, .. }) => return Ok(version),
                Some(ClientEvent::Failed { why, .. }) => return Err(failed(&self.keeper, why)),
                Some(_) => {}
                None => return Err(ended(&self.keeper)),
            }
        }
    }
}

fn needed(keeper: &Keeper) -> usize {
    keeper.object_config().map_or(0, |config| config.quorum)
}

fn failed(keeper: &Keeper, why: Failure) -> ObjectError {
    match why {
        Failure::Object(ObjectRefusal::TooLarge) => KindError::TooLarge.into(),
        Failure::Object(why) => ObjectError::Refused(why),
        Failure::OtherKind => ObjectError::OtherKind,
        Failure::Busy => Trouble::Busy.into(),
        Failure::Ended => Trouble::Closed.into(),
        Failure::TimedOut | Failure::Lease(_) => late(keeper),
    }
}

fn late(keeper: &Keeper) -> ObjectError {
    trouble(keeper, needed(keeper)).map_or(ObjectError::TimedOut, ObjectError::Trouble)
}

fn ended(keeper: &Keeper) -> ObjectError {
    trouble(keeper, needed(keeper))
        .unwrap_or(Trouble::Closed)
        .into()
}
