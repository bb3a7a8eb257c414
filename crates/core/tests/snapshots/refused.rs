//! Bytes that are no snapshot of this version.
//!
//! The changes are made where the format has a field that no version has used yet, so that an older
//! version never drops what a newer one wrote.

use std::time::Duration;

use keylatch_core::idempotency::{OnCrash, Record, RecordStage, RecordState, StoredResponse};
use keylatch_core::lock::{History, HolderState, LockState, QueueEntry};
use keylatch_core::snapshot::SnapshotError;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::states::{answer, done, held, holder, labelled, queue, record, shared};

/// The snapshot of a held lock, as the format byte, the holder and the empty rest.
fn held_lock() -> (Vec<u8>, Vec<u8>) {
    let bytes = held().encode().expect("a snapshot");
    let holder = bytes.strip_prefix(&[1, 1]).and_then(|rest| rest.strip_suffix(&[0, 0]));
    (bytes.clone(), holder.expect("one holder, no waiter and no end").to_vec())
}

fn lock(parts: &[&[u8]]) -> Result<LockState, SnapshotError> {
    LockState::decode(&parts.concat())
}

#[test]
fn plain_format_with_more_than_it_has_is_refused_and_not_cut_down() {
    let (_, holder) = held_lock();
    // The limit, the slot, the entries and why it is broken.
    let common = holder.strip_suffix(&[1, 1, 0, 0, 0]).expect("what a holder has alone");
    let one = |rest: &[u8]| lock(&[&[1, 1], common, rest, &[0, 0]]);
    assert_eq!(one(&[1, 1, 0, 0, 0]), Ok(held()), "the parts are put together wrongly");
    assert_eq!(one(&[0, 0, 0, 0]), Err(SnapshotError::Malformed), "any number of holders");
    assert_eq!(one(&[1, 2, 0, 0, 0]), Err(SnapshotError::Malformed), "two holders at most");
    assert_eq!(one(&[1, 1, 1, 0, 0]), Err(SnapshotError::Malformed), "the second slot");
    let two = lock(&[&[1, 2], &holder, &holder, &[0, 0]]);
    assert_eq!(two, Err(SnapshotError::Malformed), "a second holder");
    let mut waiter = with_queue(None).encode().expect("a snapshot");
    let limit = waiter.len() - 2;
    waiter[limit] = 2;
    let decoded = LockState::decode(&waiter);
    assert_eq!(decoded, Err(SnapshotError::Malformed), "a waiter for a second slot");
}

#[test]
fn waiter_with_an_invalid_label_or_time_is_refused() {
    let with = |change: fn(&mut QueueEntry)| {
        let mut entries = labelled(&queue()).entries().to_vec();
        entries.iter_mut().for_each(change);
        let state = LockState::new(None, entries.into_iter().collect(), History::default());
        state.encode().expect("a snapshot")
    };
    let late = with(|entry| entry.joined = Duration::from_secs(1 << 40));
    let decoded = LockState::decode(&late);
    assert!(matches!(decoded, Err(SnapshotError::Codec(_))), "{decoded:?}");
    let mut label = with(|_| ());
    let at = label.windows(4).position(|bytes| bytes == b"line").expect("the label");
    label[at] = b'\n';
    assert_eq!(LockState::decode(&label), Err(SnapshotError::Malformed));
}

#[test]
fn count_of_nothing_costs_nothing() {
    let (_, holder) = held_lock();
    // Format 1 has two lists that are empty always, so an element takes no bytes.
    let [most, none] = [&[&[0xff; 9][..], &[1]].concat()[..], &[0]];
    let common = holder.strip_suffix(&[1, 1, 0, 0, 0]).expect("what a holder has alone");
    let entries = lock(&[&[1, 1], common, &[1, 1, 0], most, none, &[0, 0]]);
    assert_eq!(entries, Err(SnapshotError::Malformed), "entries");
    assert_eq!(lock(&[&[1, 0, 0], most]), Err(SnapshotError::Malformed), "ends");
}

#[test]
fn holders_out_of_the_order_of_their_slots_are_refused() {
    let shared = shared();
    let mut holders: Vec<_> = shared.holders().cloned().collect();
    holders.reverse();
    let state = LockState::new(holders, shared.queue().clone(), shared.history().clone());
    let bytes = state.encode().expect("a snapshot");
    assert_eq!(LockState::decode(&bytes), Err(SnapshotError::Malformed));
}

fn with_queue(holder: Option<HolderState>) -> LockState {
    LockState::new(holder, queue(), History::default())
}

