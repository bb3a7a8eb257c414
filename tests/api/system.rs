//! Goal: the service says truly whether it is live and ready and what its store promises, and
//! metrics contain no secret.
//!
//! Method: the system endpoints over HTTP.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use keylatch::http::Code;
use keylatch_core::idempotency::{
    BeginCommand, Fingerprint, IdempotencyKey, OnCrash, Principal, RecordScope, Scope,
};
use keylatch_core::lock::TokenHash;
use keylatch_testkit::{
    Answer, FakeEngine, Faults, RedisServer, Service, TestStore, config, eventually, redis_test,
    seed, store_test,
};
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::locks::members;

#[redis_test]
async fn service_without_store_is_live_and_not_ready() {
    let mut redis = RedisServer::start().await;
    let service = Service::by_default(&redis.url()).await;
    for path in ["/livez", "/readyz"] {
        let answer = service.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, "ok"), "{path}");
        assert!(answer.header("content-type").starts_with("text/plain"), "{answer:?}");
    }
    redis.kill().await;
    for _ in 0..3 {
        let unready = service.get("/readyz").await;
        unready.is_problem(503, "store-unavailable");
        assert_ne!(unready.header("retry-after"), "");
        assert_eq!(service.get("/livez").await.status, 200);
    }
    let info = service.get("/v1/info").await;
    assert_eq!(info.status, 200, "{info:?}");
    let store = &info.json["store"];
    assert_eq!((&store["kind"], &store["reachable"]), (&json!("redis"), &json!(false)));
    assert_eq!((&store["tier"], &store["tier_means"]), (&Value::Null, &Value::Null));
    redis.restart().await;
    eventually(async || (service.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(service.get("/v1/info").await.json["store"]["reachable"], true);
}

/// A rule that panics is a defect of keylatch, and ends the task that runs the commands of its
/// kind. No request over HTTP has a retention that no clock can show.
#[tokio::test]
async fn service_is_not_live_when_a_part_of_the_store_in_its_process_has_ended() {
    let engine = FakeEngine::new(Faults::HARMLESS, seed());
    let store = keylatch_stores::optimistic(engine);
    let service = Service::over(Arc::clone(&store)).await;
    assert_eq!(service.get("/livez").await.status, 200);
    let key = IdempotencyKey::parse("a-key").expect("a key");
    let scope = Scope { principal: &Principal::None, method: "POST", path: "/orders", source: "" };
    let endless = BeginCommand {
        key: scope.record(&key),
        scope: RecordScope::new(&scope, &key),
        token: TokenHash::from_bytes([1; 32]),
        fingerprint: Fingerprint::of_text("an order"),
        lease: Duration::from_secs(30),
        retention: Duration::MAX,
        on_crash: OnCrash::Rerun,
        has_room: true,
    };
    let ended = async {
        store.begin(&endless).await?;
        store.abandon(&endless.key, &endless.token).await
    };
    ended.await.expect_err("the task has ended");
    let dead = eventually(async || {
        let answer = service.get("/livez").await;
        (answer.status != 200).then_some(answer)
    });
    dead.await.is_problem(503, "store-unavailable");
}

#[tokio::test]
async fn info_states_the_tier_of_memory() {
    let service = Service::start("memory:").await;
    let info = service.get("/v1/info").await;
    assert_eq!(info.status, 200, "{info:?}");
    assert_eq!(
        members(&info.json),
        ["differing_guards", "name", "observed_guards", "promise", "store", "version"]
    );
    assert_eq!(info.json["name"], "keylatch");
    assert_eq!(info.json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(info.json["promise"].as_array().map(Vec::len), Some(4));
    let store = &info.json["store"];
    assert_eq!(
        members(store),
        ["advice", "facts", "id", "kind", "max_ttl_ms", "reachable", "tier", "tier_means"]
    );
    assert_eq!((&store["kind"], &store["tier"]), (&json!("memory"), &json!("process")));
    assert_eq!(store["max_ttl_ms"], 86_400_000);
    assert_eq!(store["reachable"], true);
    assert!(store["tier_means"].as_str().is_some_and(|text| !text.is_empty()), "{store}");
}

/// The store that a client reads of.
async fn store_id(service: &Service) -> String {
    let info = service.get("/v1/info").await;
    info.json["store"]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn each_store_has_an_id_of_its_own_and_keeps_it_over_a_restart() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| format!("embedded:{}/{name}", directory.path().display());
    let mut ids = BTreeSet::new();
    for url in ["memory:".to_owned(), "memory:".to_owned(), at("one"), at("two")] {
        ids.insert(store_id(&Service::start(&url).await).await);
    }
    assert_eq!(ids.len(), 4, "{ids:?}");
    let again = Service::start(&at("one")).await;
    assert!(ids.contains(&store_id(&again).await));
}

#[store_test(shared)]
async fn instances_of_one_store_say_one_id_and_those_of_another_prefix_another(store: &TestStore) {
    let mut url = store.url().to_owned();
    if ["etcd:", "zookeeper:"].iter().any(|kind| url.starts_with(kind)) {
        url.push_str("-other");
    }
    let mut other = config(&url);
    other.redis.key_prefix = "other".to_owned();
    other.postgres.schema = "other".to_owned();
    let first = Service::start_with(store.config()).await;
    let second = Service::start_with(store.config()).await;
    let other = Service::start_with(other).await;
    let (of_first, of_second) = tokio::join!(store_id(&first), store_id(&second));
    assert_eq!(of_first, of_second);
    assert_ne!(of_first, store_id(&other).await);
    drop((first, second));
    assert_eq!(of_first, store_id(&Service::start_with(store.config()).await).await);
}

#[redis_test]
async fn store_that_takes_no_write_has_no_id_and_one_that_was_emptied_a_new_one() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]).await;
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let service = Service::start(&redis.url()).await;
    let info = service.get("/v1/info").await;
    assert_eq!(
        (&info.json["store"]["id"], info.json["store"]["reachable"] == true),
        (&Value::Null, true)
    );
    assert_eq!(service.get("/readyz").await.status, 200);
    let () = redis.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let id = store_id(&service).await;
    let () = redis.run(&["FLUSHALL"]).await;
    assert_ne!(store_id(&service).await, id);
}

