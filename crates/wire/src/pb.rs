//! The encoding of protobuf, by hand: domain types go to bytes and back without a copy in between.
//!
//! What is written here is what the generated code of `proto/peer` writes for the same values
//! (tests compare the two), so fields that are zero or empty are left out unless they are
//! optional, and fields go by their numbers.

use std::time::Duration;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bad(pub(crate) &'static str);

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

/// Appends a number in as few bytes as it needs.
#[inline]
pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn key(out: &mut Vec<u8>, field: u32, wire: u32) {
    varint(out, u64::from(field << 3 | wire));
}

/// A number, left out if zero.
#[inline]
pub(crate) fn uint(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        uint_always(out, field, value);
    }
}

/// A number that is told even if zero.
#[inline]
pub(crate) fn uint_always(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, VARINT);
    varint(out, value);
}

/// A truth, left out if it is not.
#[inline]
pub(crate) fn flag(out: &mut Vec<u8>, field: u32, value: bool) {
    uint(out, field, u64::from(value));
}

/// A span in nanoseconds; one of more than 500 years is cut.
pub(crate) fn span(out: &mut Vec<u8>, field: u32, value: Duration) {
    uint(out, field, nanos(value));
}

/// The nanoseconds of a span, capped.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A number of 8 bytes, left out if zero.
#[inline]
pub(crate) fn fixed(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        fixed_always(out, field, value);
    }
}

/// A number of 8 bytes that is told even if zero.
#[inline]
pub(crate) fn fixed_always(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Bytes, left out if there are none.
#[inline]
pub(crate) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    if !value.is_empty() {
        bytes_always(out, field, value);
    }
}

/// Bytes that are told even if there are none.
#[inline]
pub(crate) fn bytes_always(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    key(out, field, BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// An id of 16 bytes, told even if zero.
#[inline]
pub(crate) fn id(out: &mut Vec<u8>, field: u32, value: u128) {
    bytes_always(out, field, &value.to_le_bytes());
}

/// A message inside a message.
#[inline]
pub(crate) fn message(out: &mut Vec<u8>, field: u32, body: impl FnOnce(&mut Vec<u8>)) {
    key(out, field, BYTES);
    // Most bodies are short: their length takes the one byte that is kept free for it.
    out.push(0);
    let start = out.len();
    body(out);
    let length = out.len() - start;
    if length < 0x80 {
        out[start - 1] = length as u8;
    } else {
        widen(out, start, length);
    }
}

#[cold]
fn widen(out: &mut Vec<u8>, start: usize, length: usize) {
    let mut head = Vec::with_capacity(10);
    varint(&mut head, length as u64);
    let more = head.len() - 1;
    out.resize(out.len() + more, 0);
    out.copy_within(start..start + length, start + more);
    out[start - 1..start + more].copy_from_slice(&head);
}

/// Reads the fields of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

/// The value of a field, by how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A number in as few bytes as it needs.
    Varint(u64),
    /// A number of 8 bytes.
    Fixed64(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
    /// A number of 4 bytes; no field of ours is one.
    Fixed32,
}

impl<'a> Reader<'a> {
    /// Of these bytes.
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field; none at the end. Inlined into every loop over fields, where most of what
    /// it returns need not be put together: this halves the time of short messages.
    #[allow(clippy::inline_always, reason = "measured")]
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Bad> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = u32::try_from(key >> 3).map_err(|_| Bad("a field number is too large"))?;
        if field == 0 {
            return Err(Bad("a field number is zero"));
        }
        let value = match key as u32 & 7 {
            VARINT => Value::Varint(self.varint()?),
            FIXED64 => {
                let (eight, rest) = self.rest.split_first_chunk().ok_or(CUT)?;
                self.rest = rest;
                Value::Fixed64(u64::from_le_bytes(*eight))
            }
            BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| CUT)?;
                Value::Bytes(self.take(length)?)
            }
            FIXED32 => {
                self.take(4)?;
                Value::Fixed32
            }
            _ => return Err(Bad("a field is written in an unknown way")),
        };
        Ok(Some((field, value)))
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number without a field, as packed lists have them.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Bad> {
        let (&first, rest) = self.rest.split_first().ok_or(CUT)?;
        if first < 0x80 {
            self.rest = rest;
            return Ok(u64::from(first));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, Bad> {
        let mut value = 0_u64;
        for (place, &byte) in self.rest.iter().enumerate().take(10) {
            if place == 9 && byte > 1 {
                return Err(Bad("a number is too large"));
            }
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return Ok(value);
            }
        }
        Err(CUT)
    }

    /// Whether nothing is left.
    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

const CUT: Bad = Bad("a field is cut short");
const OTHER: Bad = Bad("a field is written in another way than its type");

impl<'a> Value<'a> {
    /// As a number.
    #[inline]
    pub(crate) fn uint(self) -> Result<u64, Bad> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(OTHER),
        }
    }

    /// As a number of 32 bits.
    #[inline]
    pub(crate) fn small(self) -> Result<u32, Bad> {
        u32::try_from(self.uint()?).map_err(|_| Bad("a number is too large"))
    }

    /// As a truth.
    #[inline]
    pub(crate) fn flag(self) -> Result<bool, Bad> {
        Ok(self.uint()? != 0)
    }

    /// As a span in nanoseconds.
    pub(crate) fn span(self) -> Result<Duration, Bad> {
        Ok(Duration::from_nanos(self.uint()?))
    }

    /// As a number of 8 bytes.
    #[inline]
    pub(crate) fn fixed(self) -> Result<u64, Bad> {
        match self {
            Self::Fixed64(value) => Ok(value),
            _ => Err(OTHER),
        }
    }

    /// As bytes, at most so many.
    #[inline]
    pub(crate) fn bytes(self, most: usize) -> Result<&'a [u8], Bad> {
        match self {
            Self::Bytes(bytes) if bytes.len() <= most => Ok(bytes),
            Self::Bytes(_) => Err(Bad("a name, group, label or note is too long")),
            _ => Err(OTHER),
        }
    }

    /// As text of at most so many bytes.
    pub(crate) fn text(self, most: usize) -> Result<&'a str, Bad> {
        str::from_utf8(self.bytes(most)?).map_err(|_| Bad("a text is not UTF-8"))
    }

    /// As 16 bytes.
    #[inline]
    pub(crate) fn sixteen(self) -> Result<[u8; 16], Bad> {
        match self {
            Self::Bytes(bytes) => bytes.try_into().map_err(|_| Bad("an id has not 16 bytes")),
            _ => Err(OTHER),
        }
    }

    /// As an id.
    #[inline]
    pub(crate) fn id(self) -> Result<u128, Bad> {
        Ok(u128::from_le_bytes(self.sixteen()?))
    }

    /// As a message inside.
    #[inline]
    pub(crate) fn message(self) -> Result<Reader<'a>, Bad> {
        match self {
            Self::Bytes(bytes) => Ok(Reader::new(bytes)),
            _ => Err(OTHER),
        }
    }
}
