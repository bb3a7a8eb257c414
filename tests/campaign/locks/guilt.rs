//! Goal: the checker reports every kind of violation and nothing else.
//!
//! Method: histories that are guilty of one thing each, and innocent ones beside them.

use super::faults::Kind;
use super::history::{
    AcceptedWrite, Ask, Event, Fault, History, Holder, Holding, Lease, LivenessBound, LockAnswer,
    Promotion, Write,
};
use super::mode::{Mode, Share};
use super::verdict::Invariant::{self, Exclusive, Fenced, Gapless, Honest, Live, Released, Rising};
use super::verdict::judge;

const ACQUIRE: Ask = Ask::Acquire { waits: false };

/// What is done to an innocent history.
type Change = fn(&mut History);

const INNOCENT: [(&str, Change); 10] = [
    ("a grant when the one before has just ended", |history| {
        history.events[1].ask = Ask::Look;
        history.events[1].told = LockAnswer::Unknown;
        history.events[2].sent = 400_000;
        history.events[2].read = 501_001;
    }),
    ("a release that was sent, and then another's grant", |history| {
        history.events[1] = event(2, 1, Ask::Release, [20_000, 300_000], LockAnswer::Nothing);
    }),
    ("a renewal that may make the lease shorter", |history| {
        let ask = Ask::Renew { ttl: 100_000 };
        history.events[1] = event(2, 1, ask, [20_000, 900_000], LockAnswer::Nothing);
        history.events[2].sent = 115_000;
        history.events[2].read = 120_000;
        history.healings.clear();
    }),
    ("a repeat of what was not answered", |history| {
        history.events[0].told = LockAnswer::Unknown;
        history.events.push(event(9, 1, ACQUIRE, [30_000, 40_000], again(10, 90_000)));
    }),
    ("a grant that a look shows, sent before its request was refused", |history| {
        let (waited, held) = (Ask::Acquire { waits: true }, LockAnswer::Held(Holding::default()));
        history.events.push(event(9, 9, waited, [120_000, 190_000], held));
        history.events.push(look([150_000, 195_000], 11, 9));
    }),
    ("another grant of a token whose lease is over", |history| {
        history.events.push(granted(9, 3, [900_000, 910_000], 30));
    }),
    ("a history with a lease that its client let expire", |history| {
        let expired = vec![Holder { share: alone(20), number: 3, token: 3 }];
        let told = LockAnswer::Expired(expired);
        history.events.push(event(9, 0, Ask::Recall, [750_000, 760_000], told));
    }),
    ("a fence that was seen at the same time", |history| {
        history.events.push(look([205_000, 215_000], 20, 3));
    }),
    ("a renewal by a client that may have got the lock unheard", |history| {
        history.events.push(event(8, 8, ACQUIRE, [800_000, 850_000], LockAnswer::Nothing));
        history.events.push(renewed(9, 8, [860_000, 870_000], 30));
    }),
    ("a write that is late, refused", |history| {
        let (token, fencing_token, sent, read) = (1, 10, 300_000, 310_000);
        history.writes.push(Write { lock: 0, token, fencing_token, sent, read, taken: false });
    }),
];

