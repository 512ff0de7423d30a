//! What processes of the first version say, byte for byte. It is written down here once more, by
//! hand and without the codec of this build, so that a change of the codec cannot change it too.
//! `the_frozen_bytes_are_those_of_the_golden_files` compares it with `crates/wire/testdata/v1`.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::io::{Read, Write};

/// A message in the making: protobuf, fields in the order in which they are put.
#[derive(Clone, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Zero is left out, as protobuf does.
    pub fn uint(mut self, field: u64, value: u64) -> Self {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
        self
    }

    pub fn fixed(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// None are left out, as protobuf does.
    pub fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return self;
        }
        self.message(field, Self(bytes.to_vec()))
    }

    pub fn message(mut self, field: u64, message: Self) -> Self {
        let bytes = message.0;
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub fn id(self, field: u64, id: u128) -> Self {
        self.bytes(field, &id.to_le_bytes())
    }

    /// A session by its number, and by its id where the number is new.
    pub fn session(self, session: (u64, Option<u128>)) -> Self {
        let numbered = self.uint(1, session.0);
        match session.1 {
            Some(id) => numbered.id(2, id),
            None => numbered,
        }
    }

    /// With its length in front.
    pub fn frame(self) -> Vec<u8> {
        let length = (self.0.len() as u32).to_le_bytes();
        [&length[..], &self.0].concat()
    }
}

pub fn body() -> Body {
    Body::default()
}

/// The one message of a frame.
pub fn kind(number: u64, message: Body) -> Body {
    body().message(number, message)
}

pub fn greeting(target: u64, digest: &[u8; 16], facts: &[(&str, &str)]) -> Body {
    let greeting = body().uint(1, 1).uint(3, target).id(4, 0x0102_0304);
    let greeting = greeting.bytes(5, digest);
    facts.iter().fold(greeting, |greeting, (name, value)| {
        let fact = body().bytes(1, name.as_bytes()).bytes(2, value.as_bytes());
        greeting.message(6, fact)
    })
}

pub fn reply(node: u64) -> Body {
    body().uint(1, 1).uint(2, node).id(3, 0x0102_0304)
}

pub fn hello(client: u128, conn: u64, epoch: u64, digest: &[u8; 16]) -> Body {
    let config = body().uint(1, epoch).bytes(2, digest);
    kind(16, body().id(1, client).uint(2, conn).message(3, config))
}

pub fn welcome(node: u64, life: u64, clock: u64) -> Body {
    kind(17, body().uint(1, node).fixed(2, life).fixed(3, clock))
}

pub fn open(session: (u64, Option<u128>), ttl: u64, detached: bool, owner: &str) -> Body {
    let info = body().session(session).uint(3, ttl);
    let info = info.uint(4, u64::from(detached)).bytes(5, owner.as_bytes());
    kind(19, info)
}

/// Of the client that said hello, if none is given.
pub fn request(
    session: (u64, Option<u128>),
    (number, hint): (u64, u64),
    (name, time): (&str, u64),
    client: Option<u128>,
) -> Body {
    let ask = body().session(session).uint(3, number);
    let mut ask = ask.bytes(4, name.as_bytes()).fixed(7, time);
    if let Some(client) = client {
        ask = ask.id(8, client);
    }
    let mut request = body().message(1, ask);
    if hint != 0 {
        request = request.fixed(2, hint);
    }
    kind(1, request)
}

fn grant(session: (u64, Option<u128>), number: u64, grant: u64) -> Body {
    body().session(session).uint(3, number).uint(4, grant)
}

/// Floor, limit, life and clock.
pub fn locked(session: (u64, Option<u128>), number: u64, no: u64, told: [u64; 4]) -> Body {
    let told = (5..).zip(told);
    let locked = told.fold(grant(session, number, no), |locked, (field, value)| {
        locked.fixed(field, value)
    });
    kind(2, locked)
}

pub fn entered(
    session: (u64, Option<u128>),
    number: u64,
    no: u64,
    token: u64,
    note: Option<&str>,
) -> Body {
    let entered = grant(session, number, no).fixed(5, token);
    kind(
        6,
        match note {
            Some(note) => entered.bytes(6, note.as_bytes()),
            None => entered,
        },
    )
}

pub fn noted(session: (u64, Option<u128>), number: u64, no: u64) -> Body {
    kind(7, grant(session, number, no))
}

pub fn heartbeat(beat: u64) -> Body {
    kind(4, body().uint(1, beat))
}

pub fn beat(number: u64, clock: u64, noted: Vec<Body>) -> Body {
    let beat = body().uint(1, number).fixed(2, clock);
    kind(
        5,
        noted.into_iter().fold(beat, |beat, it| beat.message(3, it)),
    )
}

pub fn done(session: (u64, Option<u128>), number: u64, token: u64) -> Body {
    kind(3, body().session(session).uint(3, number).fixed(4, token))
}

/// The fields of a message, in order.
pub fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes);
        let value = match key & 7 {
            0 => Field::Number(take_varint(&mut bytes)),
            1 => Field::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = take_varint(&mut bytes) as usize;
                Field::Bytes(take(&mut bytes, length).to_vec())
            }
            other => panic!("the first version writes no field of type {other}"),
        };
        found.push((key >> 3, value));
    }
    found
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// A message that came: its kind and its fields.
#[derive(Clone, Debug)]
pub struct Came {
    pub kind: u64,
    pub fields: Vec<(u64, Field)>,
}

impl Came {
    /// The whole frame is one message of its own, as greetings and replies are.
    pub fn plain(bytes: &[u8]) -> Self {
        let fields = fields(bytes);
        Self { kind: 0, fields }
    }

    pub fn message(bytes: &[u8]) -> Self {
        let mut found = fields(bytes);
        assert_eq!(found.len(), 1, "one message in a frame");
        let (kind, Field::Bytes(inside)) = found.remove(0) else {
            panic!("a message is bytes");
        };
        let fields = fields(&inside);
        Self { kind, fields }
    }

    fn get(&self, field: u64) -> Option<&Field> {
        let mut found = self.fields.iter().filter(|(number, _)| *number == field);
        found.next().map(|(_, value)| value)
    }

    pub fn has(&self, field: u64) -> bool {
        self.get(field).is_some()
    }

    /// Zero if it is left out.
    pub fn number(&self, field: u64) -> u64 {
        match self.get(field) {
            Some(Field::Number(number)) => *number,
            None => 0,
            Some(Field::Bytes(_)) => panic!("field {field} is no number"),
        }
    }

    pub fn bytes(&self, field: u64) -> Vec<u8> {
        match self.get(field) {
            Some(Field::Bytes(bytes)) => bytes.clone(),
            other => panic!("field {field} is {other:?}"),
        }
    }

    pub fn inside(&self, field: u64) -> Self {
        Self::plain(&self.bytes(field))
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// The next frame; none when the other side has closed the connection.
pub fn next_frame(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame)
}

pub fn send(stream: &mut impl Write, body: Body) {
    stream.write_all(&body.frame()).unwrap();
}
