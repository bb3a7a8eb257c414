//! Goal: a run ends once, and stays ended as it ended.
//!
//! Method: see the module above.

use std::sync::Arc;

use bytes::Bytes;
use keylatch_core::idempotency::{
    AbandonReply, Answer, EraseReply, ResolveReply, RunEnd, RunRenewal, StoredResponse,
    UnknownReason,
};
use keylatch_core::lock::FencingToken;
use keylatch_testkit::{Records, store_test};

use super::{
    LEASE, RETENTION, UNKNOWN, abandon, answer, ask, assert_ended, assert_near, assert_same, begin,
    complete, done, extend, find, found, found_now, kept, key, refused, rerun, resolve, started,
    unknown,
};

const REASONS: [UnknownReason; 4] = [
    UnknownReason::Interrupted,
    UnknownReason::Failed,
    UnknownReason::Panicked,
    UnknownReason::NoAnswer,
];

#[store_test(records)]
async fn completed_run_is_found_and_not_restarted(store: &Records) {
    let run = started(begin(store, &ask(1, "one")).await);
    store.advance(LEASE / 2).await;
    let view = kept(complete(store, 1, "one", done("a")).await);
    assert_eq!((view.fencing_token, view.attempts), (run.fencing_token, 1));
    assert_near(view.expires_in, RETENTION);
    assert_ended(&view, &done("a"));
    for token in ["one", "two"] {
        assert_same(&found(begin(store, &ask(1, token)).await), &view);
    }
    assert_same(&found_now(store, 1).await, &view);
    // The lease is not the retention.
    store.advance(RETENTION / 2).await;
    let later = found(begin(store, &ask(1, "two")).await);
    assert_ended(&later, &done("a"));
    assert_near(later.expires_in, RETENTION / 2);
}

#[store_test(records)]
async fn unknown_outcome_keeps_its_reason(store: &Records) {
    for (key, reason) in (1..).zip(REASONS) {
        started(begin(store, &rerun(key, "one")).await);
        let view = kept(complete(store, key, "one", unknown(reason)).await);
        assert_ended(&view, &unknown(reason));
        assert_near(view.expires_in, UNKNOWN);
        assert_same(&found(begin(store, &rerun(key, "two")).await), &view);
        assert_same(&kept(complete(store, key, "one", unknown(reason)).await), &view);
    }
}

#[store_test(records)]
async fn responses_are_returned_unchanged(store: &Records) {
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let mut large = bytes.repeat(4096);
    large.truncate(store.profile().limits.answer_bytes);
    let headers = vec![
        ("set-thing".to_owned(), Bytes::from_static(b"one")),
        ("set-thing".to_owned(), Bytes::from_static(b"two")),
        ("x-binary".to_owned(), Bytes::from(bytes.clone())),
        ("x-empty".to_owned(), Bytes::new()),
    ];
    let answer = |status, headers, body| {
        StoredResponse::Answer(Arc::new(Answer { status, headers, body: Bytes::from(body) }))
    };
    let answers = [
        answer(200, Vec::new(), Vec::new()),
        answer(201, headers, bytes.clone()),
        answer(422, Vec::new(), b"\r\n$-1\r\n".to_vec()),
        answer(303, Vec::new(), large),
        StoredResponse::Mark(200),
        StoredResponse::Mark(503),
    ];
    for (key, answer) in (1..).zip(answers) {
        let end = RunEnd::Done(answer);
        started(begin(store, &ask(key, "one")).await);
        assert_ended(&kept(complete(store, key, "one", end.clone()).await), &end);
        assert_ended(&found_now(store, key).await, &end);
        let replay = found(begin(store, &ask(key, "two")).await);
        assert_ended(&replay, &end);
    }
}

#[store_test(records)]
async fn repeated_completion_is_the_same_completion(store: &Records) {
    started(begin(store, &ask(1, "one")).await);
    kept(complete(store, 1, "one", done("a")).await);
    store.advance(LEASE * 2).await;
    let again = kept(complete(store, 1, "one", done("a")).await);
    assert_ended(&again, &done("a"));
    // The retention counts from the first time.
    assert_near(again.expires_in, RETENTION - LEASE * 2);
}

