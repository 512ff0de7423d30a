//! Rules of hierarchies to break on purpose, one by one, and the protocol as it was published.

/// A rule that is broken. Each is a defect of the published text, or what is left of the repaired
/// protocol without one of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LevelPlant {
    /// An ask that meets a run without a child is answered with consent, consensus or not.
    ConsentAtOnce,
    /// The time-out of a waiting consent frees the leaf level instead of its own.
    TimeoutAtLeaf,
    /// The time-out of a waiting consent is never cancelled.
    TimerStays,
    /// An announcement starts a run although consent is waiting for a child.
    AnnounceRestarts,
    /// An inquiry is answered during the next request, and any yield is believed.
    AnyYield,
    /// A permission is counted for whatever request is current.
    AnyReply,
    /// Any child's end is taken for the end of the child inside.
    AnyDone,
    /// The root's arbiters forget their grants in a restart.
    ForgetGrants,
    /// Requests of a dead node stay in the queue.
    QueueOfTheDead,
    /// The permission of a dead holder that was asked back is never freed.
    HolderOfTheDead,
    /// The root frees the permission of a dead holder at once.
    NoWaitAtRoot,
    /// A dead child is waited for for ever.
    DeadChild,
    /// A dead child inside is replaced at once.
    NoWaitForChild,
    /// An arbiter that died before its answer is waited for for ever.
    LostArbiter,
    /// A representing node that died before its consent is waited for for ever.
    LostParent,
    /// Consent of a dead representing node is handed on.
    OrphanPasses,
    /// Words of earlier lives are believed.
    OldLives,
    /// A restarted holder answers for a permission of its earlier life that it does not use it.
    ReleaseAfterRestart,
    /// Consent is handed on without bound.
    NoBound,
    /// The holder of a lease counts it from the answer instead of from the question.
    LeaseFromAnswer,
    /// A restarted arbiter of the root grants before the leases of its earlier life have ended.
    NoPause,
    /// Tokens of a child that was lost are given again.
    TokensAgain,
    /// Children of another group are let in.
    AnyGroup,
}

impl LevelPlant {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::ConsentAtOnce,
        Self::TimeoutAtLeaf,
        Self::TimerStays,
        Self::AnnounceRestarts,
        Self::AnyYield,
        Self::AnyReply,
        Self::AnyDone,
        Self::ForgetGrants,
        Self::QueueOfTheDead,
        Self::HolderOfTheDead,
        Self::NoWaitAtRoot,
        Self::DeadChild,
        Self::NoWaitForChild,
        Self::LostArbiter,
        Self::LostParent,
        Self::OrphanPasses,
        Self::OldLives,
        Self::ReleaseAfterRestart,
        Self::NoBound,
        Self::LeaseFromAnswer,
        Self::NoPause,
        Self::TokensAgain,
        Self::AnyGroup,
    ];

    /// Those that together are the published text, as far as it can be run.
    pub const PAPER: [Self; 16] = [
        Self::ConsentAtOnce,
        Self::TimeoutAtLeaf,
        Self::TimerStays,
        Self::AnnounceRestarts,
        Self::AnyYield,
        Self::AnyReply,
        Self::AnyDone,
        Self::ForgetGrants,
        Self::QueueOfTheDead,
        Self::HolderOfTheDead,
        Self::DeadChild,
        Self::LostArbiter,
        Self::LostParent,
        Self::OrphanPasses,
        Self::ReleaseAfterRestart,
        Self::NoBound,
    ];

    /// How it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConsentAtOnce => "consent-at-once",
            Self::TimeoutAtLeaf => "timeout-at-leaf",
            Self::TimerStays => "timer-stays",
            Self::AnnounceRestarts => "announce-restarts",
            Self::AnyYield => "any-yield",
            Self::AnyReply => "any-reply",
            Self::AnyDone => "any-done",
            Self::ForgetGrants => "forget-grants",
            Self::QueueOfTheDead => "queue-of-the-dead",
            Self::HolderOfTheDead => "holder-of-the-dead",
            Self::NoWaitAtRoot => "no-wait-at-root",
            Self::DeadChild => "dead-child",
            Self::NoWaitForChild => "no-wait-for-child",
            Self::LostArbiter => "lost-arbiter",
            Self::LostParent => "lost-parent",
            Self::OrphanPasses => "orphan-passes",
            Self::OldLives => "old-lives",
            Self::ReleaseAfterRestart => "release-after-restart",
            Self::NoBound => "no-bound",
            Self::LeaseFromAnswer => "lease-from-answer",
            Self::NoPause => "no-pause",
            Self::TokensAgain => "tokens-again",
            Self::AnyGroup => "any-group",
        }
    }

    /// The bug of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }

    /// What is wrong.
    pub fn what(self) -> &'static str {
        match self {
            Self::ConsentAtOnce => {
                "an ask that meets a run without a child is answered with consent, consensus or not"
            }
            Self::TimeoutAtLeaf => {
                "the time-out of a waiting consent frees the leaf level instead of its own"
            }
            Self::TimerStays => "the time-out of a waiting consent is never cancelled",
            Self::AnnounceRestarts => {
                "an announcement starts a run although consent is waiting for a child"
            }
            Self::AnyYield => {
                "an inquiry is answered during the next request, and any yield is believed"
            }
            Self::AnyReply => "a permission is counted for whatever request is current",
            Self::AnyDone => "any child's end is taken for the end of the child inside",
            Self::ForgetGrants => "the root's arbiters forget their grants in a restart",
            Self::QueueOfTheDead => "requests of a dead node stay in the queue",
            Self::HolderOfTheDead => {
                "the permission of a dead holder that was asked back is never freed"
            }
            Self::NoWaitAtRoot => "the root frees the permission of a dead holder at once",
            Self::DeadChild => "a dead child is waited for for ever",
            Self::NoWaitForChild => "a dead child inside is replaced at once",
            Self::LostArbiter => "an arbiter that died before its answer is waited for for ever",
            Self::LostParent => {
                "a representing node that died before its consent is waited for for ever"
            }
            Self::OrphanPasses => "consent of a dead representing node is handed on",
            Self::OldLives => "words of earlier lives are believed",
            Self::ReleaseAfterRestart => {
                "a restarted holder says that it does not use a permission of its earlier life"
            }
            Self::NoBound => "consent is handed on without bound",
            Self::LeaseFromAnswer => {
                "the holder of a lease counts it from the answer instead of from the question"
            }
            Self::NoPause => {
                "a restarted arbiter of the root grants before its earlier leases have ended"
            }
            Self::TokensAgain => "tokens of a child that was lost are given again",
            Self::AnyGroup => "children of another group are let in",
        }
    }
}

/// Which rules are broken: none, unless a test says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelRules(u32);

impl LevelRules {
    /// The published text, as far as it can be run.
    pub fn paper() -> Self {
        LevelPlant::PAPER.into_iter().fold(Self(0), Self::with)
    }

    /// As before, and this rule broken.
    #[must_use]
    pub fn with(self, plant: LevelPlant) -> Self {
        Self(self.0 | 1 << plant as u32)
    }

    /// Whether this rule is broken.
    pub fn has(self, plant: LevelPlant) -> bool {
        self.0 >> (plant as u32) & 1 == 1
    }
}
