//! How the cells of an object are divided up: the first byte of a cell's name says whose it is.

use std::sync::Arc;

use super::state::Cell;

/// Begins the cells that say what the object is.
pub const META: u8 = 0;
/// Begins the cells that say what each author did last.
pub const AUTHOR: u8 = 1;
/// Begins the cells of the object's kind, which sees their names without it.
pub const DATA: u8 = 2;

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

/// The cell of the kind's own with this name.
pub fn data(name: &[u8]) -> Cell {
    let mut cell = Vec::with_capacity(1 + name.len());
    cell.push(DATA);
    cell.extend_from_slice(name);
    Arc::from(cell)
}

/// The name that the kind knows a cell by, if it is the kind's own.
pub fn data_name(cell: &[u8]) -> Option<&[u8]> {
    cell.strip_prefix(&[DATA])
}
