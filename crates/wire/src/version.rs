//! Which version of the peer protocol two processes speak with each other.
//!
//! The opener of a connection says in its greeting which versions it speaks; the node chooses the
//! newest one that both know and says so in its reply. Only if there is none do they refuse each
//! other. [`choose`] is the one place that decides.
//!
//! Builds from before there were ranges say one version and accept nothing else than that one. So
//! the number that they read is the *oldest* of the range: they go on working for as long as newer
//! builds speak their version too.

use std::fmt;

use thiserror::Error;

/// The versions of the peer protocol that this build speaks.
pub const SPOKEN: VersionRange = VersionRange::only(1);

/// The versions that a process speaks, without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    oldest: u32,
    newest: u32,
}

impl VersionRange {
    /// One version and no other, as builds without ranges say it.
    pub const fn only(version: u32) -> Self {
        Self {
            oldest: version,
            newest: version,
        }
    }

    /// From the oldest to the newest. What cannot be is read as the oldest alone: there is no
    /// version 0, and whoever says nothing about versions speaks none that we know.
    pub const fn new(oldest: u32, newest: u32) -> Self {
        if oldest == 0 || newest < oldest {
            return Self::only(oldest);
        }
        Self { oldest, newest }
    }

    /// The oldest.
    pub const fn oldest(self) -> u32 {
        self.oldest
    }

    /// The newest.
    pub const fn newest(self) -> u32 {
        self.newest
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(out, "version {}", self.oldest)
        } else {
            write!(out, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

/// Two processes have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no common version of the peer protocol: the opener speaks {opener} and the node {node}; \
     upgrade the {}",
    behind(*opener, *node)
)]
pub struct VersionMismatch {
    /// What the opener of the connection speaks.
    pub opener: VersionRange,
    /// What the node speaks.
    pub node: VersionRange,
}

/// Which side is behind. A node that answers with a version that was not offered is wrong itself.
const fn behind(opener: VersionRange, node: VersionRange) -> &'static str {
    if opener.newest < node.oldest {
        "opener"
    } else {
        "node"
    }
}

/// The version that a connection is served with: the newest that both sides speak.
pub fn choose(opener: VersionRange, node: VersionRange) -> Result<u32, VersionMismatch> {
    let newest = opener.newest.min(node.newest);
    if newest == 0 || newest < opener.oldest || newest < node.oldest {
        return Err(VersionMismatch { opener, node });
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_chosen() {
        // Every pair of ranges up to 4, compared with a search.
        let ranges: Vec<_> = (1..=4)
            .flat_map(|oldest| (oldest..=4).map(move |newest| VersionRange::new(oldest, newest)))
            .collect();
        for &opener in &ranges {
            for &node in &ranges {
                let speaks = |range: VersionRange, version: &u32| {
                    (range.oldest()..=range.newest()).contains(version)
                };
                let common = (1..=4)
                    .rev()
                    .find(|version| speaks(opener, version) && speaks(node, version));
                assert_eq!(choose(opener, node).ok(), common, "{opener}, {node}");
            }
        }
    }

    #[test]
    fn a_build_without_ranges_is_spoken_with_while_its_version_is_in_the_range() {
        let old = VersionRange::only(1);
        assert_eq!(choose(old, VersionRange::new(1, 9)), Ok(1));
        assert_eq!(choose(VersionRange::new(1, 9), old), Ok(1));
        // What such a build compares with its own version, for equality.
        assert_eq!(VersionRange::new(1, 9).oldest(), 1);
        assert!(choose(old, VersionRange::new(2, 9)).is_err());
    }

    #[test]
    fn a_refusal_says_both_ranges_and_who_has_to_be_upgraded() {
        let told = |opener, node| choose(opener, node).unwrap_err().to_string();
        let (old, new) = (VersionRange::new(1, 2), VersionRange::new(3, 5));
        assert_eq!(
            told(old, new),
            "no common version of the peer protocol: the opener speaks versions 1 to 2 and the \
             node versions 3 to 5; upgrade the opener"
        );
        assert_eq!(
            told(new, VersionRange::only(1)),
            "no common version of the peer protocol: the opener speaks versions 3 to 5 and the \
             node version 1; upgrade the node"
        );
    }

    #[test]
    fn strange_ranges_are_not_believed() {
        assert_eq!(VersionRange::new(3, 1), VersionRange::only(3));
        assert_eq!(VersionRange::new(0, 9), VersionRange::only(0));
        let (none, all) = (VersionRange::only(0), VersionRange::new(1, u32::MAX));
        assert!(choose(none, all).is_err());
        assert!(choose(none, none).is_err());
        assert_eq!(choose(all, all), Ok(u32::MAX));
        assert_eq!(choose(all, SPOKEN), Ok(SPOKEN.newest()));
    }
}
