//! Goal: an identity that has as much as its quota allows reads 429 before the store is asked, and
//! has room again when something of it is over. Other identities notice nothing.
//!
//! Method: quotas of one or two, over HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};

use keylatch::config::Config;
use keylatch_testkit::{Answer, Keyring, RedisServer, Service, config, eventually, redis_test};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }, \
                   { keys = \"\", may = [\"use\", \"read\", \"resolve\"] }]\n";
const TOKEN: &str = "token-of-the-test-0001";

/// A service, the key of an identity with a quota, and that of one without.
struct Fixture {
    service: Service,
    keyring: Keyring,
    limited: String,
    free: String,
}

impl Fixture {
    async fn start(quota: &str) -> Self {
        let mut keyring = Keyring::default();
        let limited = keyring.add("limited", &format!("{ALL}quota = {{ {quota} }}"));
        let free = keyring.add("free", ALL);
        let service = Service::start_with(keyring.config()).await;
        Self { service, keyring, limited, free }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.service.request(method, path).bearer_auth(&self.limited)
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Answer {
        Answer::of(self.request(method, path).json(&body)).await
    }

    async fn create(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, body).await
    }

    /// Asks until it is granted.
    async fn gets(&self, path: &str) {
        eventually(async || (self.create(path, json!({})).await.status == 201).then_some(())).await;
    }

    /// The same of the identity without a quota.
    async fn create_free(&self, path: &str) -> Answer {
        let request = self.service.request(Method::POST, path).bearer_auth(&self.free);
        Answer::of(request.json(&json!({}))).await
    }

    async fn metric(&self, line: &str) -> Option<String> {
        let metrics = Answer::of(self.request(Method::GET, "/metrics")).await;
        let found = metrics.text.lines().find_map(|text| text.strip_prefix(line));
        found.map(|value| value.trim().to_owned())
    }
}

#[track_caller]
fn is_above(answer: &Answer, quota: &str) {
    answer.is_problem(429, "quota-exceeded");
    assert_eq!(answer.json["quota"], quota, "{answer:?}");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    let seconds = answer.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap();
    assert!(seconds >= 1, "{answer:?}");
}

fn token_of(answer: &Answer) -> String {
    answer.json["token"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

#[tokio::test]
async fn lock_above_the_quota_is_refused_until_one_is_released() {
    let fixture = Fixture::start("locks = 2").await;
    let own = |name: &str| {
        let request = fixture.request(Method::POST, &format!("/v1/locks/{name}"));
        request.header("lock-token", TOKEN)
    };
    assert_eq!(Answer::of(own("a")).await.status, 201);
    let second = fixture.create("/v1/locks/b", json!({"ttl_ms": 60_000})).await;
    assert_eq!(second.status, 201);
    is_above(&fixture.create("/v1/locks/c", json!({})).await, "locks");
    is_above(&fixture.create("/v1/locks/c/hold", json!({})).await, "locks");
    is_above(&fixture.create("/v1/locks", json!({"names": ["c", "d"]})).await, "locks");
    assert_eq!(Answer::of(own("a")).await.status, 200, "a repeat takes no room");
    assert_eq!(fixture.create_free("/v1/locks/c").await.status, 201);
    let released = fixture.request(Method::DELETE, "/v1/locks/b");
    let released = Answer::of(released.header("lock-token", token_of(&second))).await;
    assert_eq!(released.status, 204);
    assert_eq!(fixture.create("/v1/locks/d", json!({})).await.status, 201);
    is_above(&fixture.create("/v1/locks/e", json!({})).await, "locks");
}

#[tokio::test]
async fn refused_create_leaves_its_room() {
    let fixture = Fixture::start("locks = 1").await;
    assert_eq!(fixture.create_free("/v1/locks/a").await.status, 201);
    for _ in 0..3 {
        fixture.create("/v1/locks/a", json!({})).await.is_problem(409, "lock-held");
    }
    assert_eq!(fixture.create("/v1/locks/b", json!({})).await.status, 201);
}

#[tokio::test]
async fn held_lock_counts_after_a_renewal_and_not_after_its_end() {
    let fixture = Fixture::start("locks = 1").await;
    let lease = fixture.create("/v1/locks/a", json!({"ttl_ms": 1500})).await;
    let renew = fixture.request(Method::PUT, "/v1/locks/a").header("lock-token", token_of(&lease));
    if Answer::of(renew.json(&json!({"ttl_ms": 60_000}))).await.status == 200 {
        is_above(&fixture.create("/v1/locks/b", json!({})).await, "locks");
    }
    let fixture = Fixture::start("locks = 1").await;
    fixture.create("/v1/locks/a", json!({"ttl_ms": 1500})).await;
    fixture.gets("/v1/locks/b").await;
}

#[tokio::test]
async fn set_counts_as_its_locks() {
    let fixture = Fixture::start("locks = 3").await;
    let set = |names: [&str; 2]| json!({"names": names});
    let first = fixture.create("/v1/locks", set(["a", "b"])).await;
    assert_eq!(first.status, 201, "{first:?}");
    is_above(&fixture.create("/v1/locks", set(["c", "d"])).await, "locks");
    assert_eq!(fixture.create("/v1/locks/c", json!({})).await.status, 201);
    let released = fixture.request(Method::DELETE, "/v1/locks?name=a&name=b");
    let released = Answer::of(released.header("lock-token", token_of(&first))).await;
    assert_eq!(released.status, 204);
    assert_eq!(fixture.create("/v1/locks", set(["d", "e"])).await.status, 201);
}

#[tokio::test]
async fn waiter_above_the_quota_is_refused_until_one_has_left() {
    let fixture = Fixture::start("waiters = 1").await;
    assert_eq!(fixture.create_free("/v1/locks/a").await.status, 201);
    let waiting = {
        let request = fixture.request(Method::POST, "/v1/locks/a");
        tokio::spawn(request.json(&json!({"wait_ms": 60_000})).send())
    };
    let used = "keylatch_quota_used{identity=\"limited\",quota=\"waiters\"}";
    eventually(async || (fixture.metric(used).await? == "1").then_some(())).await;
    is_above(&fixture.create("/v1/locks/a", json!({"wait_ms": 1})).await, "waiters");
    fixture.create("/v1/locks/a", json!({})).await.is_problem(409, "lock-held");
    waiting.abort();
    eventually(async || (fixture.metric(used).await? == "0").then_some(())).await;
    fixture.create("/v1/locks/a", json!({"wait_ms": 1})).await.is_problem(409, "lock-held");
}

#[tokio::test]
async fn begin_that_waits_counts_as_a_waiter_of_the_quota() {
    let fixture = Fixture::start("waiters = 1").await;
    let begin = || fixture.request(Method::POST, "/v1/idempotency/a");
    assert_eq!(Answer::of(begin()).await.status, 201);
    let waiting = tokio::spawn(begin().header("prefer", "wait=100").send());
    let used = "keylatch_quota_used{identity=\"limited\",quota=\"waiters\"}";
    eventually(async || (fixture.metric(used).await? == "1").then_some(())).await;
    is_above(&Answer::of(begin().header("prefer", "wait=1")).await, "waiters");
    Answer::of(begin()).await.is_problem(409, "request-in-progress");
    waiting.abort();
    eventually(async || (fixture.metric(used).await? == "0").then_some(())).await;
}

#[tokio::test]
async fn stream_above_the_quota_is_refused_until_one_is_closed() {
    let fixture = Fixture::start("streams = 1, locks = 1").await;
    let watch = || fixture.request(Method::GET, "/v1/locks/a/events");
    let open = watch().send().await.unwrap();
    assert_eq!(open.status(), StatusCode::OK);
    is_above(&Answer::of(watch()).await, "streams");
    is_above(&fixture.create("/v1/locks/a/hold", json!({})).await, "streams");
    drop(open);
    let hold = async || {
        let request = fixture.request(Method::POST, "/v1/locks/a/hold");
        let response = request.json(&json!({})).send().await.unwrap();
        (response.status() == StatusCode::OK).then_some(response)
    };
    let held = eventually(hold).await;
    is_above(&fixture.create("/v1/locks/b", json!({})).await, "locks");
    drop(held);
    fixture.gets("/v1/locks/b").await;
}

#[tokio::test]
async fn key_above_the_quota_is_refused_until_one_is_free() {
    let fixture = Fixture::start("records = 1").await;
    let begun = fixture.create("/v1/idempotency/a", json!({})).await;
    assert_eq!(begun.status, 201);
    is_above(&fixture.create("/v1/idempotency/b", json!({})).await, "records");
    fixture.create("/v1/idempotency/a", json!({})).await.is_problem(409, "request-in-progress");
    assert_eq!(fixture.create_free("/v1/idempotency/b").await.status, 201);
    let abandoned = fixture.request(Method::DELETE, "/v1/idempotency/a");
    let abandoned = Answer::of(abandoned.header("lock-token", token_of(&begun))).await;
    assert_eq!(abandoned.status, 204);
    assert_eq!(fixture.create("/v1/idempotency/c", json!({})).await.status, 201);
}

/// A run takes room for the longest answer, so that no number of runs at once passes the quota.
#[tokio::test]
async fn run_takes_room_for_its_answer_when_it_begins() {
    let fixture = Fixture::start("bytes = 100_000").await;
    let begun = fixture.create("/v1/idempotency/a", json!({})).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    is_above(&fixture.create("/v1/idempotency/b", json!({})).await, "bytes");
    let complete = fixture.request(Method::PUT, "/v1/idempotency/a");
    let complete = complete.header("lock-token", token_of(&begun)).json(&json!({"body": "a"}));
    assert_eq!(Answer::of(complete).await.status, 200);
    assert_eq!(fixture.create("/v1/idempotency/b", json!({})).await.status, 201);
}

/// The store keeps what is unknown for longer than what is done.
#[tokio::test]
async fn key_whose_run_was_left_alone_counts_for_as_long_as_it_is_unknown() {
    let fixture = Fixture::start("records = 1").await;
    let short = json!({"lease_ms": 100, "retention_ms": 1000});
    assert_eq!(fixture.create("/v1/idempotency/a", short.clone()).await.status, 201);
    // One that is forgotten begins later, and ends so.
    let rerun = json!({"lease_ms": 100, "retention_ms": 1000, "on_crash": "rerun"});
    let other = |method| {
        let request = fixture.service.request(method, "/v1/idempotency/b");
        request.bearer_auth(&fixture.free)
    };
    assert_eq!(Answer::of(other(Method::POST).json(&rerun)).await.status, 201);
    let is_forgotten = async || (Answer::of(other(Method::GET)).await.status == 404).then_some(());
    eventually(is_forgotten).await;
    is_above(&fixture.create("/v1/idempotency/c", json!({})).await, "records");
}

#[tokio::test]
async fn key_that_a_person_settled_counts_as_that_says() {
    let mut keyring = Keyring::default();
    let limited = keyring.add("limited", &format!("{ALL}quota = {{ records = 1 }}"));
    let free = keyring.add("free", &format!("{ALL}act_for = [\"*\"]"));
    let service = Service::start_with(keyring.config()).await;
    let fixture = Fixture { service, keyring, limited, free };
    fixture.create("/v1/idempotency/a", json!({"lease_ms": 100})).await;
    let settled = async || {
        let path = "/v1/idempotency/a/resolve?principal=limited";
        let request = fixture.service.request(Method::POST, path).bearer_auth(&fixture.free);
        let answer = Answer::of(request.json(&json!({"outcome": "not-executed"}))).await;
        (answer.status == 204).then_some(())
    };
    eventually(settled).await;
    assert_eq!(fixture.create("/v1/idempotency/b", json!({})).await.status, 201);
}

#[tokio::test]
async fn broken_lease_counts_no_longer() {
    let fixture = Fixture::start("locks = 1").await;
    let lease = fixture.create("/v1/locks/a", json!({"ttl_ms": 3_600_000})).await;
    is_above(&fixture.create("/v1/locks/b", json!({})).await, "locks");
    let fence = &lease.json["fencing_token"];
    let body = json!({"fencing_token": fence, "reason": "it hangs", "grace_ms": 0});
    let request = fixture.service.request(Method::POST, "/v1/locks/a/break");
    let broken = Answer::of(request.bearer_auth(&fixture.free).json(&body)).await;
    assert_eq!(broken.status, 200, "{broken:?}");
    let room = async || {
        let answer = fixture.create("/v1/locks/b", json!({})).await;
        (answer.status == 201).then_some(())
    };
    eventually(room).await;
}

#[tokio::test]
async fn hold_counts_as_a_waiter_until_it_has_the_lock() {
    let fixture = Fixture::start("waiters = 1").await;
    let request = fixture.request(Method::POST, "/v1/locks/a/hold");
    let held = request.json(&json!({"wait_ms": 60_000})).send().await.unwrap();
    assert_eq!(held.status(), StatusCode::OK);
    assert_eq!(fixture.create_free("/v1/locks/b").await.status, 201);
    let waits = async || {
        let answer = fixture.create("/v1/locks/b", json!({"wait_ms": 1})).await;
        (answer.status == 409).then_some(())
    };
    eventually(waits).await;
}

/// No instance hears of what ends at another.
#[redis_test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_at_another_instance_counts_no_longer_once_the_store_was_looked_at() {
    let (redis, mut keyring) = (RedisServer::start().await, Keyring::default());
    let key = keyring.add("limited", &format!("{ALL}quota = {{ locks = 1, records = 1 }}"));
    let config = || Config { store: config(&redis.url()).store, ..keyring.config() };
    let [one, other] = [Service::start_with(config()).await, Service::start_with(config()).await];
    let send = async |service: &Service, method, path: &str| {
        let request = service.request(method, path).bearer_auth(&key).header("lock-token", TOKEN);
        Answer::of(request.json(&json!({}))).await
    };
    for kind in ["/v1/locks", "/v1/idempotency"] {
        let (first, next) = (format!("{kind}/a"), format!("{kind}/b"));
        assert_eq!(send(&one, Method::POST, &first).await.status, 201);
        let request = other.request(Method::DELETE, &first).bearer_auth(&key);
        let ended = Answer::of(request.header("lock-token", TOKEN)).await;
        assert_eq!(ended.status, 204, "{ended:?}");
        let room = async || (send(&one, Method::POST, &next).await.status == 201).then_some(());
        eventually(room).await;
    }
}

#[tokio::test]
async fn no_run_begins_when_as_many_bytes_are_kept_as_may() {
    let fixture = Fixture::start("bytes = 1000").await;
    let run = async |key: &str, bytes: usize| {
        let path = format!("/v1/idempotency/{key}");
        let begun = fixture.create(&path, json!({})).await;
        let complete = fixture.request(Method::PUT, &path).header("lock-token", token_of(&begun));
        let answer = Answer::of(complete.json(&json!({"body": "a".repeat(bytes)}))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    run("a", 900).await;
    is_above(&fixture.create("/v1/idempotency/b", json!({})).await, "bytes");
    let used = fixture.metric("keylatch_quota_used{identity=\"limited\",quota=\"bytes\"}").await;
    assert!(used.as_deref().is_some_and(|used| used.starts_with("9")), "{used:?}");
    let refused =
        fixture.metric("keylatch_quota_refusals_total{identity=\"limited\",quota=\"bytes\"}").await;
    assert_eq!(refused.as_deref(), Some("1"));
}

#[tokio::test]
async fn burst_above_the_rate_is_refused_and_does_not_touch_others() {
    let fixture = Fixture::start("requests_per_second = 1").await;
    let looks = (0..50).map(|_| Answer::of(fixture.request(Method::GET, "/v1/locks/a")));
    let answers = futures_util::future::join_all(looks).await;
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
    assert!((1..50).contains(&refused.len()), "{answers:?}");
    refused.iter().for_each(|answer| is_above(answer, "requests_per_second"));
    assert_eq!(fixture.create_free("/v1/locks/a").await.status, 201);
    let later = async || {
        let answer = Answer::of(fixture.request(Method::GET, "/v1/locks/a")).await;
        (answer.status == 200).then_some(())
    };
    eventually(later).await;
}

/// Else one that does not heed `Retry-After` would take the time of all others.
#[tokio::test]
async fn client_that_asks_again_at_once_is_refused_about_as_often_as_it_is_served() {
    let fixture = Fixture::start("requests_per_second = 50").await;
    let (served, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let press = (0..8).map(async |_| {
        while served.load(Ordering::Relaxed) < 100 {
            let answer = Answer::of(fixture.request(Method::GET, "/v1/locks/a")).await;
            let count = if answer.status == 429 { &refused } else { &served };
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    futures_util::future::join_all(press).await;
    let refused = refused.into_inner();
    assert!((1..200).contains(&refused), "{refused} refusals beside 100 answers");
}

/// What one identity has is no other's to read, and an operator's.
/// As an editor writes a file, in two parts.
#[tokio::test]
async fn what_an_identity_has_outlives_a_reading_of_half_the_file() {
    let fixture = Fixture::start("locks = 1").await;
    let (whole, free) = (fixture.keyring.text().to_owned(), fixture.free.clone());
    assert_eq!(fixture.create("/v1/locks/a", json!({})).await.status, 201);
    let half = whole.rsplit_once("[[identity]]").expect("two").1;
    fixture.keyring.write(&format!("[[identity]]{half}"));
    let status = async || fixture.create("/v1/locks/a", json!({})).await.status.as_u16();
    eventually(async || (status().await == 401).then_some(())).await;
    assert_eq!(fixture.create_free("/v1/locks/b").await.status, 201, "{free} is there throughout");
    fixture.keyring.write(&whole);
    eventually(async || (status().await != 401).then_some(())).await;
    is_above(&fixture.create("/v1/locks/c", json!({})).await, "locks");
}

#[tokio::test]
async fn metrics_show_the_quota_of_others_to_who_may_read_all() {
    let mut keyring = Keyring::default();
    let narrow = "allow = [{ locks = \"a/\", may = [\"acquire\", \"read\"] }, \
                  { may = [\"metrics\"] }]\nquota = { locks = 5 }";
    let (one, two) = (keyring.add("one", narrow), keyring.add("two", narrow));
    let locks = "allow = [{ locks = \"\", may = [\"read\"] }, { may = [\"metrics\"] }]";
    let locks_alone = keyring.add("locks", locks);
    let nothing = keyring.add("nothing", "allow = [{ may = [\"metrics\"] }]");
    let all = keyring.add("all", ALL);
    let service = Service::start_with(keyring.config()).await;
    for (key, expected) in [
        (&one, &["one"][..]),
        (&two, &["two"]),
        (&locks_alone, &[]),
        (&nothing, &[]),
        (&all, &["one", "two"]),
    ] {
        let request = service.request(Method::GET, "/metrics").bearer_auth(key);
        let metrics = Answer::of(request).await.text;
        for identity in ["one", "two"] {
            let is_shown = metrics.contains(&format!("identity=\"{identity}\""));
            assert_eq!(is_shown, expected.contains(&identity), "{identity}: {expected:?}");
        }
        assert!(metrics.contains("keylatch_http_in_flight"), "{metrics}");
    }
}

/// A service with a namespace of locks and one of keys, in which the limited identity has less than
/// elsewhere.
async fn with_namespaces() -> Fixture {
    let mut keyring = Keyring::default();
    let lines = "quota = { locks = 3 }\nallow = [\
         { locks = \"\", may = [\"acquire\", \"read\"] }, \
         { locks = \"team/\", may = [\"break\"], quota = { locks = 1, waiters = 1, streams = 1 } }, \
         { keys = \"\", may = [\"use\"] }, \
         { keys = \"shop/\", may = [\"read\"], quota = { records = 1 } }]";
    let limited = keyring.add("limited", lines);
    let free = keyring.add("free", ALL);
    let service = Service::start_with(keyring.config()).await;
    Fixture { service, keyring, limited, free }
}

#[tokio::test]
async fn quota_of_a_namespace_counts_what_is_below_its_prefix() {
    let fixture = with_namespaces().await;
    let first = fixture.create("/v1/locks/team%2Fa", json!({})).await;
    assert_eq!(first.status, 201);
    is_above(&fixture.create("/v1/locks/team%2Fb", json!({})).await, "locks");
    let set = json!({"names": ["a", "team/b"]});
    is_above(&fixture.create("/v1/locks", set).await, "locks");
    assert_eq!(fixture.create("/v1/locks/team", json!({})).await.status, 201);
    // What was refused there takes no room in the quota of the identity itself.
    assert_eq!(fixture.create("/v1/locks/a", json!({})).await.status, 201);
    is_above(&fixture.create("/v1/locks/b", json!({})).await, "locks");
    assert_eq!(fixture.create_free("/v1/locks/team%2Fb").await.status, 201);

    let watch =
        |name: &str| fixture.request(Method::GET, &format!("/v1/locks/{name}/events")).send();
    let watched = watch("team%2Fa").await.expect("an answer");
    assert_eq!(watched.status(), 200);
    is_above(
        &Answer::of(fixture.request(Method::GET, "/v1/locks/team%2Fb/events")).await,
        "streams",
    );
    assert_eq!(watch("a").await.expect("an answer").status(), 200);
    drop(watched);

    for (key, status) in [("shop%2F1", 201), ("shop%2F2", 429), ("shop", 201), ("2", 201)] {
        let begun = fixture.create(&format!("/v1/idempotency/{key}"), json!({})).await;
        assert_eq!(begun.status, status, "{key}: {begun:?}");
    }

    let release = fixture.request(Method::DELETE, "/v1/locks/team%2Fa");
    let released = Answer::of(release.header("lock-token", token_of(&first))).await;
    assert_eq!(released.status, 204);
    assert_eq!(fixture.create("/v1/locks/team%2Fc", json!({})).await.status, 201);
    // A new reading of the file forgets nothing of it.
    let text = fixture.keyring.text().replace("locks = 3", "locks = 4");
    fixture.keyring.write(&text);
    fixture.gets("/v1/locks/b").await;
    is_above(&fixture.create("/v1/locks/team%2Fd", json!({})).await, "locks");
}
