//! The yardstick: axum handlers that answer what keylatch answers and do nothing for it.
//!
//! Its answers have the size and the headers of keylatch's own, so that the ratio of both is what locks and
//! stores cost, and not what axum and hyper do. It runs as a process of its own, on the same cores.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::routing::post;
use axum::{Json, Router};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Result;

const TOKEN: &str = "aPbOQ2c1kG0x3nN7mYw5RzT4vL8sJdEf";

/// The members of keylatch's lease.
#[derive(Debug, Serialize)]
struct Lease {
    name: String,
    token: &'static str,
    fencing_token: u64,
    owner: Option<&'static str>,
    ttl_ms: u64,
    valid_for_ms: u64,
    expires_at: &'static str,
}

/// The members of an order that the sandbox is sent.
#[derive(Debug, Deserialize)]
struct New {
    amount: u64,
    currency: String,
    items: Vec<Item>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Item {
    name: String,
    quantity: u32,
}

/// The members of the sandbox's answer.
#[derive(Debug, Serialize)]
struct Order {
    id: &'static str,
    amount: u64,
    currency: String,
    items: Vec<Item>,
    created_at: &'static str,
    fencing_token: u64,
}

/// The files of a certificate and its key.
#[derive(Debug, clap::Args)]
pub(crate) struct Pair {
    #[arg(requires = "key")]
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Serves until the process is killed, with TLS if there is a certificate.
pub(crate) fn serve(listen: SocketAddr, pair: &Pair) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = post(create).delete(async || StatusCode::NO_CONTENT);
        let router =
            Router::new().route("/v1/locks/{name}", locks).route("/v1/orders", post(order));
        let listener = TcpListener::bind(listen).await?;
        match (&pair.cert, &pair.key) {
            (Some(cert), Some(key)) => {
                let config = tls_config(cert, key)?;
                let acceptor = TlsAcceptor::from(Arc::new(config));
                axum::serve(TlsListener { listener, acceptor }, router).await?;
            }
            _ => axum::serve(listener, router).await?,
        }
        Ok(())
    })
}

/// What keylatch serves with: the same library, the same protocols.
fn tls_config(cert: &PathBuf, key: &PathBuf) -> Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<std::result::Result<_, _>>()?;
    let config = ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth();
    let mut config = config.with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Accepts connections and agrees on TLS, one after the other, which is before anything is measured.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else { continue };
            // A client that only looks whether there is a service agrees on nothing.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// The client needs the header for its next request. `Location` and `X-Request-Id` it does not, so
/// they are not here.
async fn create(
    Path(name): Path<String>,
) -> (StatusCode, [(HeaderName, &'static str); 1], Json<Lease>) {
    let lease = Lease {
        name,
        token: TOKEN,
        fencing_token: 1_779_900_000_000_000,
        owner: None,
        ttl_ms: 30_000,
        valid_for_ms: 29_697,
        expires_at: "2026-05-27T16:40:30.000Z",
    };
    (StatusCode::CREATED, [(HeaderName::from_static("lock-token"), TOKEN)], Json(lease))
}

async fn order(Json(new): Json<New>) -> (StatusCode, [(HeaderName, &'static str); 1], Json<Order>) {
    let order = Order {
        id: "9f86d081884c7d65",
        amount: new.amount,
        currency: new.currency,
        items: new.items,
        created_at: "2026-05-27T16:40:00.000000000Z",
        fencing_token: 1_779_900_000_000_000,
    };
    (StatusCode::CREATED, [(header::LOCATION, "/v1/orders/9f86d081884c7d65")], Json(order))
}
