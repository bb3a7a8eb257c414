//! Goal: what the Rust client says and ends is right where the program is blocked, forgets, panics
//! or exits.
//!
//! Method: the client against a service, on runtimes that are blocked or end.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use keylatch_client::{
    AcquireOptions, BeginReply, Client, Error, FOREVER, LossReason, OnceOptions, ProblemDocument,
    Response, Retry, StatusCode,
};
use keylatch_testkit::{Answer, Authority, Service, Upstream, eventually, raw_upstream, soon};
use keylatch_wire::Code;
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;

use crate::rust_client::{by_proxy, for_millis, guard, with_client};

#[tokio::test]
async fn blocked_runtime_hides_no_loss() {
    let (_service, client) = with_client().await;
    let guard = guard(&client, "a", &for_millis(1000)).await;
    let lost = guard.lost();
    let over = Instant::now() + guard.valid_for();
    // No task of this runtime runs meanwhile.
    while Instant::now() <= over {}
    assert_eq!(guard.loss(), Some(LossReason::Paused));
    assert!(lost.is_cancelled());
    let refused = guard.check().expect_err("the lease is over").to_string();
    assert_eq!(refused, "`a` is lost: the lease ended while this process was paused");
}

/// As a `?` does it at the end of `main`.
#[tokio::test]
async fn guard_dropped_as_its_runtime_ends_is_released() {
    let service = Service::start("memory:").await;
    let url = service.url();
    let main = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let client = Client::new(&url).expect("a URL");
            client.lock("a", &for_millis(60_000)).await.expect("it is free");
        });
    });
    soon("the end", main).await.expect("no panic");
    service.look("a").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn dropped_run_fails_at_once() {
    let (service, client) = with_client().await;
    let options = OnceOptions { lease: Duration::from_secs(600), ..OnceOptions::default() };
    let Ok(BeginReply::Begun(run)) = client.begin("mail-17", &options).await else {
        panic!("no run was before")
    };
    drop(run);
    soon("the end of the run", client.close()).await;
    let record = service.get("/v1/idempotency/mail-17").await;
    assert_eq!(
        (&record.json["state"], &record.json["reason"]),
        (&json!("unknown"), &json!("reported"))
    );
}

/// Nothing was done under it, so nobody has to find out.
#[tokio::test]
async fn run_that_began_unheard_frees_its_key() {
    for gives_up in [false, true] {
        let (service, proxy, _) = by_proxy().await;
        let client = Client::builder(&proxy.http_url()).timeout(Duration::from_secs(1));
        let client = client.build().expect("a URL");
        proxy.lose_answers();
        let beginner = client.clone();
        let begin = tokio::spawn(async move {
            beginner.begin("mail-17", &OnceOptions::default()).await.expect_err("no response")
        });
        let state = async || service.get("/v1/idempotency/mail-17").await;
        eventually(async || (state().await.status == 200).then_some(())).await;
        if !gives_up {
            begin.abort();
        }
        assert_eq!(begin.await.is_ok(), gives_up);
        proxy.forward();
        soon("the end of the run", client.close()).await;
        assert_eq!(state().await.status, 404, "gives up: {gives_up}");
    }
}

#[tokio::test]
async fn run_that_begins_late_in_a_wait_has_its_full_lease() {
    let (service, client) = with_client().await;
    let before = json!({"lease_ms": 5000, "on_crash": "rerun"});
    let begin = service.request(Method::POST, "/v1/idempotency/mail-17").json(&before);
    assert_eq!(Answer::of(begin).await.status, 201);
    let options = OnceOptions {
        lease: Duration::from_secs(4),
        wait: Duration::from_secs(20),
        ..OnceOptions::default()
    };
    let Ok(BeginReply::Begun(run)) = soon("the run", client.begin("mail-17", &options)).await
    else {
        panic!("the run before has ended")
    };
    assert_eq!(run.loss(), None);
}

#[tokio::test]
async fn run_whose_first_response_was_lost_counts_from_its_begin() {
    let (service, proxy, client) = by_proxy().await;
    proxy.lose_answers();
    let options = OnceOptions { lease: Duration::from_secs(600), ..OnceOptions::default() };
    let begin = tokio::spawn(async move { client.begin("mail-17", &options).await });
    eventually(async || (proxy.disturbed() >= 5).then_some(())).await;
    proxy.forward();
    let Ok(BeginReply::Begun(run)) = soon("the run", begin).await.expect("no panic") else {
        panic!("it is this client's")
    };
    let record = service.get("/v1/idempotency/mail-17").await;
    let left = record.json["lease_expires_in_ms"].as_u64().map(Duration::from_millis);
    assert!(left.is_some_and(|left| run.valid_for() <= left), "{record:?} {run:?}");
}

