//! Bytes on a connection: messages or an error; what was understood can be said again.
#![no_main]

use conclave_wire::codec::{Decoder, Encoder};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut decoder, mut messages) = (Decoder::new(), Vec::new());
    let taken = decoder.decode_each(bytes, |message| messages.push(message));
    if let Ok(taken) = taken {
        assert!(taken <= bytes.len());
    }
    let (mut encoder, mut again) = (Encoder::new(), Vec::new());
    for message in &messages {
        encoder.encode(message, &mut again);
    }
    let (mut decoder, mut repeated) = (Decoder::new(), Vec::new());
    let taken = decoder.decode_each(&again, |message| repeated.push(message));
    assert_eq!(taken, Ok(again.len()));
    assert_eq!(repeated, messages);
});
