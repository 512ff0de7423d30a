//! A record of a store. The checksum is put right first: the fuzzer cannot guess it.
#![no_main]

use conclave_wire::record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = record::decode(bytes);
    let Some((version, body)) = bytes.split_first() else {
        return;
    };
    let body = body.get(8..).unwrap_or(body);
    let sum = blake3::hash(&[&[*version], body].concat());
    let sealed = [&[*version], &sum.as_bytes()[..8], body].concat();
    if let Ok(found) = record::decode(&sealed) {
        assert_eq!(record::decode(&record::encode(&found)), Ok(found));
    }
});
