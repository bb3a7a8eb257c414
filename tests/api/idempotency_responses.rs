//! Goal: final responses are stored, transient ones free the key, and the rest leaves an unknown
//! outcome that a person can resolve.
//!
//! Method: an upstream that answers with every kind of response, on each store.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use futures_util::stream;
use keylatch_testkit::{Answer, ReceivedRequest, Shop, TestStore, created, soon, store_test};
use serde_json::json;
use tokio::sync::mpsc;

const FINAL: [u16; 34] = [
    200, 201, 202, 203, 204, 205, 206, 226, 300, 301, 302, 303, 304, 305, 307, 308, 402, 404, 405,
    406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 423, 424, 428, 451,
];
const RELEASED: [u16; 10] = [400, 401, 403, 407, 408, 421, 422, 425, 426, 429];
const FAILED: [u16; 7] = [500, 501, 502, 503, 504, 507, 599];

/// An answer with this status, whose body is the number of the run where it may have one.
fn with_status(status: u16) -> impl Fn(ReceivedRequest) -> Response<Body> {
    move |seen| {
        let empty = [204, 205, 304].contains(&status);
        let body = if empty { Body::empty() } else { Body::from(seen.run.to_string()) };
        Response::builder().status(status).body(body).expect("an answer")
    }
}

#[store_test(memory)]
async fn final_responses_are_stored(shop: &Shop) {
    for (number, status) in (1..).zip(FINAL) {
        shop.upstream.answers(with_status(status));
        let key = format!("k-{status}");
        let first = shop.buy(&key).await;
        assert_eq!(first.status.as_u16(), status, "{first:?}");
        assert_eq!(first.header("idempotent-replayed"), "", "{first:?}");
        for _ in 0..2 {
            let repeat = shop.buy(&key).await;
            assert_eq!((repeat.status.as_u16(), &repeat.text), (status, &first.text));
            assert_eq!(repeat.header("idempotent-replayed"), "true", "{repeat:?}");
        }
        assert_eq!(shop.upstream.runs(), number, "{status}");
        let record = shop.record(&key).await;
        assert_eq!((&record["state"], &record["status"]), (&json!("done"), &json!(status)));
        assert_eq!(record["answer_kept"], true);
    }
}

#[store_test(memory)]
async fn transient_responses_free_the_key(shop: &Shop) {
    for status in RELEASED {
        let key = format!("k-{status}");
        let before = shop.upstream.runs();
        shop.upstream.answers(with_status(status));
        for run in 1..=2 {
            let answer = shop.buy(&key).await;
            assert_eq!(answer.status.as_u16(), status, "{answer:?}");
            assert_eq!(answer.text, (before + run).to_string());
            assert_eq!(answer.header("idempotency-key-expires"), "", "{answer:?}");
            assert!(shop.record(&key).await.is_null());
        }
        // Nothing was done, so even another request may have the key now.
        shop.upstream.answers(|seen| created(seen.run));
        Answer::of(shop.order(&key).body("{}")).await.is_run(before + 3);
        Answer::of(shop.order(&key).body("{}")).await.is_replay_of(before + 3);
    }
}

#[store_test(memory)]
async fn server_error_is_an_unknown_outcome(shop: &Shop) {
    for (run, status) in (1..).zip(FAILED) {
        shop.upstream.answers(with_status(status));
        let key = format!("k-{status}");
        let first = shop.buy(&key).await;
        // The first one reads what the upstream says.
        assert_eq!((first.status.as_u16(), first.text), (status, run.to_string()));
        for _ in 0..2 {
            let repeat = shop.buy(&key).await;
            repeat.is_refusal(409, "outcome-unknown", "never");
            assert_eq!(repeat.header("retry-after"), "", "{repeat:?}");
        }
        let record = shop.record(&key).await;
        let reason = if status == 504 { "no-answer" } else { "failed" };
        assert_eq!((&record["state"], &record["reason"]), (&json!("unknown"), &json!(reason)));
        assert_eq!(shop.upstream.runs(), run);
    }
}

