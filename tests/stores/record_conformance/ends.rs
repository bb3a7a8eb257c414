//! Goal: a run ends once, and stays ended as it ended.
//!
//! Method: see the module above.

use std::sync::Arc;

use bytes::Bytes;
use keylatch_core::idempotency::{
    Answer, EraseReply, ResolveReply, RunEnd, SealedAnswer, SentOn, StoredResponse, UnknownReason,
};
use keylatch_testkit::{Records, store_test};

use super::{
    UNKNOWN, ask, assert_ended, assert_near, assert_same, begin, complete, found, found_now, kept,
    refused, rerun, resolve, started, unknown,
};

const REASONS: [UnknownReason; 5] = [
    UnknownReason::Interrupted,
    UnknownReason::Failed,
    UnknownReason::Panicked,
    UnknownReason::NoAnswer,
    UnknownReason::Reported,
];

#[store_test(records)]
async fn unknown_outcome_keeps_its_reason(store: &Records) {
    let sent = SentOn { status: Some(502), request_id: Some("abc-1".to_owned()) };
    let sent = RunEnd::SentOn(UnknownReason::Failed, Arc::new(sent));
    for (key, end) in (1..).zip(REASONS.map(unknown).into_iter().chain([sent])) {
        started(begin(store, &rerun(key, "one")).await);
        let view = kept(complete(store, key, "one", end.clone()).await);
        assert_ended(&view, &end);
        assert_near(view.expires_in, UNKNOWN);
        assert_same(&found(begin(store, &rerun(key, "two")).await), &view);
        assert_same(&kept(complete(store, key, "one", end).await), &view);
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
    let sealed = |status, bytes| {
        let (key_id, bytes) = ("2026-01".to_owned(), Bytes::from(bytes));
        StoredResponse::Sealed(Arc::new(SealedAnswer { status, key_id, bytes }))
    };
    let answers = [
        answer(200, Vec::new(), Vec::new()),
        answer(201, headers, bytes.clone()),
        answer(422, Vec::new(), b"\r\n$-1\r\n".to_vec()),
        answer(303, Vec::new(), large.clone()),
        sealed(201, bytes),
        sealed(303, large),
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