/// A store may keep no more than a summary of a long answer at hand.
#[store_test(records)]
async fn long_answers_are_compared_and_replayed_byte_for_byte(store: &Records) {
    let long = |last: u8| {
        let mut body = vec![b'a'; 8 * 1024];
        body.push(last);
        let (headers, body) = (Vec::new(), Bytes::from(body));
        StoredResponse::Answer(Arc::new(Answer { status: 201, headers, body }))
    };
    let (one, two) = (RunEnd::Done(long(1)), RunEnd::Done(long(2)));
    for (key, reason) in [(1, None), (2, Some(UnknownReason::Failed))] {
        started(begin(store, &ask(key, "one")).await);
        if let Some(reason) = reason {
            kept(complete(store, key, "one", unknown(reason)).await);
            let resolved = resolve(store, key, None, Some(long(1))).await;
            assert!(matches!(resolved, ResolveReply::Completed(_)), "{resolved:?}");
        }
        let view = kept(complete(store, key, "one", one.clone()).await);
        assert_ended(&view, &one);
        assert_same(&kept(complete(store, key, "one", one.clone()).await), &view);
        assert_same(&refused(complete(store, key, "one", two.clone()).await), &view);
        let again = resolve(store, key, None, Some(long(1))).await;
        assert!(matches!(&again, ResolveReply::Completed(told) if told.phase == view.phase));
        let other = resolve(store, key, None, Some(long(2))).await;
        assert!(matches!(&other, ResolveReply::Refused(told) if told.phase == view.phase));
        assert_same(&found(begin(store, &ask(key, "two")).await), &view);
        assert_same(&found_now(store, key).await, &view);
        assert!(matches!(store.erase(&super::key(key)).await, Ok(EraseReply::Done(_))));
        let erased = RunEnd::Done(StoredResponse::Mark(201));
        assert_ended(&found(begin(store, &ask(key, "two")).await), &erased);
    }
}

#[store_test(records)]
async fn other_completion_is_refused(store: &Records) {
    let ends = [
        done("a"),
        done("b"),
        RunEnd::Done(StoredResponse::Mark(200)),
        unknown(UnknownReason::Failed),
    ];
    for (key, first) in (1..).zip(&ends) {
        started(begin(store, &ask(key, "one")).await);
        let view = kept(complete(store, key, "one", first.clone()).await);
        for other in ends.iter().filter(|end| *end != first) {
            let told = refused(complete(store, key, "one", other.clone()).await);
            assert_same(&told, &view);
        }
        assert_same(&refused(complete(store, key, "two", first.clone()).await), &view);
        assert_same(&found_now(store, key).await, &view);
    }
}

#[store_test(records)]
async fn ended_run_is_neither_abandoned_nor_extended(store: &Records) {
    for (key, end) in (1..).zip([done("a"), unknown(UnknownReason::Failed)]) {
        started(begin(store, &ask(key, "one")).await);
        let view = kept(complete(store, key, "one", end).await);
        let AbandonReply::Refused(told) = abandon(store, key, "one").await else {
            panic!("refused")
        };
        assert_same(&told, &view);
        assert_eq!(extend(store, key, "one").await, RunRenewal::Lost);
        assert_same(&found_now(store, key).await, &view);
    }
}

#[store_test(records)]
async fn unknown_outcome_is_resolved_by_a_response(store: &Records) {
    // One that was interrupted, and one that says so itself.
    started(begin(store, &ask(1, "one")).await);
    store.advance(LEASE).await;
    started(begin(store, &ask(2, "one")).await);
    kept(complete(store, 2, "one", unknown(UnknownReason::Panicked)).await);
    for key in [1, 2] {
        let fencing_token = found_now(store, key).await.fencing_token;
        let ResolveReply::Completed(view) =
            resolve(store, key, Some(fencing_token), Some(answer("a"))).await
        else {
            panic!("key {key} is completed")
        };
        assert_ended(&view, &done("a"));
        assert_near(view.expires_in, RETENTION);
        assert_eq!((view.fencing_token, view.attempts), (fencing_token, 1));
        assert_same(&found(begin(store, &ask(key, "two")).await), &view);
        // The operator and the caller of the run may complete it again with the same answer.
        store.advance(LEASE).await;
        for fencing_token in [None, Some(fencing_token)] {
            let again = resolve(store, key, fencing_token, Some(answer("a"))).await;
            let ResolveReply::Completed(again) = again else { panic!("completed") };
            assert_near(again.expires_in, RETENTION - LEASE);
        }
        assert_ended(&kept(complete(store, key, "one", done("a")).await), &done("a"));
    }
}

