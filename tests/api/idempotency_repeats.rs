//! Goal: a repeat gets the response of the first request, at once, after a wait, or later.
//!
//! Method: repeats before, during and after a run whose end the test decides, on each store.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse as _;
use futures_util::future::join_all;
use keylatch_testkit::{Answer, Shop, TestStore, created, soon, store_test};
use serde_json::json;

/// The headers that may differ between an answer and its replay.
const OWN: [&str; 6] = [
    "cache-control",
    "content-length",
    "date",
    "idempotency-key-expires",
    "idempotent-replayed",
    "x-request-id",
];

/// The headers by name, each with its values in order, without the `except`ed ones.
fn values(headers: &HeaderMap, except: &[&str]) -> BTreeMap<String, Vec<HeaderValue>> {
    let mut values: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| !except.contains(&name.as_str())) {
        values.entry(name.to_string()).or_default().push(value.clone());
    }
    values
}

#[store_test(service)]
async fn repeat_gets_the_same_response(shop: &Shop) {
    let body: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let answered = body.clone();
    shop.upstream.answers(move |_| {
        let answer = Response::builder()
            .status(202)
            .header("Content-Type", "image/png; q=\"a,b\"")
            .header("Location", "/orders/17?a=%20")
            .header("ETag", "W/\"17\"")
            .header("Cache-Control", "max-age=60")
            .header("Content-Language", "de")
            .header("Link", "</a>; rel=next")
            .header("Link", "</b>; rel=last")
            .header("Vary", "Accept")
            .header("Vary", "Origin")
            .header("X-Empty", "")
            .header("X-Binary", HeaderValue::from_bytes(b"\xff\xfe\x80").expect("a value"));
        answer.body(Body::from(answered.clone())).expect("an answer")
    });
    let first = shop.order("k-1").send().await.expect("an answer");
    let (status, headers) = (first.status(), first.headers().clone());
    assert_eq!((status.as_u16(), headers["cache-control"].as_bytes()), (202, &b"max-age=60"[..]));
    assert!(!headers.contains_key("idempotent-replayed"), "{headers:?}");
    assert_eq!(first.bytes().await.expect("a body"), body);
    for _ in 0..3 {
        let repeat = shop.order("k-1").send().await.expect("an answer");
        assert_eq!(repeat.status(), status);
        assert_eq!(repeat.headers()["idempotent-replayed"], "true");
        assert_eq!(values(repeat.headers(), &OWN), values(&headers, &OWN));
        let cache: Vec<_> = repeat.headers().get_all("cache-control").iter().collect();
        assert_eq!(cache, ["no-store"]);
        assert_eq!(repeat.headers()["content-length"], "70000");
        assert_eq!(repeat.bytes().await.expect("a body"), body);
    }
    assert_eq!(shop.upstream.runs(), 1);
}

#[store_test(memory)]
async fn response_without_a_body_is_replayed(shop: &Shop) {
    for status in [200, 204, 303] {
        shop.upstream.answers(move |_| {
            let answer = Response::builder().status(status).header("Location", "/orders/17");
            answer.body(Body::empty()).expect("an answer")
        });
        let key = format!("k-{status}");
        let (first, repeat) = (shop.buy(&key).await, shop.buy(&key).await);
        for answer in [&first, &repeat] {
            assert_eq!((answer.status.as_u16(), answer.text.as_str()), (status, ""), "{answer:?}");
        }
        assert_eq!(values(&first.headers, &OWN), values(&repeat.headers, &OWN));
        assert_eq!(repeat.header("idempotent-replayed"), "true");
    }
    assert_eq!(shop.upstream.runs(), 3);
}

#[store_test(memory)]
async fn connection_headers_are_not_replayed(shop: &Shop) {
    const ONCE: [&str; 12] = [
        "baggage",
        "server-timing",
        "set-cookie",
        "traceparent",
        "tracestate",
        "via",
        "x-amzn-trace-id",
        "x-b3-traceid",
        "x-cloud-trace-context",
        "x-correlation-id",
        "x-request-id",
        "date",
    ];
    const OF_THE_HOP: [&str; 6] =
        ["keep-alive", "proxy-authenticate", "te", "trailer", "upgrade", "x-hop"];
    shop.upstream.answers(|_| {
        let mut answer = Response::new(Body::from("paid"));
        for name in ONCE.iter().chain(&OF_THE_HOP) {
            answer.headers_mut().append(*name, HeaderValue::from_static("of-the-upstream"));
        }
        answer.headers_mut().append("set-cookie", HeaderValue::from_static("b=2"));
        answer.headers_mut().append("connection", HeaderValue::from_static("X-Hop, close"));
        answer
    });
    let (first, repeat) = (shop.buy("k-1").await, shop.buy("k-1").await);
    assert_eq!((&*first.text, &*repeat.text), ("paid", "paid"));
    assert_eq!(first.headers.get_all("set-cookie").iter().count(), 2, "{first:?}");
    assert_eq!(first.header("traceparent"), "of-the-upstream", "{first:?}");
    for name in ONCE.iter().chain(&OF_THE_HOP).chain(&["connection"]) {
        let value = repeat.header(name);
        assert!(["date", "x-request-id"].contains(name) || value.is_empty(), "{name}: {value}");
        assert_ne!(value, "of-the-upstream", "{name}");
    }
    for name in OF_THE_HOP {
        assert_eq!(first.header(name), "", "{name}");
    }
}

