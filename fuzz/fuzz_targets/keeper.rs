//! Frames and records about leases and objects.
#![no_main]

use conclave_wire::keeper::{
    decode_answer, decode_ask, decode_record, encode_answer, encode_ask, encode_record,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(Some((ask, length))) = decode_ask(bytes) {
        assert!(length <= bytes.len());
        if encode_ask(&ask, &mut again).is_ok() {
            assert_eq!(decode_ask(&again), Ok(Some((ask, again.len()))));
        }
    }
    again.clear();
    if let Ok(Some((answer, length))) = decode_answer(bytes) {
        assert!(length <= bytes.len());
        if encode_answer(&answer, &mut again).is_ok() {
            assert_eq!(decode_answer(&again), Ok(Some((answer, again.len()))));
        }
    }
    if let Ok(record) = decode_record(bytes) {
        assert_eq!(decode_record(&encode_record(&record)), Ok(record));
    }
});
