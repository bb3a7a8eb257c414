//! An HTTP service of the test's own, such as stands behind a guard.
//!
//! It records what it receives, answers what the test says, and can hold an answer back until the
//! test lets it go. It can stand behind other layers, as a proxy would put it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use reqwest::RequestBuilder;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Answer, soon};

/// A service that counts its runs, remembers its requests, and answers as the test says.
#[derive(Debug)]
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _guard: DropGuard,
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// Which of all requests it is, from 1.
    pub run: usize,
    /// Its method.
    pub method: Method,
    /// Its target.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its whole body.
    pub body: Bytes,
    /// The other end of the connection that it came on.
    pub peer: SocketAddr,
}

struct Shared {
    reply: Mutex<Arc<Reply>>,
    held: watch::Sender<bool>,
    seen: watch::Sender<Vec<ReceivedRequest>>,
}

type Reply = dyn Fn(ReceivedRequest) -> Response + Send + Sync;

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Upstream {
    /// A service that answers 201 with the number of the run until [`Upstream::answers`].
    pub async fn start() -> Self {
        Self::start_behind(|router| router).await
    }

    /// A service behind layers.
    pub async fn start_behind(layers: impl FnOnce(Router) -> Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::start_on(listener, layers)
    }

    /// A service behind layers, on a listener of the test's.
    pub fn start_on(listener: TcpListener, layers: impl FnOnce(Router) -> Router) -> Self {
        let shared = Arc::new(Shared {
            reply: Mutex::new(Arc::new(|seen: ReceivedRequest| created(seen.run))),
            held: watch::Sender::new(false),
            seen: watch::Sender::default(),
        });
        let router = layers(Router::new().fallback(run).with_state(Arc::clone(&shared)));
        let address = listener.local_addr().expect("an address");
        let ending = CancellationToken::new();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let serving = ending.clone().run_until_cancelled_owned(async move {
            axum::serve(listener, service).await.expect("it serves");
        });
        tokio::spawn(serving);
        Self { address, shared, _guard: ending.drop_guard() }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers so from now on. When it panics, the connection is closed without an answer.
    pub fn answers<R: IntoResponse>(
        &self,
        reply: impl Fn(ReceivedRequest) -> R + Send + Sync + 'static,
    ) {
        let reply: Arc<Reply> = Arc::new(move |seen| reply(seen).into_response());
        *self.shared.reply.lock().unwrap_or_else(PoisonError::into_inner) = reply;
    }

    /// Holds every request that arrives from now on: it has begun and gets no answer.
    pub fn hold(&self) {
        self.shared.held.send_replace(true);
    }

    /// Answers all requests that are held.
    pub fn resume(&self) {
        self.shared.held.send_replace(false);
    }

    /// How many requests arrived.
    pub fn runs(&self) -> usize {
        self.shared.seen.borrow().len()
    }

    /// Holds its answers, and sends a request that it has begun when this returns.
    pub async fn holding(&self, request: RequestBuilder) -> JoinHandle<Answer> {
        self.hold();
        let runs = self.runs();
        let first = tokio::spawn(Answer::of(request));
        self.begun(runs + 1).await;
        first
    }

    /// Waits until as many requests arrived.
    pub async fn begun(&self, runs: usize) {
        let mut seen = self.shared.seen.subscribe();
        let begun = seen.wait_for(|seen| seen.len() >= runs);
        drop(soon("the run", begun).await.expect("the upstream runs"));
    }

    /// The last request that arrived.
    pub fn last(&self) -> ReceivedRequest {
        self.shared.seen.borrow().last().expect("a request arrived").clone()
    }

    /// All requests that arrived.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.shared.seen.borrow().clone()
    }
}

/// 201 and the number of the run.
pub fn created(run: usize) -> Response {
    (axum::http::StatusCode::CREATED, axum::Json(json!({"run": run}))).into_response()
}

/// A listener that takes so many connections and is gone then. It gives each once the request on it
/// is there as a whole.
pub async fn raw_upstream(connections: usize) -> (SocketAddr, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (sender, receiver) = mpsc::channel(connections);
    tokio::spawn(async move {
        let mut accepted = Vec::new();
        for _ in 0..connections {
            accepted.push(listener.accept().await.expect("a connection").0);
        }
        drop(listener);
        for mut connection in accepted {
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                let read = connection.read_buf(&mut request).await.expect("a request");
                assert!(read > 0, "the request broke off");
            }
            sender.send(connection).await.expect("the test still reads");
        }
    });
    (address, receiver)
}

async fn run(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a whole request");
    let mut seen = ReceivedRequest {
        run: 0,
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        body,
        peer,
    };
    shared.seen.send_modify(|all| {
        seen.run = all.len() + 1;
        all.push(seen.clone());
    });
    let gone_on = shared.held.subscribe().wait_for(|held| !held).await.map(|_| ());
    gone_on.expect("the test still reads");
    let reply = Arc::clone(&shared.reply.lock().unwrap_or_else(PoisonError::into_inner));
    reply(seen)
}
