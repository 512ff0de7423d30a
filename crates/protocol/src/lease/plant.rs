//! Rules of leases that can be broken on purpose, so that a checker can be seen to find it.

/// Which rules hold. [`Rules::default`] breaks none; the service never makes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The protocol as it was first published: a mutex quorum decides, replies name no attempt,
    /// the lease counts from the decision, and there are no releases and no tokens.
    pub paper: bool,
    /// The rule that is broken, if any.
    pub broken: Option<Plant>,
}

impl Rules {
    /// The rules with one of them broken.
    pub fn planted(plant: Plant) -> Self {
        Self {
            paper: false,
            broken: Some(plant),
        }
    }

    /// The protocol as it was first published.
    pub fn published() -> Self {
        Self {
            paper: true,
            broken: None,
        }
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
    BareSpan "lease-bare-span"
        "A node's vote lasts for the span alone, without the time that messages take.",
    ShortVote "lease-short-vote"
        "A node's vote lasts for the span and 1.9 delays instead of two.",
    LateFree "lease-late-free"
        "A vote for an older attempt counts for the present one.",
    RequesterSpan "lease-requester-span"
        "A node compares the span of whoever asks instead of the span it granted.",
    HeldIgnored "lease-held-ignored"
        "Votes given at different times all count from the last one.",
    NoQuarantine "lease-no-quarantine"
        "A node that restarts gives its vote at once.",
    ReleaseAny "lease-release-any"
        "A node frees its vote whoever asks for it, about whichever attempt.",
    SmallFree "lease-small-free"
        "One vote less than a free set is enough.",
    MarkUnwritten "lease-mark-unwritten"
        "Tokens are not written to disk.",
    MarkLate "lease-mark-late"
        "A vote leaves before the mark above its token is on disk.",
    MoreLiars "lease-more-liars"
        "One node more lies than the cluster is made for.",
    FastNodes "lease-fast-nodes"
        "The clocks of nodes are a fifth fast and nobody allows for it.",
    FromDecision "lease-from-decision"
        "A lease counts from the last answer, however late that came.",
    RenewFromAnswer "lease-renew-from-answer"
        "A renewal counts from the last answer instead of the sending of the question.",
    RenewRegranted "lease-renew-regranted"
        "A node renews a vote that it has given to somebody else since.",
    TokenUnchecked "lease-token-unchecked"
        "A node gives its vote without looking at the token.",
    TokenOfLargest "lease-token-of-largest"
        "A contender believes the largest token that any node names.",
}
