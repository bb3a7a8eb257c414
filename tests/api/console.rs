//! Goal: the console is there for browsers and changes nothing for clients of the API; it shows
//! each user what the API would show, and follows any number of changes with few events.
//!
//! Method: the page, what it loads and its two endpoints over HTTP, with and without identities.

use std::collections::BTreeSet;
use std::time::Instant;

use keylatch_testkit::{
    Answer, EventStream, Keyring, RedisServer, Service, eventually, redis_test, refusal_of,
    store_test,
};
use reqwest::Method;
use serde_json::{Value, json};

/// What a browser says that it takes.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const SCRIPTS: [&str; 13] = [
    "console",
    "api",
    "dom",
    "feed",
    "charts",
    "glance",
    "locks",
    "lock",
    "keys",
    "key",
    "records",
    "observed",
    "shortcuts",
];

async fn root(service: &Service, accept: Option<&str>) -> Answer {
    let request = service.request(Method::GET, "/");
    Answer::of(match accept {
        Some(accept) => request.header("Accept", accept),
        None => request,
    })
    .await
}

#[tokio::test]
async fn root_is_the_console_for_a_browser_and_a_few_lines_for_a_client() {
    let service = Service::start("memory:").await;
    for accept in [BROWSER, "text/html", "TEXT/HTML;q=1"] {
        let page = root(&service, Some(accept)).await;
        assert_eq!(page.status, 200, "{accept}: {page:?}");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert_eq!(page.header("vary"), "Accept");
        assert!(page.text.contains("<main"), "{page:?}");
    }
    for accept in [None, Some("*/*"), Some("application/json"), Some("application/json, text/html")]
    {
        let lines = root(&service, accept).await;
        assert_eq!(lines.header("content-type"), "text/plain; charset=utf-8", "{accept:?}");
        assert_eq!(lines.text.lines().count(), 6, "{}", lines.text);
        for line in lines.text.lines().skip(1) {
            let path = line.split_whitespace().next().expect("a path");
            assert_eq!(service.get(path).await.status, 200, "{line}");
        }
    }
}

#[tokio::test]
async fn page_runs_its_own_scripts_alone() {
    let service = Service::start("memory:").await;
    let page = root(&service, Some(BROWSER)).await;
    let policy = page.header("content-security-policy").to_owned();
    for rule in ["default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for inline in [" style=", " onclick=", "javascript:", "<script>", "<style", "http:", "https:"] {
        let text = page.text.replace("http://www.w3.org/2000/svg", "").replace("http%3A", "");
        assert!(!text.contains(inline), "{inline}");
    }
    let texts = page.text.match_indices("=\"assets/");
    for (at, _) in texts {
        let path = page.text[at + 2..].split('"').next().unwrap_or_default();
        assert_eq!(service.get(&format!("/{path}")).await.status, 200, "{path}");
    }
    for name in SCRIPTS {
        let script = service.get(&format!("/assets/console/{name}.js")).await;
        assert_eq!(script.header("content-type"), "text/javascript; charset=utf-8", "{name}");
        for dangerous in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
        {
            assert!(!script.text.contains(dangerous), "{name}: {dangerous}");
        }
    }
    service.get("/assets/console/other.js").await.is_problem(404, "not-found");
}

#[tokio::test]
async fn page_is_open_and_what_it_shows_asks_for_a_key() {
    let (service, _keyring, key) =
        Keyring::serve("team", "allow = [{ locks = \"team-a/\", may = [\"read\"] }]").await;
    assert_eq!(root(&service, Some(BROWSER)).await.status, 200);
    for path in
        ["/console/glance", "/console/locks", "/console/queue?name=a", "/console/history?name=a"]
    {
        let answer = service.get(path).await;
        answer.is_problem(401, "unauthenticated");
        // At `Basic` a browser would ask by a box of its own.
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"keylatch\"", "{path}");
    }
    let get = |path: &str| service.request(Method::GET, path).basic_auth("any", Some(&key));
    let glance = Answer::of(get("/console/glance")).await.json;
    assert_eq!(glance["identity"], "team");
    let allowed = json!({"locks": [{"prefix": "team-a/", "may": ["read"]}], "keys": []});
    assert_eq!(glance["permissions"], allowed);
    refusal_of(get("/console/locks")).await.is_problem(403, "forbidden");
    for path in ["/console/queue?name=b", "/console/history?name=b"] {
        Answer::of(get(path)).await.is_problem(403, "forbidden");
    }
    EventStream::of(get("/console/locks?prefix=team-a/")).await.next("changes").await;
}