#[tokio::test]
async fn info_states_the_tier_of_embedded() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start(&format!("embedded:{}", directory.path().display())).await;
    let info = service.get("/v1/info").await;
    let store = &info.json["store"];
    assert_eq!((&store["kind"], &store["tier"]), (&json!("embedded"), &json!("strict")));
    assert_eq!(store["reachable"], true);
    let path = directory.path().display().to_string();
    assert!(!info.text.contains(&path), "clients read where the store is: {info:?}");
}

#[redis_test]
async fn info_states_the_tier_of_redis() {
    let synced = ["--appendonly", "yes", "--appendfsync", "always"];
    let lately = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let without_a_file = ["--appendonly", "no", "--appendfsync", "always"];
    let servers: [(&[&str], _, _); 4] = [
        (&[], "best-effort", "0"),
        (&without_a_file, "best-effort", "0"),
        (&lately, "best-effort", "1"),
        (&synced, "strict", "1"),
    ];
    for (options, tier, aof) in servers {
        let redis = RedisServer::start_with(options).await;
        let service = Service::start(&redis.url()).await;
        let info = service.get("/v1/info").await;
        let store = &info.json["store"];
        assert_eq!(store["tier"], tier, "{options:?}: {store}");
        assert_eq!((&store["kind"], &store["reachable"]), (&json!("redis"), &json!(true)));
        assert!(store["tier_means"].as_str().is_some_and(|text| !text.is_empty()), "{store}");
        let version: String = redis.run(&["INFO", "server"]).await;
        let version = version.lines().find_map(|line| line.strip_prefix("redis_version:"));
        assert_eq!(store["facts"]["version"].as_str(), version.map(str::trim));
        assert_eq!(store["facts"]["aof_enabled"], aof);
        let advice = store["advice"].to_string();
        let says_how = advice.contains("`appendonly yes` and `appendfsync always`");
        assert_eq!(says_how, tier == "best-effort", "{options:?}: {advice}");
        assert_eq!(store["facts"]["role"], "master");
    }
}

