//! Goal: bytes that are no snapshot of this version are refused, and make no state.
//!
//! Method: snapshots of a lock and a record in which every field has a value are cut, prolonged and
//! changed.

use std::time::Duration;

use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{AnswerStub, Record, RecordStage, RecordState, StoredResponse};
use keylatch_core::lock::{HolderState, LockState, QueueEntry};
use keylatch_core::snapshot::SnapshotError;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::states::{lock, record};

fn snapshots() -> (Vec<u8>, Vec<u8>) {
    (lock().encode().expect("a snapshot"), record().encode().expect("a snapshot"))
}

/// What a lock and a record are decoded to, once the only place with `found` has `replaced`.
fn with(found: &[u8], replaced: &[u8]) -> [Option<SnapshotError>; 2] {
    let (lock, record) = snapshots();
    let change = |mut bytes: Vec<u8>| {
        let at = bytes.windows(found.len()).position(|window| window == found);
        if let Some(at) = at {
            bytes.splice(at..at + found.len(), replaced.iter().copied());
        }
        bytes
    };
    [LockState::decode(&change(lock)).err(), RecordState::decode(&change(record)).err()]
}

#[test]
fn another_format_is_refused_with_a_sentence_that_says_what_to_do() {
    let (mut lock, mut record) = snapshots();
    let known = lock[0];
    assert_eq!(record[0], known, "one format");
    for format in (0..=u8::MAX).filter(|format| *format != known) {
        (lock[0], record[0]) = (format, format);
        assert_eq!(LockState::decode(&lock), Err(SnapshotError::Foreign), "format {format}");
        assert_eq!(RecordState::decode(&record), Err(SnapshotError::Foreign), "format {format}");
    }
    let sentence = LockState::decode(&[]).expect_err("no bytes are no lock").to_string();
    assert!(sentence.contains("give keylatch a place of its own"), "{sentence}");
}

#[test]
fn bytes_that_are_cut_off_or_go_on_are_refused() {
    let (lock, record) = snapshots();
    for length in 1..lock.len() {
        let cut = LockState::decode(&lock[..length]);
        assert!(matches!(cut, Err(SnapshotError::Codec(_))), "{length} bytes: {cut:?}");
    }
    for length in 1..record.len() {
        let cut = RecordState::decode(&record[..length]);
        assert!(matches!(cut, Err(SnapshotError::Codec(_))), "{length} bytes: {cut:?}");
    }
    let longer = |bytes: &[u8]| [bytes, &[0]].concat();
    assert_eq!(LockState::decode(&longer(&lock)), Err(SnapshotError::Malformed));
    assert_eq!(RecordState::decode(&longer(&record)), Err(SnapshotError::Malformed));
}

#[test]
fn a_part_that_breaks_a_rule_is_refused() {
    for label in ["holder", "waiter", "step-2", "stands still", "breaker"] {
        let broken = format!("\n{}", &label[1..]);
        let [lock, _] = with(label.as_bytes(), broken.as_bytes());
        assert!(matches!(lock, Some(SnapshotError::Codec(_))), "{label}: {lock:?}");
    }
    // 1000 slots, in two bytes; and none.
    let [lock, _] = with(&[1, 0xE8, 0x07], &[1, 0x80, 0x00]);
    assert!(matches!(lock, Some(SnapshotError::Codec(_))), "{lock:?}");
    let [_, record] = with(b"order-17", b"order-1\n");
    assert!(matches!(record, Some(SnapshotError::Codec(_))), "{record:?}");
}

#[test]
fn holders_out_of_the_order_of_their_slots_are_refused() {
    let shared = lock();
    let mut holders: Vec<_> = shared.holders().cloned().collect();
    holders.reverse();
    let state = LockState::new(holders, shared.queue().clone(), shared.history().clone());
    let bytes = state.encode().expect("a snapshot");
    assert_eq!(LockState::decode(&bytes), Err(SnapshotError::Malformed));
}

#[test]
fn time_that_the_rules_cannot_add_to_is_refused() {
    let long = Duration::from_secs(1 << 40);
    let shared = lock();
    let holder = shared.holders().next().expect("a holder").clone();
    let waiter = shared.queue().entries()[0].clone();
    let of = |holder: HolderState, waiter: QueueEntry| {
        LockState::new([holder], [waiter].into_iter().collect(), shared.history().clone())
    };
    let late = [
        of(HolderState { ttl: long, ..holder.clone() }, waiter.clone()),
        of(HolderState { since: long, ..holder.clone() }, waiter.clone()),
        of(holder, QueueEntry { joined: long, ..waiter }),
    ];
    for lock in late {
        let decoded = LockState::decode(&lock.encode().expect("a snapshot"));
        assert!(matches!(decoded, Err(SnapshotError::Codec(_))), "{decoded:?}");
    }
    let late = record().record().cloned().map(|record| Record { retention: long, ..record });
    let decoded = RecordState::decode(&RecordState::new(late).encode().expect("a snapshot"));
    assert!(matches!(decoded, Err(SnapshotError::Codec(_))), "{decoded:?}");
}

#[test]
fn answer_of_which_only_a_stub_is_here_is_not_written() {
    let stub = StoredResponse::Stub(AnswerStub { status: 200, kept_bytes: 1 });
    let stage = RecordStage::Done(0, stub);
    let stubbed = record().record().cloned().map(|record| Record { stage, ..record });
    assert!(matches!(RecordState::new(stubbed).encode(), Err(SnapshotError::Codec(_))));
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(mut bytes in vec(any::<u8>(), 1..300)) {
        bytes[0] = snapshots().0[0];
        let _ = (LockState::decode(&bytes), RecordState::decode(&bytes));
    }
}
