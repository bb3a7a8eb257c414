//! Goal: waiters of several instances are one queue, also when an instance dies or stops, and the
//! console of each instance shows all of them.
//!
//! Method: three processes over one Redis, SIGKILL and SIGSTOP; the console over every store that
//! instances share.

use std::sync::Arc;
use std::time::Duration;

use keylatch::config::Config;
use keylatch_core::lock::{LockName, Token};
use keylatch_testkit::{
    Answer, Api, Keyring, Process, RawConnection, RedisServer, Service, TestStore, eventually,
    post_head, redis_test, soon, store_test,
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::KEYLATCH;

const HOLDER: &str = "a-token-of-the-holder-of-the-lock";

#[redis_test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_three_instances_are_served_in_order() {
    const WAITERS: usize = 60;
    let redis = RedisServer::start().await;
    let services = three_on(&redis).await;
    hold(&services[0]).await;
    let mut waiters = JoinSet::new();
    for (number, service) in (0..WAITERS).zip(services.iter().cycle()) {
        let service = Arc::clone(service);
        waiters.spawn(async move {
            let token = token(number);
            let granted = wait(&service, &token).await;
            assert_eq!(granted.status, 201, "{number}: {granted:?}");
            let released = service.release("a", &token).await;
            assert_eq!(released.status, 204, "{number}: {released:?}");
            (granted.fencing_token(), number)
        });
    }
    services[0].has_waiting("a", WAITERS).await;
    // They came all at once, and Redis says in which order it saw them.
    let came = line(&redis, WAITERS).await;
    assert!(!came.is_sorted(), "they came one by one: {came:?}");

    // Meanwhile others ask over and over without waiting, at each instance.
    let served = CancellationToken::new();
    let greedy: Vec<_> =
        services.iter().map(|service| ask_over_and_over(service, &served)).collect();
    assert_eq!(services[0].release("a", HOLDER).await.status, 204);
    let mut got = Vec::new();
    while let Some(waiter) = soon("the next", waiters.join_next()).await {
        got.push(waiter.unwrap());
    }
    served.cancel();
    got.sort_unstable();
    let (fences, numbers): (Vec<u64>, Vec<usize>) = got.into_iter().unzip();
    assert_eq!(numbers, came);
    for greedy in greedy {
        let early = soon("the end of it", greedy).await.unwrap();
        let early = early.filter(|fencing_token| fencing_token < fences.last().unwrap());
        assert_eq!(early, None, "a client that did not wait got the lock before the line was over");
    }
}

#[redis_test(flavor = "multi_thread", worker_threads = 2)]
async fn remaining_waiters_are_served_after_others_leave() {
    const WAITERS: usize = 60;
    let redis = RedisServer::start().await;
    let services = three_on(&redis).await;
    hold(&services[0]).await;
    let waiters: Vec<_> = (0..WAITERS)
        .zip(services.iter().cycle())
        .map(|(number, service)| {
            let (service, token) = (Arc::clone(service), token(number));
            tokio::spawn(async move { wait(&service, &token).await })
        })
        .collect();
    services[0].has_waiting("a", WAITERS).await;
    let came = line(&redis, WAITERS).await;
    let leaves = |number: usize| number.is_multiple_of(3);
    for (number, waiter) in waiters.iter().enumerate() {
        if leaves(number) {
            waiter.abort();
        }
    }
    // They leave before their places would be lost by themselves.
    let left = services[0].has_waiting("a", WAITERS * 2 / 3);
    timeout(Duration::from_secs(2), left).await.expect("they leave at once");
    assert_eq!(services[0].release("a", HOLDER).await.status, 204);
    let mut waiters: Vec<_> = waiters.into_iter().map(Some).collect();
    let mut fencing_token = 0;
    for number in came.into_iter().filter(|number| !leaves(*number)) {
        let waiter = waiters[number].take().expect("one place each");
        let granted = soon("the next", waiter).await.unwrap();
        assert_eq!(granted.status, 201, "{number}: {granted:?}");
        assert!(granted.fencing_token() > fencing_token, "{number} before one that came earlier");
        fencing_token = granted.fencing_token();
        if number % 10 == 5 {
            // This one forgets that it has the lock.
            let body = json!({"ttl_ms": 3000});
            assert_eq!(services[0].renew("a", &token(number), &body).await.status, 200);
        } else {
            assert_eq!(services[0].release("a", &token(number)).await.status, 204);
        }
    }
}

