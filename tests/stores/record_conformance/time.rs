//! Goal: leases, retention and sweeps end what has to end, and nothing else.
//!
//! Method: see the module above.

use std::time::Duration;

use keylatch_core::idempotency::{AbandonReply, BeginCommand, RunRenewal, UnknownReason};
use keylatch_testkit::{Records, store_test};

use std::mem::discriminant;

use super::{
    LEASE, RETENTION, SLACK, UNKNOWN, abandon, ask, assert_near, assert_same, assert_wall, begin,
    complete, done, end_of, ended_at, extend, find, found, found_now, kept, lease_of, refused,
    started, unknown,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[store_test(records)]
async fn expired_run_is_an_unknown_outcome(store: &Records) {
    let run = started(begin(store, &ask(1, "one")).await);
    store.advance(LEASE - SLACK).await;
    lease_of(&found(begin(store, &ask(1, "two")).await));
    store.advance(SLACK + DAY).await;
    let view = found_now(store, 1).await;
    assert_eq!(end_of(&view), unknown(UnknownReason::Interrupted));
    assert_wall(ended_at(&view), DAY);
    assert_near(view.expires_in, UNKNOWN - DAY);
    assert_eq!((view.fencing_token, view.attempts), (run.fencing_token, 1));
    for token in ["one", "two"] {
        assert_same(&found(begin(store, &ask(1, token)).await), &view);
    }
    // The caller of the run was away for too long.
    assert_same(&refused(complete(store, 1, "one", done("a")).await), &view);
    assert_eq!(extend(store, 1, "one").await, RunRenewal::Lost);
    let AbandonReply::Refused(told) = abandon(store, 1, "one").await else { panic!("refused") };
    assert_same(&told, &view);
    assert_same(&found_now(store, 1).await, &view);
}

#[store_test(records)]
async fn zero_retention_keeps_nothing(store: &Records) {
    started(begin(store, &BeginCommand { retention: Duration::ZERO, ..ask(1, "one") }).await);
    kept(complete(store, 1, "one", done("a")).await);
    store.advance(SLACK).await;
    assert_eq!(find(store, 1).await, None);
}

#[store_test(records)]
async fn sweep_keeps_unexpired_records(store: &Records) {
    for key in 0..60 {
        started(begin(store, &ask(key, "one")).await);
        match key % 3 {
            0 => drop(kept(complete(store, key, "one", done("a")).await)),
            1 => drop(kept(complete(store, key, "one", unknown(UnknownReason::Failed)).await)),
            _ => {}
        }
    }
    for pass in [LEASE, RETENTION, UNKNOWN] {
        store.advance(pass).await;
        let mut before = Vec::new();
        for key in 0..60 {
            before.push(find(store, key).await);
        }
        store.pass_a_sweep().await;
        for (key, before) in (0..60).zip(before) {
            let status = |view: keylatch_core::idempotency::RecordView| {
                (view.fencing_token, view.attempts, discriminant(&view.phase))
            };
            assert_eq!(find(store, key).await.map(status), before.map(status), "{key}");
        }
    }
    assert_eq!(find(store, 1).await, None);
}
