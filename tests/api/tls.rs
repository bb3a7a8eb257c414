//! Goal: with a certificate the service speaks TLS and nothing else, and a client that is slow to
//! agree on keys keeps no connection for longer than the timeout of the head and hinders no other
//! client.
//!
//! Method: certificates of the test's own, connections by rustls, and raw ones that send half a
//! handshake.

use keylatch::app::App;
use keylatch::config::Config;
use keylatch::error::Error;
use keylatch_testkit::{
    Authority, Keyring, LogCapture, RawConnection, Service, config, connect_tls, eventually,
    get_request, handshake, post_head,
};
use rustls::version::{TLS12, TLS13};
use serde_json::json;

const SHORT_MS: u64 = 1000;
const LONG_MS: u64 = 3_600_000;

/// What a handshake begins with: the head of a record whose rest never comes.
const HALF: &str = "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}";

fn with_tls(authority: &Authority) -> Config {
    Config { tls: authority.serve(), ..config("memory:") }
}

#[tokio::test]
async fn service_speaks_tls_of_both_versions() {
    let authority = Authority::default();
    let service = Service::start_with(with_tls(&authority)).await;
    for version in [&TLS12, &TLS13] {
        let client = authority.client_of(&[version], &[], None);
        let mut wire = connect_tls(service.address, &client).await;
        for _ in 0..3 {
            assert_eq!(wire.get("/livez").await.status, 200, "{version:?}");
        }
        // More than a record takes.
        let large = wire.get("/docs/swagger-ui-bundle.js").await;
        assert_eq!(large.status, 200);
        assert!(large.text.len() > 1_000_000, "{}", large.text.len());
    }
}

#[tokio::test]
async fn clear_text_is_refused_where_there_is_tls() {
    let authority = Authority::default();
    let service = Service::start_with(with_tls(&authority)).await;
    let mut wire = RawConnection::sending(service.address, &get_request("/livez")).await;
    assert!(wire.ends_without("HTTP").await, "answered in clear text");
    let other = Authority::default().client(&[], None);
    let refused = handshake(service.address, &other).await;
    assert!(refused.is_err(), "the certificate is of another authority");
    let client = authority.client(&[], None);
    assert_eq!(connect_tls(service.address, &client).await.get("/livez").await.status, 200);
}

#[tokio::test]
async fn half_open_handshakes_are_closed_and_keep_no_client_out() {
    rlimit::increase_nofile_limit(4096).expect("more open files");
    let authority = Authority::default();
    let mut config = with_tls(&authority);
    // Long enough to have all of them open at once on a slow machine.
    config.server.header_timeout_ms = 8000;
    config.server.first_byte_timeout_ms = LONG_MS;
    let service = Service::start_with(config).await;
    let mut half_open = Vec::new();
    for _ in 0..300 {
        half_open.push(RawConnection::connect(service.address).await);
        half_open.push(RawConnection::sending(service.address, HALF).await);
    }
    let client = authority.client(&[], None);
    let mut other = connect_tls(service.address, &client).await;
    let open = connections(&mut other).await;
    assert!(open >= 600, "not all at once: {open}");
    other.send(&(post_head("/v1/locks/a", 2) + "{}")).await;
    assert_eq!(other.answer().await.status, 201);
    for wire in &mut half_open {
        wire.closed().await;
    }
    eventually(async || (connections(&mut other).await == 1).then_some(())).await;
}

/// How many connections the service says that it has; the one that asks is among them.
async fn connections(wire: &mut RawConnection) -> usize {
    let metrics = wire.get("/metrics").await.text;
    let line = metrics.lines().find_map(|line| line.strip_prefix("keylatch_http_connections "));
    line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count in {metrics}"))
}

/// The timeout of the first byte does not begin again behind the handshake.
#[tokio::test]
async fn silent_client_is_closed_after_its_handshake() {
    let authority = Authority::default();
    let mut config = with_tls(&authority);
    config.server.header_timeout_ms = SHORT_MS;
    config.server.first_byte_timeout_ms = LONG_MS;
    config.server.keep_alive_timeout_ms = LONG_MS;
    let service = Service::start_with(config).await;
    let mut silent = connect_tls(service.address, &authority.client(&[], None)).await;
    silent.closed().await;
}