#[redis_test]
async fn next_waiter_acquires_after_the_first_waiters_instance_is_killed() {
    let redis = RedisServer::start().await;
    let [first, second] = [on(&redis).await, on(&redis).await];
    let (_gone, next) = two_in_line(&first, &second).await;
    first.process.ended_by("-KILL").await;
    assert_eq!(second.api.release("a", HOLDER).await.status, 204);
    is_served(next).await;
}

#[redis_test]
async fn next_waiter_acquires_after_the_first_waiters_instance_is_paused() {
    let redis = RedisServer::start().await;
    let [first, second] = [on(&redis).await, on(&redis).await];
    let (mut paused, next) = two_in_line(&first, &second).await;
    first.process.signal("-STOP");
    assert_eq!(second.api.release("a", HOLDER).await.status, 204);
    let granted = is_served(next).await;
    // The paused waiter has lost its place, and waits for another turn.
    first.process.signal("-CONT");
    second.api.has_waiting("a", 1).await;
    assert_eq!(second.api.release("a", &token(1)).await.status, 204);
    let late = paused.answer().await;
    assert_eq!(late.status, 201, "{late:?}");
    assert!(late.fencing_token() > granted.fencing_token());
}

#[redis_test]
async fn killed_instance_keeps_its_lease_and_loses_its_queue_entry() {
    let redis = RedisServer::start().await;
    let [first, second] = [on(&redis).await, on(&redis).await];
    let (mut holder, next) = two_in_line(&first, &second).await;
    assert_eq!(second.api.release("a", HOLDER).await.status, 204);
    let granted = holder.answer().await;
    first.process.ended_by("-KILL").await;
    let seen = second.api.look("a").await;
    assert_eq!(
        (seen.fencing_token(), &seen.json["waiting"]),
        (granted.fencing_token(), &json!(1)),
        "{seen:?}"
    );
    // Any instance takes it back.
    assert_eq!(second.api.release("a", &token(0)).await.status, 204);
    is_served(next).await;
}

/// A label begins with the identity, as that of a holder does.
#[store_test(service)]
async fn console_of_each_instance_shows_all_waiters_and_since_when(store: &TestStore) {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", "allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]");
    let identities = keyring.path().display().to_string();
    let [first, second] = two_with(&Config { identities, ..store.config() }).await;
    let consoles = Consoles { services: [&first, &second], key: &key };
    let wait = async |service: &Service, number: usize, body: Value| {
        let request = service.request(Method::POST, "/v1/locks/a").bearer_auth(&key);
        Answer::of(request.header("Lock-Token", token(number)).json(&body)).await
    };
    assert_eq!(wait(&first, 0, json!({"ttl_ms": 600_000})).await.status, 201);
    let waits = |owner: Option<&str>| json!({"owner": owner, "mode": "shared", "wait_ms": 60_000});
    let one = wait(&first, 1, waits(Some("runner 7")));
    let two = async {
        consoles.show(&["ci: runner 7"], 0).await;
        wait(&second, 2, waits(None)).await
    };
    let look = async {
        // So long that the instance has kept the entry meanwhile, which begins no new wait.
        let [_, shown] = consoles.show(&["ci: runner 7", "ci"], 3000).await;
        assert_eq!(shown[0]["mode"], "shared", "{shown:?}");
        let release = first.request(Method::DELETE, "/v1/locks/a").header("Lock-Token", token(0));
        assert_eq!(Answer::of(release.bearer_auth(&key)).await.status, 204);
    };
    let (one, two, ()) = tokio::join!(one, two, look);
    assert_eq!((one.status.as_u16(), two.status.as_u16()), (201, 201), "{one:?} {two:?}");
    consoles.show(&[], 0).await;
}

/// The consoles of two instances, for a user.
struct Consoles<'a> {
    services: [&'a Service; 2],
    key: &'a str,
}

impl Consoles<'_> {
    /// Waits until each shows waiters with these labels in this order, of whom the first has waited
    /// so long.
    async fn show(&self, owners: &[&str], millis: u64) -> [Vec<Value>; 2] {
        let are_these = |shown: &Vec<Value>| {
            let has_waited = |first: &Value| first["waiting_for_ms"].as_u64() >= Some(millis);
            shown.iter().map(|waiter| &waiter["owner"]).eq(owners)
                && shown.first().is_none_or(has_waited)
        };
        let [first, second] = self.services;
        let is_shown = async || {
            let shown = [self.queue(first).await, self.queue(second).await];
            shown.iter().all(are_these).then_some(shown)
        };
        eventually(is_shown).await
    }

    /// Who waits, as an instance shows it, without a token.
    async fn queue(&self, service: &Service) -> Vec<Value> {
        let request = service.request(Method::GET, "/console/queue?name=a").bearer_auth(self.key);
        let answer = Answer::of(request).await;
        assert!(!answer.text.contains("the-token"), "{answer:?}");
        answer.json["waiting"].as_array().cloned().unwrap_or_else(|| panic!("{answer:?}"))
    }
}

