//! The upstream behind the guards, and its own record of what it did.
//!
//! Goal: the judge learns what really happened from a server that the campaign never kills.
//!
//! Method: this binary runs itself as the upstream, so that busy clients never delay a response.
//! The upstream enters each request before it does anything for it. It compares the fencing token
//! and performs the effect under one lock, so no stale run has an effect. It passes its steps by
//! requests to the campaign. `mod.rs` shows that the ledger finds double runs:
//! `check_reports_double_runs_of_a_forgetful_store`.

use std::collections::BTreeMap;
use std::env;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use reqwest::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::key::{Key, Kind};
use super::steps::Steps;
use super::{LEASE, UPSTREAM_TIMEOUT};

/// The variable that makes this binary an upstream: where it passes its steps.
const STEPS_AT: &str = "KEYLATCH_TEST_STEPS_AT";

/// The upstream behind the guards, and its own book of what it did: a process.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) address: SocketAddr,
    http: Client,
    _process: Child,
    _passing: DropGuard,
}

#[derive(Debug)]
struct Book {
    http: Client,
    steps_at: String,
    runs: Mutex<BTreeMap<u64, Vec<Run>>>,
    /// The keys by the names that guards gave them.
    names: Mutex<BTreeMap<String, u64>>,
    in_hand: watch::Sender<usize>,
}

/// A request that arrived, in the order of arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) fencing_token: u64,
    /// A later run under the key was here before it, so it was refused.
    pub(super) stale: bool,
    /// What it did, if it did something.
    pub(super) effect: Option<String>,
    /// What it answered, if it came so far.
    pub(super) answer: Option<(u16, String)>,
    /// It took so long that the guard may have stopped waiting for it.
    pub(super) late: bool,
}

