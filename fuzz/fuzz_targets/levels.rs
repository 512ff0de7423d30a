//! Frames between nodes of a hierarchy.
#![no_main]

use conclave_wire::levels::{decode_level, encode_level};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((frame, length))) = decode_level(bytes) {
        assert!(length <= bytes.len());
        let mut again = Vec::new();
        encode_level(&frame, &mut again);
        assert_eq!(decode_level(&again), Ok(Some((frame, again.len()))));
    }
});
