//! The bytes of a lock's or a record's state, as a store keeps them: what is read is written and
//! read again as the same, and the rules take it.
//!
//! A store reads what another program wrote, or what a disk damaged, so no input may end the
//! process.

#![no_main]

use std::time::Duration;

use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{RecordCommand, RecordKey, RecordState};
use keylatch_core::lock::{
    AcquireCommand, Attempt, FencingToken, LockCommand, LockName, LockState, Moment, TokenHash, Ttl,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(state) = LockState::decode(bytes) {
        let written = state.encode().expect("what was read can be written");
        assert_eq!(LockState::decode(&written).as_ref(), Ok(&state));
        step(&state);
    }
    if let Ok(state) = RecordState::decode(bytes) {
        let written = state.encode().expect("what was read can be written");
        assert_eq!(RecordState::decode(&written).as_ref(), Ok(&state));
        let key = RecordKey::from_bytes([7; 32]);
        let _ = state.apply(&key, &RecordCommand::Look, &moment());
        let _ = state.apply(&key, &RecordCommand::Renew { token: token() }, &moment());
    }
});

fn step(state: &LockState) {
    let name = LockName::parse("a").unwrap();
    let acquire = AcquireCommand::new(token(), Ttl::MAX, Attempt::new(1));
    let acquire = AcquireCommand { queue: Some(Duration::from_secs(1)), ..acquire };
    let (after, _) = state.apply(&name, &LockCommand::Acquire(acquire), &moment());
    let (after, _) = after.apply(&name, &LockCommand::Look, &moment());
    let (after, _) = after.apply(&name, &LockCommand::LookAtQueue, &moment());
    let (after, _) = after.apply(&name, &LockCommand::Recall, &moment());
    let release = LockCommand::Release { token: token(), entry: None };
    let _ = after.apply(&name, &release, &moment());
}

fn token() -> TokenHash {
    TokenHash::from_bytes([7; 32])
}

fn moment() -> Moment {
    let (now, unix_micros) = (Duration::from_secs(1_000), 1_800_000_000_000_000);
    let last_fencing_token = FencingToken::new(unix_micros);
    Moment { now, unix_micros, least_micros: unix_micros, last_fencing_token, ..Moment::default() }
}