#[store_test(records)]
async fn unknown_outcome_is_resolved_as_not_executed(store: &Records) {
    started(begin(store, &ask(1, "one")).await);
    store.advance(LEASE).await;
    let first = found_now(store, 1).await.fencing_token;
    assert_eq!(resolve(store, 1, Some(first), None).await, ResolveReply::Freed(first));
    assert_eq!(find(store, 1).await, None);
    assert_eq!(resolve(store, 1, Some(first), None).await, ResolveReply::Absent);
    let next = started(begin(store, &ask(1, "two")).await);
    assert_eq!(next.attempts, 1);
    assert!(next.fencing_token > first);
}

#[store_test(records)]
async fn only_an_unknown_outcome_can_be_resolved(store: &Records) {
    started(begin(store, &ask(1, "one")).await);
    started(begin(store, &ask(2, "one")).await);
    kept(complete(store, 2, "one", done("a")).await);
    for key in [1, 2] {
        let view = found_now(store, key).await;
        for end in [None, Some(answer("b")), Some(StoredResponse::Mark(200))] {
            let told = resolve(store, key, Some(view.fencing_token), end).await;
            let ResolveReply::Refused(told) = told else { panic!("refused, not {told:?}") };
            assert_same(&told, &view);
        }
        assert_same(&found_now(store, key).await, &view);
    }
}

#[store_test(records)]
async fn answer_is_erased_and_its_key_stays_used(store: &Records) {
    started(begin(store, &ask(1, "one")).await);
    let in_flight = found_now(store, 1).await;
    let EraseReply::Refused(told) = store.erase(&key(1)).await.unwrap() else { panic!("refused") };
    assert_same(&told, &in_flight);
    let before = kept(complete(store, 1, "one", done("a")).await);
    store.advance(LEASE).await;
    for _ in 0..2 {
        let erased = store.erase(&key(1)).await.unwrap();
        let EraseReply::Done(view) = erased else { panic!("erased, not {erased:?}") };
        assert_ended(&view, &RunEnd::Done(StoredResponse::Mark(200)));
        assert_near(view.expires_in, RETENTION - LEASE);
        assert_eq!((view.fencing_token, view.attempts), (before.fencing_token, before.attempts));
        assert_same(&found(begin(store, &ask(1, "two")).await), &view);
    }
    assert_eq!(store.erase(&key(2)).await.unwrap(), EraseReply::Absent);
}

#[store_test(records)]
async fn resolution_needs_the_fencing_token_of_its_run(store: &Records) {
    started(begin(store, &ask(1, "one")).await);
    let view = kept(complete(store, 1, "one", unknown(UnknownReason::Failed)).await);
    for fencing_token in [view.fencing_token.get() - 1, view.fencing_token.get() + 1, 0] {
        for end in [None, Some(answer("a"))] {
            let told = resolve(store, 1, Some(FencingToken::new(fencing_token)), end).await;
            let ResolveReply::Refused(told) = told else { panic!("refused, not {told:?}") };
            assert_same(&told, &view);
        }
    }
    assert_same(&found_now(store, 1).await, &view);
    let done = resolve(store, 1, None, Some(answer("a"))).await;
    assert!(matches!(done, ResolveReply::Completed(_)), "{done:?}");
    let wrong = resolve(store, 1, Some(FencingToken::new(1)), Some(answer("a"))).await;
    assert!(matches!(wrong, ResolveReply::Refused(_)), "{wrong:?}");
}
