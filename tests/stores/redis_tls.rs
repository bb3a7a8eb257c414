//! Goal: `rediss://` uses TLS for everything and trusts only certificates that the machine trusts, of the
//! host in the URL.
//!
//! Method: a Redis with certificates of the test's own.

use keylatch_testkit::{Api, Process, RedisServer, eventually, free_port, soon};
use serde_json::json;
use tempfile::TempDir;

use crate::KEYLATCH;

#[tokio::test]
async fn locks_and_wakeups_use_tls() {
    let redis = TlsRedis::start("localhost").await;
    let (one, other) = (redis.service().await, redis.service().await);
    let (one, other) = (Api::at(one.address), Api::at(other.address));
    let lease = one.create("deploy", &json!({})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    eventually(async || {
        let listening: String = redis.plain.run(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        (listening.lines().count() == 2).then_some(())
    })
    .await;
    let patient = json!({"wait_ms": 60_000});
    let waiter = soon("the waiter", other.create("deploy", &patient));
    let holder = async {
        let waits = async || (one.look("deploy").await.json["waiting"] == 1).then_some(());
        eventually(waits).await;
        assert_eq!(one.release("deploy", &lease.token()).await.status, 204);
    };
    let (waiter, ()) = tokio::join!(waiter, holder);
    assert_eq!(waiter.status, 201, "{waiter:?}");
}

#[tokio::test]
async fn untrusted_or_foreign_certificate_is_rejected() {
    for (host, trusted) in [("localhost", false), ("redis.example.org", true)] {
        let redis = TlsRedis::start(host).await;
        let service = redis.service_that(trusted).await;
        Api::at(service.address)
            .create("deploy", &json!({}))
            .await
            .is_problem(503, "store-unavailable");
        let log = service.ended_by("-TERM").await.stderr;
        assert!(log.contains("invalid peer certificate"), "{host}: {log}");
    }
}

/// A Redis with a certificate, which the tests themselves reach without TLS.
struct TlsRedis {
    plain: RedisServer,
    url: String,
    certificate: String,
    _directory: TempDir,
}

impl TlsRedis {
    async fn start(host: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let identity = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let certificate = file("certificate.pem", identity.cert.pem());
        let key = file("key.pem", identity.signing_key.serialize_pem());
        let port = free_port().to_string();
        let plain = RedisServer::start_with(&[
            "--tls-port",
            &port,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-auth-clients",
            "no",
        ])
        .await;
        let url = format!("rediss://localhost:{port}");
        Self { plain, url, certificate, _directory: directory }
    }

    async fn service(&self) -> Process {
        self.service_that(true).await
    }

    /// A service on a machine that trusts the certificate, or one that trusts others.
    async fn service_that(&self, trusts: bool) -> Process {
        let roots = ("SSL_CERT_FILE", self.certificate.as_str());
        let environment: &[_] = if trusts { &[roots] } else { &[] };
        KEYLATCH.serve(&["--store", &self.url], environment).await
    }
}
