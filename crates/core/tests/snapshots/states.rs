//! What the states of these tests are made of.
//!
//! Each function makes one part with fixed values, because the golden files have to decode to exactly these states.
//! A change here changes what a published format means.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylatch_core::idempotency::{
    Answer, Fingerprint, IdempotencyKey, OnCrash, Record, RecordScope, RecordStage, RecordState,
    Scope, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{
    Attempt, Break, EndCause, Entries, Entry, EntryName, FencingToken, GrantEnd, History,
    HolderState, Limit, LockState, Owner, QueueEntry, Reason, Slots, TokenHash, WaitQueue,
};

/// A holder that holds a lock alone, with every other field away from its default.
pub(crate) fn holder() -> HolderState {
    HolderState {
        token: TokenHash::from_bytes([0xA1; 32]),
        fencing_token: FencingToken::new(1_795_332_773_831_023),
        owner: Owner::parse("Zoë, line 7").expect("a label"),
        since: Duration::new(63_244_800, 123_456_789),
        ttl: Duration::from_millis(30_500),
        acquired_at_millis: 1_795_332_773_831,
        limit: Limit::Exclusive,
        slot: 0,
        entries: entered(Some(u64::MAX)),
        broken: None,
    }
}

/// The unnamed entry of an attempt, or of several.
pub(crate) fn entered(sole_attempt: Option<u64>) -> Entries {
    Entries::of(Entry { name: None, sole_attempt: sole_attempt.map(Attempt::new) })
}

/// Why a lease is broken.
fn broken() -> Arc<Break> {
    Arc::new(Break {
        reason: Reason::parse("line 7 stands still").expect("a reason"),
        by: Owner::parse("Zoë").expect("a label"),
        at_millis: 1_795_332_773_900,
    })
}

/// A lock that several hold, each in a way of its own, with waiters of each kind, a break and an expiry.
pub(crate) fn shared() -> LockState {
    let slots = Limit::Counted(Slots::new(1000).expect("a number of slots"));
    let entry = |name: &str, sole_attempt: Option<u64>| Entry {
        name: EntryName::parse(name).ok(),
        sole_attempt: sole_attempt.map(Attempt::new),
    };
    let entries = vec![entry("", None), entry("step-2", Some(7)), entry("Zoë", None)];
    let reader = HolderState { limit: Limit::Shared, slot: 0, ..holder() };
    let worker = HolderState {
        token: TokenHash::from_bytes([0xA2; 32]),
        limit: slots,
        slot: 3,
        entries: entries.try_into().expect("an entry"),
        broken: Some(broken()),
        ..holder()
    };
    let limits = [Limit::Shared, Limit::Exclusive, slots].into_iter();
    let waiting = queue();
    let waiting = waiting.entries().iter().cloned().zip(limits);
    let waiting = waiting.map(|(entry, limit)| QueueEntry { limit, ..entry }).collect();
    let expiry = GrantEnd {
        token: TokenHash::from_bytes([0xA3; 32]),
        fencing_token: FencingToken::new(1_795_332_773_831_021),
        owner: None,
        acquired_at_millis: 1_795_332_773_800,
        ended_at_millis: 1_795_332_773_820,
        cause: EndCause::Expiry,
    };
    let expired = expiry.clone();
    let since = Duration::new(63_244_799, 5);
    let cause = EndCause::Break { why: broken(), since };
    let owner = Owner::parse("line 8").expect("a label");
    let of_break = GrantEnd { owner, cause, ..expiry };
    LockState::new([reader, worker], waiting, History::from_iter([expired, of_break]))
}

pub(crate) fn queue() -> WaitQueue {
    let entry = |number: u8| QueueEntry {
        token: TokenHash::from_bytes([number; 32]),
        sole_attempt: Some(Attempt::new(u64::from(number))),
        since: Duration::from_secs(63_244_800 + u64::from(number)),
        lasts: Duration::from_millis(4000),
        limit: Limit::Exclusive,
        owner: None,
        joined: Duration::from_secs(63_244_800 + u64::from(number)),
    };
    [entry(3), entry(1), entry(2)].into_iter().collect()
}

/// The same queue with labels and after a while: one waiter has neither a label nor asked again, one has a
/// label, and one has asked again.
pub(crate) fn labelled(queue: &WaitQueue) -> WaitQueue {
    let entries = queue.entries().iter().cloned().zip(0..);
    let entries = entries.map(|(entry, position)| QueueEntry {
        owner: Owner::parse(["", "Zoë, line 7", ""][position]).expect("a label"),
        joined: entry.joined - Duration::from_nanos(position as u64 / 2),
        ..entry
    });
    entries.collect()
}

/// The lock that several hold, with labels in its queue.
pub(crate) fn labelled_shared() -> LockState {
    let shared = shared();
    let holders: Vec<_> = shared.holders().cloned().collect();
    LockState::new(holders, labelled(shared.queue()), shared.history().clone())
}

pub(crate) fn held() -> LockState {
    LockState::new([holder()], WaitQueue::default(), History::default())
}

/// A record at this stage, with every other field away from its default, as versions wrote it that
/// did not keep what it is about.
pub(crate) fn record(stage: RecordStage, on_crash: OnCrash) -> RecordState {
    RecordState::new(Some(Record {
        token: TokenHash::from_bytes([0xB2; 32]),
        fingerprint: Fingerprint::from_bytes([0xC3; 32]),
        scope: None,
        fencing_token: FencingToken::new(1_795_332_774_075_434),
        attempts: 3,
        begun_at_millis: 1_795_332_774_075,
        lease: Duration::from_millis(30_000),
        retention: Duration::from_secs(24 * 60 * 60),
        on_crash,
        stage,
        since: Duration::new(63_244_805, 1),
    }))
}

/// The same with what the record is about.
pub(crate) fn scoped_record(stage: RecordStage, on_crash: OnCrash) -> RecordState {
    let record = record(stage, on_crash).record().cloned().expect("a record");
    RecordState::new(Some(Record { scope: Some(scope()), ..record }))
}

pub(crate) fn scope() -> RecordScope {
    let scope = Scope { principal: "Zoë", method: "POST", path: "/v1/orders" };
    RecordScope::new(&scope, &IdempotencyKey::parse("order-17").expect("a key"))
}

pub(crate) fn done(kept: StoredResponse) -> RecordStage {
    RecordStage::Done(1_795_332_775_000, kept)
}

pub(crate) fn unknown(reason: UnknownReason) -> RecordStage {
    RecordStage::Unknown(1_795_332_776_000, reason)
}

/// An answer with a header twice and a body that is no text.
pub(crate) fn answer() -> StoredResponse {
    let header = |name: &str, value: &'static [u8]| (name.to_owned(), Bytes::from_static(value));
    StoredResponse::Answer(Arc::new(Answer {
        status: 201,
        headers: vec![
            header("location", b"/orders/1"),
            header("set-cookie", b"a=1"),
            header("set-cookie", b"b=\xff"),
        ],
        body: Bytes::from_static(b"\x00order\xff"),
    }))
}
