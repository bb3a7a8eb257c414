//! The yardstick: axum handlers that answer what keylatch answers and do nothing for it.
//!
//! Its answers have the size and the headers of keylatch's own, so that the ratio of both is what
//! locks and stores cost, and not what axum and hyper do. It runs as a process of its own, on the
//! same cores.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Result;

/// How many changes a watcher may be behind.
const CHANGES: usize = 1024;
/// What an event of keylatch's has.
const CHANGE: &str = r#"{"name":"watched","owner":null,"fencing_token":1795286608783228,"acquired_at":"2026-11-21T18:43:28.783Z","expires_in_ms":86400000,"waiting":0}"#;

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

impl Lease {
    fn of(name: String) -> Self {
        Self {
            name,
            token: TOKEN,
            fencing_token: 1_779_900_000_000_000,
            owner: None,
            ttl_ms: 30_000,
            valid_for_ms: 29_697,
            expires_at: "2026-05-27T16:40:30.000Z",
        }
    }
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
        let locks = post(create).put(renew).delete(async || StatusCode::NO_CONTENT);
        let router = Router::new()
            .route("/v1/locks/{name}", locks)
            .route("/v1/locks/{name}/events", get(events))
            .with_state(broadcast::channel(CHANGES).0)
            .route("/v1/orders", post(order));
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

/// Accepts connections and agrees on TLS, one after the other, which is before anything is
/// measured.
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
    let token = [(HeaderName::from_static("lock-token"), TOKEN)];
    (StatusCode::CREATED, token, Json(Lease::of(name)))
}

/// Each watcher learns of it.
async fn renew(
    State(changes): State<broadcast::Sender<u64>>,
    Path(name): Path<String>,
) -> Json<Lease> {
    // It fails where nothing watches.
    let _ = changes.send(1_779_900_000_000_000);
    Json(Lease::of(name))
}

async fn events(
    State(changes): State<broadcast::Sender<u64>>,
) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let first = Event::default().event("snapshot").data(r#"{"held":false,"owner":null}"#);
    let rest = stream::unfold((changes.subscribe(), 0_u64), async |(mut changes, number)| {
        let event = match changes.recv().await {
            Ok(fence) => {
                Event::default().event("renewed").data(CHANGE).id(format!("{fence}-{number}"))
            }
            Err(RecvError::Lagged(_)) => Event::default().event("lagged").data("{}"),
            Err(RecvError::Closed) => return None,
        };
        Some((Ok(event), (changes, number + 1)))
    });
    Sse::new(futures_util::StreamExt::chain(stream::once(async { Ok(first) }), rest))
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
