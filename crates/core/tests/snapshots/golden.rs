//! The bytes of every published format, in `tests/golden/`.
//!
//! A file holds one snapshot in hexadecimal and is never changed: what it decodes to is pinned here. A
//! new format gets new files, and those of the old one stay.

use keylatch_core::idempotency::{
    OnCrash, RecordStage, RecordState, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{History, HolderState, LockState, WaitQueue};

use crate::states::{
    answer, done, entered, held, holder, labelled, labelled_shared, queue, record, scoped_record,
    shared, unknown,
};

fn parse_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    digits.chunks(2).map(|pair| byte(pair).expect("a byte")).collect()
}

fn format_hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(32);
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    lines.map(|bytes| line(bytes) + "\n").collect()
}

macro_rules! golden {
    ($($file:literal => $state:expr,)*) => {
        vec![$((
            $file,
            parse_hex(include_str!(concat!("../golden/", $file, ".hex"))),
            $state,
        )),*]
    };
}

fn locks() -> Vec<(&'static str, Vec<u8>, LockState)> {
    let of =
        |holder: HolderState| LockState::new([holder], WaitQueue::default(), History::default());
    let with_queue = |holder| LockState::new(holder, queue(), History::default());
    golden! {
        "lock-1-free" => LockState::default(),
        "lock-1-held" => held(),
        "lock-1-held-queue" => with_queue(Some(holder())),
        "lock-1-free-queue" => with_queue(None),
        "lock-1-held-no-owner" => of(HolderState { owner: None, ..holder() }),
        "lock-1-held-no-sole-attempt" => of(HolderState { entries: entered(None), ..holder() }),
        "lock-2-shared" => shared(),
        "lock-3-free-queue" => LockState::new(None, labelled(&queue()), History::default()),
        "lock-3-held-queue" => LockState::new([holder()], labelled(&queue()), History::default()),
        "lock-3-shared" => labelled_shared(),
    }
}

fn records() -> Vec<(&'static str, Vec<u8>, RecordState)> {
    use OnCrash::{Rerun, Unknown};
    golden! {
        "record-1-none" => RecordState::default(),
        "record-1-in-flight" => record(RecordStage::InFlight, Unknown),
        "record-1-in-flight-rerun" => record(RecordStage::InFlight, Rerun),
        "record-1-done" => record(done(answer()), Unknown),
        "record-1-done-mark" => record(done(StoredResponse::Mark(413)), Rerun),
        "record-1-unknown-interrupted" => record(unknown(UnknownReason::Interrupted), Unknown),
        "record-1-unknown-failed" => record(unknown(UnknownReason::Failed), Unknown),
        "record-1-unknown-panicked" => record(unknown(UnknownReason::Panicked), Rerun),
        "record-1-unknown-no-answer" => record(unknown(UnknownReason::NoAnswer), Rerun),
        "record-1-in-flight-scope" => scoped_record(RecordStage::InFlight, Unknown),
        "record-1-done-scope" => scoped_record(done(answer()), Rerun),
        "record-1-unknown-failed-scope" => scoped_record(unknown(UnknownReason::Failed), Unknown),
    }
}

#[test]
fn locks_of_every_published_format_decode_to_what_was_written() {
    for (file, bytes, state) in locks() {
        assert_eq!(LockState::decode(&bytes), Ok(state), "{file}");
    }
}

#[test]
fn records_of_every_published_format_decode_to_what_was_written() {
    for (file, bytes, state) in records() {
        assert_eq!(RecordState::decode(&bytes), Ok(state), "{file}");
    }
}

#[test]
fn this_version_writes_the_formats_byte_for_byte() {
    let mut written = Vec::new();
    written.extend(locks().into_iter().map(|(file, bytes, state)| (file, bytes, state.encode())));
    written.extend(records().into_iter().map(|(file, bytes, state)| (file, bytes, state.encode())));
    let mut wrong = String::new();
    for (file, bytes, encoded) in written {
        let encoded = encoded.expect("a state that can be written");
        if encoded != bytes {
            wrong += &format!("{file}.hex would be:\n{}", format_hex(&encoded));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
