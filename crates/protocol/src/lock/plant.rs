//! Planted bugs: each breaks one rule, so that a checker can be seen to find it.

/// Which rule of the protocol is broken, if any. [`Rules::default`] breaks none; the service never
/// makes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    broken: Option<Plant>,
}

impl Rules {
    /// The rules with one of them broken.
    pub fn planted(plant: Plant) -> Self {
        Self {
            broken: Some(plant),
        }
    }

    /// Whether this bug is planted.
    pub fn has(self, plant: Plant) -> bool {
        self.broken == Some(plant)
    }
}

macro_rules! plants {
    ($($variant:ident $name:literal $protocol:literal $what:literal,)*) => {
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

            /// The protocol in which it shows: `lock` or `lock-serial`.
            pub fn protocol(self) -> &'static str {
                match self { $(Self::$variant => $protocol,)* }
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
    NoFloorOnExpiry "no-floor-on-expiry" "lock"
        "A grant that expires leaves the floor as it was.",
    EnterBeforeRaised "enter-before-raised" "lock"
        "A requester enters before every member has registered its raised token.",
    AmnesiaZeroFloor "amnesia-zero-floor" "lock"
        "A node that lost its disk serves with empty floors.",
    RecoverWithoutLimits "recover-without-limits" "lock"
        "A node that lost its disk reads floors but not the limits of outstanding grants.",
    NoConnCheck "no-conn-check" "lock"
        "Late bytes of an old connection are taken as if they were new.",
    SilentExpiry "silent-expiry" "lock"
        "A session that expires is not told.",
    YieldInside "yield-inside" "lock"
        "A holder answers an inquiry with a yield.",
    NoRequestOnLocked "no-request-on-locked" "lock"
        "A grant for an older request counts for the present one.",
    LiteralRefill "literal-refill" "lock"
        "A freed slot is refilled without looking at the limit of holders.",
    FailedRule "failed-rule" "lock"
        "A requester yields only once told to wait; a waiter is not told when a better one comes.",
    FreshnessPerQuorum "freshness-per-quorum" "lock"
        "Freshness is counted for the quorum as a whole: one acknowledged member vouches for all.",
    HeartbeatBeforeResume "heartbeat-before-resume" "lock"
        "A heartbeat counts although the resume before it is not yet applied.",
    KeepaliveLowersLimit "keepalive-lowers-limit" "lock"
        "A keepalive with an older token lowers a limit that was raised.",
    RaisedAboveCeiling "raised-above-ceiling" "lock"
        "A raise is answered before the ceiling on disk covers it.",
    SecondCrashForgetsPause "second-crash-forgets-pause" "lock"
        "The longest TTL is lowered on disk before the pause it demands has ended.",
    CleanMarkKept "clean-mark-kept" "lock"
        "The mark of a clean stop stays on disk after the start.",
    ValidityFromReply "validity-from-reply" "lock"
        "A client counts validity from the answer of a heartbeat instead of its sending.",
    NoDriftMargin "no-drift-margin" "lock"
        "A client counts the whole TTL, as if all clocks ran alike.",
    NoFreshnessAtEntry "no-freshness-at-entry" "lock"
        "A requester enters on grants that are no longer fresh.",
    PauseTooShort "pause-too-short" "lock"
        "A node pauses for less than its longest TTL after a crash.",
    ReclaimStale "reclaim-stale" "lock"
        "A holder reclaims a grant whose freshness has run out.",
    MigrateWithoutFloor "migrate-without-floor" "lock"
        "A new member counts although its floor is not below the holder's token.",
    OldGrantHandle "old-grant-handle" "lock"
        "A handle with an old grant number is accepted.",
    FinishedMark "finished-mark" "lock"
        "A node drops requests numbered below one that the session has finished.",
    RevokeFreesEarly "revoke-frees-early" "lock"
        "A session revoked without force frees its locks before its holder must have left.",
    KeepsOtherSlots "keeps-other-slots" "lock"
        "Whoever enters one of several slots goes on asking for the others.",
    LeaveBeforeNoted "leave-before-noted" "lock"
        "A hold that moves leaves its old node before the new one knows that it is inside.",
    LeaveOnRaise "leave-on-raise" "lock"
        "A hold that takes a larger token leaves its old nodes before the new ones know of it.",
    NoWayBack "no-way-back" "lock"
        "A hold cannot come back to a node that it has left, where other locks are serial.",
    HandleWaits "handle-waits" "lock"
        "A hold that leaves the last node in trouble is not handed over to its caller.",
    HedgeStaysLate "hedge-stays-late" "lock"
        "A request without a sound quorum looks for one ever more rarely, whatever it is granted.",
    SweepBeforePop "sweep-before-pop" "lock"
        "A timer that is put off is swept with others, and a live one is taken out in its place.",
    WatchForgets "watch-forgets" "lock"
        "A watcher forgets what it has shown, and shows holders of the past again.",
    TokenClockIsWall "token-clock-is-wall" "lock"
        "The token clock is the wall clock, and goes back with it.",
    TokenClockStands "token-clock-stands" "lock"
        "The token clock stands still while the wall clock is behind it.",
    TokenClockAlone "token-clock-alone" "lock"
        "A node makes nothing of the token clocks of others.",
    TokenClockForgotten "token-clock-forgotten" "lock"
        "A node that starts again begins with its wall clock.",
    RecoverWithoutClock "recover-without-clock" "lock"
        "A node that lost its disk reads floors but not the token clocks of others.",
    BoundFromCeiling "bound-from-ceiling" "lock"
        "Tokens are bounded by the ceiling on disk, which every raise lifts.",
    NoTokenBound "no-token-bound" "lock"
        "Any token is believed.",
    ReserveUncapped "reserve-uncapped" "lock"
        "A grant reserves tokens beyond the bound.",
    EnteredUnchecked "entered-unchecked" "lock"
        "A holder may name a token above its limit.",
    DoneUnchecked "done-unchecked" "lock"
        "A holder may leave with a token above its limit.",
    BelievesInside "believes-inside" "lock"
        "Whoever claims to be inside is served first, without a question.",
    RaiseOnce "raise-once" "lock"
        "A requester whose raise is refused does not try again.",
    SerialUnlockWithoutRequest "serial-unlock-without-request" "lock-serial"
        "An unlock does not say which request it ends.",
}