#[tokio::test]
async fn end_of_a_run_outlasts_a_service_that_is_away() {
    let (service, proxy, _) = by_proxy().await;
    let client = Client::builder(&proxy.http_url()).timeout(Duration::from_secs(1));
    let client = client.build().expect("a URL");
    let options = OnceOptions { lease: Duration::from_secs(600), ..OnceOptions::default() };
    let Ok(BeginReply::Begun(run)) = client.begin("mail-17", &options).await else {
        panic!("no run was before")
    };
    proxy.refuse();
    let before = proxy.disturbed();
    let end = tokio::spawn(run.complete(Response::new("sent")));
    // A try is 100 ms after the one before at the soonest.
    eventually(async || (proxy.disturbed() >= before + 15).then_some(())).await;
    proxy.forward();
    soon("the end", end).await.expect("no panic").expect("it is done");
    let record = service.get("/v1/idempotency/mail-17").await;
    assert_eq!(record.json["state"], "done", "{record:?}");
}

#[tokio::test]
async fn failure_is_retried_as_often_and_after_the_pauses_that_the_program_says() {
    let (_service, proxy, _) = by_proxy().await;
    proxy.refuse();
    let paused = Arc::new(Mutex::new(Vec::new()));
    let pauses = Arc::clone(&paused);
    let client = Client::builder(&proxy.http_url()).retries(3).pause(move || {
        let mut pauses = pauses.lock().expect("no panic");
        let pause = Duration::from_millis(10 * pauses.len() as u64);
        pauses.push(pause);
        pause
    });
    let client = client.build().expect("a URL");
    client.show("a").await.expect_err("no response comes");
    assert_eq!(proxy.disturbed(), 4);
    assert_eq!(*paused.lock().expect("no panic"), [0, 10, 20].map(Duration::from_millis));
}

#[tokio::test]
async fn request_that_was_sent_once_is_never_told_as_unsent() {
    let (address, mut connections) = raw_upstream(1).await;
    let client = Client::builder(&format!("http://{address}")).timeout(Duration::from_secs(1));
    let client = client.build().expect("a URL");
    let (options, lost) = (AcquireOptions::default(), async { drop(connections.recv().await) });
    let (refused, ()) = tokio::join!(client.lock("a", &options), lost);
    assert!(matches!(refused, Err(Error::Unanswered(_))), "{refused:?}");
    let (address, mut connections) = raw_upstream(1).await;
    let client = Client::builder(&format!("http://{address}")).timeout(Duration::from_secs(1));
    let client = client.build().expect("a URL");
    let (options, lost) = (OnceOptions::default(), async { drop(connections.recv().await) });
    let (refused, ()) = tokio::join!(client.begin("mail-17", &options), lost);
    assert!(matches!(refused, Err(Error::Unanswered(_))), "{refused:?}");
}

/// The handshake of TLS is under way, and no request is on it.
#[tokio::test]
async fn request_without_a_connection_in_time_is_told_as_unsent() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let authority = Authority::default();
    let client = Client::builder(&url).authorities(authority.ca_file());
    let client = client.timeout(Duration::from_secs(1)).build().expect("a URL and a file");
    let refused = client.lock("a", &AcquireOptions::default()).await;
    assert!(matches!(refused, Err(Error::Unreachable(_))), "{refused:?}");
}

#[tokio::test]
async fn task_under_a_lease_is_told_when_the_program_ends_it() {
    let (_service, client) = with_client().await;
    let guard = guard(&client, "a", &AcquireOptions::default()).await;
    let (lease, lost) = (guard.lease(), guard.lost());
    drop(guard);
    soon("the end", lost.cancelled()).await;
    assert_eq!(lease.loss(), Some(LossReason::Ended));
    soon("the release", client.close()).await;
}

#[tokio::test]
async fn hold_waits_for_ever() {
    let (_service, client) = with_client().await;
    let first = guard(&client, "a", &AcquireOptions::default()).await;
    let options = AcquireOptions::waiting(FOREVER);
    let (second, released) =
        tokio::join!(soon("the lock", client.hold("a", &options)), first.close());
    released.expect("a response");
    second.expect("it is free").check().expect("it is held");
}

/// A page of a proxy says nothing of the run.
#[tokio::test]
async fn run_outlasts_a_refusal_of_something_else() {
    let upstream = Upstream::start().await;
    upstream.answers(|request| {
        let token = request.headers["lock-token"].to_str().expect("a token");
        match request.uri.path() {
            "/v1/idempotency/mail-17" => {
                let record = json!({"state": "in-flight", "fencing_token": 1, "attempts": 1,
                    "expires_in_ms": 60_000, "token": token});
                (StatusCode::CREATED, record.to_string())
            }
            _ => (StatusCode::FORBIDDEN, "not here".to_owned()),
        }
    });
    let client = Client::new(&upstream.url()).expect("a URL");
    let options = OnceOptions { lease: Duration::from_secs(3), ..OnceOptions::default() };
    let Ok(BeginReply::Begun(run)) = client.begin("mail-17", &options).await else {
        panic!("it is new")
    };
    soon("the loss", run.lost().cancelled()).await;
    assert!(matches!(run.loss(), Some(LossReason::Unrenewed(_))), "{:?}", run.loss());
    run.leave();
}

