//! Goal: an encrypted connection goes only to a server whose certificate the URL's roots vouch for,
//! and that has the name in the URL.
//!
//! Method: a PostgreSQL with a certificate of the test's own, which is in no system's store.

use keylatch_testkit::{Api, Authority, Certificate, PostgresServer};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::KEYLATCH;
use crate::lock_conformance::{ask, granted};
use crate::postgres::{open, open_error, open_held};

#[tokio::test]
async fn private_authority_is_trusted_where_the_url_names_it() {
    let server = TlsPostgres::start("localhost").await;
    let root = server.root.path().display();
    for parameters in
        [format!("sslrootcert={root}"), format!("sslmode=verify-full&sslrootcert={root}")]
    {
        let store = open(&server.url(&parameters)).await;
        granted(store.acquire(&ask(&parameters, "one", 1)).await.unwrap());
    }
    let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name = 'keylatch' AND NOT ssl";
    assert_eq!(server.postgres.ask::<i64>("postgres", plain).await, 0);
}

#[tokio::test]
async fn roots_of_the_system_are_trusted_without_one() {
    let server = TlsPostgres::start("localhost").await;
    let root = server.root.path().display().to_string();
    let url = server.url("sslmode=verify-full");
    let service = KEYLATCH.serve(&["--store", &url], &[("SSL_CERT_FILE", &root)]).await;
    let lease = Api::at(service.address).create("a", &json!({})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
}

#[tokio::test]
async fn untrusted_or_foreign_certificate_is_rejected() {
    let (server, other) =
        (TlsPostgres::start("localhost").await, TlsPostgres::start("db.example.org").await);
    let foreign = format!("sslrootcert={}", other.root.path().display());
    for url in [server.url(&foreign), other.url(&foreign)] {
        is_not_trusted(&url, "PostgreSQL cannot be reached yet").await;
    }
}

/// Asserts that a service on a store grants nothing, and logs the message with the certificate as
/// its cause.
pub(crate) async fn is_not_trusted(url: &str, message: &str) {
    let service = KEYLATCH.serve(&["--store", url], &[]).await;
    let refused = Api::at(service.address).create("a", &json!({})).await;
    refused.is_problem(503, "store-unavailable");
    assert_eq!(refused.json["outcome"], "not-executed", "{refused:?}");
    let log = service.ended_by("-TERM").await.stderr;
    // On a busy machine the first try may be over before the certificate is there.
    let mut lines = log.lines().filter(|line| line.contains(message));
    assert!(lines.any(|line| line.contains("invalid peer certificate")), "{log}");
}

#[tokio::test]
async fn server_without_tls_is_not_used_where_it_is_asked_for() {
    let root = NamedTempFile::new().unwrap();
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(root.path(), identity.cert.pem()).unwrap();
    let plain = PostgresServer::shared().await.url("postgres");
    let url = format!("{plain}?sslrootcert={}", root.path().display());
    let service = KEYLATCH.serve(&["--store", &url], &[]).await;
    let refused = Api::at(service.address).create("a", &json!({})).await;
    refused.is_problem(503, "store-unavailable");
    let log = service.ended_by("-TERM").await.stderr;
    assert!(log.contains("server does not support TLS"), "{log}");
}

#[tokio::test]
async fn file_of_roots_that_has_none_is_an_error_at_start() {
    let empty = NamedTempFile::new().unwrap();
    for path in [empty.path().display().to_string(), "/there/is/no/such/file".to_owned()] {
        let error =
            open_error(&format!("postgres://u:s3cret@localhost/db?sslrootcert={path}")).await;
        assert!(error.contains("`sslrootcert` has no certificate"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// A server that is reached by an address, or behind a balancer, has a certificate for a name.
#[tokio::test]
async fn certificate_may_be_for_another_name_than_the_address() {
    let server = TlsPostgres::start("db.example.org").await;
    let url = server.url(&format!("sslrootcert={}", server.root.path().display()));
    let url = url.replace("localhost", "db.example.org") + "&hostaddr=127.0.0.1";
    let _store = open_held(&url).await;
    let wrong = open(&url.replace("db.example.org", "other.example.org")).await;
    assert!(wrong.acquire(&ask("b", "one", 1)).await.is_err(), "the name is not checked");
}

#[tokio::test]
async fn server_that_asks_for_a_certificate_gets_it() {
    let authority = Authority::default();
    let (server, client) =
        (authority.sign("server", &["localhost"]), authority.sign("keylatch", &[]));
    let root = std::fs::read_to_string(authority.ca_file()).unwrap();
    let files = [("server.crt", &*server.cert), ("server.key", &server.key), ("root.crt", &root)];
    let settings = [
        "ssl=on",
        "ssl_cert_file=../server.crt",
        "ssl_key_file=../server.key",
        "ssl_ca_file=../root.crt",
        "fsync=off",
    ];
    let postgres = PostgresServer::start_with_files(&files, &settings).await;
    // The tests themselves come without TLS. `verify-full` is: the certificate's common name is the
    // user's.
    let access = "DO $$ BEGIN EXECUTE format('COPY (VALUES (%L), (%L)) TO %L',
        'hostnossl all all all trust', 'hostssl all all all trust clientcert=verify-full',
        current_setting('hba_file')); END $$";
    postgres.run("postgres", access).await;
    // Its new value shows that the server has read the file as well.
    postgres.set(&[("work_mem", "5MB")]).await;
    let url = postgres.url("postgres").replace("127.0.0.1", "localhost");
    let url = format!("{url}?sslrootcert={}", authority.ca_file().display());
    let shown = |name: &str, certificate: &Certificate| {
        let (cert, key) =
            (authority.file(&format!("{name}.pem")), authority.file(&format!("{name}.key")));
        std::fs::write(&cert, &certificate.cert).unwrap();
        std::fs::write(&key, &certificate.key).unwrap();
        format!("{url}&sslcert={}&sslkey={}", cert.display(), key.display())
    };
    let _store = open_held(&shown("client", &client)).await;
    let of_another = shown("another", &authority.sign("another", &[]));
    let refusals =
        [(&url, "requires a valid client certificate"), (&of_another, "authentication failed")];
    for (refused, why) in refusals {
        let error = open_error(refused).await;
        assert!(error.contains(why), "{error}");
    }
    let unfit = open_error(&format!("{url}&sslcert=/no/such/file&sslkey=/no/such/file")).await;
    assert!(unfit.contains("the file `sslkey`"), "{unfit}");
}

/// A PostgreSQL with a certificate for a name, which the tests themselves reach without TLS.
struct TlsPostgres {
    postgres: PostgresServer,
    root: NamedTempFile,
}

impl TlsPostgres {
    async fn start(name: &str) -> Self {
        let identity = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let certificate = identity.cert.pem();
        let files =
            [("server.crt", &*certificate), ("server.key", &identity.signing_key.serialize_pem())];
        let settings =
            ["ssl=on", "ssl_cert_file=../server.crt", "ssl_key_file=../server.key", "fsync=off"];
        let postgres = PostgresServer::start_with_files(&files, &settings).await;
        let root = NamedTempFile::new().unwrap();
        std::fs::write(root.path(), certificate).unwrap();
        Self { postgres, root }
    }

    fn url(&self, parameters: &str) -> String {
        let url = self.postgres.url("postgres").replace("127.0.0.1", "localhost");
        format!("{url}?{parameters}")
    }
}
