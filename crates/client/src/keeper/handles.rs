//! Handles of the kinds of objects that come with Conclave.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use conclave_protocol::object::kinds::log::{Ends, Entries};
use conclave_protocol::object::kinds::map::List;
use conclave_protocol::object::kinds::{Bytes, Entry, When};
use conclave_protocol::object::kinds::{counter, log, map, queue, register};
use conclave_protocol::object::{KindError, kinds};

use super::error::ObjectError;
use super::object::{Handle, Object, ObjectWatch};

macro_rules! handle {
    ($name:ident, $model:ty) => {
        impl Handle for $name {
            type Model = $model;

            fn new(object: Object<$model>) -> Self {
                Self(object)
            }
        }

        impl Deref for $name {
            type Target = Object<$model>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    };
}

/// A whole number that is added to and read.
#[derive(Clone, Debug)]
pub struct Counter(Object<kinds::Counter>);

/// A map from keys to values. Every entry has the version at which it was written.
#[derive(Clone, Debug)]
pub struct Map(Object<kinds::Map>);

/// Values that leave in the order in which they came.
#[derive(Clone, Debug)]
pub struct Queue(Object<kinds::Queue>);

/// Values that are appended, read by their number, and cut off at the front.
#[derive(Clone, Debug)]
pub struct Log(Object<kinds::Log>);

handle!(Counter, kinds::Counter);
handle!(Map, kinds::Map);
handle!(Queue, kinds::Queue);
handle!(Log, kinds::Log);

/// One value of a type that is [`Stored`].
#[derive(Debug)]
pub struct Register<V = Bytes> {
    object: Object<kinds::Register>,
    value: PhantomData<fn() -> V>,
}

impl<V> Clone for Register<V> {
    fn clone(&self) -> Self {
        Self {
            object: self.object.clone(),
            value: PhantomData,
        }
    }
}

impl<V: Stored> Handle for Register<V> {
    type Model = kinds::Register;

    fn new(object: Object<kinds::Register>) -> Self {
        Self {
            object,
            value: PhantomData,
        }
    }
}

impl<V> Deref for Register<V> {
    type Target = Object<kinds::Register>;

    fn deref(&self) -> &Self::Target {
        &self.object
    }
}

/// What a register can hold.
pub trait Stored: Sized {
    /// As bytes.
    fn to_bytes(&self) -> Bytes;

    /// From bytes; none if they are no such value.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl Stored for Bytes {
    fn to_bytes(&self) -> Bytes {
        self.clone()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.into())
    }
}

