//! Goal: what is open ends soon after what let it in: the permission, the identity, its key, the
//! authority of a client's certificate.
//!
//! Method: streams and connections that are open while the file of identities or of authorities
//! changes, and a certificate that expires.

use std::time::Duration;

use keylatch::config::Config;
use keylatch_testkit::{
    Answer, Api, Authority, EventStream, Keyring, RawConnection, Service, connect_tls, eventually,
    soon,
};
use reqwest::Method;
use serde_json::json;

const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]";

/// A watch, a console and a hold, each of which has begun.
async fn open_all(service: &Api, key: &str) -> [EventStream; 3] {
    let get = |path| EventStream::of(service.request(Method::GET, path).bearer_auth(key));
    let mut watch = get("/v1/locks/watched/events").await;
    watch.next("snapshot").await;
    let mut console = get("/console/locks").await;
    console.next("changes").await;
    let hold = service.request(Method::POST, "/v1/locks/deploy/hold").bearer_auth(key);
    let mut hold = EventStream::of(hold.json(&json!({"ttl_ms": 60_000}))).await;
    hold.next("acquired").await;
    [watch, console, hold]
}

/// They end, the console's after what it may still say, and the lock is free.
async fn all_end(service: &Api, [mut watch, mut console, mut hold]: [EventStream; 3], admin: &str) {
    watch.ended().await;
    let console = async { while console.read().await.is_some() {} };
    soon("the end of the console", console).await;
    let lost = hold.after_renewals("lost").await;
    assert_eq!(lost.data["reason"], "forbidden", "{lost:?}");
    hold.ended().await;
    let look = service.request(Method::GET, "/v1/locks/deploy").bearer_auth(admin);
    let look = eventually(async || {
        let look = look.try_clone().expect("no body");
        (Answer::of(look).await.status == 404).then_some(())
    });
    look.await;
}

#[tokio::test]
async fn streams_end_after_their_permission() {
    for change in ["permission", "identity", "key"] {
        let mut keyring = Keyring::default();
        let admin = keyring.add("admin", ALL);
        let key = keyring.add("ci", ALL);
        let mut after = keyring.text().to_owned();
        let at = after.rfind("[[identity]]").expect("an identity");
        match change {
            "permission" => after = after[..at].to_owned() + &after[at..].replace(ALL, ""),
            "identity" => after.truncate(at),
            _ => {
                let mut other = Keyring::default();
                other.add("ci", ALL);
                after = after[..at].to_owned() + other.text();
            }
        }
        let service = Service::start_with(keyring.config()).await;
        let streams = open_all(&service, &key).await;
        let stays = service.request(Method::GET, "/v1/locks/other/events").bearer_auth(&admin);
        let mut stays = EventStream::of(stays).await;
        stays.next("snapshot").await;
        keyring.write(&after);
        all_end(&service, streams, &admin).await;
        let create = service.request(Method::POST, "/v1/locks/other").bearer_auth(&admin);
        assert_eq!(Answer::of(create).await.status, 201);
        stays.next("acquired").await;
    }
}

#[tokio::test]
async fn connection_ends_after_the_authority_of_its_certificate() {
    let (authority, mut keyring) = (Authority::default(), Keyring::default());
    keyring.add_certificates("ci", &["ci"], ALL);
    let config = Config { tls: authority.serve_clients(), ..keyring.config() };
    let service = Service::start_with(config).await;
    let client = authority.client(&[], Some(&authority.sign("ci", &[])));
    let mut open = connect_tls(service.address, &client).await;
    watch(&mut open).await;
    let without = authority.client(&[], None);
    let mut stays = connect_tls(service.address, &without).await;
    assert_eq!(stays.get("/livez").await.status, 200);
    std::fs::copy(Authority::default().ca_file(), authority.ca_file()).expect("a file");
    assert!(open.ends_without("event: acquired").await);
    assert_eq!(stays.get("/livez").await.status, 200);
}

#[tokio::test]
async fn connection_ends_after_its_certificate() {
    let (authority, mut keyring) = (Authority::default(), Keyring::default());
    keyring.add_certificates("ci", &["ci"], ALL);
    let config = Config { tls: authority.serve_clients(), ..keyring.config() };
    let service = Service::start_with(config).await;
    let certificate = authority.sign_for("ci", Duration::from_secs(6));
    let client = authority.client(&[], Some(&certificate));
    let mut open = connect_tls(service.address, &client).await;
    watch(&mut open).await;
    assert!(open.ends_without("event: acquired").await);
}

/// Begins a watch over a connection.
async fn watch(wire: &mut RawConnection) {
    wire.send("GET /v1/locks/a/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    wire.receives("HTTP/1.1 200 OK").await;
}