#[tokio::test]
async fn glance_shows_the_store_and_what_everybody_may_do() {
    let service = Service::start("memory:").await;
    let glance = service.get("/console/glance").await.json;
    let info = service.get("/v1/info").await.json;
    assert_eq!(glance["store"], info["store"]);
    assert_eq!((&glance["identity"], &glance["breaks"]), (&Value::Null, &json!(true)));
    assert_eq!(glance["store"]["facts"]["instances"], "1");
    assert_eq!(glance["permissions"]["locks"][0]["prefix"], "");
    assert!(glance["samples"].as_array().is_some_and(Vec::is_empty), "{glance}");
}

#[redis_test]
async fn instances_that_share_a_redis_are_counted() {
    let (redis, service) = Service::on_redis().await;
    let counted = async |count: &str| {
        eventually(async || {
            let info = service.get("/v1/info").await.json;
            (info["store"]["facts"]["instances"] == count).then_some(())
        })
        .await;
    };
    counted("1").await;
    let other = Service::start(&redis.url()).await;
    counted("2").await;
    other.stop().await;
    counted("1").await;
}

/// The held names and the gone names of the next event.
async fn next(events: &mut EventStream) -> (BTreeSet<String>, BTreeSet<String>) {
    let changes = events.next("changes").await.data;
    let held = changes["held"].as_array().expect("locks");
    let held = held.iter().map(|lock| lock["name"].as_str().expect("a name").to_owned());
    let gone = changes["gone"].as_array().expect("names");
    let gone = gone.iter().map(|name| name.as_str().expect("a name").to_owned());
    (held.collect(), gone.collect())
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[store_test(service)]
async fn stream_sends_what_changed_and_nothing_else(service: &Service) {
    let path = "/console/locks?prefix=in%2F";
    let held = service.create("in%2Fa", &json!({"owner": "alice", "ttl_ms": 60_000})).await;
    service.create("out%2Fb", &json!({})).await;
    let mut events = EventStream::of(service.request(Method::GET, path)).await;
    let first = events.next("changes").await.data;
    let seen = service.look("in%2Fa").await.json;
    assert_eq!(first["held"].as_array().map(Vec::len), Some(1), "{first}");
    for member in ["name", "owner", "fencing_token", "acquired_at", "waiting"] {
        assert_eq!(first["held"][0][member], seen[member], "{member}");
    }
    service.create("in%2Fc", &json!({"ttl_ms": 60_000})).await;
    // A store without a clock of its own may come to know the end of a lease better meanwhile.
    let until =
        async |events: &mut EventStream,
               is_last: &dyn Fn(&BTreeSet<String>, &BTreeSet<String>) -> bool| loop {
            let (held, gone) = next(events).await;
            assert!(held.is_subset(&names(&["in/a", "in/c"])), "{held:?}");
            if is_last(&held, &gone) {
                return gone;
            }
            assert_eq!(gone, names(&[]));
        };
    assert_eq!(until(&mut events, &|held, _| held.contains("in/c")).await, names(&[]));
    service.release("in%2Fa", &held.token()).await;
    assert_eq!(until(&mut events, &|_, gone| !gone.is_empty()).await, names(&["in/a"]));
}

#[tokio::test]
async fn thousand_changes_are_few_events() {
    let service = Service::start("memory:").await;
    let held = service.create("busy", &json!({"ttl_ms": 60_000})).await;
    let path = "/console/locks";
    let mut events = EventStream::of(service.request(Method::GET, path)).await;
    assert_eq!(next(&mut events).await, (names(&["busy"]), names(&[])));
    let began = Instant::now();
    for round in 0..1000 {
        let ttl_ms = if round % 2 == 0 { 30_000 } else { 60_000 };
        service.renew("busy", &held.token(), &json!({"ttl_ms": ttl_ms})).await;
    }
    service.create("last", &json!({})).await;
    let mut count = 0;
    while !next(&mut events).await.0.contains("last") {
        count += 1;
    }
    // Two a second, however long the changes take.
    let most = 2 * began.elapsed().as_secs() + 3;
    assert!(count <= most, "{count} events for 1000 changes, and {most} fit in the time");
}

#[tokio::test]
async fn consoles_of_one_prefix_share_their_looks() {
    let service = Service::start("memory:").await;
    let began = Instant::now();
    let mut consoles = Vec::new();
    for _ in 0..20 {
        let stream = service.request(Method::GET, "/console/locks?prefix=a");
        consoles.push(EventStream::of(stream).await);
    }
    for name in ["a1", "a2", "a3"] {
        service.create(name, &json!({"ttl_ms": 60_000})).await;
        for console in &mut consoles {
            while !next(console).await.0.contains(name) {}
        }
    }
    let steps =
        r#"keylatch_store_operation_duration_seconds_count{operation="list",outcome="done"}"#;
    let looks = service.metric(steps).await;
    // Two a second, however many consoles there are, and one of the scrape.
    let most = 2 * began.elapsed().as_secs() + 4;
    assert!((1..=most).contains(&looks), "{looks} looks, and {most} fit in the time");
}

#[redis_test]
async fn lost_store_is_reported_once_and_its_return_too() {
    let mut redis = RedisServer::start().await;
    let service = Service::by_default(&redis.url()).await;
    service.create("deploy", &json!({"ttl_ms": 600_000})).await;
    let mut events = EventStream::of(service.request(Method::GET, "/console/locks")).await;
    assert_eq!(next(&mut events).await.0, names(&["deploy"]));
    redis.kill().await;
    events.next("trouble").await;
    redis.restart_empty(&[]).await;
    assert_eq!(next(&mut events).await, (names(&[]), names(&["deploy"])));
}

#[tokio::test]
async fn console_counts_as_a_stream_and_ends_with_the_service() {
    let service = Service::set(|config| config.stream.max_streams = 1).await;
    let open = || service.request(Method::GET, "/console/locks");
    let mut events = EventStream::of(open()).await;
    events.next("changes").await;
    let glance = service.get("/console/glance").await.json;
    assert_eq!(glance["streams"], json!({"hold": 0, "watch": 0, "console": 1}));
    refusal_of(open()).await.is_problem(503, "overloaded");
    service.stop().await;
    events.ended().await;
}

#[tokio::test]
async fn queue_shows_who_waits_and_since_when() {
    let service = Service::start("memory:").await;
    let path = "/console/queue?name=deploy";
    assert_eq!(service.get(path).await.json, json!({"waiting": []}));
    let held = service.create("deploy", &json!({})).await;
    let body = json!({"owner": "bob", "wait_ms": 60_000, "mode": "shared", "limit": 3});
    let waits = service.create("deploy", &body);
    let look = async {
        let waiter = eventually(async || {
            let queue = service.get(path).await.json;
            queue["waiting"].get(0).cloned()
        });
        let waiter = waiter.await;
        assert_eq!((&waiter["owner"], &waiter["mode"]), (&json!("bob"), &json!("shared")));
        assert_eq!(waiter["limit"], 3);
        assert!(waiter["waiting_for_ms"].is_u64(), "{waiter}");
        service.release("deploy", &held.token()).await;
    };
    let (granted, ()) = tokio::join!(waits, look);
    assert_eq!(granted.status, 201);
    assert_eq!(service.get(path).await.json, json!({"waiting": []}));
    service.get("/console/queue").await.is_problem(400, "invalid-query");
}

/// How the earlier grants of `deploy` ended, oldest first: how, and of which fencing token.
async fn ends(service: &Service) -> Vec<(String, u64)> {
    let history = service.get("/console/history?name=deploy").await.json;
    let ends = history["ends"].as_array().unwrap_or_else(|| panic!("no ends: {history}"));
    let end = |end: &Value| (end["how"].as_str().map(str::to_owned), end["fencing_token"].as_u64());
    ends.iter().map(end).map(|(how, fence)| (how.expect("how"), fence.expect("a fence"))).collect()
}

#[store_test(memory)]
async fn history_has_releases_beside_the_ends_that_the_store_keeps(service: &Service) {
    assert_eq!(ends(service).await, []);
    let first = service.create("deploy", &json!({"owner": "alice"})).await;
    service.release("deploy", &first.token()).await;
    let released = ("released".to_owned(), first.fencing_token());
    assert_eq!(ends(service).await, std::slice::from_ref(&released));
    let second = service.create("deploy", &json!({"ttl_ms": 1500})).await;
    let third = service.create("deploy", &json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await;
    let body = json!({"reason": "it hangs", "fencing_token": third.fencing_token(), "grace_ms": 0});
    let broken = service.request(Method::POST, "/v1/locks/deploy/break").json(&body);
    assert_eq!(Answer::of(broken).await.status, 200);
    let (expired, broken) = (second.fencing_token(), third.fencing_token());
    let expected = [released, ("expired".to_owned(), expired), ("broken".to_owned(), broken)];
    assert_eq!(ends(service).await, expected);
    let history = service.get("/console/history?name=deploy").await.json;
    assert_eq!(history["ends"][0]["owner"], "alice", "{history}");
    assert_eq!(history["ends"][2]["reason"], "it hangs", "{history}");
    for moment in [&history["releases_since"], &history["ends"][0]["acquired_at"]] {
        assert!(moment.is_string(), "{history}");
    }
    assert!(!history.to_string().contains(&first.token()), "{history}");
    service.get("/console/history").await.is_problem(400, "invalid-query");
}

#[store_test(memory)]
async fn history_has_the_release_of_a_set(service: &Service) {
    let token = "a-token-that-alice-chose";
    service.create_set_as(&["other", "deploy"], token, &json!({})).await;
    let fence = service.look("deploy").await.fencing_token();
    assert_eq!(service.release_set(&["deploy", "other"], token).await.status, 204);
    assert_eq!(ends(service).await, [("released".to_owned(), fence)]);
}
