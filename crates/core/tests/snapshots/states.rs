//! A lock and a record in which every field has a value of its own.
//!
//! A test changes a byte of their snapshots by the value that stands there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylatch_core::idempotency::{
    Answer, Fingerprint, IdempotencyKey, OnCrash, Principal, Record, RecordScope, RecordStage,
    RecordState, Scope, SealedAnswer, StoredResponse,
};
use keylatch_core::lock::{
    Attempt, Break, EndCause, Entries, Entry, EntryName, FencingToken, GrantEnd, HolderState,
    Limit, LockState, Owner, QueueEntry, Reason, Slots, TokenHash,
};

/// A lock that two hold in different ways, with a waiter, an expiry, a break and the end of a wait.
pub(crate) fn lock() -> LockState {
    let waiter = QueueEntry {
        token: TokenHash::from_bytes([3; 32]),
        attempts: vec![Attempt::new(3)],
        since: Duration::from_secs(63_244_803),
        lasts: Duration::from_millis(4000),
        limit: Limit::Exclusive,
        owner: owner("waiter"),
        joined: Duration::from_secs(63_244_802),
        number: 3,
    };
    let cause = EndCause::Break { why: broken(), since: Duration::new(63_244_799, 5) };
    let wait = EndCause::WaitEnd { why: broken(), since: Duration::new(63_244_798, 7) };
    let ends = [end(EndCause::Expiry), end(cause), end(wait)];
    LockState::new(holders(), [waiter].into_iter().collect(), ends.into_iter().collect())
}

fn owner(label: &str) -> Option<Owner> {
    Owner::parse(label).expect("a label")
}

fn holders() -> [HolderState; 2] {
    let entry = |name: &str, sole_attempt: Option<u64>| Entry {
        name: EntryName::parse(name).ok(),
        sole_attempt: sole_attempt.map(Attempt::new),
    };
    let reader = HolderState {
        token: TokenHash::from_bytes([0xA1; 32]),
        fencing_token: FencingToken::new(1_795_332_773_831_023),
        owner: owner("holder"),
        since: Duration::new(63_244_800, 123_456_789),
        ttl: Duration::from_millis(30_500),
        acquired_at_millis: 1_795_332_773_831,
        limit: Limit::Shared,
        slot: 0,
        entries: Entries::of(entry("", Some(u64::MAX))),
        broken: None,
    };
    let entries = vec![entry("", None), entry("step-2", Some(7))];
    let worker = HolderState {
        token: TokenHash::from_bytes([0xA2; 32]),
        limit: Limit::Counted(Slots::new(1000).expect("a number of slots")),
        slot: 3,
        entries: entries.try_into().expect("an entry"),
        broken: Some(broken()),
        ..reader.clone()
    };
    [reader, worker]
}

fn broken() -> Arc<Break> {
    let reason = Reason::parse("it stands still").expect("a reason");
    Arc::new(Break { reason, by: owner("breaker"), at_millis: 1_795_332_773_900 })
}

fn end(cause: EndCause) -> GrantEnd {
    GrantEnd {
        token: TokenHash::from_bytes([0xA3; 32]),
        fencing_token: FencingToken::new(1_795_332_773_831_021),
        owner: owner("line 8"),
        acquired_at_millis: 1_795_332_773_800,
        ended_at_millis: 1_795_332_773_820,
        cause,
    }
}

/// A record that is done.
pub(crate) fn record() -> RecordState {
    RecordState::new(Some(Record {
        token: TokenHash::from_bytes([0xB2; 32]),
        fingerprint: Fingerprint::of_text("order 17"),
        scope: scope(),
        fencing_token: FencingToken::new(1_795_332_774_075_434),
        attempts: 3,
        begun_at_millis: 1_795_332_774_075,
        lease: Duration::from_millis(30_000),
        retention: Duration::from_secs(24 * 60 * 60),
        on_crash: OnCrash::Rerun,
        stage: RecordStage::Done(1_795_332_775_000, answer()),
        since: Duration::new(63_244_805, 1),
    }))
}

pub(crate) fn scope() -> RecordScope {
    let scope = Scope {
        principal: &Principal::User("Zoë".to_owned()),
        method: "POST",
        path: "/v1/orders",
        source: "",
    };
    RecordScope::new(&scope, &IdempotencyKey::parse("order-17").expect("a key"))
}

/// An answer that is encrypted.
pub(crate) fn sealed() -> StoredResponse {
    let (key_id, bytes) = ("2026-01".to_owned(), Bytes::from_static(b"\x00order\xff"));
    StoredResponse::Sealed(Arc::new(SealedAnswer { status: 201, key_id, bytes }))
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
