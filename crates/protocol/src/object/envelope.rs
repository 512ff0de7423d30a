//! What a client submits as one operation: a batch of what its callers want, and their results.
//!
//! Callers of one process share an author, and an author has one operation under way. All that
//! waits when it is done goes into the next one together.

use std::sync::Arc;

/// What a caller wants of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// An operation of the object's kind.
    Operation(Arc<[u8]>),
    /// From now on these may read and write.
    SetAcl(Arc<[u8]>),
    /// The object is as if it had never been, but its versions go on.
    Delete,
}

/// What came of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What the kind says.
    Result(Arc<[u8]>),
    /// It was not done.
    Failed(Fault),
}

/// Why a wish was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The object or the result would be too large, or the operation took too many steps.
    TooLarge,
    /// The object is of another kind or newer code.
    OtherKind,
    /// Only the object's creator may.
    NotPermitted,
    /// The operation makes no sense, or its code failed.
    Unreadable,
}

/// Wishes of callers of one client, submitted as one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The kind that the client takes the object for.
    pub kind: String,
    /// The version of its code.
    pub code: u32,
    /// The wishes, in order.
    pub wishes: Vec<Wish>,
}

/// The most wishes of a batch.
pub const WISHES_MAX: usize = 1024;
/// The most bytes of a kind's name.
pub const KIND_NAME_MAX: usize = 64;

const FORMAT: u8 = 1;

impl Wish {
    /// How many bytes it adds to a batch at the most.
    pub fn bytes(&self) -> usize {
        5 + match self {
            Self::Operation(body) | Self::SetAcl(body) => body.len(),
            Self::Delete => 0,
        }
    }
}

impl Batch {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut name = self.kind.as_bytes();
        name = &name[..name.len().min(KIND_NAME_MAX)];
        let mut out = vec![FORMAT, name.len() as u8];
        out.extend_from_slice(name);
        out.extend_from_slice(&self.code.to_le_bytes());
        for wish in &self.wishes {
            let (tag, body): (u8, &[u8]) = match wish {
                Wish::Operation(body) => (0, body),
                Wish::SetAcl(body) => (1, body),
                Wish::Delete => (2, &[]),
            };
            put(&mut out, tag, body);
        }
        out
    }

    /// From bytes; none if they are no batch.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (format, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (code, rest) = rest.split_first_chunk::<4>()?;
        if *format != FORMAT || name.len() > KIND_NAME_MAX {
            return None;
        }
        let wish = |(tag, body): (u8, &[u8])| match tag {
            0 => Some(Wish::Operation(body.into())),
            1 => Some(Wish::SetAcl(body.into())),
            2 if body.is_empty() => Some(Wish::Delete),
            _ => None,
        };
        Some(Self {
            kind: std::str::from_utf8(name).ok()?.to_owned(),
            code: u32::from_le_bytes(*code),
            wishes: parts(rest)?.into_iter().map(wish).collect::<Option<_>>()?,
        })
    }
}

/// Outcomes as the result of an operation.
pub fn encode_outcomes(outcomes: &[Outcome]) -> Vec<u8> {
    let mut out = Vec::new();
    for outcome in outcomes {
        match outcome {
            Outcome::Result(body) => put(&mut out, 0, body),
            Outcome::Failed(Fault::TooLarge) => put(&mut out, 1, &[]),
            Outcome::Failed(Fault::OtherKind) => put(&mut out, 2, &[]),
            Outcome::Failed(Fault::NotPermitted) => put(&mut out, 3, &[]),
            Outcome::Failed(Fault::Unreadable) => put(&mut out, 4, &[]),
        }
    }
    out
}

/// The outcomes of an operation's result; none if it is no such thing.
pub fn decode_outcomes(bytes: &[u8]) -> Option<Vec<Outcome>> {
    let outcome = |(tag, body): (u8, &[u8])| match tag {
        0 => Some(Outcome::Result(body.into())),
        1 => Some(Outcome::Failed(Fault::TooLarge)),
        2 => Some(Outcome::Failed(Fault::OtherKind)),
        3 => Some(Outcome::Failed(Fault::NotPermitted)),
        4 => Some(Outcome::Failed(Fault::Unreadable)),
        _ => None,
    };
    parts(bytes)?.into_iter().map(outcome).collect()
}

fn put(out: &mut Vec<u8>, tag: u8, body: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
}

/// Tagged parts, all of the bytes.
fn parts(mut rest: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut parts = Vec::new();
    while let Some((tag, after)) = rest.split_first() {
        let (length, after) = after.split_first_chunk::<4>()?;
        let (body, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if parts.len() == WISHES_MAX {
            return None;
        }
        parts.push((*tag, body));
        rest = after;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn batches_and_outcomes_come_back() {
        let batch = Batch {
            kind: "map".to_owned(),
            code: 7,
            wishes: vec![
                Wish::Operation(b"set".as_slice().into()),
                Wish::Delete,
                Wish::SetAcl(b"all".as_slice().into()),
            ],
        };
        assert_eq!(Batch::decode(&batch.encode()), Some(batch));
        let outcomes = vec![
            Outcome::Result(b"1".as_slice().into()),
            Outcome::Failed(Fault::TooLarge),
            Outcome::Failed(Fault::OtherKind),
            Outcome::Failed(Fault::NotPermitted),
            Outcome::Failed(Fault::Unreadable),
        ];
        assert_eq!(decode_outcomes(&encode_outcomes(&outcomes)), Some(outcomes));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Some(batch) = Batch::decode(&bytes) {
                prop_assert_eq!(Batch::decode(&batch.encode()), Some(batch));
            }
            let _ = decode_outcomes(&bytes);
        }
    }
}
