//! Rules of objects that can be broken on purpose, so that a checker can be seen to find it.

/// Which rules hold. [`Rules::default`] breaks none; the service never makes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    paper: bool,
    broken: Option<Plant>,
}

impl Rules {
    /// The protocol as it was published, without what was mended and added later.
    pub fn paper() -> Self {
        Self {
            paper: true,
            broken: None,
        }
    }

    /// The rules with one of them broken.
    pub fn planted(plant: Plant) -> Self {
        Self {
            paper: false,
            broken: Some(plant),
        }
    }

    /// Whether it is the protocol as it was published.
    pub fn is_paper(self) -> bool {
        self.paper
    }

    /// Whether this bug is planted.
    pub fn has(self, plant: Plant) -> bool {
        self.broken == Some(plant)
    }
}

macro_rules! plants {
    ($($variant:ident $name:literal $what:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Plant {
            $(#[doc = $what] $variant,)*
        }

        impl Plant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What is wrong.
            pub fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)* }
            }

            /// The bug of this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|plant| plant.name() == name)
            }
        }
    };
}

plants! {
    VersionEquality "version-equality"
        "States of one version count as the same, whatever their digests.",
    GetAtEqualRank "get-at-equal-rank"
        "A node answers a get of the largest rank again, to anybody; clients share one name.",
    NoProposerInSort "no-proposer-in-sort"
        "Proposals of one version are not ordered by the rank that made them.",
    CommitBeforeProposed "commit-before-proposed"
        "A client commits before enough nodes hold its proposal.",
    LessSupport "less-support"
        "The word of b nodes counts for a state, instead of b+1.",
    CompletedFromLargest "completed-from-largest"
        "A version counts as done by the largest proposal that any node names.",
    ProposeUnranked "propose-unranked"
        "A node holds a proposal whatever its rank.",
    OneResponse "one-response"
        "A client believes the result that the first node tells.",
    OneVoucher "one-voucher"
        "A client orders an operation that a single node says is waiting.",
    SmallQuorum "small-quorum"
        "Quorums are so small that two of them meet in fewer than 2b+1 nodes.",
    ForgetRank "forget-rank"
        "A node does not write its largest rank and its proposal to disk.",
    CommitBeforeDisk "commit-before-disk"
        "A node says that it has committed before it is on disk.",
    ReadFromVouched "read-from-vouched"
        "A read takes what b+1 nodes have committed, instead of a quorum.",
    RunAgain "run-again"
        "A submit that comes after its commit waits once more, and is done once more.",
    AclIgnored "acl-ignored"
        "A node lets everybody change an object, whatever its owner says.",
    AuthorForgotten "author-forgotten"
        "Who has submitted what is forgotten while its author may still ask again.",
    MoreLiars "more-liars"
        "One node more lies than the cluster is made for.",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_bugs() {
        for plant in Plant::ALL {
            assert_eq!(Plant::named(plant.name()), Some(*plant));
            assert!(Rules::planted(*plant).has(*plant) && !Rules::default().has(*plant));
        }
        assert_eq!(Plant::named("none"), None);
    }
}