/// The service that says when to come again has not begun.
#[store_test(memory)]
async fn unavailable_service_that_says_when_frees_the_key(shop: &Shop) {
    for (run, status) in (1..).zip([503, 500, 502, 504]) {
        shop.upstream.answers(move |_| {
            let answer = Response::builder().status(status).header("Retry-After", "7");
            answer.body(Body::empty()).expect("an answer")
        });
        let key = format!("k-{status}");
        let first = shop.buy(&key).await;
        assert_eq!((first.status.as_u16(), first.header("retry-after")), (status, "7"));
        let state = shop.record(&key).await["state"].clone();
        assert_eq!(state, if status == 503 { json!(null) } else { json!("unknown") }, "{status}");
        assert_eq!(shop.upstream.runs(), run);
    }
    shop.upstream.answers(|seen| created(seen.run));
    shop.buy("k-503").await.is_run(5);
    shop.buy("k-503").await.is_replay_of(5);
}

#[tokio::test]
async fn guard_says_what_each_server_error_comes_to() {
    use keylatch_axum::{FailurePolicy, OnFailure};
    let release: FailurePolicy = OnFailure::Release.into();
    let unknown: FailurePolicy = OnFailure::Unknown.into();
    for (policy, freed) in [
        (unknown.clone().with_status(503, OnFailure::Release), vec![503]),
        (release.clone().with_status(500, OnFailure::Unknown), FAILED[1..].to_vec()),
        (release, FAILED.to_vec()),
        (unknown, vec![]),
    ] {
        let shop = Shop::open_with("memory:", |guard| guard.on_failure = policy).await;
        for status in FAILED {
            shop.upstream.answers(with_status(status));
            let key = format!("k-{status}");
            assert_eq!(shop.buy(&key).await.status.as_u16(), status);
            assert_eq!(shop.record(&key).await.is_null(), freed.contains(&status), "{status}");
        }
    }
    let kept = FailurePolicy::from(OnFailure::Unknown).with_status(503, OnFailure::Unknown);
    let shop = Shop::open_with("memory:", |guard| guard.on_failure = kept).await;
    shop.upstream.answers(|_| {
        let answer = Response::builder().status(503).header("Retry-After", "7");
        answer.body(Body::empty()).expect("an answer")
    });
    shop.buy("k-1").await;
    assert_eq!(shop.record("k-1").await["state"], "unknown", "the guard says so");
}

#[store_test(memory)]
async fn oversized_response_passes_and_leaves_a_marker(store: &TestStore) {
    const LIMIT: usize = 64 * 1024;
    let shop = Shop::open_with(store.url(), |guard| guard.response_limit_bytes = LIMIT).await;
    let whole: Bytes = (0..=255).cycle().take(4 * 1024 * 1024).collect();
    for (run, length) in (1..).zip([LIMIT + 1, whole.len()]) {
        for (run, chunk) in (2 * run - 1..).zip([length, 1000]) {
            let body = whole.slice(..length);
            let answered = body.clone();
            shop.upstream.answers(move |_| {
                let whole = (chunk == answered.len()).then(|| Body::from(answered.clone()));
                let body = whole.unwrap_or_else(|| in_chunks(&answered, chunk));
                Response::builder()
                    .status(202)
                    .header("ETag", "\"a\"")
                    .header("Location", "/orders/17")
                    .header("Content-Type", "image/png")
                    .body(body)
                    .expect("an answer")
            });
            let key = format!("k-{run}");
            let first = shop.order(&key).send().await.expect("an answer");
            assert_eq!(
                (first.status().as_u16(), &first.headers()["etag"]),
                (202, &"\"a\"".parse().expect("a value"))
            );
            assert!(first.bytes().await.expect("the whole body") == body, "{length} in {chunk}");
            let repeat = leaves_a_mark(&shop, &key, 202).await;
            assert_eq!((repeat.header("location"), repeat.header("etag")), ("/orders/17", "\"a\""));
            assert_eq!(shop.upstream.runs(), run);
        }
    }
}