const GUILTY: [(Invariant, &str, Change); 28] = [
    (Exclusive, "two at once", |history| history.events[1].told = LockAnswer::NotExecuted),
    (Exclusive, "the same token twice at once", |history| {
        history.events.push(granted(9, 3, [230_000, 240_000], 30));
    }),
    (Exclusive, "free while certain", |history| {
        history.events.push(event(9, 0, Ask::Look, [230_000, 240_000], LockAnswer::NotHeld));
    }),
    (Exclusive, "free to one that renews while another is certain", |history| {
        let ask = Ask::Renew { ttl: 500_000 };
        history.events.push(event(9, 9, ask, [230_000, 240_000], LockAnswer::NotHeld));
    }),
    (Exclusive, "free before it was renewed", |history| {
        history.has_one_judge = true;
        history.events.push(event(9, 0, Ask::Look, [750_000, 760_000], LockAnswer::NotHeld));
        history.events.push(renewed(10, 3, [690_000, 800_000], 20));
    }),
    (Exclusive, "another's while certain", |history| {
        history.events.push(look([230_000, 240_000], 21, 77));
    }),
    (Exclusive, "in the queue for what is held", |history| {
        let held = LockAnswer::Held(Holding::default());
        history.events.push(event(9, 9, ACQUIRE, [230_000, 240_000], held));
    }),
    (Exclusive, "not renewed while certain", |history| {
        let ask = Ask::Renew { ttl: 500_000 };
        history.events.push(event(9, 3, ask, [230_000, 240_000], LockAnswer::Mismatch));
    }),
    (Exclusive, "a write refused while certain", |history| {
        let (token, fencing_token, sent, read) = (3, 20, 230_000, 240_000);
        history.writes.push(Write { lock: 0, token, fencing_token, sent, read, taken: false });
    }),
    (Rising, "a lower one later", |history| told_fence(&mut history.events[2], 9)),
    (Rising, "the same one again", |history| told_fence(&mut history.events[2], 10)),
    (Rising, "lower than what was shown", |history| {
        history.events.push(look([150_000, 160_000], 21, 77));
    }),
    (Rising, "the same grant new twice", |history| {
        history.events.push(granted(9, 3, [195_000, 240_000], 20));
    }),
    (Fenced, "a lower one taken", |history| history.taken.swap(0, 1)),
    (Fenced, "the same one of another", |history| history.taken[1].share.fencing_token = 10),
    (Fenced, "one of no grant", |history| history.taken[1].share.fencing_token = 15),
    (Released, "shown after its release", |history| {
        history.events.push(look([150_000, 160_000], 10, 1));
    }),
    (Released, "recorded as expired after its release", |history| {
        let expired = vec![Holder { share: alone(10), number: 1, token: 1 }];
        let told = LockAnswer::Expired(expired);
        history.events.push(event(9, 0, Ask::Recall, [150_000, 160_000], told));
    }),
    (Released, "renewed after its release", |history| {
        history.events.push(renewed(9, 1, [150_000, 160_000], 10));
    }),
    (Released, "freed by a wrong token", |history| {
        history.events.push(event(9, 9, Ask::Release, [230_000, 240_000], LockAnswer::Released));
    }),
    (Released, "renewed by a wrong token", |history| {
        history.events.push(renewed(9, 9, [230_000, 240_000], 20));
    }),
    (Gapless, "renewed after another's grant", |history| {
        history.events[1].told = LockAnswer::Unknown;
        history.events.push(renewed(9, 1, [230_000, 240_000], 10));
    }),
    (Gapless, "renewed under another fence", |history| {
        history.events.push(renewed(9, 3, [230_000, 240_000], 21));
    }),
    (Live, "not had in time", |history| history.healings[0].within = 30_000),
    (Live, "not refused in time", |history| {
        let told = LockAnswer::Held(Holding { holders: Vec::new(), count: 1 });
        history.events.push(event(9, 9, ACQUIRE, [230_000, 290_000], told));
        let bound = LivenessBound { lock: 0, refused: Some(9), at: 230_000, within: 50_000 };
        history.healings.push(bound);
    }),
    (Honest, "held by a refused request", |history| {
        history.events.push(event(9, 9, ACQUIRE, [230_000, 240_000], LockAnswer::NotExecuted));
        history.events.push(look([250_000, 260_000], 20, 9));
    }),
    (Honest, "had already, and never got", |history| {
        history.events[2].told = again(20, 500_000);
    }),
    (Honest, "an answer that there is not", |history| {
        history.events[1].told = LockAnswer::Odd("500".to_owned());
    }),
];

