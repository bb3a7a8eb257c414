//! Goal: an encrypted connection goes only to a member whose certificate the URL's roots vouch for,
//! and that has the name in the URL; and a member that asks for one gets keylatch's own
//! certificate.
//!
//! Method: an etcd with a certificate of the test's own, which is in no system's store.

use keylatch_testkit::{Api, EtcdServer, eventually};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::KEYLATCH;
use crate::lock_conformance::{ask, granted};
use crate::postgres::open;
use crate::postgres_tls::is_not_trusted;

#[tokio::test]
async fn roots_of_the_system_are_trusted_without_one() {
    let server = TlsEtcd::start("localhost", &[]).await;
    let root = server.path();
    let service = KEYLATCH.serve(&["--store", &server.url("")], &[("SSL_CERT_FILE", &root)]).await;
    let api = Api::at(service.address);
    let created = async || {
        let lease = api.create("a", &json!({})).await;
        (lease.status == 201).then_some(())
    };
    eventually(created).await;
}

#[tokio::test]
async fn member_that_asks_for_a_certificate_gets_it() {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (root, key) = (file(&identity.cert.pem()), file(&identity.signing_key.serialize_pem()));
    let root = root.path().display().to_string();
    let options = ["--client-cert-auth", &format!("--trusted-ca-file={root}")].map(str::to_owned);
    let server = TlsEtcd::start_as(&identity, &options.each_ref().map(|it| &**it)).await;
    let identity = format!("cacert={root}&cert={root}&key={}", key.path().display());
    let store = open(&server.url(&identity)).await;
    granted(eventually(async || store.acquire(&ask("a", "one", 1)).await.ok()).await);
    let without = open(&server.url(&format!("cacert={root}"))).await;
    assert!(without.acquire(&ask("b", "one", 1)).await.is_err(), "it showed no certificate");
}

#[tokio::test]
async fn untrusted_or_foreign_certificate_is_rejected() {
    let server = TlsEtcd::start("localhost", &[]).await;
    let other = TlsEtcd::start("etcd.example.org", &[]).await;
    let own = format!("cacert={}", other.path());
    for url in [server.url(&own), other.url(&own)] {
        is_not_trusted(&url, "etcd cannot be reached yet").await;
    }
}

/// Members that are reached by an address, or behind a balancer, have a certificate for a name.
#[tokio::test]
async fn certificate_may_be_for_another_name_that_the_url_has() {
    let server = TlsEtcd::start("etcd.example.org", &[]).await;
    let parameters = format!("cacert={}&servername=etcd.example.org", server.path());
    let store = open(&server.url(&parameters)).await;
    granted(eventually(async || store.acquire(&ask("a", "one", 1)).await.ok()).await);
    let wrong = open(&server.url(&parameters.replace("etcd.", "other."))).await;
    assert!(wrong.acquire(&ask("b", "one", 1)).await.is_err(), "the name is not checked");
}

/// An etcd with a certificate for a name.
struct TlsEtcd {
    etcd: EtcdServer,
    root: NamedTempFile,
}

impl TlsEtcd {
    async fn start(name: &str, options: &[&str]) -> Self {
        let identity = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Self::start_as(&identity, options).await
    }

    async fn start_as(identity: &rcgen::CertifiedKey<rcgen::KeyPair>, options: &[&str]) -> Self {
        let certificate = identity.cert.pem();
        let key = identity.signing_key.serialize_pem();
        let etcd = EtcdServer::start_with_tls(&certificate, &key, options).await;
        Self { etcd, root: file(&certificate) }
    }

    /// Where its certificate is.
    fn path(&self) -> String {
        self.root.path().display().to_string()
    }

    fn url(&self, parameters: &str) -> String {
        let address = self.etcd.address().replace("127.0.0.1", "localhost");
        format!("etcds://{address}?{parameters}")
    }
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}