#[store_test(memory)]
async fn response_at_the_limit_is_stored(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| guard.response_limit_bytes = 5000).await;
    for chunk in [5000, 1000] {
        shop.upstream.answers(move |_| in_chunks(&Bytes::from_static(&[b'x'; 5000]), chunk));
        let key = format!("k-{chunk}");
        let (first, repeat) = (shop.buy(&key).await, shop.buy(&key).await);
        assert_eq!((first.text.len(), first.text), (5000, repeat.text));
    }
    assert_eq!(shop.upstream.runs(), 2);
}

#[store_test(memory)]
async fn streamed_response_passes_and_leaves_a_marker(shop: &Shop) {
    let kinds = ["text/event-stream", "Text/Event-Stream; charset=utf-8", "application/x-ndjson"];
    for (run, kind) in (1..).zip(kinds) {
        let events = streams(shop, kind);
        let key = format!("k-{run}");
        let mut first = soon("the head", shop.order(&key).send()).await.expect("an answer");
        assert_eq!(first.status(), 200);
        for event in ["one", "two", "three"] {
            events.send(event).await.expect("the stream is open");
            let chunk = soon("the event", first.chunk()).await.expect("a chunk");
            assert_eq!(chunk.as_deref(), Some(event.as_bytes()));
            leaves_a_mark(shop, &key, 200).await;
        }
        drop(events);
        shop.upstream.answers(|seen| created(seen.run));
        assert_eq!(soon("the end", first.chunk()).await.expect("the end"), None);
        leaves_a_mark(shop, &key, 200).await;
        assert_eq!(shop.upstream.runs(), run);
    }
}

#[store_test(memory)]
async fn abandoned_stream_is_not_rerun(shop: &Shop) {
    let events = streams(shop, "text/event-stream");
    let mut first = soon("the head", shop.order("k-1").send()).await.expect("an answer");
    events.send("one").await.expect("the stream is open");
    assert_eq!(first.chunk().await.expect("a chunk").as_deref(), Some(&b"one"[..]));
    drop(first);
    // The work behind it may continue: its answer is still read.
    for _ in 0..1000 {
        soon("room", events.send("more")).await.expect("the stream is open");
    }
    leaves_a_mark(shop, "k-1", 200).await;
    assert_eq!(shop.upstream.runs(), 1);
}

#[store_test(memory)]
async fn resolving_response_is_replayed_as_any_other(shop: &Shop) {
    shop.upstream.answers(|_| StatusCode::INTERNAL_SERVER_ERROR);
    let headers = json!({
        "Content-Length": "3", "Transfer-Encoding": "chunked", "Connection": "close",
        "Date": "a", "Set-Cookie": "a=b", "X-Request-Id": "a", "ETag": "\"a\"",
    });
    for (status, body) in [(201, "a longer body"), (204, ""), (303, "see there")] {
        let key = format!("k-{status}");
        assert_eq!(shop.buy(&key).await.status, 500);
        let answer = json!({"status": status, "headers": headers, "body": body});
        let outcome = json!({"outcome": "completed", "answer": answer});
        let path = format!("/v1/idempotency/{key}/resolve?method=POST&path=/orders");
        let resolved = Answer::of(shop.request(reqwest::Method::POST, &path).json(&outcome)).await;
        assert_eq!(resolved.status, 200, "{resolved:?}");
        for _ in 0..2 {
            let repeat = shop.buy(&key).await;
            assert_eq!((repeat.status.as_u16(), &*repeat.text), (status, body), "{repeat:?}");
            assert_eq!(repeat.header("etag"), "\"a\"");
            for name in ["set-cookie", "transfer-encoding", "connection"] {
                assert_eq!(repeat.header(name), "", "{repeat:?}");
            }
            assert_ne!((repeat.header("date"), repeat.header("x-request-id")), ("a", "a"));
        }
    }
}

