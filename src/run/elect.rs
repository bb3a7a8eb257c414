//! One `keylatch elect`: lead while a lock is held, again and again, and say who leads over HTTP,
//! as the leader sidecars of Kubernetes do. `GET /` answers `{"name": OWNER}`, and `GET /leader`
//! 200 with the fencing token where this process leads, and 503 where it does not.
//!
//! Invariant: no two lead at once. The command has ended, or was killed, before the validity of the
//! lease ends, and 200 is never the response after that, whatever else this process does meanwhile.
//! Tested in `tests/cli/elect.rs`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use keylatch_client::{Client, FencingToken, HeldLock, Lease, LockGuard};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use super::Job;
use super::job::{acquired, release, service_failure, under};
use super::reentry::of_lock;
use super::supervision::Signals;
use crate::failure::{Failure, StopResult};
use crate::plain::say;

/// The pause before this process tries again after a loss, so that another one can lead.
const PAUSE: Duration = Duration::from_millis(500);

/// How long to ask who leads.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection may take for the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How many connections there are at a time; more wait.
const CONNECTIONS: usize = 64;
/// How long to wait after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Tries to lead until a signal or the end of the command, if there is one, and says at `listen`
/// who leads; gives the exit code.
pub async fn elect(job: &Job, listen: Option<SocketAddr>) -> Result<u8, Failure> {
    let mut signals = Signals::catch().map_err(Failure::System)?;
    let client = Client::builder(&job.server).with_env().and_then(|of| of.closing().build());
    let client = client.map_err(|error| service_failure(&job.server, error))?;
    let name = job.locks.names().first().map(ToString::to_string).unwrap_or_default();
    let owner = job.options.owner.clone().unwrap_or_default();
    let (lease, of) = (watch::Sender::default(), client.clone());
    let leader = Arc::new(Leader { client: of, name: name.clone(), owner, lease });
    let _serving = match listen {
        Some(address) => {
            let listener = bind(address).await.map_err(Failure::System)?;
            Some(AbortOnDropHandle::new(tokio::spawn(serve(listener, Arc::clone(&leader)))))
        }
        None => None,
    };
    let ended = loop {
        let lock = client.lock(name.clone(), &job.options);
        let guard = match acquired(&client, job, Instant::now(), lock, &mut signals).await {
            Ok(guard) => guard,
            // A process that does not lead has nothing to end.
            Err(Failure::Signal(_)) => break Ok(0),
            Err(failure) => break Err(failure),
        };
        leader.lease.send_replace(Some(guard.lease()));
        say(&format!("leading `{name}` under fencing token {}", guard.fencing_token()));
        match lead(job, guard, &mut signals).await {
            Err(Failure::Stopped(how)) if how != StopResult::StillThere => {
                if signals.asked_to_end() {
                    break Ok(0);
                }
                say(&format!("leading `{name}` no longer; waiting to lead again"));
            }
            ended => break ended,
        }
        sleep(PAUSE).await;
    };
    client.close().await;
    ended
}

/// Leads: runs the command, or waits for a signal.
async fn lead(job: &Job, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
    if !job.command.is_empty() {
        let environment = of_lock(job, &guard);
        return under(job, guard, environment, signals).await;
    }
    let lost = guard.lost();
    let ended = tokio::select! {
        () = lost.cancelled() => Err(Failure::Stopped(StopResult::Ended)),
        _ = signals.end() => Ok(0),
    };
    release(job, guard, ended.is_err()).await;
    ended
}

/// Who leads, as the responses say it.
#[derive(Debug)]
struct Leader {
    client: Client,
    name: String,
    owner: String,
    /// The latest lease under which this process leads, if it has led.
    lease: watch::Sender<Option<Lease>>,
}

impl Leader {
    /// The fencing token under which this process leads, while it does.
    fn fencing_token(&self) -> Option<FencingToken> {
        let lease = self.lease.borrow();
        lease.as_ref().filter(|lease| lease.check().is_ok()).map(Lease::fencing_token)
    }

    /// The label of whoever leads, empty where no one does; `None` where the service did not say.
    async fn find(&self) -> Option<String> {
        if self.fencing_token().is_some() {
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
}

async fn who_leads(State(leader): State<Arc<Leader>>) -> (StatusCode, Json<Value>) {
    let name = leader.find().await;
    let status = if name.is_some() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"name": name})))
}

async fn leads(State(leader): State<Arc<Leader>>) -> (StatusCode, String) {
    match leader.fencing_token() {
        Some(fencing_token) => (StatusCode::OK, format!("{fencing_token}\n")),
        None => (StatusCode::SERVICE_UNAVAILABLE, "another one leads, or none\n".to_owned()),
    }
}

/// Listens at an address.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::other(format!("{address} cannot be listened on: {error}")))
}

/// Serves each connection.
async fn serve(listener: TcpListener, leader: Arc<Leader>) -> Infallible {
    let routes = Router::new().route("/", get(who_leads)).route("/leader", get(leads));
    let routes = routes.with_state(leader);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let routes = routes.clone();
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(|request| routes.clone().oneshot(request));
            let mut server = http1::Builder::new();
            let server = server.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
            // A client that goes away is its own affair.
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
