//! Who may do what: principals, and what they may do with locks by the prefix of their names.
//!
//! Rules only add. Without any rule everyone may do everything; with one, only what some rule
//! allows. Whoever may administer a name may also read it, but not take it.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

/// The most bytes of a principal's name.
pub const PRINCIPAL_MAX: usize = 256;
/// The most rules.
pub const RULES_MAX: usize = 4096;
/// The principal of a rule that means everyone who has shown who they are.
pub const ANYONE: &str = "*";

/// What the account of an address begins with. No principal does.
pub const ADDRESS_MARK: char = '@';

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The principal: in whose name all on this connection is asked.
    pub principal: Arc<str>,
    /// Whether it is a gateway: a node of the cluster, which says for each session whose it is.
    pub gateway: bool,
}

/// What can be done with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Take it, in any mode, and hold it.
    Acquire,
    /// See who holds it and who waits.
    Read,
    /// See and revoke the sessions that hold it.
    Administer,
}

/// One rule: a principal may do these things with the locks of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The principal, or [`ANYONE`].
    pub who: Arc<str>,
    /// What the names begin with; all names if empty.
    pub prefix: Box<[u8]>,
    /// What is allowed.
    pub may: Vec<Action>,
}

/// Why rules cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// There are too many.
    #[error("more than {RULES_MAX} permissions; use shorter prefixes")]
    TooMany,
    /// A principal's name is empty or too long.
    #[error("a principal must have 1 to {PRINCIPAL_MAX} bytes")]
    Principal,
}

/// All rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Per principal.
    rules: BTreeMap<Arc<str>, Vec<Allowed>>,
}

/// A prefix, and what is allowed there as bits.
type Allowed = (Box<[u8]>, u8);

impl Access {
    /// The rules, together.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, AccessError> {
        let mut access = Self::default();
        for (count, rule) in rules.into_iter().enumerate() {
            if count >= RULES_MAX {
                return Err(AccessError::TooMany);
            }
            if rule.who.is_empty() || rule.who.len() > PRINCIPAL_MAX {
                return Err(AccessError::Principal);
            }
            let may = rule
                .may
                .into_iter()
                .fold(0, |bits, one| bits | granted(one));
            let of = access.rules.entry(rule.who).or_default();
            of.push((rule.prefix, may));
        }
        Ok(access)
    }

    /// Whether there is no rule: everyone may do everything.
    pub fn is_open(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a principal may do this with the lock of this name.
    pub fn may(&self, principal: &str, action: Action, name: &[u8]) -> bool {
        let bit = bit(action);
        let allows = |(prefix, may): &(Box<[u8]>, u8)| may & bit != 0 && name.starts_with(prefix);
        let of = [principal, ANYONE].into_iter();
        self.is_open()
            || of
                .filter_map(|who| self.rules.get(who))
                .flatten()
                .any(allows)
    }

    /// Whether a principal may do this with some lock.
    pub fn may_any(&self, principal: &str, action: Action) -> bool {
        let bit = bit(action);
        let of = [principal, ANYONE].into_iter();
        let mut all = of.filter_map(|who| self.rules.get(who)).flatten();
        self.is_open() || all.any(|(_, may)| may & bit != 0)
    }

    /// Whether a principal may do this with every lock.
    pub fn may_all(&self, principal: &str, action: Action) -> bool {
        self.may(principal, action, b"")
    }
}

fn bit(action: Action) -> u8 {
    match action {
        Action::Acquire => 1,
        Action::Read => 2,
        Action::Administer => 4,
    }
}

/// What a rule that names this action allows.
fn granted(action: Action) -> u8 {
    match action {
        Action::Administer => bit(Action::Administer) | bit(Action::Read),
        other => bit(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(who: &str, prefix: &str, may: &[Action]) -> Rule {
        Rule {
            who: who.into(),
            prefix: prefix.as_bytes().into(),
            may: may.to_vec(),
        }
    }

    #[test]
    fn without_rules_everyone_may_everything() {
        let access = Access::default();
        assert!(access.is_open());
        assert!(access.may("anyone", Action::Administer, b"x"));
    }

    #[test]
    fn rules_add_up_and_say_nothing_about_others() {
        let access = Access::new([
            rule("ci", "ci/", &[Action::Acquire]),
            rule("ci", "ci/logs", &[Action::Read]),
            rule("ops", "", &[Action::Administer]),
            rule(ANYONE, "public/", &[Action::Acquire, Action::Read]),
        ])
        .unwrap();
        assert!(access.may("ci", Action::Acquire, b"ci/build"));
        assert!(!access.may("ci", Action::Acquire, b"ci"));
        assert!(!access.may("ci", Action::Read, b"ci/build"));
        assert!(access.may("ci", Action::Read, b"ci/logs/1"));
        assert!(!access.may("ci", Action::Acquire, b"prod/db"));
        assert!(access.may("nobody", Action::Acquire, b"public/a"));
        assert!(!access.may("nobody", Action::Acquire, b"ci/build"));
        // Whoever administers reads, and does not acquire.
        assert!(access.may_all("ops", Action::Read));
        assert!(!access.may("ops", Action::Acquire, b"ci/build"));
        assert!(!access.may_all("ci", Action::Acquire));
        assert!(access.may_any("ci", Action::Read));
        assert!(!access.may_any("nobody", Action::Administer));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let many = (0..=RULES_MAX).map(|_| rule("a", "", &[Action::Read]));
        assert_eq!(Access::new(many), Err(AccessError::TooMany));
        let nobody = [rule("", "", &[Action::Read])];
        assert_eq!(Access::new(nobody), Err(AccessError::Principal));
    }
}
