//! The cells of an object that are not its kind's: a name's first byte says whose it is.

pub use super::kind::{AUTHORS, DATA, META};

/// The cell with the name of the object's kind.
pub const KIND: &[u8] = b"\0kind";
/// The cell with the version of the kind's code, four bytes, the highest first.
pub const CODE: &[u8] = b"\0code";
/// The cell with the principal that made the object.
pub const CREATOR: &[u8] = b"\0creator";
/// The cell with who may read and write the object; see [`super::acl`].
pub const ACL: &[u8] = b"\0acl";
/// The cell that says that the object was deleted.
pub const TOMBSTONE: &[u8] = b"\0tombstone";
/// The cell with the beginning of the latest author that was forgotten; see [`super::author`].
pub const FLOOR: &[u8] = b"\0floor";
