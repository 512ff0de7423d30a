//! How operations and answers are written as bytes.
//!
//! The first byte of every operation and answer is the form's version. Numbers are big endian;
//! a string of bytes follows its length. Whatever bytes come in, reading them ends in a value or
//! in nothing.

use std::sync::Arc;

/// The form that this code writes, and the only one that it reads.
const FORM: u8 = 1;

/// Something that operations or answers are made of.
pub trait Code: Sized {
    /// Appends it.
    fn write(&self, out: &mut Writer);

    /// Takes it off the front; none if it is not there.
    fn read(input: &mut Reader<'_>) -> Option<Self>;

    /// Its bytes, with the version of the form.
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer(vec![FORM]);
        self.write(&mut out);
        out.0
    }

    /// What these bytes mean; none if they mean nothing, or more than one thing.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&form, rest) = bytes.split_first()?;
        let mut input = Reader(rest);
        let value = Self::read(&mut input)?;
        (form == FORM && input.0.is_empty()).then_some(value)
    }
}

/// Bytes on their way out.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// One byte, to tell variants apart.
    pub fn tag(&mut self, tag: u8) -> &mut Self {
        self.0.push(tag);
        self
    }

    /// A part.
    pub fn put(&mut self, part: &impl Code) -> &mut Self {
        part.write(self);
        self
    }

    fn length(&mut self, length: usize) {
        // Longer ones are refused by every limit; a reader finds that the bytes do not match.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.0.extend(length.to_be_bytes());
    }
}

/// Bytes that are being read.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// One byte, to tell variants apart.
    pub fn tag(&mut self) -> Option<u8> {
        self.array::<1>().map(|[tag]| tag)
    }

    /// A part.
    pub fn get<T: Code>(&mut self) -> Option<T> {
        T::read(self)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A length, which the bytes that are left must be able to fill.
    fn length(&mut self) -> Option<usize> {
        let length = u32::from_be_bytes(self.array()?) as usize;
        (length <= self.0.len()).then_some(length)
    }
}

impl Code for u64 {
    fn write(&self, out: &mut Writer) {
        out.0.extend(self.to_be_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        input.array().map(Self::from_be_bytes)
    }
}

impl Code for u32 {
    fn write(&self, out: &mut Writer) {
        out.0.extend(self.to_be_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        input.array().map(Self::from_be_bytes)
    }
}

impl Code for i64 {
    fn write(&self, out: &mut Writer) {
        out.0.extend(self.to_be_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        input.array().map(Self::from_be_bytes)
    }
}

impl Code for bool {
    fn write(&self, out: &mut Writer) {
        out.tag(u8::from(*self));
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        match input.tag()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Code for () {
    fn write(&self, _out: &mut Writer) {}

    fn read(_input: &mut Reader<'_>) -> Option<Self> {
        Some(())
    }
}

impl Code for Arc<[u8]> {
    fn write(&self, out: &mut Writer) {
        out.length(self.len());
        out.0.extend_from_slice(self);
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        let length = input.length()?;
        input.take(length).map(Self::from)
    }
}

impl Code for String {
    fn write(&self, out: &mut Writer) {
        out.length(self.len());
        out.0.extend_from_slice(self.as_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        let length = input.length()?;
        let bytes = input.take(length)?;
        std::str::from_utf8(bytes).ok().map(Self::from)
    }
}

impl<T: Code> Code for Option<T> {
    fn write(&self, out: &mut Writer) {
        match self {
            None => out.tag(0),
            Some(value) => out.tag(1).put(value),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        match input.tag()? {
            0 => Some(None),
            1 => Some(Some(input.get()?)),
            _ => None,
        }
    }
}

impl<T: Code> Code for Vec<T> {
    fn write(&self, out: &mut Writer) {
        out.length(self.len());
        for item in self {
            item.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        let length = input.length()?;
        (0..length).map(|_| input.get()).collect()
    }
}

impl<A: Code, B: Code> Code for (A, B) {
    fn write(&self, out: &mut Writer) {
        out.put(&self.0).put(&self.1);
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some((input.get()?, input.get()?))
    }
}
