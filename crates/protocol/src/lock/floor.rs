//! Fencing tokens: which may have been used, and by whom.

use super::mode::Group;
use crate::id::Token;

/// The largest tokens that may have been used, in constant space: the largest of all with its
/// group, and the largest of any other group. What it says about *other* groups is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Floors {
    group: Option<Group>,
    first: Token,
    second: Token,
}

impl Floors {
    /// Floors of a lock of which only one bound for all groups is known.
    pub fn of(floor: Token) -> Self {
        Self {
            group: None,
            first: floor,
            second: floor,
        }
    }

    /// The largest token that a group other than `group` may have used.
    pub fn other(&self, group: &Group) -> Token {
        if self.group.as_ref() == Some(group) {
            self.second
        } else {
            self.first
        }
    }

    /// The largest token of all.
    pub fn highest(&self) -> Token {
        self.first
    }

    /// Takes note that `group` may have used `token`.
    pub fn record(&mut self, group: &Group, token: Token) {
        if self.group.as_ref() == Some(group) {
            self.first = self.first.max(token);
        } else if token > self.first {
            self.second = self.first;
            self.first = token;
            self.group = Some(group.clone());
        } else {
            self.second = self.second.max(token);
        }
    }

    /// Takes note that any group may have used tokens up to `floor`.
    pub fn raise_all(&mut self, floor: Token) {
        self.second = self.second.max(floor);
        if floor >= self.first {
            self.first = floor;
            self.group = None;
        }
    }
}

/// The check at the resource: it refuses a holder once a later conflicting one was admitted.
///
/// Holders of one group never refuse each other. A holder whom no node has expired is never
/// refused. A holder that lost its lock without knowing is admitted until its successor has been:
/// its writes then come before the successor's in the order of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fence {
    seen: Floors,
}

impl Fence {
    /// A resource that has seen nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a holder of `group` with `token` may act; if so its token is remembered.
    pub fn admit(&mut self, group: &Group, token: Token) -> bool {
        let admitted = token > self.seen.other(group);
        if admitted {
            self.seen.record(group, token);
        }
        admitted
    }

    /// What the resource has seen, to store it beside its data.
    pub fn seen(&self) -> &Floors {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str) -> Group {
        Group::Named(name.as_bytes().into())
    }

    /// The triple answers like a list of all records would.
    #[test]
    fn equals_its_dumb_twin() {
        let groups = ["a", "b", "c"].map(group);
        let mut rng = conclave_quorum::Prng::new(1);
        for _ in 0..2000 {
            let mut floors = Floors::default();
            let mut all: Vec<(Option<usize>, u64)> = Vec::new();
            for _ in 0..12 {
                let token = rng.below(8) as u64;
                if rng.chance(0.1) {
                    floors.raise_all(Token(token));
                    all.push((None, token));
                } else {
                    let who = rng.below(3);
                    floors.record(&groups[who], Token(token));
                    all.push((Some(who), token));
                }
                for (who, group) in groups.iter().enumerate() {
                    let others = all.iter().filter(|(by, _)| *by != Some(who));
                    let dumb = others.map(|(_, token)| *token).max().unwrap_or(0);
                    assert_eq!(floors.other(group), Token(dumb), "{all:?}");
                }
            }
        }
    }

    #[test]
    fn a_fence_refuses_the_past_and_never_a_member() {
        let mut fence = Fence::new();
        assert!(fence.admit(&group("a"), Token(5)));
        assert!(fence.admit(&group("a"), Token(3)), "same group");
        assert!(!fence.admit(&group("b"), Token(5)), "must exceed");
        assert!(fence.admit(&group("b"), Token(6)));
        assert!(!fence.admit(&group("a"), Token(5)), "its past");
        assert!(!fence.admit(&group("a"), Token(6)));
        assert!(fence.admit(&group("a"), Token(7)));
    }
}
