//! What goes in comes out, and the bytes in between are protobuf as its generated code writes it.

use proptest::prelude::*;

use conclave_protocol::lock::Message;

use super::random::Random;
use super::samples;
use crate::codec::{Decoder, Encoder};
use crate::generated::peer;
use crate::greeting::{encode_greeting, encode_reply};
use crate::handle::{self, HandleError, Key};
use crate::lease_handle;
use crate::record;

/// Messages drawn one by one, so that a failing sequence shrinks to the fewest.
fn messages() -> impl Strategy<Value = Vec<Message>> {
    let seeds = prop::collection::vec(any::<u64>(), 1..40);
    seeds.prop_map(|seeds| {
        let drawn = seeds.into_iter().map(|seed| Random::new(seed).message());
        drawn.collect()
    })
}

fn decode_all(bytes: &[u8]) -> Vec<Message> {
    let (mut decoder, mut rest, mut messages) = (Decoder::new(), bytes, Vec::new());
    while let Some((message, length)) = decoder.decode(rest).unwrap() {
        messages.push(message);
        rest = &rest[length..];
    }
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    messages
}

/// The generated code reads the bytes and writes the same, so it knows every field in them.
fn is_protobuf<T: prost::Message + Default + std::fmt::Debug>(body: &[u8]) {
    let read = T::decode(body).unwrap();
    assert_eq!(read.encode_to_vec(), body, "{read:?}");
}

proptest! {
    #[test]
    fn messages_come_back(messages in messages()) {
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        for message in &messages {
            encoder.encode(message, &mut out);
        }
        prop_assert_eq!(decode_all(&out), messages);
    }

    #[test]
    fn frames_are_protobuf(messages in messages()) {
        let mut encoder = Encoder::new();
        for message in &messages {
            let mut out = Vec::new();
            encoder.encode(message, &mut out);
            is_protobuf::<peer::Peer>(&out[4..]);
        }
    }

    #[test]
    fn a_frame_comes_in_pieces(messages in messages(), cuts in any::<u64>()) {
        let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
        for message in &messages {
            encoder.encode(message, &mut bytes);
        }
        let (mut decoder, mut buffer, mut got) = (Decoder::new(), Vec::new(), Vec::new());
        let (mut rest, mut chance) = (&bytes[..], conclave_quorum::Prng::new(cuts));
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + chance.below(rest.len().min(300)));
            buffer.extend_from_slice(now);
            rest = later;
            while let Some((message, length)) = decoder.decode(&buffer).unwrap() {
                got.push(message);
                buffer.drain(..length);
            }
        }
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn all_at_once_is_the_same(messages in messages(), cut in any::<u64>()) {
        let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
        for message in &messages {
            encoder.encode(message, &mut bytes);
            // A frame of a kind that nobody knows.
            bytes.extend_from_slice(&[3, 0, 0, 0, 0xc2, 0x3e, 0]);
        }
        bytes.truncate(cut as usize % (bytes.len() + 1));
        let (mut one, mut rest, mut single) = (Decoder::new(), &bytes[..], Vec::new());
        while let Some((message, length)) = one.decode(rest).unwrap() {
            single.push(message);
            rest = &rest[length..];
        }
        let (mut each, mut all) = (Decoder::new(), Vec::new());
        let taken = each.decode_each(&bytes, |message| all.push(message)).unwrap();
        prop_assert_eq!(&all, &single);
        prop_assert!(messages.starts_with(&all));
        let left = bytes.len() - taken;
        prop_assert!(left == rest.len() || left + 7 == rest.len(), "{} left", left);
        prop_assert_eq!(each.decode_each(&bytes[taken..], drop), Ok(0));
    }

    #[test]
    fn records_come_back(seed in any::<u64>()) {
        let record = Random::new(seed).record();
        let bytes = record::encode(&record);
        is_protobuf::<peer::Record>(&bytes[9..]);
        prop_assert_eq!(record::decode(&bytes), Ok(record));
    }

    #[test]
    fn handles_come_back(seed in any::<u64>(), principal in ".{0,40}") {
        let handle = Random::new(seed).handle();
        let key = Key::new(b"key");
        let text = handle::seal(&key, &principal, &handle);
        prop_assert_eq!(handle::open(&key, &principal, &text), Ok(handle.clone()));
        let other = format!("{principal}x");
        prop_assert_eq!(handle::open(&key, &other, &text), Err(HandleError::Foreign));
        let forged = handle::open(&Key::new(b"other"), &principal, &text);
        prop_assert_eq!(forged, Err(HandleError::Forged));
    }

    #[test]
    fn every_changed_bit_of_a_handle_is_seen(seed in any::<u64>(), place in any::<u64>()) {
        use base64::Engine;
        use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE;
        let key = Key::new(b"key");
        let text = handle::seal(&key, "me", &Random::new(seed).handle());
        let mut bytes = BASE.decode(&text).unwrap();
        let bit = place as usize % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let opened = handle::open(&key, "me", &BASE.encode(bytes));
        prop_assert_eq!(opened, Err(HandleError::Forged));
    }
}

