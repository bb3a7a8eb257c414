//! Goal: every store of records follows the contract of records.
//!
//! Method: one function for each sentence of the contract, on every store of the matrix that has
//! records: how runs begin (`runs`), how they end (`ends`), what time does to them (`time`), and
//! how they are found (`list`).

mod ends;
mod list;
mod runs;
mod time;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use keylatch_core::idempotency::{
    AbandonReply, Answer, BeginCommand, BeginReply, CompleteReply, Fingerprint, IdempotencyKey,
    OnCrash, Principal, RecordKey, RecordScope, RecordStatus, RecordView, ResolveCommand,
    ResolveReply, Run, RunEnd, RunRenewal, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{FencingToken, Token, TokenHash};
use keylatch_testkit::{Records, store_time};

/// How far a store's own clock may go on between two steps of a test.
const SLACK: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(60);
const RETENTION: Duration = Duration::from_secs(3600);
/// How long an unknown outcome is kept.
const UNKNOWN: Duration = Duration::from_secs(30 * 24 * 3600);

async fn begin(store: &Records, ask: &BeginCommand) -> BeginReply {
    store.begin(ask).await.unwrap()
}

async fn complete(store: &Records, record: u8, runner: &str, end: RunEnd) -> CompleteReply {
    store.complete(&key(record), &token(runner), end).await.unwrap()
}

async fn extend(store: &Records, record: u8, runner: &str) -> RunRenewal {
    store.extend(&key(record), &token(runner)).await.unwrap()
}

async fn abandon(store: &Records, record: u8, runner: &str) -> AbandonReply {
    store.abandon(&key(record), &token(runner)).await.unwrap()
}

async fn resolve(
    store: &Records,
    record: u8,
    fencing_token: Option<FencingToken>,
    end: Option<StoredResponse>,
) -> ResolveReply {
    store
        .resolve(&ResolveCommand { key: key(record), fencing_token, end: end.into() })
        .await
        .unwrap()
}

async fn find(store: &Records, record: u8) -> Option<RecordView> {
    store.find(&key(record)).await.unwrap()
}

async fn found_now(store: &Records, record: u8) -> RecordView {
    find(store, record).await.expect("there is a record")
}

/// A run that leaves an unknown outcome behind when it is interrupted.
pub(crate) fn ask(record: u8, runner: &str) -> BeginCommand {
    BeginCommand {
        key: key(record),
        scope: scope(record),
        token: token(runner),
        fingerprint: Fingerprint::of_text("an order"),
        lease: LEASE,
        retention: RETENTION,
        on_crash: OnCrash::Unknown,
        has_room: true,
    }
}

/// A run that may be run again when it is interrupted.
fn rerun(record: u8, runner: &str) -> BeginCommand {
    BeginCommand { on_crash: OnCrash::Rerun, ..ask(record, runner) }
}

/// A scope of an order that nothing but its key tells from others.
fn scope(record: u8) -> RecordScope {
    let scope = Scope {
        principal: &Principal::User("ann".to_owned()),
        method: "POST",
        path: "/v1/orders",
        source: "",
    };
    RecordScope::new(&scope, &IdempotencyKey::from(u32::from(record)))
}

pub(crate) fn key(record: u8) -> RecordKey {
    RecordKey::from_bytes([record; 32])
}

pub(crate) fn token(runner: &str) -> TokenHash {
    let padded = runner.replace(' ', "-");
    Token::parse(&format!("token-of-the-runner-{padded}")).unwrap().hash()
}

fn answer(body: &'static str) -> StoredResponse {
    let headers = vec![("content-type".to_owned(), Bytes::from_static(b"text/plain"))];
    StoredResponse::Answer(Arc::new(Answer {
        status: 200,
        headers,
        body: Bytes::from_static(body.as_bytes()),
    }))
}

pub(crate) fn done(body: &'static str) -> RunEnd {
    RunEnd::Done(answer(body))
}

fn unknown(reason: UnknownReason) -> RunEnd {
    RunEnd::Unknown(reason)
}

#[track_caller]
pub(crate) fn started(begun: BeginReply) -> Run {
    match begun {
        BeginReply::Started(run) => run,
        other => panic!("started, not {other:?}"),
    }
}

#[track_caller]
pub(crate) fn found(begun: BeginReply) -> RecordView {
    let BeginReply::Found(view) = begun else { panic!("found, not {begun:?}") };
    view
}

#[track_caller]
pub(crate) fn kept(completion: CompleteReply) -> RecordView {
    let CompleteReply::Done(view) = completion else { panic!("kept, not {completion:?}") };
    view
}

#[track_caller]
fn refused(completion: CompleteReply) -> RecordView {
    let CompleteReply::Refused(view) = completion else { panic!("refused, not {completion:?}") };
    view
}

#[track_caller]
fn lease_of(view: &RecordView) -> Duration {
    let RecordStatus::InFlight { lease } = view.phase else { panic!("in flight, not {view:?}") };
    lease
}

#[track_caller]
fn end_of(view: &RecordView) -> RunEnd {
    match &view.phase {
        RecordStatus::InFlight { .. } => panic!("ended, not {view:?}"),
        RecordStatus::Done { kept, .. } => RunEnd::Done(kept.clone()),
        RecordStatus::Unknown { reason, sent: Some(sent), .. } => {
            RunEnd::SentOn(*reason, Arc::clone(sent))
        }
        RecordStatus::Unknown { reason, .. } => RunEnd::Unknown(*reason),
    }
}

#[track_caller]
fn ended_at(view: &RecordView) -> u64 {
    match view.phase {
        RecordStatus::InFlight { .. } => panic!("ended, not {view:?}"),
        RecordStatus::Done { at_millis: at, .. }
        | RecordStatus::Unknown { since_millis: at, .. } => at,
    }
}

/// The record has this end since a moment ago by the wall clock, which no test moves.
#[track_caller]
fn assert_ended(view: &RecordView, end: &RunEnd) {
    assert_eq!(end_of(view), *end);
    assert_wall(ended_at(view), Duration::ZERO);
}

/// Two looks at one record between which nothing happened.
#[track_caller]
fn assert_same(view: &RecordView, before: &RecordView) {
    assert_eq!((view.fencing_token, view.attempts), (before.fencing_token, before.attempts));
    assert_eq!(view.begun_at_millis, before.begun_at_millis);
    assert_near(view.expires_in, before.expires_in);
    match (&view.phase, &before.phase) {
        (RecordStatus::InFlight { lease }, RecordStatus::InFlight { lease: earlier }) => {
            assert!(*lease <= *earlier && *lease + SLACK >= *earlier, "{lease:?}, {earlier:?}");
        }
        _ => {
            assert_eq!(end_of(view), end_of(before));
            let apart = Duration::from_millis(ended_at(view).abs_diff(ended_at(before)));
            assert!(apart < SLACK, "{apart:?} apart");
        }
    }
}

/// A time of the store's wall clock is about so long ago, or longer by what a test let pass since.
#[track_caller]
fn assert_wall(millis: u64, ago: Duration) {
    let found = Duration::from_millis(millis);
    let latest = store_time() - ago;
    let earliest = SystemTime::UNIX_EPOCH.elapsed().unwrap() - ago - SLACK * 4;
    assert!((earliest..latest + SLACK).contains(&found), "{found:?}, {earliest:?} to {latest:?}");
}

#[track_caller]
fn assert_near(left: Duration, expected: Duration) {
    assert!(left <= expected && left + SLACK > expected, "{left:?}, not about {expected:?}");
}
