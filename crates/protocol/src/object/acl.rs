//! Who may read and write an object, as its owner has laid down in one of its cells.
//!
//! Without the cell everybody may whom the cluster's own permissions let. With it, only those it
//! names and the object's creator; those who administer its name may read. Whoever may write may
//! read. A client that may write is trusted with all of the object, this cell included.

use std::sync::Arc;

use super::cells;
use super::state::{State, Value};
use crate::lock::{ANYONE, Access, Action, PRINCIPAL_MAX};

/// The most principals that one object can name.
pub const ACL_MAX: usize = 256;
const FORM: u8 = 1;

/// Who may read and write an object; `*` is everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Who may change it.
    pub write: Vec<Arc<str>>,
    /// Who may see it.
    pub read: Vec<Arc<str>>,
}

/// What somebody wants of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To see it.
    Read,
    /// To change it.
    Write,
}

impl Acl {
    /// What the cell holds then; none if it names too many, or a name is empty or too long.
    pub fn write_cell(&self) -> Option<Value> {
        let mut value = vec![FORM];
        if self.write.len() + self.read.len() > ACL_MAX {
            return None;
        }
        for list in [&self.write, &self.read] {
            value.extend_from_slice(&(list.len() as u16).to_be_bytes());
            for principal in list {
                if principal.is_empty() || principal.len() > PRINCIPAL_MAX {
                    return None;
                }
                value.extend_from_slice(&(principal.len() as u16).to_be_bytes());
                value.extend_from_slice(principal.as_bytes());
            }
        }
        Some(Arc::from(value))
    }

    /// What a cell says, if it is one.
    pub fn read_cell(value: &[u8]) -> Option<Self> {
        let mut rest = value.strip_prefix(&[FORM])?;
        let acl = Self {
            write: list(&mut rest)?,
            read: list(&mut rest)?,
        };
        rest.is_empty().then_some(acl)
    }

    /// Whether it names a principal for this.
    pub fn names(&self, principal: &str, want: Want) -> bool {
        let has = |list: &[Arc<str>]| {
            list.iter()
                .any(|one| **one == *principal || **one == *ANYONE)
        };
        has(&self.write) || want == Want::Read && has(&self.read)
    }
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(usize::from(u16::from_be_bytes(*number)))
}

fn list(rest: &mut &[u8]) -> Option<Vec<Arc<str>>> {
    let count = number(rest)?;
    if count > ACL_MAX {
        return None;
    }
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(rest)?;
        let (principal, after) = rest.split_at_checked(length)?;
        *rest = after;
        list.push(Arc::from(std::str::from_utf8(principal).ok()?));
    }
    Some(list)
}

/// Whether a principal may do this with an object of this name in this state: both the cluster's
/// permissions and the object's own must let it.
pub fn may(access: &Access, state: &State, name: &[u8], principal: &str, want: Want) -> bool {
    let action = match want {
        Want::Read => Action::Read,
        Want::Write => Action::Acquire,
    };
    if !access.may(principal, action, name) {
        return false;
    }
    let Some(cell) = state.get(cells::ACL) else {
        return true;
    };
    let creator = state.get(cells::CREATOR);
    creator.is_some_and(|creator| **creator == *principal.as_bytes())
        || Acl::read_cell(cell).is_some_and(|acl| acl.names(principal, want))
        || want == Want::Read
            && !access.is_open()
            && access.may(principal, Action::Administer, name)
}

#[cfg(test)]
mod tests {
    use super::super::state::{Cell, Delta};
    use super::*;
    use crate::lock::Rule;

    fn acl(write: &[&str], read: &[&str]) -> Acl {
        let list = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
        Acl {
            write: list(write),
            read: list(read),
        }
    }

    fn holding(cells: &[(&[u8], &[u8])]) -> State {
        let writes = cells
            .iter()
            .map(|(cell, value)| (Cell::from(*cell), Some(Value::from(*value))));
        State::new()
            .next(&Delta::new(writes.collect()))
            .expect("a version")
    }

    #[test]
    fn a_cell_says_what_was_written_and_nothing_else_is_read() {
        for acl in [acl(&[], &[]), acl(&["a", "*"], &["c/d", "ü"])] {
            let cell = acl.write_cell().expect("small");
            assert_eq!(Acl::read_cell(&cell), Some(acl));
            for end in 0..cell.len() {
                assert_eq!(Acl::read_cell(&cell[..end]), None);
            }
        }
        assert_eq!(acl(&[""], &[]).write_cell(), None);
        assert_eq!(acl(&["a"; ACL_MAX + 1], &[]).write_cell(), None);
        assert_eq!(Acl::read_cell(&[FORM, 255, 255]), None);
    }

    #[test]
    fn both_the_cluster_and_the_owner_must_allow_it() {
        let open = Access::default();
        let free = State::new();
        assert!(may(&open, &free, b"x", "anyone", Want::Write));
        let cell = acl(&["bob"], &["*"]).write_cell().expect("small");
        let state = holding(&[(cells::ACL, &cell), (cells::CREATOR, b"ann")]);
        let wants =
            |who: &str| [Want::Read, Want::Write].map(|want| may(&open, &state, b"x", who, want));
        assert_eq!(wants("ann"), [true, true]);
        assert_eq!(wants("bob"), [true, true]);
        assert_eq!(wants("eve"), [true, false]);
        let rule = |who: &str, may: &[Action]| Rule {
            who: who.into(),
            prefix: b"x".as_slice().into(),
            may: may.to_vec(),
        };
        let some = [
            rule("eve", &[Action::Acquire, Action::Read]),
            rule("ops", &[Action::Acquire, Action::Read, Action::Administer]),
            rule("bob", &[Action::Read]),
        ];
        let rules = Access::new(some).expect("rules");
        assert!(!may(&rules, &state, b"x", "eve", Want::Write));
        assert!(!may(&rules, &state, b"x", "bob", Want::Write));
        assert!(!may(&rules, &state, b"x", "ann", Want::Read));
        assert!(may(&rules, &state, b"x", "ops", Want::Read));
        assert!(!may(&rules, &state, b"x", "ops", Want::Write));
    }

    #[test]
    fn an_unreadable_cell_lets_only_the_creator_in() {
        let state = holding(&[(cells::ACL, b"?"), (cells::CREATOR, b"ann")]);
        let open = Access::default();
        assert!(may(&open, &state, b"x", "ann", Want::Write));
        assert!(!may(&open, &state, b"x", "bob", Want::Read));
    }
}
