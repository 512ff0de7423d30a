//! Handles of leases as encrypted text. A handle of a lease carries the secrets that renew and
//! release it, so that only the nodes which are shown it learn them: it is encrypted, not just
//! sealed as that of a lock.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::lease::{LeaseHandle, Secret};
use conclave_protocol::lock::ConfigId;

use crate::cluster::NODES_MAX;
use crate::handle::{HandleError, Key, TEXT_MAX};
use crate::keeper::parts::{Which, name, put_attempt, thirty_two};
use crate::parts::{config, node, push, put_config};
use crate::pb::{self, Bad, Reader};

/// The version of the handles that this build makes.
const VERSION: u8 = 1;
/// The bytes of a nonce.
const NONCE: usize = 24;

/// The handle as text for its holder, who got it from a cluster of this configuration.
pub fn seal(key: &Key, principal: &str, id: &ConfigId, handle: &LeaseHandle) -> String {
    let mut plain = Vec::with_capacity(512);
    put(&mut plain, principal, id, handle);
    let (cipher, nonce_key) = keys(key);
    // The nonce is a keyed hash of what is encrypted: it repeats only with the whole handle, and
    // needs no source of chance.
    let mut nonce = [0; NONCE];
    let mut hash = blake3::Hasher::new_keyed(&nonce_key);
    hash.update(&plain);
    hash.finalize_xof().fill(&mut nonce);
    let sealed = cipher.encrypt(&XNonce::from(nonce), plain.as_slice());
    let sealed = sealed.expect("invariant: a handle is far shorter than the cipher allows");
    let mut out = Vec::with_capacity(1 + NONCE + sealed.len());
    out.push(VERSION);
    out.extend_from_slice(&nonce);
    out.extend_from_slice(&sealed);
    BASE64_URL_SAFE_NO_PAD.encode(out)
}

/// The handle that this text is, and the configuration under which it was given.
pub fn open(
    key: &Key,
    principal: &str,
    text: &str,
) -> Result<(ConfigId, LeaseHandle), HandleError> {
    if text.len() > TEXT_MAX {
        return Err(HandleError::Forged);
    }
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text);
    let bytes = bytes.map_err(|_| HandleError::Forged)?;
    let Some((&VERSION, rest)) = bytes.split_first() else {
        return Err(HandleError::Forged);
    };
    let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE>() else {
        return Err(HandleError::Forged);
    };
    let plain = keys(key).0.decrypt(&XNonce::from(*nonce), sealed);
    let plain = plain.map_err(|_| HandleError::Forged)?;
    let (owner, id, handle) = read(Reader::new(&plain)).map_err(|_| HandleError::Forged)?;
    if owner != principal {
        return Err(HandleError::Foreign);
    }
    Ok((id, handle))
}

/// The cipher, and the key of its nonces.
fn keys(key: &Key) -> (XChaCha20Poly1305, [u8; 32]) {
    let cipher = key.derived("conclave 2026 lease handle v1");
    let nonces = key.derived("conclave 2026 lease handle nonce v1");
    (XChaCha20Poly1305::new(&cipher.into()), nonces)
}

fn put(out: &mut Vec<u8>, principal: &str, id: &ConfigId, handle: &LeaseHandle) {
    pb::bytes(out, 1, principal.as_bytes());
    pb::message(out, 2, |out| put_config(out, id));
    pb::bytes(out, 3, handle.name.bytes());
    pb::message(out, 4, |out| put_attempt(out, handle.attempt, 0));
    pb::fixed(out, 5, handle.token.0);
    pb::span(out, 6, handle.span);
    pb::uint(out, 7, u64::from(handle.attempts));
    for (node, secret) in &handle.secrets {
        pb::message(out, 8, |out| {
            pb::uint(out, 1, u64::from(node.0));
            pb::bytes(out, 2, &secret.0);
        });
    }
}

fn read(mut from: Reader<'_>) -> Result<(&str, ConfigId, LeaseHandle), Bad> {
    let (mut principal, mut id, mut lease) = ("", ConfigId::default(), None);
    let (mut attempt, mut token, mut span) = (None, 0, Duration::ZERO);
    let (mut attempts, mut secrets) = (0, Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => principal = value.text(TEXT_MAX)?,
            2 => id = config(value.message()?)?,
            3 => lease = Some(name(value)?),
            4 => {
                let (mut from, mut which) = (value.message()?, Which::default());
                while let Some((field, value)) = from.next()? {
                    which.take(field, value)?;
                }
                attempt = Some(which.attempt()?);
            }
            5 => token = value.fixed()?,
            6 => span = value.span()?,
            7 => attempts = value.small()?,
            8 => push(&mut secrets, NODES_MAX, secret(value.message()?)?)?,
            _ => {}
        }
    }
    let handle = LeaseHandle {
        name: lease.ok_or(Bad("a handle has no lease"))?,
        attempt: attempt.ok_or(Bad("a handle has no attempt"))?,
        token: Token(token),
        span,
        attempts,
        secrets,
    };
    Ok((principal, id, handle))
}

fn secret(mut from: Reader<'_>) -> Result<(NodeId, Secret), Bad> {
    let (mut place, mut secret) = (NodeId(0), None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => place = node(value)?,
            2 => secret = Some(Secret(thirty_two(value)?)),
            _ => {}
        }
    }
    Ok((place, secret.ok_or(Bad("a handle has no secret"))?))
}