#[test]
fn checker_accepts_a_correct_history() {
    let found = judge(&innocent());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn checker_accepts_allowed_ambiguity() {
    for (what, change) in INNOCENT {
        let found = judged(change);
        assert!(found.is_empty(), "{what}: {found:#?}");
    }
}

#[test]
fn checker_reports_each_kind_of_violation() {
    for (invariant, what, change) in GUILTY {
        let found = judged(change);
        let is_it = found.iter().any(|(found, _)| *found == invariant);
        assert!(is_it, "{what}: {found:#?}");
    }
}

#[test]
fn violation_lists_the_faults_around_it() {
    let fault = |kind, from, to, seen| Fault { kind, from, to, seen };
    let mut history = innocent();
    history.events[1].told = LockAnswer::NotExecuted;
    history.faults = vec![
        fault(Kind::CutStore, 0, 500, Ok(String::new())),
        fault(Kind::KillMost, 100_000, 150_000, Err(String::new())),
        fault(Kind::FlushAll, 100_000, 150_000, Ok(String::new())),
        fault(Kind::KillStore, 900_000, 950_000, Ok(String::new())),
    ];
    let found = judge(&history);
    assert!(!found.is_empty() && found.iter().all(|one| one.faults == ["FlushAll"]), "{found:#?}");
    history.faults.truncate(1);
    let found = judge(&history);
    assert!(found.iter().all(|one| one.faults == ["after CutStore"]), "{found:#?}");
}

#[test]
fn checker_separates_losses_by_failover_from_others() {
    let shown: Change = |history| history.events.push(look([150_000, 160_000], 10, 1));
    let renewed: Change = |history| {
        history.events[1].told = LockAnswer::Unknown;
        history.events.push(renewed(9, 1, [230_000, 240_000], 10));
    };
    let both: Change = |history| history.events[1].told = LockAnswer::NotExecuted;
    let late: Change = |history| history.healings[0].within = 30_000;
    let era: Change = |history| {
        let reader = granted(9, 9, [230_000, 240_000], 15);
        history.events.push(Event { mode: Mode::Shared, ..reader });
    };
    let again: Change = |history| {
        let reader = |sent| granted(9, 9, [sent, sent + 10_000], 5);
        let events = [20_000, 230_000].map(reader);
        history.events.extend(events.map(|event| Event { mode: Mode::Shared, ..event }));
    };
    let all = [
        (Released, shown, 120_000),
        (Gapless, renewed, 220_000),
        (Exclusive, both, 120_000),
        (Live, late, 160_000),
        (Rising, era, 220_000),
        (Rising, again, 220_000),
    ];
    for (invariant, change, from) in all {
        for (from, is_forgotten) in [(from, true), (from + 100_000, false)] {
            let mut history = innocent();
            change(&mut history);
            history.promotions = vec![Promotion { from, to: from + 10_000 }];
            let found = judge(&history).into_iter().find(|one| one.invariant == invariant);
            assert_eq!(found.expect("it is found").by_forgetting, is_forgotten, "{invariant:?}");
        }
    }
}

/// Two clients that hold a lock one after the other, and write; the second lease is still valid.
fn innocent() -> History {
    let write = |token, fencing_token, sent| {
        let read = sent + 5000;
        Write { lock: 0, token, fencing_token, sent, read, taken: true }
    };
    let taken =
        |token, fencing_token| AcceptedWrite { lock: 0, token, share: alone(fencing_token) };
    History {
        events: vec![
            granted(1, 1, [1000, 10_000], 10),
            event(2, 1, Ask::Release, [100_000, 110_000], LockAnswer::Released),
            granted(3, 3, [200_000, 210_000], 20),
        ],
        writes: vec![write(1, 10, 20_000), write(3, 20, 220_000)],
        taken: vec![taken(1, 10), taken(3, 20)],
        healings: vec![LivenessBound { lock: 0, refused: None, at: 150_000, within: 1_000_000 }],
        ..History::default()
    }
}

fn judged(change: Change) -> Vec<(Invariant, String)> {
    let mut history = innocent();
    change(&mut history);
    judge(&history).into_iter().map(|one| (one.invariant, one.what)).collect()
}

fn event(number: u64, token: u64, ask: Ask, [sent, read]: [u64; 2], told: LockAnswer) -> Event {
    Event { number, lock: 0, token, mode: Mode::Exclusive, ask, sent, read, told }
}

fn granted(number: u64, token: u64, when: [u64; 2], fencing_token: u64) -> Event {
    let told = LockAnswer::Granted(Lease { fencing_token, valid_for: 500_000, slot: None });
    event(number, token, ACQUIRE, when, told)
}

fn renewed(number: u64, token: u64, when: [u64; 2], fencing_token: u64) -> Event {
    let told = LockAnswer::Renewed(Lease { fencing_token, valid_for: 500_000, slot: None });
    event(number, token, Ask::Renew { ttl: 510_000 }, when, told)
}

fn again(fencing_token: u64, valid_for: u64) -> LockAnswer {
    LockAnswer::Again(Lease { fencing_token, valid_for, slot: None })
}

fn look(when: [u64; 2], fencing_token: u64, number: u64) -> Event {
    let holders = vec![Holder { share: alone(fencing_token), number, token: number }];
    event(99, 0, Ask::Look, when, LockAnswer::Shown(Holding { holders, count: 1 }))
}

fn alone(fencing_token: u64) -> Share {
    Share { fencing_token, mode: Mode::Exclusive, slot: None }
}

fn told_fence(event: &mut Event, fencing_token: u64) {
    event.told = LockAnswer::Granted(Lease { fencing_token, valid_for: 500_000, slot: None });
}