#[test]
fn a_handle_of_a_lease_is_its_holders_and_tells_nothing() {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE;
    let key = Key::new(b"key");
    let (config, handle) = samples::lease_handle();
    let text = lease_handle::seal(&key, "me", &config, &handle);
    let open = |key: &Key, principal: &str, text: &str| lease_handle::open(key, principal, text);
    assert_eq!(open(&key, "me", &text), Ok((config, handle.clone())));
    assert_eq!(open(&key, "you", &text), Err(HandleError::Foreign));
    let other = Key::new(b"other");
    assert_eq!(open(&other, "me", &text), Err(HandleError::Forged));
    let bytes = BASE.decode(&text).unwrap();
    let hides = |part: &[u8]| bytes.windows(part.len()).all(|window| window != part);
    assert!(hides(handle.name.bytes()) && hides(b"me"));
    assert!(handle.secrets.iter().all(|(_, secret)| hides(&secret.0)));
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let opened = open(&key, "me", &BASE.encode(changed));
        assert_eq!(opened, Err(HandleError::Forged), "bit {bit}");
    }
    for cut in 0..text.len() {
        let opened = open(&key, "me", &text[..cut]);
        assert_eq!(opened, Err(HandleError::Forged), "cut at {cut}");
    }
    // Neither kind of handle is taken for the other.
    assert_eq!(handle::open(&key, "me", &text), Err(HandleError::Forged));
    let lock = handle::seal(&key, "me", &samples::handle());
    assert_eq!(open(&key, "me", &lock), Err(HandleError::Forged));
}

#[test]
fn greetings_and_samples_are_protobuf() {
    let mut out = Vec::new();
    for (_, greeting) in samples::greetings() {
        out.clear();
        encode_greeting(&greeting, &mut out);
        is_protobuf::<peer::Greeting>(&out[4..]);
    }
    for (_, reply) in samples::replies() {
        out.clear();
        encode_reply(&reply, &mut out);
        is_protobuf::<peer::GreetingReply>(&out[4..]);
    }
    for (_, message) in samples::messages() {
        out.clear();
        Encoder::new().encode(&message, &mut out);
        is_protobuf::<peer::Peer>(&out[4..]);
    }
}

#[test]
fn named_sessions_are_told_apart() {
    let of = |principal, name: &str, id: &str| {
        handle::session_of(principal, name.as_bytes(), id.as_bytes())
    };
    let one = of("alice", "a", "1");
    assert_eq!(one, of("alice", "a", "1"));
    for other in [
        of("bob", "a", "1"),
        of("alice", "b", "1"),
        of("alice", "a", "2"),
    ] {
        assert_ne!(one, other);
    }
    assert_ne!(
        of("al", "icea", "1"),
        of("alice", "a", "1"),
        "lengths count"
    );
}

#[test]
fn a_credential_is_bounded_and_never_shown() {
    let credential = crate::greeting::Credential::new(b"cct_secret").unwrap();
    assert_eq!(format!("{credential:?}"), "Credential(..)");
    assert!(crate::greeting::Credential::new(&[7; 1025]).is_none());
    assert!(crate::greeting::Credential::new(b"").is_none());
}
