//! Who leads, over HTTP, as the leader sidecars of Kubernetes say it: `GET /` answers `{"name":
//! OWNER}`, and `GET /leader` 200 where this process leads and 503 where it does not.
//!
//! Invariant: 200 is never the response once the validity of the lease is over, whatever else this
//! process does meanwhile. Tested in `tests/cli/elect.rs`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use keylatch_client::{Client, HeldLock, Lease};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// How long to ask who leads.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection may take for the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How many connections there are at a time; more wait.
const CONNECTIONS: usize = 64;
/// How long to wait after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

/// Who leads, as the responses say it.
#[derive(Debug)]
pub(super) struct Leader {
    client: Client,
    name: String,
    owner: String,
    /// The latest lease under which this process leads, if it has led.
    lease: Mutex<Option<Lease>>,
}

impl Leader {
    /// The leader of the lock with this name; this process leads under the label `owner`.
    pub(super) fn new(client: Client, name: String, owner: String) -> Arc<Self> {
        Arc::new(Self { client, name, owner, lease: Mutex::default() })
    }

    /// Notes that this process leads for as long as the lease lasts.
    pub(super) fn leads(&self, lease: Lease) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
    }

    fn is_this_one(&self) -> bool {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_ref().is_some_and(|lease| lease.check().is_ok())
    }

    /// The label of whoever leads, empty where no one does; `None` where the service did not say.
    async fn find(&self) -> Option<String> {
        if self.is_this_one() {
            return Some(self.owner.clone());
        }
        match timeout(LOOK_LIMIT, self.client.show(&self.name)).await {
            // With the label of this one it is the lease of an earlier leader, under which nothing
            // runs.
            Ok(Ok(Some(HeldLock::Exclusive(lock)))) => {
                Some(lock.owner.filter(|owner| *owner != self.owner).unwrap_or_default())
            }
            Ok(Ok(_)) => Some(String::new()),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, text) = match request.uri().path() {
            "/" | "/leader" if !is_read => {
                (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned())
            }
            "/leader" if self.is_this_one() => (StatusCode::OK, "this one leads\n".to_owned()),
            "/leader" => {
                (StatusCode::SERVICE_UNAVAILABLE, "another one leads, or none\n".to_owned())
            }
            "/" => match self.find().await {
                Some(name) => (StatusCode::OK, json!({"name": name}).to_string()),
                None => (StatusCode::SERVICE_UNAVAILABLE, json!({"name": null}).to_string()),
            },
            _ => (StatusCode::NOT_FOUND, "see / and /leader\n".to_owned()),
        };
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        if request.uri().path() == "/" {
            let json = hyper::header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
        }
        response
    }
}

/// Listens at an address.
pub(super) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::other(format!("{address} cannot be listened on: {error}")))
}

/// Serves each connection.
pub(super) async fn serve(listener: TcpListener, leader: Arc<Leader>) -> Infallible {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let leader = Arc::clone(&leader);
        tokio::spawn(async move {
            let _place = place;
            let answer =
                service_fn(async |request| Ok::<_, Infallible>(leader.answer(request).await));
            let mut server = http1::Builder::new();
            let server = server.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
            // A client that goes away is its own affair.
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
