//! Goal: `rediss://` uses TLS for everything and trusts only certificates that the machine trusts,
//! of the host in the URL.
//!
//! Method: a Redis with certificates of the test's own.

use keylatch_testkit::{Api, Process, RedisServer, eventually, free_port};
use serde_json::json;
use tempfile::TempDir;

use crate::KEYLATCH;
use crate::redis_certificates::hands_over_between;

#[tokio::test]
async fn locks_and_wakeups_use_tls() {
    let redis = LoneRedis::start("localhost").await;
    let (one, other) = (redis.service().await, redis.service().await);
    let (one, other) = (Api::at(one.address), Api::at(other.address));
    eventually(async || {
        let listening: String = redis.redis.plain.run(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        (listening.lines().count() == 2).then_some(())
    })
    .await;
    hands_over_between(&one, &other).await;
}

#[tokio::test]
async fn untrusted_or_foreign_certificate_is_rejected() {
    for (host, trusted) in [("localhost", false), ("redis.example.org", true)] {
        let redis = LoneRedis::start(host).await;
        let service = redis.service_that(trusted).await;
        Api::at(service.address)
            .create("deploy", &json!({}))
            .await
            .is_problem(503, "store-unavailable");
        let log = service.ended_by("-TERM").await.stderr;
        assert!(log.contains("invalid peer certificate"), "{host}: {log}");
    }
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn redlock_uses_tls_to_every_node() {
    let certificates = Certificates::of("localhost");
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(TlsRedis::start_with(&certificates).await);
    }
    let hosts: Vec<_> = nodes.iter().map(|node| node.url.trim_start_matches("rediss://")).collect();
    let url = format!("rediss+redlock://{}", hosts.join(","));
    // Only what is slow is slow here, and not a node.
    let patient = ("KEYLATCH_REDLOCK_NODE_TIMEOUT_MS", "1000");
    let trust = ("SSL_CERT_FILE", certificates.cert.as_str());
    let service = KEYLATCH.serve(&["--store", &url], &[patient, trust]).await;
    let api = Api::at(service.address);
    // A node that the service has not reached yet does not vote.
    let lease = eventually(async || {
        let lease = api.create("deploy", &json!({"ttl_ms": 30_000})).await;
        (lease.status == 201).then_some(lease)
    })
    .await;
    assert_eq!(api.release("deploy", &lease.token()).await.status, 204);
    let other = KEYLATCH.serve(&["--store", &url], &[patient]).await;
    let refused = Api::at(other.address).create("deploy", &json!({"ttl_ms": 30_000})).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let log = other.ended_by("-TERM").await.stderr;
    assert!(log.contains("invalid peer certificate"), "{log}");
}

/// A certificate and its key, as files.
struct Certificates {
    cert: String,
    key: String,
    _directory: TempDir,
}

impl Certificates {
    fn of(host: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let identity = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let cert = file("certificate.pem", identity.cert.pem());
        let key = file("key.pem", identity.signing_key.serialize_pem());
        Self { cert, key, _directory: directory }
    }
}

/// A Redis with a certificate, which the tests themselves reach without TLS.
struct TlsRedis {
    plain: RedisServer,
    url: String,
}

impl TlsRedis {
    async fn start_with(certificates: &Certificates) -> Self {
        let port = free_port().to_string();
        let plain = RedisServer::start_with(&[
            "--tls-port",
            &port,
            "--tls-cert-file",
            &certificates.cert,
            "--tls-key-file",
            &certificates.key,
            "--tls-auth-clients",
            "no",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ])
        .await;
        Self { plain, url: format!("rediss://localhost:{port}") }
    }
}

/// Such a Redis, alone.
struct LoneRedis {
    redis: TlsRedis,
    certificates: Certificates,
}

impl LoneRedis {
    async fn start(host: &str) -> Self {
        let certificates = Certificates::of(host);
        Self { redis: TlsRedis::start_with(&certificates).await, certificates }
    }

    async fn service(&self) -> Process {
        self.service_that(true).await
    }

    /// A service on a machine that trusts the certificate, or one that trusts others.
    async fn service_that(&self, trusts: bool) -> Process {
        let roots = ("SSL_CERT_FILE", self.certificates.cert.as_str());
        let environment: &[_] = if trusts { &[roots] } else { &[] };
        KEYLATCH.serve(&["--store", &self.redis.url], environment).await
    }
}
