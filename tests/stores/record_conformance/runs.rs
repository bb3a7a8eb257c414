//! Goal: one request at a time runs under a key.
//!
//! Method: see the module above.

use std::collections::BTreeSet;
use std::time::SystemTime;

use futures_util::future::join_all;
use keylatch_core::idempotency::{AbandonReply, BeginCommand, BeginReply, RecordKey};
use keylatch_core::lock::FencingToken;
use keylatch_testkit::{Records, store_test};

use super::{LEASE, RETENTION, SLACK, abandon, ask, begin, complete, done, kept, rerun, started};

#[store_test(records)]
async fn fencing_tokens_of_runs_rise_and_fit_in_53_bits(store: &Records) {
    let before = SystemTime::UNIX_EPOCH.elapsed().unwrap() - SLACK;
    let mut last = FencingToken::new(u64::try_from(before.as_micros()).unwrap());
    for round in 0..30 {
        let run = started(begin(store, &rerun(1, "one")).await);
        assert!(run.fencing_token > last, "{last} then {}", run.fencing_token);
        assert!(
            run.fencing_token.get() < 1 << 53,
            "{} is too large for JavaScript",
            run.fencing_token
        );
        last = run.fencing_token;
        match round % 3 {
            0 => assert_eq!(abandon(store, 1, "one").await, AbandonReply::Done(())),
            1 => store.advance(LEASE).await,
            _ => {
                kept(complete(store, 1, "one", done("a")).await);
                store.advance(RETENTION).await;
            }
        }
    }
}

#[store_test(records)]
async fn one_of_many_concurrent_begins_starts(store: &Records) {
    let asks: Vec<_> = (0..100).map(|n| ask(1, &format!("token {n}"))).collect();
    let answers = join_all(asks.iter().map(|ask| store.begin(ask))).await;
    let starts = answers.iter().filter(|answer| matches!(answer, Ok(BeginReply::Started(_))));
    assert_eq!(starts.count(), 1);
    assert!(answers.iter().all(Result::is_ok));
}

#[store_test(records)]
async fn keys_that_differ_in_one_bit_are_different_records(store: &Records) {
    let flipped = |bit: usize| {
        let mut bytes = [0; 32];
        bytes[bit / 8] = 1 << (bit % 8);
        RecordKey::from_bytes(bytes)
    };
    let mut fences = BTreeSet::new();
    for bit in 0..256 {
        let run = started(begin(store, &BeginCommand { key: flipped(bit), ..ask(0, "one") }).await);
        fences.insert((run.fencing_token, bit));
    }
    for (fencing_token, bit) in fences {
        let view = store.find(&flipped(bit)).await.unwrap().expect("it is in flight");
        assert_eq!(view.fencing_token, fencing_token);
    }
}