#[tokio::test]
async fn broken_lease_says_by_whom() {
    let (service, client) = with_client().await;
    let guard = guard(&client, "a", &for_millis(3000)).await;
    let body = json!({"reason": "it hangs", "by": "ann", "fencing_token": guard.fencing_token()});
    let request = service.request(Method::POST, "/v1/locks/a/break").json(&body);
    assert_eq!(Answer::of(request).await.status, 200);
    soon("the loss", guard.lost().cancelled()).await;
    let refused = guard.check().expect_err("it was broken").to_string();
    assert_eq!(refused, "`a` is lost: the lease was broken by ann: it hangs");
}

#[tokio::test]
async fn errors_follow_the_table_of_problems() {
    let follows = async |code: Code| {
        let upstream = Upstream::start().await;
        let problem = json!(ProblemDocument::new(code, "Of this request."));
        let status = StatusCode::from_u16(code.status()).expect("a status");
        upstream.answers(move |_| (status, problem.to_string()));
        let client = Client::new(&upstream.url()).expect("a URL");
        let error = soon("the lock", client.lock("a", &AcquireOptions::default())).await;
        let error = error.expect_err("a problem");
        let is_unavailable = matches!(error, Error::Unavailable(_));
        assert_eq!(is_unavailable, code.retry() == Retry::SameKey, "{code:?}: {error}");
        assert_eq!(error.retry() == Retry::SameKey, is_unavailable, "{code:?}");
        assert!(error.to_string().ends_with("Of this request."), "{error}");
    };
    join_all(Code::all().filter(|code| *code != Code::LockHeld).map(follows)).await;
}

#[tokio::test]
async fn events_are_read_over_comments() {
    let upstream = Upstream::start().await;
    let stream =
        ": silence\n\nevent: acquired\ndata: {\"a\":1}\nid: 1-1\n\nevent: closing\ndata: {}\n\n";
    upstream.answers(move |_| stream);
    let client = Client::new(&upstream.url()).expect("a URL");
    let mut watch = client.watch("a");
    let first = soon("an event", watch.next()).await.expect("an event");
    assert_eq!((first.kind.as_str(), first.data), ("acquired", json!({"a": 1})));
    assert_eq!(soon("an event", watch.next()).await.expect("another").kind, "closing");
}

#[tokio::test]
async fn url_with_another_store_is_refused_by_name() {
    let [first, second] = [Upstream::start().await, Upstream::start().await];
    first.answers(|_| json!({"store": {"id": "one"}}).to_string());
    second.answers(|_| json!({"store": {"id": "two"}}).to_string());
    let urls = format!("{},{}", first.url(), second.url());
    let client = Client::new(&urls).expect("URLs");
    let shown = client.show("a").await;
    assert!(matches!(shown, Err(Error::Refused(_))), "{shown:?}");
    drop(first);
    let refused = client.lock("a", &AcquireOptions::default()).await.expect_err("two stores");
    let two = format!("{}: its store is two, and that of the others one", second.url());
    assert!(matches!(refused, Error::OtherStore(_)), "{refused}");
    assert!(refused.to_string().contains(&two), "{refused}");
    assert!(second.seen().iter().all(|request| request.uri == "/v1/info"));
}

/// The first of two instances hangs.
#[tokio::test]
async fn url_that_hangs_is_passed_over_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (service, _) = with_client().await;
    let silent = silent.local_addr().expect("an address");
    let client = Client::new(&format!("http://{silent},{}", service.url())).expect("URLs");
    guard(&client, "a", &AcquireOptions::default()).await.close().await.expect("a response");
}

/// What answers for it may be a proxy before another store.
#[tokio::test]
async fn url_whose_store_is_not_known_gets_no_request() {
    let [first, second] = [Upstream::start().await, Upstream::start().await];
    first.answers(|_| json!({"store": {"id": "one"}}).to_string());
    second.answers(|_| StatusCode::SERVICE_UNAVAILABLE);
    let urls = format!("{},{}", first.url(), second.url());
    let client = Client::builder(&urls).timeout(Duration::from_secs(1)).build().expect("URLs");
    drop(first);
    let refused = client.lock("a", &AcquireOptions::default()).await.expect_err("no store");
    assert!(matches!(refused, Error::Unreachable(_)), "{refused}");
    assert!(second.seen().iter().all(|request| request.uri == "/v1/info"));
}
