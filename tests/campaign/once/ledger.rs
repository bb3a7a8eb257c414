//! The upstream behind the guards, and its own record of what it did.
//!
//! Goal: the judge learns what really happened from a server that the campaign never kills.
//!
//! Method: the upstream enters each request before it does anything for it. It compares the fencing
//! token and performs the effect under one lock, so no stale run has an effect. `mod.rs` shows that
//! the ledger finds double runs: `check_reports_double_runs_of_a_forgetful_store`.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::key::{Key, Kind};
use super::steps::Steps;

/// What slow work takes: more than a lease, so that it is done only if the lease is renewed.
const SLOW: Duration = Duration::from_millis(1500);

/// The upstream behind the guards, and its own book of what it did.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) address: SocketAddr,
    book: Arc<Book>,
    _guard: DropGuard,
}

#[derive(Debug)]
struct Book {
    steps: Arc<Steps>,
    runs: Mutex<BTreeMap<u64, Vec<Run>>>,
    in_hand: watch::Sender<usize>,
}

/// A request that arrived, in the order of arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) fencing_token: u64,
    /// A later run under the key was here before it, so it was refused.
    pub(super) stale: bool,
    /// What it did, if it did something.
    pub(super) effect: Option<String>,
    /// What it answered, if it came so far.
    pub(super) answer: Option<(u16, String)>,
}

impl Ledger {
    pub(super) async fn open(steps: Arc<Steps>) -> Self {
        let (runs, in_hand) = Default::default();
        let book = Arc::new(Book { steps, runs, in_hand });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(run).with_state(Arc::clone(&book));
        let ending = CancellationToken::new();
        let serving = ending.clone().run_until_cancelled_owned(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        tokio::spawn(serving);
        Self { address, book, _guard: ending.drop_guard() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What arrived under a key.
    pub(super) fn runs(&self, key: Key) -> Vec<Run> {
        self.book.runs().get(&key.number).cloned().unwrap_or_default()
    }

    /// Waits until nothing is being done.
    pub(super) async fn rests(&self) {
        let mut in_hand = self.book.in_hand.subscribe();
        in_hand.wait_for(|in_hand| *in_hand == 0).await.expect("it serves");
    }
}

impl Book {
    fn runs(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down that a run arrived; gives its place among those of its key.
    fn arrive(&self, key: Key, fencing_token: u64) -> usize {
        let mut runs = self.runs();
        let runs = runs.entry(key.number).or_default();
        runs.push(Run { fencing_token, ..Run::default() });
        runs.len() - 1
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

/// Does what the kind of the key says. When the connection to the caller breaks, the rest is not
/// done.
async fn run(State(book): State<Arc<Book>>, headers: HeaderMap, _body: Bytes) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let key = text("idempotency-key").and_then(Key::parse).expect("a key of the campaign");
    let fencing_token = text("idempotency-fence")
        .map_or(0, |fencing_token| fencing_token.parse().expect("a fence"));
    let place = book.arrive(key, fencing_token);
    let _in_hand = InHand::new(&book.in_hand);
    book.steps.pass().await;
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
            let _ = timeout(SLOW, pending::<()>()).await;
            book.perform(key, place)
        }
        Kind::Plain | Kind::FailsAfter | Kind::ResetAfter => book.perform(key, place),
    };
    book.steps.pass().await;
    match kind {
        Kind::ResetAfter => return reset(),
        Kind::FailsAfter => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => book.write(key, place, |run| run.answer = Some((status.as_u16(), body.clone()))),
    }
    (status, [("content-type", "application/json")], body).into_response()
}

/// An answer that breaks off.
fn reset() -> Response {
    let broken = Err::<Bytes, _>(io::Error::from(io::ErrorKind::ConnectionReset));
    Body::from_stream(stream::iter([broken])).into_response()
}

/// Counts a request for as long as something is done for it.
struct InHand<'a>(&'a watch::Sender<usize>);

impl<'a> InHand<'a> {
    fn new(in_hand: &'a watch::Sender<usize>) -> Self {
        in_hand.send_modify(|in_hand| *in_hand += 1);
        Self(in_hand)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|in_hand| *in_hand -= 1);
    }
}