#[store_test(memory)]
async fn repeat_in_flight_gets_409_and_retry_after(shop: &Shop) {
    let first = shop.upstream.holding(shop.order("k-1")).await;
    for prefer in ["", "wait=0", "respond-async", "wait=soon"] {
        let repeat = Answer::of(shop.order("k-1").header("Prefer", prefer)).await;
        repeat.is_refusal(409, "request-in-progress", "same-key");
        assert_eq!(repeat.header("retry-after"), "1");
    }
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    shop.buy("k-1").await.is_replay_of(1);
    assert_eq!(shop.upstream.runs(), 1);
}

#[store_test(service)]
async fn waiting_repeat_gets_the_response(shop: &Shop) {
    let first = shop.upstream.holding(shop.order("k-1")).await;
    let prefers = ["wait=20", "respond-async, WAIT=\"20\"; a=b"];
    let repeats: Vec<_> = prefers
        .map(|prefer| tokio::spawn(Answer::of(shop.order("k-1").header("Prefer", prefer))))
        .into();
    shop.has_in_hand(3).await;
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    for repeat in join_all(repeats).await {
        let repeat = repeat.expect("an answer");
        repeat.is_replay_of(1);
        assert_eq!(repeat.header("preference-applied"), "wait=20");
    }
    assert_eq!(shop.upstream.runs(), 1);
}

#[store_test(memory)]
async fn waiting_repeat_times_out_with_409(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| guard.max_wait_ms = 1000).await;
    let first = shop.upstream.holding(shop.order("k-1")).await;
    let repeat = Answer::of(shop.order("k-1").header("Prefer", "wait=600"));
    let repeat = soon("the end of the wait", repeat).await;
    repeat.is_refusal(409, "request-in-progress", "same-key");
    assert_eq!(repeat.header("preference-applied"), "wait=1");
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
}

#[store_test(service)]
async fn waiting_repeat_runs_after_an_abandoned_run(shop: &Shop) {
    shop.upstream.answers(|seen| match seen.run {
        1 => StatusCode::TOO_MANY_REQUESTS.into_response(),
        run => created(run),
    });
    let first = shop.upstream.holding(shop.order("k-1")).await;
    let wait = || tokio::spawn(Answer::of(shop.order("k-1").header("Prefer", "wait=20")));
    let repeats: Vec<_> = (0..4).map(|_| wait()).collect();
    shop.has_in_hand(5).await;
    shop.upstream.resume();
    assert_eq!(first.await.expect("an answer").status, 429);
    let mut replays = 0;
    for repeat in join_all(repeats).await {
        let repeat = repeat.expect("an answer");
        assert_eq!((repeat.status.as_u16(), &repeat.json), (201, &json!({"run": 2})), "{repeat:?}");
        replays += usize::from(repeat.header("idempotent-replayed") == "true");
    }
    assert_eq!((shop.upstream.runs(), replays), (2, 3));
}

#[store_test(service)]
async fn waiting_repeats_block_no_other_request(shop: &Shop) {
    const REPEATS: usize = 200;
    let first = shop.upstream.holding(shop.order("k-1")).await;
    let wait = |_| tokio::spawn(Answer::of(shop.order("k-1").header("Prefer", "wait=30")));
    let repeats: Vec<_> = (0..REPEATS).map(wait).collect();
    shop.has_in_hand(1 + REPEATS).await;
    for name in ["a", "b", "c"] {
        assert_eq!(shop.create(name, &json!({})).await.status, 201);
    }
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
    for repeat in join_all(repeats).await {
        repeat.expect("an answer").is_replay_of(1);
    }
    assert_eq!(shop.upstream.runs(), 1);
}

#[store_test(memory)]
async fn guarded_response_names_the_expiry_of_its_key(store: &TestStore) {
    const RETENTION: Duration = Duration::from_secs(3600);
    let shop = Shop::open_with(store.url(), |guard| guard.retention_ms = Some(3_600_000)).await;
    let expires = |answer: &Answer| {
        let date = httpdate::parse_http_date(answer.header("idempotency-key-expires"));
        let at = date.unwrap_or_else(|_| panic!("no date in {answer:?}"));
        at.duration_since(SystemTime::now()).expect("a time to come")
    };
    let first = shop.upstream.holding(shop.order("k-1")).await;
    let other = Answer::of(shop.order("k-1").body("{}")).await;
    // What is not done yet is remembered for at least as long.
    for answer in [shop.buy("k-1").await, other] {
        assert!(expires(&answer) > RETENTION - Duration::from_secs(60), "{answer:?}");
    }
    shop.upstream.resume();
    let other = Answer::of(shop.order("k-1").body("{}"));
    for answer in [first.await.expect("an answer"), shop.buy("k-1").await, other.await] {
        let left = expires(&answer);
        assert!(left <= RETENTION && left > RETENTION - Duration::from_secs(60), "{answer:?}");
    }
    shop.upstream.answers(|_| StatusCode::INTERNAL_SERVER_ERROR);
    for _ in 0..2 {
        assert!(expires(&shop.buy("k-2").await) > 24 * RETENTION);
    }
}

#[store_test(service)]
async fn concurrent_repeats_run_once(shop: &Shop) {
    for round in 1..=5 {
        let key = format!("k-{round}");
        let answers = join_all((0..100).map(|number| {
            let prefer = if number % 2 == 0 { "wait=20" } else { "" };
            Answer::of(shop.order(&key).header("Prefer", prefer))
        }));
        for answer in answers.await {
            if answer.status == 409 {
                answer.is_refusal(409, "request-in-progress", "same-key");
            } else {
                assert_eq!(answer.json, json!({"run": round}), "{answer:?}");
            }
        }
        assert_eq!(shop.upstream.runs(), round);
    }
}