impl Stored for Vec<u8> {
    fn to_bytes(&self) -> Bytes {
        self[..].into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl Stored for String {
    fn to_bytes(&self) -> Bytes {
        self.as_bytes().into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        String::from_utf8(bytes.to_vec()).ok()
    }
}

/// An answer that belongs to another operation.
const WRONG: ObjectError = ObjectError::Unreadable;

impl<V: Stored> Register<V> {
    /// Sets the value; the answer is its version.
    pub async fn set(&self, value: &V) -> Result<u64, ObjectError> {
        self.set_when(value, When::Always).await
    }

    /// Sets the value if the condition is met; the answer is its version.
    pub async fn set_when(&self, value: &V, when: When) -> Result<u64, ObjectError> {
        let value = value.to_bytes();
        match self.call(register::Op::Set { value, when }).await? {
            register::Answer::Set(version) => Ok(version),
            register::Answer::Got(_) => Err(WRONG),
        }
    }

    /// Sets the value if it is another one now; an error says that it is not.
    pub async fn compare_and_set(&self, old: &V, new: &V) -> Result<u64, ObjectError> {
        self.set_when(new, When::Value(old.to_bytes())).await
    }

    /// The value and its version; none if it never had one.
    pub async fn get(&self) -> Result<Option<(V, u64)>, ObjectError> {
        let register::Answer::Got(entry) = self.call(register::Op::Get).await? else {
            return Err(WRONG);
        };
        let value = |entry: Entry| {
            let value = V::from_bytes(&entry.value);
            value.map(|value| (value, entry.version)).ok_or(WRONG)
        };
        entry.map(value).transpose()
    }
}

impl Counter {
    /// Adds a number; the answer is the sum.
    pub async fn add(&self, amount: i64) -> Result<i64, ObjectError> {
        self.call(counter::Op::Add(amount)).await
    }

    /// Adds one.
    pub async fn incr(&self) -> Result<i64, ObjectError> {
        self.add(1).await
    }

    /// The number.
    pub async fn get(&self) -> Result<i64, ObjectError> {
        self.call(counter::Op::Get).await
    }
}

impl Map {
    /// Sets a key; the answer is the entry's version.
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<u64, ObjectError> {
        self.set_when(key, value, When::Always).await
    }

    /// Sets a key if the condition is met; the answer is the entry's version.
    pub async fn set_when(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        when: When,
    ) -> Result<u64, ObjectError> {
        let (key, value) = (key.as_ref().into(), value.as_ref().into());
        match self.call(map::Op::Set { key, value, when }).await? {
            map::Answer::Set(version) => Ok(version),
            _ => Err(WRONG),
        }
    }

    /// Takes a key away; the answer is what it had.
    pub async fn remove(&self, key: impl AsRef<[u8]>) -> Result<Option<Entry>, ObjectError> {
        self.remove_when(key, When::Always).await
    }

    /// Takes a key away if the condition is met; the answer is what it had.
    pub async fn remove_when(
        &self,
        key: impl AsRef<[u8]>,
        when: When,
    ) -> Result<Option<Entry>, ObjectError> {
        let key = key.as_ref().into();
        match self.call(map::Op::Remove { key, when }).await? {
            map::Answer::Removed(entry) => Ok(entry),
            _ => Err(WRONG),
        }
    }

    /// What a key has.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Entry>, ObjectError> {
        match self.call(map::Op::Get(key.as_ref().into())).await? {
            map::Answer::Got(entry) => Ok(entry),
            _ => Err(WRONG),
        }
    }

    /// Keys that start with `prefix` and come after `after`, in the order of their bytes, as many
    /// as fit into one answer and at most `limit`.
    pub async fn list(
        &self,
        prefix: impl AsRef<[u8]>,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<List, ObjectError> {
        let op = map::Op::List {
            prefix: prefix.as_ref().into(),
            after: after.map(Into::into),
            limit,
        };
        match self.call(op).await? {
            map::Answer::Listed(list) => Ok(list),
            _ => Err(WRONG),
        }
    }

    /// Tells what a key has, now and after every change.
    pub async fn watch_key(&self, key: impl AsRef<[u8]>) -> Result<KeyWatch, ObjectError> {
        Ok(KeyWatch {
            changes: self.watch().await?,
            map: self.clone(),
            key: key.as_ref().into(),
            told: None,
            due: false,
        })
    }
}

/// Tells what a key of a map has, now and after every change; what comes in between may be
/// skipped.
#[derive(Debug)]
pub struct KeyWatch {
    changes: ObjectWatch<kinds::Map>,
    map: Map,
    key: Bytes,
    /// The version of the entry that was told last; zero for none.
    told: Option<u64>,
    due: bool,
}

impl KeyWatch {
    /// What the key has, once it differs from what was told before. Cancelling the future loses
    /// nothing.
    pub async fn next(&mut self) -> Result<Option<Entry>, ObjectError> {
        loop {
            if !self.due {
                self.changes.next().await?;
                self.due = true;
            }
            let entry = self.map.get(&self.key).await?;
            self.due = false;
            let version = entry.as_ref().map_or(0, |entry| entry.version);
            if self.told.replace(version) != Some(version) {
                return Ok(entry);
            }
        }
    }
}

impl Queue {
    /// Appends an item; the answer is its number.
    pub async fn push(&self, item: impl AsRef<[u8]>) -> Result<u64, ObjectError> {
        match self.call(queue::Op::Push(item.as_ref().into())).await? {
            queue::Answer::Pushed(number) => Ok(number),
            _ => Err(WRONG),
        }
    }

    /// Takes the first item; none if there is none.
    pub async fn pop(&self) -> Result<Option<Bytes>, ObjectError> {
        first(self.call(queue::Op::Pop).await)
    }

    /// The first item; none if there is none.
    pub async fn peek(&self) -> Result<Option<Bytes>, ObjectError> {
        first(self.call(queue::Op::Peek).await)
    }

    /// How many items there are.
    pub async fn len(&self) -> Result<u64, ObjectError> {
        match self.call(queue::Op::Len).await? {
            queue::Answer::Len(len) => Ok(len),
            _ => Err(WRONG),
        }
    }

    /// Whether there are no items.
    pub async fn is_empty(&self) -> Result<bool, ObjectError> {
        Ok(self.len().await? == 0)
    }
}

fn first(answer: Result<queue::Answer, ObjectError>) -> Result<Option<Arc<[u8]>>, ObjectError> {
    match answer {
        Ok(queue::Answer::First(item)) => Ok(Some(item)),
        Ok(_) => Err(WRONG),
        Err(ObjectError::Kind(KindError::Empty)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Log {
    /// Appends an entry; the answer is its number.
    pub async fn append(&self, entry: impl AsRef<[u8]>) -> Result<u64, ObjectError> {
        match self.call(log::Op::Append(entry.as_ref().into())).await? {
            log::Answer::Appended(number) => Ok(number),
            _ => Err(WRONG),
        }
    }

    /// Entries from this number on, as many as fit into one answer and at most `limit`.
    pub async fn read_from(&self, from: u64, limit: u32) -> Result<Entries, ObjectError> {
        match self.call(log::Op::Read { from, limit }).await? {
            log::Answer::Read(entries) => Ok(entries),
            _ => Err(WRONG),
        }
    }

    /// Cuts off all entries below this number; the answer is the first that is kept.
    pub async fn trim(&self, to: u64) -> Result<u64, ObjectError> {
        let mut last = None;
        loop {
            let log::Answer::Trimmed(first) = self.call(log::Op::Trim(to)).await? else {
                return Err(WRONG);
            };
            // One operation cuts off so many at most; none when the log is shorter than that.
            if first >= to || last.replace(first) == Some(first) {
                return Ok(first);
            }
        }
    }

    /// The numbers of the first entry and of the next one to come.
    pub async fn ends(&self) -> Result<Ends, ObjectError> {
        match self.call(log::Op::Len).await? {
            log::Answer::Len(ends) => Ok(ends),
            _ => Err(WRONG),
        }
    }
}