#[tokio::test]
async fn waiter_that_goes_leaves_queue_behind_tls() {
    let authority = Authority::default();
    let service = Service::start_with(with_tls(&authority)).await;
    let client = authority.client(&[], None);
    let mut other = connect_tls(service.address, &client).await;
    other.send(&(post_head("/v1/locks/deploy", 2) + "{}")).await;
    assert_eq!(other.answer().await.status, 201);
    let body = json!({ "wait_ms": 300_000 }).to_string();
    for behind in ["", "\r\n", "GET /livez"] {
        let request = post_head("/v1/locks/deploy", body.len()) + &body + behind;
        let mut waiter = connect_tls(service.address, &client).await;
        waiter.send(&request).await;
        has_waiting(&mut other, 1).await;
        drop(waiter);
        has_waiting(&mut other, 0).await;
    }
}

async fn has_waiting(wire: &mut RawConnection, waiting: u64) {
    eventually(async || {
        let lock = wire.get("/v1/locks/deploy").await;
        (lock.json["waiting"] == waiting).then_some(())
    })
    .await;
}

#[tokio::test]
async fn page_of_the_service_passes_as_https_and_not_as_http() {
    let authority = Authority::default();
    let service = Service::start_with(with_tls(&authority)).await;
    let mut wire = connect_tls(service.address, &authority.client(&[], None)).await;
    for (origin, status) in [("https://localhost", 201), ("http://localhost", 403)] {
        wire.send(&format!(
            "POST /v1/locks/{status} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\
             Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
        ))
        .await;
        assert_eq!(wire.answer().await.status, status, "{origin}");
    }
}

#[tokio::test]
async fn changed_pair_is_served_and_wrong_one_is_not() {
    let authority = Authority::default();
    let log = LogCapture::start(&config("memory:"), true);
    let service = Service::start_with(with_tls(&authority)).await;
    let client = authority.client(&[], None);
    let mut old = connect_tls(service.address, &client).await;
    let before = certificate(&service, &authority).await;

    std::fs::write(authority.file("key.pem"), "no key").expect("a file");
    eventually(async || log.text().contains("that of before stays").then_some(())).await;
    assert_eq!(certificate(&service, &authority).await, before);
    // A pair of which each is good, and which do not fit.
    let (one, two) = (authority.sign("a", &["localhost"]), authority.sign("b", &["localhost"]));
    std::fs::write(authority.file("key.pem"), &two.key).expect("a file");
    std::fs::write(authority.file("cert.pem"), &one.cert).expect("a file");
    eventually(async || log.text().contains("cannot be used").then_some(())).await;
    assert_eq!(certificate(&service, &authority).await, before);

    authority.serve();
    eventually(async || (certificate(&service, &authority).await != before).then_some(())).await;
    assert_eq!(old.get("/livez").await.status, 200, "the old connection is open");
}

/// The certificate that a new connection is shown.
async fn certificate(service: &Service, authority: &Authority) -> Vec<u8> {
    let client = authority.client(&[], None);
    let stream = handshake(service.address, &client).await.expect("TLS");
    stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec()
}

#[tokio::test]
async fn pair_that_does_not_fit_is_refused_at_start() {
    let authority = Authority::default();
    let (one, two) = (authority.sign("a", &["localhost"]), authority.sign("b", &["localhost"]));
    for (cert, key, why) in [
        (one.cert.as_str(), two.key.as_str(), "cannot be used"),
        ("", one.key.as_str(), "tls.cert"),
        (one.cert.as_str(), "", "tls.key"),
        (one.key.as_str(), one.key.as_str(), "tls.cert"),
    ] {
        let config = with_tls(&authority);
        std::fs::write(&config.tls.cert, cert).expect("a file");
        std::fs::write(&config.tls.key, key).expect("a file");
        let refused = App::new(config).await.expect_err("a wrong pair").to_string();
        assert!(refused.contains(why), "{refused}");
        assert!(!refused.contains("BEGIN"), "{refused}");
    }
}

/// Encryption says nothing of who the clients are.
#[tokio::test]
async fn tls_alone_does_not_open_the_service_to_the_network() {
    let authority = Authority::default();
    let exposed = Config { listen: "0.0.0.0:0".to_owned(), ..with_tls(&authority) };
    let refused = App::new(exposed.clone()).await;
    assert!(matches!(refused, Err(Error::Exposed { .. })), "{refused:?}");
    assert!(App::new(Config { open: true, ..exposed.clone() }).await.is_ok());
    let mut keyring = Keyring::default();
    keyring.add("ci", "");
    let identities = keyring.path().display().to_string();
    assert!(App::new(Config { identities, ..exposed }).await.is_ok());
}