#[test]
fn a_record_that_a_newer_version_wrote_is_refused_and_not_cut_down() {
    let bytes = record(RecordStage::InFlight, OnCrash::Unknown).encode().expect("a snapshot");
    let common = bytes.strip_suffix(&[0, 0]).expect("neither scope nor resolution");
    let with = |rest: &[u8]| RecordState::decode(&[common, rest].concat());
    assert_eq!(with(&[0, 1, 1, b'w', 0]), Err(SnapshotError::Newer), "a resolution");
    let read = with(&[1, 0, 0, 0, 1, b'k', 0]).expect("a scope");
    let scope = read.record().and_then(|record| record.scope.clone()).expect("a scope");
    assert_eq!(scope.key().as_str(), "k", "the parts are put together wrongly");
}

#[test]
fn another_format_is_refused() {
    let (mut lock, _) = held_lock();
    let mut record = record(done(answer()), OnCrash::Unknown).encode().expect("a snapshot");
    lock[0] = 0;
    assert_eq!(LockState::decode(&lock), Err(SnapshotError::Malformed));
    lock[0] = 4;
    assert_eq!(LockState::decode(&lock), Err(SnapshotError::Newer));
    record[0] = 0;
    assert_eq!(RecordState::decode(&record), Err(SnapshotError::Malformed));
    record[0] = 2;
    assert_eq!(RecordState::decode(&record), Err(SnapshotError::Newer));
}

#[test]
fn bytes_that_are_cut_off_or_go_on_are_refused() {
    let lock = with_queue(Some(holder())).encode().expect("a snapshot");
    let record = record(done(answer()), OnCrash::Rerun).encode().expect("a snapshot");
    assert_eq!(LockState::decode(&[]), Err(SnapshotError::Empty));
    assert_eq!(RecordState::decode(&[]), Err(SnapshotError::Empty));
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
    let (mut lock, _) = held_lock();
    let owner = lock.windows(4).position(|bytes| bytes == b"line").expect("the owner");
    lock[owner] = b'\n';
    assert_eq!(LockState::decode(&lock), Err(SnapshotError::Malformed));
    // A kept answer is bytes within the bytes: here of a kind that does not exist.
    let mut record =
        record(done(StoredResponse::Mark(204)), OnCrash::Unknown).encode().expect("a snapshot");
    let kept = StoredResponse::Mark(204).to_bytes().expect("bytes");
    let at = record.windows(kept.len()).position(|bytes| bytes == kept).expect("the kept answer");
    record[at] = 2;
    assert_eq!(RecordState::decode(&record), Err(SnapshotError::Malformed));
    // The key of a scope that has no character.
    let record = super::states::record(RecordStage::InFlight, OnCrash::Unknown);
    let record = record.encode().expect("a snapshot");
    let common = record.strip_suffix(&[0, 0]).expect("neither scope nor resolution");
    let empty_key = [common, &[1, 0, 0, 0, 0, 0]].concat();
    assert_eq!(RecordState::decode(&empty_key), Err(SnapshotError::Malformed));
}

#[test]
fn time_that_the_rules_cannot_add_to_is_refused() {
    let ages = HolderState { ttl: Duration::MAX, ..holder() };
    let later = HolderState { since: Duration::from_secs(1 << 40), ..holder() };
    for holder in [ages, later] {
        let lock = LockState::new([holder], queue(), History::default());
        let decoded = LockState::decode(&lock.encode().expect("a snapshot"));
        assert!(matches!(decoded, Err(SnapshotError::Codec(_))), "{decoded:?}");
    }
    let record = record(RecordStage::InFlight, OnCrash::Unknown).record().cloned();
    let record = record.map(|record| Record { retention: Duration::MAX, ..record });
    let decoded = RecordState::decode(&RecordState::new(record).encode().expect("a snapshot"));
    assert!(matches!(decoded, Err(SnapshotError::Codec(_))), "{decoded:?}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(mut bytes in vec(any::<u8>(), 0..300)) {
        let _ = (LockState::decode(&bytes), RecordState::decode(&bytes));
        for known in [1, 2, 3] {
            if let Some(format) = bytes.first_mut() {
                *format = known;
            }
            let _ = (LockState::decode(&bytes), RecordState::decode(&bytes));
        }
    }
}

#[test]
fn a_free_lock_without_waiters_is_the_least_snapshot() {
    assert_eq!(LockState::default().encode(), Ok(vec![1, 0, 0, 0]));
    assert_eq!(RecordState::default().encode(), Ok(vec![1, 0]));
}
