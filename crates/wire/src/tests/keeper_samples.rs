//! One value or more of every kind of question and answer about leases and objects, the same for
//! ever.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, Name, Token};
use conclave_protocol::keeper::{Answer, Ask, KeeperRecord};
use conclave_protocol::lease::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, LeaseReply, Seal, Secret, Space, Try,
};
use conclave_protocol::object::{
    Author, Carry, Delta, Digest, How, ObjectAsk, ObjectRefusal, ObjectTell, OpId, Page, Pending,
    Phase, Rank, Span, Stamp, View,
};

const CLIENT: ClientId = ClientId(0x000c_11e4_0000_0000_0000_0000_0000_0007);

fn attempt() -> Attempt {
    Attempt {
        client: CLIENT,
        number: 300,
    }
}

fn key(space: Space) -> LeaseKey {
    LeaseKey {
        space,
        name: Name::new("jobs/nightly"),
    }
}

fn object() -> Name {
    Name::new("hits")
}

fn bytes(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

fn stamp(version: u64) -> Stamp {
    Stamp {
        version,
        digest: Digest([version as u8; 32]),
    }
}

fn rank(round: u64) -> Rank {
    Rank {
        round,
        client: CLIENT,
    }
}

fn op() -> OpId {
    OpId {
        author: Author::new(1_767_225_600_000, 0x0123_4567_89ab_cdef << 64),
        number: 3,
    }
}

fn delta() -> Delta {
    Delta::new(vec![
        (bytes("\u{2}a"), Some(bytes("1"))),
        (bytes("\u{2}b"), None),
        (bytes("\u{2}c"), Some(bytes(""))),
    ])
}

fn page() -> Page {
    Page {
        previous: Digest([9; 32]),
        cells: vec![(bytes("a"), bytes("1")), (bytes("b"), bytes(""))],
        last: true,
    }
}

/// One question of every kind.
pub(super) fn asks() -> Vec<(&'static str, Ask)> {
    let mut asks = of_leases();
    let of_objects = of_objects().into_iter();
    asks.extend(of_objects.map(|(name, ask)| (name, Ask::Object(object(), ask))));
    let first = Ask::Survey {
        ticket: 1,
        after: None,
        new: false,
    };
    let next = Ask::Survey {
        ticket: 2,
        after: Some(object()),
        new: false,
    };
    let new = Ask::Survey {
        ticket: 3,
        after: None,
        new: true,
    };
    asks.extend([
        ("ask-survey", first),
        ("ask-survey-after", next),
        ("ask-survey-new", new),
    ]);
    asks
}

fn of_leases() -> Vec<(&'static str, Ask)> {
    let tries = Try {
        attempt: attempt(),
        sub: 2,
        token: Token(1_767_225_600_000_000),
        span: Duration::from_secs(5),
        seal: Seal([5; 32]),
        patience: Duration::from_millis(100),
        waited: Duration::from_secs(1),
    };
    let release = LeaseAsk::Release {
        attempt: attempt(),
        secret: Secret([6; 32]),
    };
    let renew = LeaseAsk::Renew {
        attempt: attempt(),
        sub: 4,
        secret: Secret([6; 32]),
    };
    let of = |ask| Ask::Lease(key(Space::Lease), ask);
    vec![
        ("ask-try", of(LeaseAsk::Try(tries))),
        (
            "ask-try-object",
            Ask::Lease(key(Space::Object), LeaseAsk::Try(tries)),
        ),
        ("ask-release", of(release)),
        ("ask-renew", of(renew)),
    ]
}

fn of_objects() -> Vec<(&'static str, ObjectAsk)> {
    let submit = ObjectAsk::Submit {
        op: op(),
        body: bytes("add 1"),
    };
    let get = |have, proof| ObjectAsk::Get {
        rank: rank(7),
        nonce: 0x1234_5678_9abc_def0,
        have,
        proof,
    };
    let carry = Carry {
        base: stamp(1),
        deltas: vec![delta(), Delta::default()],
    };
    let propose = ObjectAsk::Propose {
        rank: rank(7),
        stamp: stamp(3),
        carry: Some(carry.clone()),
        proof: Some(bytes("signed")),
    };
    let commit = |carry| ObjectAsk::Commit {
        rank: rank(7),
        stamp: stamp(3),
        carry,
        proof: None,
    };
    let fetch = |after| ObjectAsk::Fetch {
        ticket: 5,
        stamp: stamp(3),
        after,
    };
    let give = ObjectAsk::Give {
        ticket: 6,
        stamp: stamp(3),
        page: page(),
    };
    let span = Span {
        from: bytes("\u{2}a"),
        to: Some(bytes("\u{2}b")),
        limit: 10,
        backwards: true,
    };
    let all = Span {
        from: bytes(""),
        to: None,
        limit: u32::MAX,
        backwards: false,
    };
    let peek = ObjectAsk::Peek {
        ticket: 7,
        have: Some(stamp(2)),
        spans: vec![span, all],
    };
    vec![
        ("ask-submit", submit),
        ("ask-get", get(None, None)),
        ("ask-get-have", get(Some(stamp(2)), Some(bytes("signed")))),
        ("ask-propose", propose),
        ("ask-commit", commit(None)),
        ("ask-commit-carry", commit(Some(carry))),
        ("ask-fetch", fetch(None)),
        ("ask-fetch-after", fetch(Some(bytes("\u{2}a")))),
        ("ask-give", give),
        ("ask-peek", peek),
        ("ask-watch", ObjectAsk::Watch { ticket: 8 }),
        ("ask-unwatch", ObjectAsk::Unwatch { ticket: 8 }),
    ]
}

/// One answer of every kind.
pub(super) fn answers() -> Vec<(&'static str, Answer)> {
    let mut answers = from_leases();
    let tells = from_objects().into_iter().chain(by_number());
    answers.extend(tells.map(|(name, tell)| (name, Answer::Object(object(), tell))));
    let surveyed = Answer::Surveyed {
        ticket: 1,
        objects: vec![(object(), stamp(3)), (Name::new("jobs"), stamp(9))],
        token: Token(77),
        last: true,
        lost: false,
        new: false,
    };
    let lost = Answer::Surveyed {
        ticket: 2,
        objects: Vec::new(),
        token: Token(0),
        last: true,
        lost: true,
        new: true,
    };
    answers.push(("answer-surveyed", surveyed));
    answers.push(("answer-surveyed-lost", lost));
    answers
}

fn from_leases() -> Vec<(&'static str, Answer)> {
    let of = |space, answer| {
        let reply = LeaseReply {
            attempt: attempt(),
            sub: 2,
            answer,
        };
        Answer::Lease(key(space), reply)
    };
    let free = |held, rank| LeaseAnswer::Free { held, rank };
    let locked = LeaseAnswer::Locked {
        queued: true,
        remaining: Duration::from_secs(3),
        token: Token(77),
        rank: Some(rank(7)),
    };
    vec![
        ("answer-free", of(Space::Lease, free(Duration::ZERO, None))),
        (
            "answer-free-object",
            of(Space::Object, free(Duration::from_millis(3), Some(rank(7)))),
        ),
        ("answer-locked", of(Space::Object, locked)),
        (
            "answer-stale",
            of(Space::Lease, LeaseAnswer::Stale { token: Token(78) }),
        ),
        ("answer-released", of(Space::Lease, LeaseAnswer::Released)),
        (
            "answer-lease-refused",
            of(Space::Lease, LeaseAnswer::Refused(LeaseRefusal::Infeasible)),
        ),
    ]
}

fn from_objects() -> Vec<(&'static str, ObjectTell)> {
    let view = View {
        committed: stamp(2),
        proposed: stamp(3),
        proposer: rank(6),
        pending: vec![Pending {
            op: op(),
            principal: "user/ana".into(),
            body: bytes("add 1"),
        }],
        suffix: vec![delta()],
        step: Some(delta()),
    };
    let (rank, phase, stamp) = (rank(7), Phase::Propose, stamp(3));
    let why = ObjectRefusal::Forgotten;
    let result = bytes("4");
    vec![
        (
            "answer-held",
            ObjectTell::Held {
                op: op(),
                principal: "user/ana".into(),
            },
        ),
        ("answer-done", ObjectTell::Done { op: op(), result }),
        ("answer-denied", ObjectTell::Denied { op: op(), why }),
        (
            "answer-got",
            ObjectTell::Got {
                rank,
                nonce: 5,
                view: Box::new(view),
            },
        ),
        (
            "answer-taken",
            ObjectTell::Taken {
                rank,
                phase,
                stamp,
                waiting: 12,
            },
        ),
        (
            "answer-outranked",
            ObjectTell::Outranked {
                rank,
                phase: Phase::Get,
                max: self::rank(9),
                proof: Some(bytes("signed")),
            },
        ),
        (
            "answer-need-state",
            ObjectTell::NeedState {
                rank,
                phase: Phase::Commit,
                stamp,
                committed: self::stamp(1),
                proposed: self::stamp(2),
            },
        ),
        ("answer-refused", ObjectTell::Refused { rank, phase, why }),
    ]
}

fn by_number() -> Vec<(&'static str, ObjectTell)> {
    let (ticket, stamp, why) = (5, stamp(3), ObjectRefusal::Unknown);
    vec![
        (
            "answer-page",
            ObjectTell::Page {
                ticket,
                stamp,
                page: page(),
            },
        ),
        (
            "answer-given",
            ObjectTell::Given {
                ticket,
                whole: true,
            },
        ),
        ("answer-gone", ObjectTell::Gone { ticket, why }),
        (
            "answer-peeked",
            ObjectTell::Peeked {
                ticket,
                committed: stamp,
                proposed: 4,
                suffix: vec![delta()],
                cells: vec![page().cells, Vec::new()],
            },
        ),
        ("answer-changed", ObjectTell::Changed { ticket, stamp }),
    ]
}

/// One record of every kind.
pub(super) fn records() -> Vec<(&'static str, KeeperRecord)> {
    let (rank, stamp, proof) = (rank(7), stamp(3), Some(bytes("signed")));
    let carry = Carry {
        base: self::stamp(2),
        deltas: vec![delta()],
    };
    vec![
        ("keeper-record-opened", KeeperRecord::Opened),
        ("keeper-record-mark", KeeperRecord::Mark(Token(77))),
        (
            "keeper-record-span",
            KeeperRecord::Span(Duration::from_secs(5)),
        ),
        (
            "keeper-record-rank",
            KeeperRecord::Rank {
                object: object(),
                rank,
                nonce: Some(0),
                proof: proof.clone(),
            },
        ),
        (
            "keeper-record-page",
            KeeperRecord::Page {
                object: object(),
                stamp,
                page: page(),
            },
        ),
        (
            "keeper-record-proposed",
            KeeperRecord::Proposed {
                object: object(),
                rank,
                stamp,
                how: How::Carry(carry),
                proof,
            },
        ),
        (
            "keeper-record-committed",
            KeeperRecord::Committed {
                object: object(),
                rank,
                stamp,
                how: How::Held,
                proof: None,
            },
        ),
        (
            "keeper-record-adopted",
            KeeperRecord::Adopted {
                object: object(),
                stamp,
                how: How::Pages,
            },
        ),
        (
            "keeper-record-restored",
            KeeperRecord::Restored {
                object: object(),
                rank,
                stamp,
                how: How::Pages,
                proof: None,
            },
        ),
    ]
}