#[store_test(memory)]
async fn unknown_outcome_is_resolved_by_a_rerun(shop: &Shop) {
    shop.upstream.answers(with_status(500));
    assert_eq!(shop.buy("k-1").await.status, 500);
    let fencing_token = |seen: &ReceivedRequest| {
        seen.headers["idempotency-fence"].to_str().ok()?.parse::<u64>().ok()
    };
    let before = fencing_token(&shop.upstream.last()).expect("a fence");
    let path = "/v1/idempotency/k-1/resolve?method=post&path=/orders/";
    let outcome = json!({"outcome": "not-executed", "fencing_token": before});
    let resolved = Answer::of(shop.request(reqwest::Method::POST, path).json(&outcome)).await;
    assert_eq!(resolved.status, 204, "{resolved:?}");
    shop.upstream.answers(|seen| created(seen.run));
    shop.buy("k-1").await.is_run(2);
    assert!(fencing_token(&shop.upstream.last()).expect("a fence") > before);
    shop.buy("k-1").await.is_replay_of(2);
}

/// Asserts that a repeat reads that the work was done and what came of it without its body, and is
/// not run.
async fn leaves_a_mark(shop: &Shop, key: &str, status: u16) -> Answer {
    let runs = shop.upstream.runs();
    let repeat = shop.buy(key).await;
    assert_eq!((repeat.status.as_u16(), &*repeat.text), (status, ""), "{repeat:?}");
    assert_eq!(repeat.header("idempotent-replayed"), "true", "{repeat:?}");
    assert_eq!(repeat.header("idempotent-body"), "not-kept", "{repeat:?}");
    assert_eq!(repeat.header("content-type"), "", "{repeat:?}");
    assert_ne!(repeat.header("idempotency-key-expires"), "");
    let record = shop.record(key).await;
    assert_eq!((&record["state"], &record["status"]), (&json!("done"), &json!(status)));
    assert_eq!((&record["answer_kept"], shop.upstream.runs()), (&json!(false), runs));
    repeat
}

#[store_test(memory)]
async fn headers_of_a_response_count_against_its_limit(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| guard.response_limit_bytes = 5000).await;
    for (run, (header, body, is_kept)) in
        (1..).zip([(3000, 3000, "not-kept"), (3000, 1000, ""), (6000, 0, "problem")])
    {
        shop.upstream.answers(move |_| {
            let answer = Response::builder().status(201).header("X-Large", "x".repeat(header));
            answer.body(Body::from("y".repeat(body))).expect("an answer")
        });
        let key = format!("k-{run}");
        let first = shop.buy(&key).await;
        assert_eq!((first.header("x-large").len(), first.text.len()), (header, body));
        let repeat = shop.buy(&key).await;
        if is_kept == "problem" {
            repeat.is_refusal(409, "answer-not-kept", "never");
        } else {
            assert_eq!((repeat.status.as_u16(), repeat.header("x-large").len()), (201, header));
            assert_eq!(repeat.header("idempotent-body"), is_kept, "{repeat:?}");
        }
        assert_eq!(shop.upstream.runs(), run);
    }
}

fn in_chunks(body: &Bytes, chunk: usize) -> Body {
    let chunks: Vec<_> = body.chunks(chunk).map(Bytes::copy_from_slice).collect();
    Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, Infallible>)))
}

/// Lets the upstream answer once with a stream of what is sent into this.
fn streams(shop: &Shop, kind: &'static str) -> mpsc::Sender<&'static str> {
    let (sender, receiver) = mpsc::channel(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    shop.upstream.answers(move |_| {
        let receiver = receiver.lock().expect("the receiver").take().expect("the first run");
        let events = stream::unfold(receiver, |mut receiver| async {
            Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
        });
        let answer = Response::builder().status(StatusCode::OK).header("Content-Type", kind);
        answer.body(Body::from_stream(events)).expect("an answer")
    });
    sender
}