impl Ledger {
    pub(super) async fn open(steps: Arc<Steps>) -> Self {
        let [listener, passing] =
            [(); 2].map(|()| StdListener::bind("127.0.0.1:0").expect("a free port"));
        let address = listener.local_addr().expect("an address");
        let steps_at = format!("http://{}", passing.local_addr().expect("an address"));
        let pass = move || {
            let steps = Arc::clone(&steps);
            async move { steps.pass().await }
        };
        let ending = CancellationToken::new();
        let serving = serve(passing, Router::new().fallback(pass));
        tokio::spawn(ending.clone().run_until_cancelled_owned(serving));
        let process = Command::new(env::current_exe().expect("this binary"))
            .args(["--exact", "once::ledger::upstream_of_a_campaign", "--nocapture"])
            .env(STEPS_AT, steps_at)
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let (http, _process) = (client(), process.expect("the upstream starts"));
        Self { address, http, _process, _passing: ending.drop_guard() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What arrived under a key.
    pub(super) async fn runs(&self, key: Key) -> Vec<Run> {
        let runs = self.ask(&format!("runs/{}", key.number)).await;
        runs.json().await.expect("a list of runs")
    }

    /// Waits until nothing is being done.
    pub(super) async fn rests(&self) {
        self.ask("rests").await;
    }

    async fn ask(&self, path: &str) -> reqwest::Response {
        let answer = self.http.get(format!("{}/{path}", self.url())).send().await;
        answer.expect("the upstream runs")
    }
}

/// The process of a [`Ledger`], which listens on its standard input. Nothing where no campaign
/// started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_of_a_campaign() {
    let Ok(steps_at) = env::var(STEPS_AT) else { return };
    let socket = io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let (http, (runs, names, in_hand)) = (client(), Default::default());
    let book = Arc::new(Book { http, steps_at, runs, names, in_hand });
    let runs = async |State(book): State<Arc<Book>>, Path(key): Path<u64>| {
        Json(book.runs().get(&key).cloned().unwrap_or_default())
    };
    let rests = async |State(book): State<Arc<Book>>| {
        let mut in_hand = book.in_hand.subscribe();
        drop(in_hand.wait_for(|in_hand| *in_hand == 0).await.expect("it serves"));
    };
    let router = Router::new()
        .route("/runs/{key}", get(runs))
        .route("/by-key/{name}", get(what_was_done))
        .route("/rests", get(rests));
    serve(StdListener::from(socket), router.fallback(run).with_state(book)).await;
}

async fn serve(listener: StdListener, router: Router) {
    listener.set_nonblocking(true).expect("a socket");
    let listener = TcpListener::from_std(listener).expect("a socket");
    axum::serve(listener, router).await.expect("it serves");
}

fn client() -> Client {
    Client::builder().no_proxy().build().expect("a client")
}

impl Book {
    fn runs(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down that a run arrived; gives its place among those of its key.
    fn arrive(&self, key: Key, fencing_token: u64) -> usize {
        let mut runs = self.runs();
        let runs = runs.entry(key.number).or_default();
        runs.push(Run { fencing_token, ..Run::default() });
        runs.len() - 1
    }

    /// One more step of the campaign.
    async fn pass(&self) {
        self.http.post(&self.steps_at).send().await.expect("the campaign runs");
    }

    fn write(&self, key: Key, place: usize, write: impl FnOnce(&mut Run)) {
        write(&mut self.runs().get_mut(&key.number).expect("it arrived")[place]);
    }

    /// Does what is asked for, unless a run with a larger fence was here.
    fn perform(&self, key: Key, place: usize) -> (StatusCode, String) {
        let mut runs = self.runs();
        let runs = runs.get_mut(&key.number).expect("it arrived");
        let last = runs.iter().map(|run| run.fencing_token).max();
        let run = &mut runs[place];
        run.stale = last > Some(run.fencing_token);
        if run.stale {
            return (StatusCode::CONFLICT, json!({"stale": run.fencing_token}).to_string());
        }
        let effect =
            json!({"key": key.number, "fence": run.fencing_token, "run": place}).to_string();
        run.effect = Some(effect.clone());
        (StatusCode::CREATED, effect)
    }
}

/// What a guard that settles hears: the effect, or that there is none.
async fn what_was_done(State(book): State<Arc<Book>>, Path(name): Path<String>) -> Response {
    let number = book.names().get(&name).copied();
    let runs = number.and_then(|number| book.runs().get(&number).cloned()).unwrap_or_default();
    match runs.into_iter().find_map(|run| run.effect) {
        Some(effect) => {
            (StatusCode::CREATED, [("content-type", "application/json")], effect).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Does what the kind of the key says. When the connection to the caller breaks, the rest is not
/// done.
async fn run(State(book): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // A derived key says nothing of the client's.
    let of_body = || serde_json::from_slice(&body).ok();
    let key = text("idempotency-key").and_then(Key::parse).or_else(of_body);
    let key = key.expect("a key of the campaign");
    let fencing_token = text("idempotency-fence")
        .map_or(0, |fencing_token| fencing_token.parse().expect("a fence"));
    if let Some(name) = text("idempotency-key") {
        book.names().insert(name.to_owned(), key.number);
    }
    let place = book.arrive(key, fencing_token);
    let _in_hand = InHand::new(&book, key, place);
    book.pass().await;
    let kind = if place == 0 { key.kind() } else { key.kind().later() };
    let (status, body) = match kind {
        Kind::Invalid => {
            (StatusCode::UNPROCESSABLE_ENTITY, json!({"invalid": fencing_token}).to_string())
        }
        Kind::Busy => (StatusCode::TOO_MANY_REQUESTS, String::new()),
        Kind::FailsBefore => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        Kind::ResetBefore => return reset(),
        Kind::Slow => {
            // Time is what a lease is about.
            let _ = timeout(LEASE * 3 / 2, pending::<()>()).await;
            book.perform(key, place)
        }
        Kind::Plain | Kind::FailsAfter | Kind::ResetAfter => book.perform(key, place),
    };
    book.pass().await;
    match kind {
        Kind::ResetAfter => return reset(),
        Kind::FailsAfter => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => book.write(key, place, |run| run.answer = Some((status.as_u16(), body.clone()))),
    }
    let mut response = (status, [("content-type", "application/json")], body).into_response();
    if kind == Kind::Invalid {
        // Otherwise the guard frees the key, and a repeat runs.
        response.headers_mut().insert("keylatch-keep", HeaderValue::from_static("response"));
    }
    response
}

/// An answer that breaks off.
fn reset() -> Response {
    let broken = Err::<Bytes, _>(io::Error::from(io::ErrorKind::ConnectionReset));
    Body::from_stream(stream::iter([broken])).into_response()
}

/// Counts a request for as long as something is done for it.
struct InHand<'a> {
    book: &'a Book,
    key: Key,
    place: usize,
    begun: Instant,
}

impl<'a> InHand<'a> {
    fn new(book: &'a Book, key: Key, place: usize) -> Self {
        book.in_hand.send_modify(|in_hand| *in_hand += 1);
        Self { book, key, place, begun: Instant::now() }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let late = self.begun.elapsed() > UPSTREAM_TIMEOUT * 3 / 4;
        self.book.write(self.key, self.place, |run| run.late = late);
        self.book.in_hand.send_modify(|in_hand| *in_hand -= 1);
    }
}
