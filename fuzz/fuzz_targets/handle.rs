//! A handle: what the fuzzer makes up is never accepted, and what has a right seal is read safely.
#![no_main]

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE;
use conclave_wire::handle::{self, HandleError, Key};
use libfuzzer_sys::fuzz_target;

// The seeds are made with another key, so that no seed is a handle of this one.
static KEY: LazyLock<Key> = LazyLock::new(|| Key::new(b"fuzz"));

/// Seals as the service does, whatever the bytes are.
fn seal(body: &[u8]) -> String {
    let mut sealed = vec![1, 1 << 3 | 2, 5];
    sealed.extend_from_slice(b"alice");
    sealed.extend_from_slice(body);
    let key = blake3::derive_key("conclave 2026 handle seal v1", b"fuzz");
    let mut hash = blake3::Hasher::new_keyed(&key);
    hash.update(&5_u64.to_le_bytes());
    hash.update(b"alice");
    hash.update(&sealed);
    sealed.extend_from_slice(hash.finalize().as_bytes());
    BASE.encode(sealed)
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = str::from_utf8(bytes) {
        assert_eq!(handle::open(&KEY, "alice", text), Err(HandleError::Forged));
    }
    // The body of a handle in text, or the bytes themselves.
    let decoded = BASE.decode(bytes).unwrap_or_default();
    let body = decoded.get(1..decoded.len().saturating_sub(32));
    if let Ok(found) = handle::open(&KEY, "alice", &seal(body.unwrap_or(bytes))) {
        let again = handle::seal(&KEY, "alice", &found);
        assert_eq!(handle::open(&KEY, "alice", &again), Ok(found));
    }
});
