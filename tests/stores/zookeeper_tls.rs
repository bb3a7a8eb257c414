//! Goal: an encrypted connection goes only to a member whose certificate the URL's roots vouch for,
//! and that has the name in the URL.
//!
//! Method: a ZooKeeper with a certificate of the test's own, which is in no system's store.

use keylatch_testkit::{ZookeeperServer, free_port};
use tempfile::TempDir;

use crate::lock_conformance::ask;
use crate::postgres::{open, open_held};
use crate::postgres_tls::is_not_trusted;

#[tokio::test]
async fn private_authority_is_trusted_where_the_url_names_it() {
    let server = TlsZookeeper::start("localhost").await;
    let store = open_held(&server.url(&server.root())).await;
    let health = store.health().await.unwrap();
    assert_eq!(health.facts["members_that_say"], "1 of 1");
}

#[tokio::test]
async fn untrusted_or_foreign_certificate_is_rejected() {
    let (server, other) =
        (TlsZookeeper::start("localhost").await, TlsZookeeper::start("zk.example.org").await);
    for url in [server.url(&other.root()), other.url(&other.root())] {
        is_not_trusted(&url, "no encrypted connection to a member").await;
    }
}

/// Members that are reached by an address, or behind a balancer, have a certificate for a name.
#[tokio::test]
async fn certificate_may_be_for_another_name_that_the_url_has() {
    let server = TlsZookeeper::start("zk.example.org").await;
    let url = format!("{}&servername=zk.example.org", server.url(&server.root()));
    let _store = open_held(&url).await;
    let wrong = open(&url.replace("=zk.", "=other.")).await;
    assert!(wrong.acquire(&ask("b", "one", 1)).await.is_err(), "the name is not checked");
}

/// A ZooKeeper with a certificate for a name.
struct TlsZookeeper {
    _server: ZookeeperServer,
    port: u16,
    directory: TempDir,
}

impl TlsZookeeper {
    async fn start(name: &str) -> Self {
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
        let identity = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
        std::fs::write(directory.path().join("root.pem"), &certificate).unwrap();
        std::fs::write(directory.path().join("member.pem"), key + &certificate).unwrap();
        let path = directory.path().display();
        let settings = format!(
            "secureClientPort={port}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={path}/member.pem\nssl.keyStore.type=PEM\n\
             ssl.trustStore.location={path}/root.pem\nssl.trustStore.type=PEM\nssl.clientAuth=none\n"
        );
        let server = ZookeeperServer::start_with(&settings).await;
        Self { _server: server, port, directory }
    }

    fn root(&self) -> String {
        self.directory.path().join("root.pem").display().to_string()
    }

    fn url(&self, root: &str) -> String {
        format!("zookeepers://localhost:{}/a?cacert={root}", self.port)
    }
}
