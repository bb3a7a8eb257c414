//! Goal: a copy of the embedded store is whole, is of one moment, holds no change up, and is the
//! operator's alone.
//!
//! Method: a service on a directory. A client that asks for a copy and does not read it keeps it
//! under way. What was read is the file of another service. With the command, and under load, it is
//! in `tests/cli/backup.rs`.

use std::ops::Range;
use std::path::Path;

use futures_util::stream::{self, StreamExt as _};
use keylatch::config::{Config, Switch};
use keylatch_testkit::{Answer, Keyring, Service, config, eventually};
use reqwest::{Method, Response};
use serde_json::json;
use tempfile::TempDir;

const TOKEN: &str = "a-token-of-the-clients-own";
/// So many answers of so many bytes are more than all buffers between the store and a client take.
const ANSWERS: usize = 300;
const ANSWER: usize = 60_000;

fn url(directory: &Path) -> String {
    format!("embedded:{}", directory.display())
}

/// A copy that is under way: its head was read, and of its body nothing.
async fn begin_copy(service: &Service) -> Response {
    let response = service.request(Method::GET, "/v1/backup").send().await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

/// A service on what was copied.
async fn start_on_copy(bytes: &[u8]) -> (TempDir, Service) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("locks.sqlite"), bytes).unwrap();
    let service = Service::start(&url(directory.path())).await;
    (directory, service)
}

/// A service whose store keeps answers that are large together. They come at once, so on a busy
/// machine the store may take its time.
async fn start_full(directory: &Path) -> Service {
    let config = Config { store_timeout_ms: 60_000, ..config(&url(directory)) };
    let service = Service::start_with(config).await;
    keep_answers(&service, 0..ANSWERS).await;
    service
}

/// Keeps an answer under each of these keys.
async fn keep_answers(service: &Service, keys: Range<usize>) {
    let keep = async |key: usize| {
        let path = format!("/v1/idempotency/large-{key}");
        let lease = json!({"lease_ms": 60_000});
        let begun = Answer::of(service.request(Method::POST, &path).json(&lease)).await;
        assert_eq!(begun.status, 201, "{begun:?}");
        let answer = json!({"body": "x".repeat(ANSWER)});
        let request = service.request(Method::PUT, &path).header("lock-token", begun.token());
        let kept = Answer::of(request.json(&answer)).await;
        assert_eq!(kept.status, 200, "{kept:?}");
    };
    stream::iter(keys.map(keep)).buffer_unordered(32).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_kept_while_a_copy_is_read_and_are_not_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let service = start_full(directory.path()).await;
    let before = service.create_as("before", TOKEN, &json!({"ttl_ms": 600_000})).await;
    let copy = begin_copy(&service).await;
    let length = copy.content_length().unwrap();
    assert!(length > (ANSWERS * ANSWER) as u64, "{length}");
    for name in ["during-1", "during-2"] {
        let created = service.create_as(name, TOKEN, &json!({"ttl_ms": 600_000})).await;
        assert_eq!(created.status, 201, "{created:?}");
    }
    assert_eq!(service.release("before", TOKEN).await.status, 204);
    // They take 1,500 pages of the log, which would be in the file at 1,000 if there were no copy.
    keep_answers(&service, ANSWERS..ANSWERS + 100).await;
    let bytes = copy.bytes().await.unwrap();
    assert_eq!(bytes.len() as u64, length);

    let (_directory, copied) = start_on_copy(&bytes).await;
    let again = copied.create_as("before", TOKEN, &json!({})).await;
    assert_eq!((again.status.as_u16(), again.fencing_token()), (200, before.fencing_token()));
    for name in ["during-1", "during-2"] {
        let created = copied.create_as(name, TOKEN, &json!({})).await;
        assert_eq!(created.status, 201, "{created:?}");
        assert!(created.fencing_token() > before.fencing_token());
    }
    let kept = copied.get("/v1/idempotency/large-7").await;
    assert_eq!(kept.json["state"], "done", "{}", kept.status);
    copied.get(&format!("/v1/idempotency/large-{ANSWERS}")).await.is_problem(404, "no-record");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_copy_is_made_at_a_time_and_ends_with_its_reader() {
    let directory = tempfile::tempdir().unwrap();
    let service = start_full(directory.path()).await;
    let copy = begin_copy(&service).await;
    let second = service.get("/v1/backup").await;
    second.is_problem(409, "copy-under-way");
    assert_eq!(second.json["retry"], "same-key", "{second:?}");
    assert!(second.headers.contains_key("retry-after"), "{second:?}");
    drop(copy);
    let next = async || {
        let response = service.request(Method::GET, "/v1/backup").send().await.unwrap();
        (response.status() == 200).then_some(response)
    };
    let bytes = eventually(next).await.bytes().await.unwrap();
    start_on_copy(&bytes).await;
}

/// A client that reads slowly is never silent for long, so that no other timeout ends its copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_that_takes_too_long_is_cut_short_and_makes_way() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        store_timeout_ms: 60_000,
        backup_timeout_ms: 1000,
        ..config(&url(directory.path()))
    };
    let service = Service::start_with(config).await;
    keep_answers(&service, 0..ANSWERS).await;
    let slow = begin_copy(&service).await;
    let next = async || {
        let answer = service.request(Method::GET, "/v1/backup").send().await.unwrap();
        (answer.status() == 200).then_some(())
    };
    eventually(next).await;
    assert!(slow.bytes().await.is_err(), "what is cut short is no copy");
}

#[tokio::test]
async fn engine_that_is_shared_or_gone_with_the_process_gives_no_copy() {
    let service = Service::start("memory:").await;
    service.get("/v1/backup").await.is_problem(501, "not-supported");
}

#[tokio::test]
async fn copy_is_for_clients_of_this_machine_or_for_an_identity_that_may() {
    let off = Config { backup: Switch::Off, ..config("memory:") };
    let service = Service::start_with(off).await;
    service.get("/v1/backup").await.is_problem(403, "backup-disabled");
    let elsewhere = "0.0.0.0:0".to_owned();
    let open = Config { listen: elsewhere.clone(), open: true, ..config("memory:") };
    for (switch, status, code) in
        [(Switch::Auto, 403, "backup-disabled"), (Switch::On, 501, "not-supported")]
    {
        let service = Service::start_with(Config { backup: switch, ..open.clone() }).await;
        service.get("/v1/backup").await.is_problem(status, code);
    }
    let mut keyring = Keyring::default();
    let may = keyring.add("operator", "allow = [{ may = [\"backup\"] }]");
    let all = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }, \
               { keys = \"\", may = [\"use\", \"read\", \"resolve\", \"erase\"] }]";
    let may_not = keyring.add("admin", all);
    let service = Service::start_with(Config { listen: elsewhere, ..keyring.config() }).await;
    for (key, status, code) in [(may, 501, "not-supported"), (may_not, 403, "forbidden")] {
        let request = service.request(Method::GET, "/v1/backup").bearer_auth(key);
        Answer::of(request).await.is_problem(status, code);
    }
}
