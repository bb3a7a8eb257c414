//! Goal: the checker counts holders of every mode, and judges sets and breaks.
//!
//! Method: innocent histories of one mode each, and changes that make them guilty of one thing
//! each. Every guilt is found under its invariant, and each history is innocent without it.

use super::faults::Kind;
use super::history::{
    AcceptedWrite, Ask, Event, Fault, History, Holder, Holding, Lease, LockAnswer, Write,
};
use super::mode::Mode::{self, Counted, Exclusive, Shared};
use super::mode::Share;
use super::verdict::{Invariant, judge};

const ACQUIRE: Ask = Ask::Acquire { waits: false };
const BREAK: Ask = Ask::Break { fencing_token: 10, at_once: false };
const BREAK_AT_ONCE: Ask = Ask::Break { fencing_token: 10, at_once: true };

/// An innocent history, and what is added to it.
type Case = (&'static str, fn() -> History, fn(&mut History));

const INNOCENT: [Case; 18] = [
    ("three readers", readers, |history| {
        history.events.push(granted(5, Shared, 10, None, [230, 240]));
    }),
    ("a reader that released, and one of its era", readers, |history| {
        history.events.push(event(1, Shared, Ask::Release, [230, 240], LockAnswer::Released));
        history.events.push(shown(&[(10, 3, Shared, 1)], [250, 260]));
    }),
    ("a reader whose release an answer passed", readers, |history| {
        history.events.push(event(1, Shared, Ask::Release, [230, 240], LockAnswer::Released));
        history.events.push(event(1, Shared, ACQUIRE, [220, 400], again(10, None)));
    }),
    ("a writer after the readers", readers, |history| {
        history.events.push(granted(5, Exclusive, 20, None, [900, 910]));
    }),
    ("all that hold a counted lock, shown", counted, |history| {
        history.events.push(shown(&[(10, 1, Counted(2), 0), (20, 3, Counted(2), 1)], [230, 240]));
    }),
    ("some of those that hold a lock, shown", counted, |history| {
        let mut look = shown(&[(10, 1, Counted(2), 0)], [230, 240]);
        let LockAnswer::Shown(holding) = &mut look.told else { return };
        holding.count = 2;
        history.events.push(look);
    }),
    ("a slot that is free again", counted, |history| {
        history.events.push(event(1, Counted(2), Ask::Release, [230, 240], LockAnswer::Released));
        history.events.push(granted(5, Counted(2), 30, Some(0), [250, 260]));
    }),
    ("a reader beside workers, of an era before them", readers, |history| {
        history.events.push(granted(5, Counted(3), 20, Some(2), [230, 240]));
        history.events.push(event(1, Shared, Ask::Release, [250, 260], LockAnswer::Released));
        history.events.push(granted(7, Shared, 10, None, [270, 280]));
    }),
    ("a lower write of another slot", counted, |history| history.taken.swap(0, 1)),
    ("a broken lease that lasts", broken, |_| {}),
    ("a broken lease that is refused a renewal", broken, |history| {
        let ask = Ask::Renew { ttl: 500_000 };
        history.events.push(event(1, Exclusive, ask, [230, 240], LockAnswer::Broken));
        history.events.push(event(1, Exclusive, ACQUIRE, [230, 240], again(10, None)));
        let Some(Event { told: LockAnswer::Again(lease), .. }) = history.events.last_mut() else {
            return;
        };
        lease.valid_for = 150_000;
    }),
    ("a broken lease that its holder releases", broken, |history| {
        history.events.push(event(1, Exclusive, ACQUIRE, [220, 230], again(10, None)));
        if let Some(Event { told: LockAnswer::Again(lease), .. }) = history.events.last_mut() {
            lease.valid_for = 150_000;
        }
        history.events.push(event(1, Exclusive, Ask::Release, [240, 250], LockAnswer::Released));
        let broke = LockAnswer::Broke { ends_in: 0 };
        history.events.push(event(0, Exclusive, BREAK, [260, 270], broke));
    }),
    ("a broken lease that lasts longer by a clock that is set", broken, |history| {
        history.events.push(event(1, Exclusive, ACQUIRE, [590, 600], again(10, None)));
        let (kind, seen) = (Kind::ClockThereAndBack, Ok(String::new()));
        history.faults.push(Fault { kind, from: 400_000, to: 450_000, seen });
    }),
    ("a broken lease that lasts longer where a fault kept the news back", broken, |history| {
        history.events.push(event(1, Exclusive, ACQUIRE, [590, 600], again(10, None)));
        history.counts_by_news = true;
        let (kind, seen) = (Kind::CutStore, Ok(String::new()));
        history.faults.push(Fault { kind, from: 400_000, to: 450_000, seen });
    }),
    ("another's grant after a break at once", broken, |history| {
        history.events[1].ask = BREAK_AT_ONCE;
        history.events[1].told = LockAnswer::Broke { ends_in: 0 };
        history.events.push(granted(5, Exclusive, 20, None, [230, 240]));
    }),
    ("a set that was refused", set, |history| {
        history.events[0].told = LockAnswer::Refused;
        history.events[1].told = LockAnswer::Held(Holding::default());
    }),
    ("a set granted to the second of two requests at once", set, |history| {
        let twins = history.events.clone();
        for one in &mut history.events {
            (one.number, one.told) = (99, LockAnswer::Held(Holding::default()));
        }
        history.events.extend(twins.into_iter().map(|one| Event {
            told: LockAnswer::GrantedOrAgain(lease(10, None)),
            read: one.read + 50_000,
            ..one
        }));
    }),
    ("a set renewed by one of its locks", set, |history| {
        let ask = Ask::Renew { ttl: 500_000 };
        history.events.push(event(1, Exclusive, ask, [130, 140], renewed(10)));
    }),
];

/// What is broken, and by what change of which history.
type Guilty = (Invariant, &'static str, fn() -> History, fn(&mut History));

const GUILTY: [Guilty; 24] = [
    (Invariant::Exclusive, "above the limit", counted, |history| {
        history.events.push(granted(5, Counted(3), 30, Some(2), [230, 240]));
    }),
    (Invariant::Exclusive, "above the smallest limit", readers, |history| {
        history.events.push(granted(5, Counted(2), 20, Some(1), [230, 240]));
    }),
    (Invariant::Exclusive, "two with one slot", counted, |history| {
        history.events[1] = granted(3, Counted(2), 20, Some(0), [200, 210]);
    }),
    (Invariant::Exclusive, "a writer beside readers", readers, |history| {
        history.events.push(granted(5, Exclusive, 20, None, [230, 240]));
    }),
    (Invariant::Exclusive, "a reader beside a writer", broken, |history| {
        history.events.push(granted(5, Shared, 20, None, [230, 240]));
    }),
    (Invariant::Exclusive, "an era with two tokens", readers, |history| {
        history.events.push(granted(5, Shared, 20, None, [230, 240]));
    }),
    (Invariant::Exclusive, "shown above the limit", counted, |history| {
        let workers = [(10, 1, Counted(2), 0), (20, 3, Counted(2), 1), (30, 5, Counted(3), 2)];
        history.events.push(shown(&workers, [230, 240]));
    }),
    (Invariant::Exclusive, "shown in one slot", readers, |history| {
        history.events.push(shown(&[(10, 1, Shared, 0), (10, 3, Shared, 0)], [230, 240]));
    }),
    (Invariant::Exclusive, "a reader not shown", readers, |history| {
        history.events.push(shown(&[(10, 1, Shared, 0)], [230, 240]));
    }),
    (Invariant::Exclusive, "a reader granted twice", readers, |history| {
        history.events.push(granted(3, Shared, 10, None, [230, 240]));
    }),
    (Invariant::Exclusive, "granted before the broken lease ends", broken, |history| {
        history.events.push(granted(5, Exclusive, 20, None, [230, 240]));
    }),
    (Invariant::Rising, "a stale reader with an old era's token", readers, |history| {
        history.events.push(granted(5, Exclusive, 20, None, [700, 710]));
        history.events.push(granted(7, Shared, 10, None, [1300, 1310]));
    }),
    (Invariant::Rising, "a reader below the era before", readers, |history| {
        history.events.push(granted(5, Shared, 9, None, [900, 910]));
    }),
    (Invariant::Rising, "one token for two workers", counted, |history| {
        history.events[1] = granted(3, Counted(2), 10, Some(1), [200, 210]);
    }),
    (Invariant::Rising, "a worker below one before", counted, |history| {
        history.events.push(granted(5, Counted(2), 15, Some(0), [900, 910]));
    }),
    (Invariant::Rising, "a slot that changes", counted, |history| {
        history.events.push(event(1, Counted(2), ACQUIRE, [230, 240], again(10, Some(1))));
    }),
    (Invariant::Fenced, "a reader after a later era", readers, |history| {
        history.taken.push(taken(5, Shared, 20, None));
        history.taken.push(taken(1, Shared, 10, None));
    }),
    (Invariant::Fenced, "a lower write of one slot", counted, |history| {
        history.taken.push(taken(5, Counted(2), 30, Some(1)));
        history.taken.push(taken(3, Counted(2), 20, Some(1)));
    }),
    (Invariant::Released, "a reader shown after its release", readers, |history| {
        history.events.push(event(1, Shared, Ask::Release, [230, 240], LockAnswer::Released));
        history.events.push(shown(&[(10, 1, Shared, 0), (10, 3, Shared, 1)], [250, 260]));
    }),
    (Invariant::Released, "a broken holder renews", broken, |history| {
        let ask = Ask::Renew { ttl: 500_000 };
        history.events.push(event(1, Exclusive, ask, [230, 240], renewed(10)));
    }),
    (Invariant::Released, "a broken holder is valid for longer", broken, |history| {
        history.events.push(event(1, Exclusive, ACQUIRE, [230, 240], again(10, None)));
    }),
    (
        Invariant::Released,
        "a broken holder is valid for longer than news take",
        broken,
        |history| {
            history.events.push(event(1, Exclusive, ACQUIRE, [590, 600], again(10, None)));
            history.counts_by_news = true;
        },
    ),
    (Invariant::Released, "held after a break at once", broken, |history| {
        history.events[1].ask = BREAK_AT_ONCE;
        history.events[1].told = LockAnswer::Broke { ends_in: 0 };
        history.events.push(shown(&[(10, 1, Exclusive, 0)], [230, 240]));
    }),
    (Invariant::Honest, "a set that got half", set, |history| {
        history.events[0].told = LockAnswer::Refused;
        history.events[1].told = LockAnswer::Held(Holding::default());
        history.events.push(shown(&[(10, 1, Exclusive, 0)], [230, 240]));
    }),
];

#[test]
fn checker_accepts_modes_sets_and_breaks() {
    for (what, history, change) in INNOCENT {
        let mut history = history();
        change(&mut history);
        let found = judge(&history);
        assert!(found.is_empty(), "{what}: {found:#?}");
    }
}

#[test]
fn checker_reports_each_violation_of_modes_sets_and_breaks() {
    for (invariant, what, history, change) in GUILTY {
        let mut history = history();
        assert!(judge(&history).is_empty(), "{what}");
        change(&mut history);
        let found = judge(&history);
        assert!(found.iter().any(|one| one.invariant == invariant), "{what}: {found:#?}");
    }
}

#[test]
fn set_that_holds_half_of_what_it_was_granted_is_found() {
    let mut history = set();
    let free = Event { lock: 1, ..event(0, Exclusive, Ask::Look, [130, 140], LockAnswer::NotHeld) };
    history.events.push(free);
    let found = judge(&history);
    assert!(found.iter().any(|one| one.about[0].lock == 1), "{found:#?}");
}

/// Two readers of one era at once, who write.
fn readers() -> History {
    let events =
        vec![granted(1, Shared, 10, None, [100, 110]), granted(3, Shared, 10, None, [200, 210])];
    let taken = vec![taken(1, Shared, 10, None), taken(3, Shared, 10, None)];
    History { events, taken, writes: vec![write(1, 10), write(3, 10)], ..History::default() }
}

/// Two workers in two slots at once, who write.
fn counted() -> History {
    let events = vec![
        granted(1, Counted(2), 10, Some(0), [100, 110]),
        granted(3, Counted(2), 20, Some(1), [200, 210]),
    ];
    let taken = vec![taken(1, Counted(2), 10, Some(0)), taken(3, Counted(2), 20, Some(1))];
    History { events, taken, writes: vec![write(1, 10), write(3, 20)], ..History::default() }
}

/// A holder whose lease is broken, and ends when it would.
fn broken() -> History {
    let events = vec![
        granted(1, Exclusive, 10, None, [100, 110]),
        event(0, Exclusive, BREAK, [200, 210], LockAnswer::Broke { ends_in: 400_000 }),
    ];
    History { events, ..History::default() }
}

/// A client that got two locks at once.
fn set() -> History {
    let one = granted(1, Exclusive, 10, None, [100, 110]);
    let other = Event { lock: 1, ..one.clone() };
    History { events: vec![one, other], ..History::default() }
}

/// The times are in ms.
fn event(token: u64, mode: Mode, ask: Ask, [sent, read]: [u64; 2], told: LockAnswer) -> Event {
    let (sent, read) = (sent * 1000, read * 1000);
    Event { number: sent + token, lock: 0, token, mode, ask, sent, read, told }
}

/// The request that got it has the number of its token.
fn granted(token: u64, mode: Mode, fencing_token: u64, slot: Option<u64>, when: [u64; 2]) -> Event {
    let told = LockAnswer::Granted(lease(fencing_token, slot));
    Event { number: token, ..event(token, mode, ACQUIRE, when, told) }
}

fn again(fencing_token: u64, slot: Option<u64>) -> LockAnswer {
    LockAnswer::Again(lease(fencing_token, slot))
}

fn renewed(fencing_token: u64) -> LockAnswer {
    LockAnswer::Renewed(lease(fencing_token, None))
}

fn lease(fencing_token: u64, slot: Option<u64>) -> Lease {
    Lease { fencing_token, valid_for: 500_000, slot }
}

fn shown(holders: &[(u64, u64, Mode, u64)], when: [u64; 2]) -> Event {
    let holder = |&(fencing_token, token, mode, slot): &(u64, u64, Mode, u64)| {
        let share = Share { fencing_token, mode, slot: Some(slot) };
        Holder { share, number: token, token }
    };
    let holding = Holding { holders: holders.iter().map(holder).collect(), count: holders.len() };
    event(0, Exclusive, Ask::Look, when, LockAnswer::Shown(holding))
}

fn write(token: u64, fencing_token: u64) -> Write {
    Write { lock: 0, token, fencing_token, sent: 215_000, read: 216_000, taken: true }
}

fn taken(token: u64, mode: Mode, fencing_token: u64, slot: Option<u64>) -> AcceptedWrite {
    AcceptedWrite { lock: 0, token, share: Share { fencing_token, mode, slot } }
}
