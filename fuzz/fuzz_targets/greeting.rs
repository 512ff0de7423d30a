//! The first frame of a connection, in both directions.
#![no_main]

use conclave_wire::greeting::{decode_greeting, decode_reply, encode_greeting, encode_reply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(Some((greeting, length))) = decode_greeting(bytes) {
        assert!(length <= bytes.len());
        encode_greeting(&greeting, &mut again);
        assert_eq!(decode_greeting(&again), Ok(Some((greeting, again.len()))));
    }
    again.clear();
    if let Ok(Some((reply, length))) = decode_reply(bytes) {
        assert!(length <= bytes.len());
        let _ = reply.refusal.as_ref().map(ToString::to_string);
        encode_reply(&reply, &mut again);
        assert_eq!(decode_reply(&again), Ok(Some((reply, again.len()))));
    }
});
