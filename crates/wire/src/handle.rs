//! Handles as sealed text: whoever lacks the cluster's key can neither make nor change one, and
//! one principal's handle is refused from another.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use conclave_protocol::id::{GrantNo, Incarnation, NodeId, SessionId, Token};
use conclave_protocol::lock::{ConfigId, Handle};
use thiserror::Error;

use crate::cluster::NODES_MAX;
use crate::dictionary::{Reading, Writing};
use crate::parts::{ask, config, given, node, push, put_ask, put_config};
use crate::pb::{self, Bad, Reader};

/// The key that the nodes of a cluster share.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key made from a secret text.
    pub fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("conclave 2026 handle seal v1", secret))
    }

    /// A key for one purpose, from which no other key can be told.
    pub(crate) fn derived(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(..)")
    }
}

/// Why a handle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HandleError {
    /// Not a handle of this cluster, or changed on its way.
    #[error("not a handle of this cluster; pass it back exactly as it was given")]
    Forged,
    /// Another principal's.
    #[error("the handle belongs to another principal")]
    Foreign,
}

/// The most bytes of a handle's text: enough for a grant of every node of the largest cluster.
pub const TEXT_MAX: usize = 1 << 19;

/// The version of the handles that this build makes.
const VERSION: u8 = 1;

/// The handle as text for its holder.
pub fn seal(key: &Key, principal: &str, handle: &Handle) -> String {
    let mut out = Vec::with_capacity(256);
    out.push(VERSION);
    put(&mut out, principal, handle);
    let seal = mac(key, principal, &out);
    out.extend_from_slice(seal.as_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(out)
}

/// The handle that this text is.
pub fn open(key: &Key, principal: &str, text: &str) -> Result<Handle, HandleError> {
    if text.len() > TEXT_MAX {
        return Err(HandleError::Forged);
    }
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text);
    let bytes = bytes.map_err(|_| HandleError::Forged)?;
    let Some((sealed, seal)) = bytes.split_last_chunk::<{ blake3::OUT_LEN }>() else {
        return Err(HandleError::Forged);
    };
    let Some((&VERSION, body)) = sealed.split_first() else {
        return Err(HandleError::Forged);
    };
    // The parser meets bytes of unknown origin here: it is as careful as with any frame.
    let (owner, handle) = handle(Reader::new(body)).map_err(|_| HandleError::Forged)?;
    // Hashes are compared in constant time.
    if mac(key, owner, sealed) != blake3::Hash::from_bytes(*seal) {
        return Err(HandleError::Forged);
    }
    if owner != principal {
        return Err(HandleError::Foreign);
    }
    Ok(handle)
}

/// The session of a caller that chose an id for it: the same principal, lock and id always give
/// the same session, and no others do.
pub fn session_of(principal: &str, name: &[u8], id: &[u8]) -> SessionId {
    let mut hash = blake3::Hasher::new_derive_key("conclave 2026 named session v1");
    for part in [principal.as_bytes(), name, id] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut session = [0; 16];
    hash.finalize_xof().fill(&mut session);
    SessionId(u128::from_le_bytes(session))
}

fn mac(key: &Key, principal: &str, sealed: &[u8]) -> blake3::Hash {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(&(principal.len() as u64).to_le_bytes());
    hash.update(principal.as_bytes());
    hash.update(sealed);
    hash.finalize()
}

fn put(out: &mut Vec<u8>, principal: &str, handle: &Handle) {
    pb::bytes(out, 1, principal.as_bytes());
    pb::message(out, 2, |out| put_config(out, &handle.config));
    pb::message(out, 3, |out| {
        put_ask(out, &mut Writing::plain(), &handle.ask);
    });
    pb::fixed(out, 4, handle.token.0);
    pb::span(out, 5, handle.ttl);
    for (node, incarnation, grant) in &handle.grants {
        pb::message(out, 6, |out| {
            pb::uint(out, 1, u64::from(node.0));
            pb::fixed(out, 2, incarnation.0);
            pb::uint(out, 3, grant.0);
        });
    }
}

fn handle(mut from: Reader<'_>) -> Result<(&str, Handle), Bad> {
    let (mut principal, mut id, mut what) = ("", ConfigId::default(), None);
    let (mut token, mut ttl, mut grants) = (0, Duration::ZERO, Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => principal = value.text(TEXT_MAX)?,
            2 => id = config(value.message()?)?,
            3 => what = Some(ask(value.message()?, &mut Reading::default())?),
            4 => token = value.fixed()?,
            5 => ttl = value.span()?,
            6 => push(&mut grants, NODES_MAX, grant(value.message()?)?)?,
            _ => {}
        }
    }
    let handle = Handle {
        config: id,
        ask: given(what)?,
        token: Token(token),
        ttl,
        grants,
    };
    Ok((principal, handle))
}

fn grant(mut from: Reader<'_>) -> Result<(NodeId, Incarnation, GrantNo), Bad> {
    let (mut place, mut incarnation, mut grant) = (NodeId(0), 0, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => place = node(value)?,
            2 => incarnation = value.fixed()?,
            3 => grant = value.uint()?,
            _ => {}
        }
    }
    Ok((place, Incarnation(incarnation), GrantNo(grant)))
}