/// Two services over one store, which a store in the process has for one alone.
async fn two_with(config: &Config) -> [Arc<Service>; 2] {
    let start = || async { Arc::new(Service::start_with(config.clone()).await) };
    let first = start().await;
    if ["memory:", "embedded:"].iter().any(|kind| config.store.expose().starts_with(kind)) {
        return [Arc::clone(&first), first];
    }
    [first, start().await]
}

/// A service in its own process.
struct Instance {
    process: Process,
    api: Arc<Api>,
}

async fn on(redis: &RedisServer) -> Instance {
    let process = KEYLATCH.serve(&["--store", &redis.url()], &[]).await;
    let api = Arc::new(Api::at(process.address));
    Instance { process, api }
}

/// A client holds the lock; the first waiter waits at one instance and the next at another.
async fn two_in_line(first: &Instance, second: &Instance) -> (RawConnection, JoinHandle<Answer>) {
    hold(&second.api).await;
    let body = r#"{"wait_ms":300000,"ttl_ms":600000}"#;
    let head = post_head("/v1/locks/a", body.len());
    let own_token = format!("Lock-Token: {}\r\n\r\n", token(0));
    let request = head.trim_end().to_owned() + "\r\n" + &own_token + body;
    let one = RawConnection::sending(first.api.address, &request).await;
    second.api.has_waiting("a", 1).await;
    let api = Arc::clone(&second.api);
    let other = tokio::spawn(async move { wait(&api, &token(1)).await });
    second.api.has_waiting("a", 2).await;
    (one, other)
}

/// Asserts that the next waiter in the queue gets the lock, long before anything else would end.
async fn is_served(next: JoinHandle<Answer>) -> Answer {
    let granted = soon("the turn of the next", next).await.unwrap();
    assert_eq!(granted.status, 201, "{granted:?}");
    granted
}

async fn three_on(redis: &RedisServer) -> [Arc<Service>; 3] {
    let url = redis.url();
    let start = || async { Arc::new(Service::start(&url).await) };
    [start().await, start().await, start().await]
}

/// Acquires without waiting, again and again until a grant or `served`. Gives the fencing token.
fn ask_over_and_over(
    service: &Arc<Service>,
    served: &CancellationToken,
) -> JoinHandle<Option<u64>> {
    let (service, served) = (Arc::clone(service), served.clone());
    tokio::spawn(async move {
        while !served.is_cancelled() {
            let found = service.create("a", &json!({})).await;
            if found.status == 201 {
                return Some(found.fencing_token());
            }
        }
        None
    })
}

/// The numbers of the waiters, in the order in which Redis has them.
async fn line(redis: &RedisServer, waiters: usize) -> Vec<usize> {
    let bucket = LockName::parse("a").unwrap().bucket();
    let key = format!("keylatch:{{{bucket:02x}}}:lock:a");
    let row: Vec<u8> = redis.run(&["GET", &key]).await;
    // The row has the hashes of their tokens in the order of the queue.
    let place = |number| {
        let hash = Token::parse(&token(number)).unwrap().hash();
        row.windows(32).position(|bytes| bytes == hash.as_bytes()).expect("one of them")
    };
    let mut numbers: Vec<_> = (0..waiters).collect();
    numbers.sort_by_cached_key(|number| place(*number));
    numbers
}

async fn hold(service: &Api) {
    let held = service.create_as("a", HOLDER, &json!({"ttl_ms": 600_000})).await;
    assert_eq!(held.status, 201, "{held:?}");
}

async fn wait(service: &Api, token: &str) -> Answer {
    let request = service.request(Method::POST, "/v1/locks/a").header("Lock-Token", token);
    Answer::of(request.json(&json!({"wait_ms": 300_000, "ttl_ms": 600_000}))).await
}

fn token(number: usize) -> String {
    format!("the-token-of-waiter-{number}")
}