/// A client may have any status answered: it would make four hundred histograms of one route.
#[tokio::test]
async fn status_without_a_name_is_counted_by_its_class() {
    let service = Service::start("memory:").await;
    for (place, fail) in [470, 471, 499, 402, 599].into_iter().enumerate() {
        let order = json!({"amount": 1, "currency": "EUR", "fail": fail, "delay_ms": 0});
        let request = service.request(Method::POST, "/v1/orders").json(&order);
        let answer = Answer::of(request.header("Idempotency-Key", format!("k-{place}"))).await;
        assert_eq!(answer.status.as_u16(), fail, "{answer:?}");
    }
    let metrics = service.get("/metrics").await.text;
    let of = |status| {
        format!(
            "keylatch_http_request_duration_seconds_count{{method=\"POST\",route=\"/v1/orders\",\
             status=\"{status}\"}}"
        )
    };
    for (status, count) in [("4xx", "3"), ("402", "1"), ("5xx", "1")] {
        assert!(metrics.contains(&format!("{} {count}", of(status))), "{status}: {metrics}");
    }
    assert!(!metrics.contains(&of("470")), "{metrics}");
}

#[tokio::test]
async fn requests_are_counted_by_route() {
    let service = Service::start("memory:").await;
    let lease = service.create("deploy", &json!({})).await;
    service.create("deploy", &json!({})).await;
    service.create("report", &json!({})).await;
    service.release("deploy", &lease.token()).await;
    service.get("/nowhere").await;
    let brew = Method::from_bytes(b"BREW").unwrap();
    Answer::of(service.request(brew, "/v1/locks/deploy")).await;
    let metrics = service.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(metrics.header("content-type"), kind);
    let requests = "keylatch_http_request_duration_seconds_count";
    let steps = "keylatch_store_operation_duration_seconds_count";
    for line in [
        &format!(r#"{requests}{{method="POST",route="/v1/locks/{{name}}",status="201"}} 2"#),
        &format!(r#"{requests}{{method="POST",route="/v1/locks/{{name}}",status="409"}} 1"#),
        &format!(r#"{requests}{{method="DELETE",route="/v1/locks/{{name}}",status="204"}} 1"#),
        &format!(r#"{requests}{{method="GET",route="unmatched",status="404"}} 1"#),
        &format!(r#"{requests}{{method="other",route="/v1/locks/{{name}}",status="405"}} 1"#),
        &format!(r#"{steps}{{operation="acquire",outcome="done"}} 2"#),
        &format!(r#"{steps}{{operation="acquire",outcome="held"}} 1"#),
        "# EOF",
    ] {
        assert!(metrics.text.lines().any(|found| found == line), "{line}\n{}", metrics.text);
    }
}

#[redis_test]
async fn waiters_and_withdrawn_grants_are_counted() {
    let (redis, service) = Service::on_redis().await;
    service.reaches("keylatch_lock_withdrawn_grants_total", 0).await;
    redis.pause();
    let leaving = service.request(Method::POST, "/v1/locks/deploy");
    let left = leaving.timeout(Duration::from_millis(200)).send().await;
    assert!(left.is_err_and(|error| error.is_timeout()));
    redis.resume();
    service.reaches("keylatch_lock_withdrawn_grants_total", 1).await;
    assert_eq!(service.look("deploy").await.status, 404);

    assert_eq!(service.create("deploy", &json!({})).await.status, 201);
    service.reaches("keylatch_waiters", 0).await;
    let waits = service.request(Method::POST, "/v1/locks/deploy").json(&json!({"wait_ms": 60_000}));
    let waiter = tokio::spawn(waits.send());
    service.reaches("keylatch_waiters", 1).await;
    waiter.abort();
    service.reaches("keylatch_waiters", 0).await;
    // A waiter that leaves has no grant to withdraw.
    service.reaches("keylatch_lock_withdrawn_grants_total", 1).await;
}

#[tokio::test]
async fn grants_are_counted_by_mode_and_a_repeat_is_none() {
    let service = Service::start("memory:").await;
    for status in [201, 200] {
        let token = "a-token-that-alice-chose";
        let granted = service.create_set_as(&["one", "other"], token, &json!({})).await;
        assert_eq!(granted.status, status);
    }
    for body in [json!({"mode": "shared"}), json!({"mode": "shared", "limit": 3})] {
        assert_eq!(service.create("pool", &body).await.status, 201);
    }
    for (mode, count) in [("exclusive", 2), ("shared", 1), ("counted", 1)] {
        service.reaches(&format!("keylatch_lock_grants_total{{mode=\"{mode}\"}}"), count).await;
    }
}

#[tokio::test]
async fn metrics_contain_no_names_owners_tokens_or_request_ids() {
    let service = Service::start("memory:").await;
    let token = "canary-token-0123456789";
    let names = ["canary-name", "canary%22%7D%0A", "canary%2F..", "canary/canary", "%FFcanary"];
    for name in names {
        let body = json!({"owner": "canary-owner", "ttl_ms": 30_000});
        service.create_as(name, token, &body).await;
        service.create_as(name, "canary-other-0123456789", &json!({"canary": 1})).await;
        service.renew(name, token, &json!({})).await;
        service.look(name).await;
        let request = service.request(Method::GET, &format!("/v1/locks?prefix={name}"));
        Answer::of(request.header("X-Request-Id", "canary-id")).await;
        service.get(&format!("/{name}")).await;
        service.get(&format!("/docs/{name}")).await;
        service.get(&format!("/problems/{name}")).await;
        let canary = Method::from_bytes(b"CANARY").unwrap();
        Answer::of(service.request(canary, "/v1/locks/canary")).await;
        service.release(name, token).await;
    }
    let metrics = service.get("/metrics").await;
    assert!(metrics.text.contains(r#"route="/v1/locks/{name}""#), "{}", metrics.text);
    assert!(!metrics.text.to_lowercase().contains("canary"), "{}", metrics.text);
}

#[tokio::test]
async fn every_response_has_a_unique_request_id() {
    let service = Service::start("memory:").await;
    let paths = ["/v1/locks", "/v1/locks/free", "/nowhere", "/livez", "/readyz", "/metrics", "/"];
    let more = ["/v1/info", "/docs", "/docs/", "/openapi.json", "/problems/lock-held", "/livez"];
    let mut ids = BTreeSet::new();
    for path in paths.into_iter().chain(more) {
        let answer = service.get(path).await;
        let id = answer.header("x-request-id").to_owned();
        assert!(!id.is_empty(), "{path}");
        assert!(ids.insert(id), "{path}: {ids:?}");
    }
    let lease = service.create("deploy", &json!({})).await;
    assert!(ids.insert(lease.header("x-request-id").to_owned()), "{ids:?}");
    let released = service.release("deploy", &lease.token()).await;
    assert!(ids.insert(released.header("x-request-id").to_owned()), "{ids:?}");
}

/// A reader joins the `type` of a problem to the URL of the request (RFC 9457, section 3.1.1).
#[tokio::test]
async fn type_of_a_problem_leads_to_its_page_below_the_path_that_a_proxy_names() {
    let mut config = config("memory:");
    let trusting = Service::start_with(config.clone()).await;
    config.server.trusted_proxies = vec!["192.0.2.0/24".to_owned()];
    let wary = Service::start_with(config).await;
    for (prefix, own) in [
        ("/tools/keylatch", "/tools/keylatch"),
        ("/tools/keylatch/", "/tools/keylatch"),
        ("/tools, /inner", "/tools"),
        ("tools", ""),
        ("//evil.example", ""),
        ("/a\"b", ""),
        ("/", ""),
    ] {
        for path in ["/v1/locks/free", "/v1/idempotency/none/answer", "/nowhere"] {
            let ask = |service: &Service| {
                service.request(Method::GET, path).header("X-Forwarded-Prefix", prefix)
            };
            let problem = Answer::of(ask(&trusting)).await;
            let page = problem.json["type"].as_str().expect("a path").to_owned();
            let page = page.strip_prefix(own).unwrap_or_else(|| panic!("{problem:?}"));
            assert!(page.starts_with("/problems/"), "{prefix}: {problem:?}");
            assert_eq!(trusting.get(page).await.status, 200, "{page}");
            let plain = Answer::of(ask(&wary)).await;
            assert_eq!(plain.json["type"], page, "{plain:?}");
        }
    }
}

#[tokio::test]
async fn request_id_of_the_client_is_returned() {
    let service = Service::start("memory:").await;
    for id in ["a", "6b1f7f0e-9a5c-4c0e-8a5b-0d2f3c4e5a6b", "a:b/c=d;~", &"x".repeat(128)] {
        for path in ["/v1/locks", "/v1/locks/free", "/nowhere"] {
            let request = service.request(Method::GET, path).header("X-Request-Id", id);
            assert_eq!(Answer::of(request).await.header("x-request-id"), id, "{path}");
        }
    }
}

#[tokio::test]
async fn unsafe_request_id_is_replaced() {
    let service = Service::start("memory:").await;
    let ids: [&[u8]; 6] = [b"", b"a\tb", b"two words", &[b'x'; 129], "é".as_bytes(), b"\xff\xfe"];
    for id in ids {
        let value = HeaderValue::from_bytes(id).unwrap();
        let request = service.request(Method::GET, "/livez").header("X-Request-Id", value);
        let answer = Answer::of(request).await;
        assert_eq!(answer.status, 200);
        let given = answer.headers["x-request-id"].as_bytes();
        assert_ne!(given, id);
        let plain = |byte: &u8| byte.is_ascii_graphic();
        assert!((1..=128).contains(&given.len()) && given.iter().all(plain), "{given:?}");
    }
}

#[tokio::test]
async fn every_problem_has_a_page() {
    let service = Service::start("memory:").await;
    let mut pages = BTreeSet::new();
    for code in Code::all() {
        let page = service.get(&format!("/problems/{}", code.slug())).await;
        assert_eq!(page.status, 200, "{code:?}");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8", "{code:?}");
        assert!(page.text.contains(&format!("<code>{}</code>", code.slug())), "{}", page.text);
        assert!(page.text.contains(&code.status().to_string()), "{}", page.text);
        assert!(page.text.contains("curl ") && !page.text.contains("<script>"), "{}", page.text);
        assert!(page.header("content-security-policy").contains("default-src 'self'"), "{code:?}");
        // Two statuses report an unknown outcome, and share one page.
        let first = Code::all().find(|other| other.slug() == code.slug());
        assert!(pages.insert(page.text) == (first == Some(code)), "{code:?}");
    }
    service.get("/problems/nothing").await.is_problem(404, "not-found");
    let list = service.get("/problems").await;
    assert_eq!(list.header("content-type"), "text/html; charset=utf-8");
    for code in Code::all() {
        assert!(list.text.contains(&format!("href=\".{}\"", code.page())), "{code:?}");
    }
}

#[test]
fn commands_of_problem_pages_name_codes() {
    let blocks = include_str!("../../assets/problem-commands.txt").split("\n\n");
    let mut names: Vec<_> =
        blocks.flat_map(|block| block.lines().next().unwrap_or_default().split(' ')).collect();
    assert_eq!(names.split_off(names.len() - 2), ["any", "other"]);
    for name in names {
        assert!(Code::all().any(|code| code.slug() == name), "{name}");
    }
}

#[test]
fn problem_code_matches_its_variant() {
    for code in Code::all().filter(|code| *code != Code::UpstreamSilent) {
        let slug = code.slug().replace('-', "");
        assert_eq!(slug, format!("{code:?}").to_lowercase());
    }
}
