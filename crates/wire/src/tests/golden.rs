//! What was written by a version is read by all later ones, and this version still writes it the
//! same. `UPDATE=1` writes files that are missing or differ; the change is then reviewed.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use conclave_protocol::lock::Message;

use super::{keeper_samples, levels, samples};
use crate::codec::{Decoder, Encoder};
use crate::greeting::{decode_greeting, decode_reply, encode_greeting, encode_reply};
use crate::handle::{self, Key};
use crate::keeper::{
    decode_answer, decode_ask, decode_record, encode_answer, encode_ask, encode_record,
};
use crate::levels::{decode_level, encode_level};
use crate::record;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/v1")
}

/// All golden files, as this version writes them.
fn written() -> Vec<(&'static str, Vec<u8>)> {
    let mut files = Vec::new();
    for (name, message) in samples::messages() {
        let mut out = Vec::new();
        Encoder::new().encode(&message, &mut out);
        files.push((name, out));
    }
    for (name, message) in samples::later_messages() {
        let mut out = Vec::new();
        Encoder::new().encode(&message, &mut out);
        files.push((name, out));
    }
    let (mut encoder, mut all) = (Encoder::new(), Vec::new());
    for (_, message) in samples::messages() {
        encoder.encode(&message, &mut all);
    }
    files.push(("conversation", all));
    for (name, greeting) in samples::greetings() {
        let mut out = Vec::new();
        encode_greeting(&greeting, &mut out);
        files.push((name, out));
    }
    for (name, reply) in samples::replies() {
        let mut out = Vec::new();
        encode_reply(&reply, &mut out);
        files.push((name, out));
    }
    for (name, ask) in keeper_samples::asks() {
        let mut out = Vec::new();
        encode_ask(&ask, &mut out).unwrap();
        files.push((name, out));
    }
    for (name, answer) in keeper_samples::answers() {
        let mut out = Vec::new();
        encode_answer(&answer, &mut out).unwrap();
        files.push((name, out));
    }
    for (name, record) in keeper_samples::records() {
        files.push((name, encode_record(&record)));
    }
    for (name, record) in samples::records() {
        files.push((name, record::encode(&record)));
    }
    for (name, frame) in levels::frames() {
        let mut out = Vec::new();
        encode_level(&frame, &mut out);
        files.push((name, out));
    }
    for (name, record) in levels::records() {
        files.push((name, record::encode(&record)));
    }
    let text = handle::seal(&key(), "alice", &samples::handle());
    files.push(("handle", text.into_bytes()));
    files
}

fn key() -> Key {
    Key::new(b"golden")
}

fn stored(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.bin"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn what_is_written_is_as_ever() {
    let update = std::env::var_os("UPDATE").is_some();
    let files = written();
    for (name, bytes) in &files {
        let path = folder().join(format!("{name}.bin"));
        if update {
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(&stored(name), bytes, "{name}; UPDATE=1 rewrites it");
    }
    let names: BTreeSet<String> = files
        .iter()
        .map(|(name, _)| format!("{name}.bin"))
        .collect();
    assert_eq!(names.len(), files.len(), "a name is used twice");
    for entry in fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            names.contains(&name) || name == "README.md",
            "{name} is of no use"
        );
    }
}

#[test]
fn every_kind_has_a_file() {
    let all = samples::messages().into_iter();
    let all: Vec<_> = all.chain(samples::later_messages()).collect();
    let kinds: BTreeSet<&str> = all.iter().map(|(_, message)| message.kind()).collect();
    assert_eq!(kinds.len(), Message::KINDS.len(), "{kinds:?}");
}

#[test]
fn what_was_written_is_read() {
    let (mut decoder, conversation, mut at) = (Decoder::new(), stored("conversation"), 0);
    for (name, message) in samples::messages() {
        let bytes = stored(name);
        let got = Decoder::new().decode(&bytes).unwrap();
        assert_eq!(got, Some((message.clone(), bytes.len())), "{name}");
        let (got, length) = decoder.decode(&conversation[at..]).unwrap().unwrap();
        assert_eq!(got, message, "{name} in the conversation");
        at += length;
    }
    for (name, message) in samples::later_messages() {
        let bytes = stored(name);
        let got = Decoder::new().decode(&bytes).unwrap();
        assert_eq!(got, Some((message, bytes.len())), "{name}");
    }
    for (name, greeting) in samples::greetings() {
        let bytes = stored(name);
        assert_eq!(
            decode_greeting(&bytes),
            Ok(Some((greeting, bytes.len()))),
            "{name}"
        );
    }
    for (name, reply) in samples::replies() {
        let bytes = stored(name);
        assert_eq!(
            decode_reply(&bytes),
            Ok(Some((reply, bytes.len()))),
            "{name}"
        );
    }
    for (name, ask) in keeper_samples::asks() {
        let bytes = stored(name);
        assert_eq!(decode_ask(&bytes), Ok(Some((ask, bytes.len()))), "{name}");
    }
    for (name, answer) in keeper_samples::answers() {
        let bytes = stored(name);
        let got = decode_answer(&bytes);
        assert_eq!(got, Ok(Some((answer, bytes.len()))), "{name}");
    }
    for (name, record) in keeper_samples::records() {
        assert_eq!(decode_record(&stored(name)), Ok(record), "{name}");
    }
    for (name, record) in samples::records() {
        assert_eq!(record::decode(&stored(name)), Ok(record), "{name}");
    }
    for (name, frame) in levels::frames() {
        let bytes = stored(name);
        let got = decode_level(&bytes);
        assert_eq!(got, Ok(Some((frame, bytes.len()))), "{name}");
    }
    for (name, record) in levels::records() {
        assert_eq!(record::decode(&stored(name)), Ok(record), "{name}");
    }
    let text = String::from_utf8(stored("handle")).unwrap();
    assert_eq!(handle::open(&key(), "alice", &text), Ok(samples::handle()));
}
