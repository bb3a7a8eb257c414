//! Goal: the service on Redlock states what it can and cannot do, and refuses what would be unsafe.
//!
//! Method: the service over HTTP and the command on five nodes.

use keylatch_testkit::{Answer, RedlockNodes, Service, soon};
use reqwest::Method;
use serde_json::json;

use crate::KEYLATCH;

#[tokio::test]
async fn info_states_the_tier_and_limits_of_redlock() {
    let nodes = RedlockNodes::start().await;
    let mut config = nodes.config();
    config.redlock.max_ttl_ms = 60_000;
    let service = Service::start_with(config).await;
    let info = service.get("/v1/info").await;
    let store = &info.json["store"];
    assert_eq!(store["kind"], "redlock", "{info:?}");
    assert_eq!((&store["tier"], &store["max_ttl_ms"]), (&json!("strict"), &json!(60_000)));
    for (fact, value) in [
        ("nodes", "5"),
        ("quorum", "3"),
        ("answering", "5"),
        ("voting", "5"),
        ("appendfsync", "always"),
        ("waiting", "unordered"),
        ("idempotency_records", "none"),
    ] {
        assert_eq!(store["facts"][fact], value, "{fact}: {info:?}");
    }
    assert_eq!(service.get("/readyz").await.status, 200);
}

/// No client has asked anything yet, and the alert on a store that is not reached fires after a
/// minute.
#[tokio::test]
async fn idle_instance_reports_that_it_reaches_its_nodes() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    let metrics = service.get("/metrics").await.text;
    assert!(metrics.contains("\nkeylatch_store_up 1\n"), "{metrics}");
    assert!(metrics.contains("\nkeylatch_locks_held 0\n"), "{metrics}");
    service.create("deploy", &json!({})).await;
    let metrics = service.get("/metrics").await.text;
    assert!(metrics.contains("\nkeylatch_locks_held 1\n"), "{metrics}");
}

#[tokio::test]
async fn ttl_above_the_restart_quarantine_is_refused() {
    let nodes = RedlockNodes::start().await;
    let mut config = nodes.config();
    config.redlock.max_ttl_ms = 20_000;
    let service = Service::start_with(config).await;
    let lease = service.create("deploy", &json!({})).await;
    assert_eq!((lease.status.as_u16(), &lease.json["ttl_ms"]), (201, &json!(20_000)));
    for answer in [
        service.create("other", &json!({"ttl_ms": 20_001})).await,
        service.renew("deploy", &lease.token(), &json!({"ttl_ms": 20_001})).await,
    ] {
        answer.is_problem(400, "invalid-body");
        assert_eq!(answer.json["field"], "ttl_ms", "{answer:?}");
        assert!(answer.text.contains("at most 20000"), "{answer:?}");
    }
}

#[tokio::test]
async fn waiter_acquires_after_release() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    let lease = service.create("deploy", &json!({})).await;
    let body = json!({"wait_ms": 20_000});
    let waiting = service.create("deploy", &body);
    let releasing = async {
        // A client that does not wait sees an empty queue.
        let other = service.create("deploy", &json!({})).await;
        assert_eq!(other.json["ahead"], 0, "{other:?}");
        assert_eq!(service.release("deploy", &lease.token()).await.status, 204);
    };
    let (waited, ()) = soon("the lock", async { tokio::join!(waiting, releasing) }).await;
    assert_eq!(waited.status, 201, "{waited:?}");
    assert!(waited.fencing_token() > lease.fencing_token());
}

/// It does not know how many wait.
#[tokio::test]
async fn max_ahead_gets_501() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    let asked = service.create("deploy", &json!({"wait_ms": 1000, "max_ahead": 0})).await;
    asked.is_problem(501, "not-supported");
    assert_eq!(service.look("deploy").await.status, 404);
}

/// Its waiters are in no order, and a list of those at one instance would pass for all.
#[tokio::test]
async fn console_has_no_queue() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    service.get("/console/queue?name=deploy").await.is_problem(501, "not-supported");
}

#[tokio::test]
async fn idempotency_keys_get_501() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    for (method, path) in [
        (Method::POST, "/v1/idempotency/k"),
        (Method::GET, "/v1/idempotency/k"),
        (Method::POST, "/v1/idempotency/k/resolve"),
    ] {
        let request = service.request(method, path).json(&json!({"outcome": "not-executed"}));
        let request =
            if path.ends_with("/k") { service.request(Method::GET, path) } else { request };
        Answer::of(request).await.is_problem(501, "not-supported");
    }
    service.get("/v1/orders").await.is_problem(404, "not-found");
    assert_eq!(service.get("/problems/not-supported").await.status, 200);
}

#[tokio::test]
async fn guard_without_records_is_refused_at_start() {
    let nodes = RedlockNodes::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keylatch.toml");
    std::fs::write(&file, "[[guard]]\npath = \"/shop\"\nupstream = \"http://shop:1\"\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let ended = KEYLATCH.run_with(&arguments, &[("KEYLATCH_STORE", nodes.url())]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the guard of /shop needs records"), "{ended:?}");
}

#[tokio::test]
async fn unfit_nodes_are_refused_at_start() {
    for (url, quorum, why) in [
        ("redlock://a,b", "0", "3 to 31 nodes"),
        ("redlock://a,,b", "0", "a host is missing"),
        ("redlock://a,b,a:6379", "0", "there twice"),
        ("redlock://a,b,c", "1", "redlock.quorum must be 2 to 3"),
        ("redlock://a,b,c,d", "2", "redlock.quorum must be 3 to 4"),
        ("redlock://a,b,c", "4", "redlock.quorum must be 2 to 3"),
    ] {
        let environment = [("KEYLATCH_STORE", url), ("KEYLATCH_REDLOCK_QUORUM", quorum)];
        let ended = KEYLATCH.run_with(&["--listen", "127.0.0.1:0"], &environment).await;
        assert_eq!(ended.code, Some(1), "{url}: {ended:?}");
        assert!(ended.stderr.contains(why), "{url}: {ended:?}");
    }
}
