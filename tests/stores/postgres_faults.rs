//! Goal: when a PostgreSQL is killed, stopped, demoted or cut off from its standby, no answer says
//! more than is known, and the store works again without a restart of keylatch.
//!
//! Method: servers of the test's own, which get signals and other settings. A call that is under
//! way is one that waits for a lock on the table, or for a standby that does not exist.

use std::cell::Cell;

use keylatch_core::lock::{AcquireReply, ReleaseReply};
use keylatch_core::store::{Effect, Hint, StoreError};
use keylatch_testkit::{OpenStore, PostgresServer, eventually, soon};
use tokio::task::JoinHandle;

use crate::failover;
use crate::lock_conformance::{ask, granted, held, name, token};
use crate::postgres::{
    open_by_default as open, open_held_by_default as open_held, release_wakes, until,
};

/// How many calls of keylatch wait for a lock in the database.
const BLOCKED: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'keylatch' AND wait_event_type = 'Lock'";
/// How many of them wait for a standby.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'keylatch' AND wait_event = 'SyncRep'";

#[tokio::test]
async fn killed_server_leaves_unknown_what_was_under_way_and_comes_back() {
    let mut server = PostgresServer::start().await;
    let store = open_held(&server.url("postgres")).await;
    let blocker = blocked(&server).await;
    let under_way = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&ask("b", "one", 1)).await }
    });
    eventually(async || (server.ask::<i64>("postgres", BLOCKED).await == 1).then_some(())).await;
    server.kill();
    let lost = soon("the answer", under_way).await.unwrap().expect_err("it was lost");
    assert!(matches!(lost, StoreError::Lost(_)), "{lost:?}");
    let new = store.acquire(&ask("c", "one", 1)).await.expect_err("the server is down");
    assert_eq!(new.effect(), Effect::NotExecuted, "{new:?}");
    drop(blocker);
    server.restart(&[]).await;
    let again = eventually(async || store.acquire(&ask("a", "two", 2)).await.ok()).await;
    held(again);
    granted(store.acquire(&ask("c", "one", 2)).await.unwrap());
}

#[tokio::test]
async fn server_that_starts_up_executes_nothing() {
    let mut server = PostgresServer::start().await;
    let store = open_held(&server.url("postgres")).await;
    server.kill();
    server.restart_unready().await;
    // The first call may find a connection whose end it has not heard of.
    let is_refused = async || {
        let error = store.release(&name("a"), &token("one")).await.expect_err("it starts up");
        (error.effect() == Effect::NotExecuted).then_some(())
    };
    eventually(is_refused).await;
    // It is no reason to give up at start either.
    let late = open(&server.url("postgres")).await;
    server.promote().await;
    let released = async || store.release(&name("a"), &token("one")).await.ok();
    assert_eq!(eventually(released).await, ReleaseReply::Released);
    granted(eventually(async || late.acquire(&ask("a", "two", 2)).await.ok()).await);
}

#[tokio::test]
async fn stopped_server_answers_nothing_until_it_runs_again() {
    let server = PostgresServer::start().await;
    let store = open_held(&server.url("postgres")).await;
    let writer = "SELECT pid FROM pg_stat_activity
        WHERE application_name = 'keylatch' AND query LIKE '%INSERT INTO%'";
    let writer: i32 = server.ask("postgres", writer).await;
    server.signal("-STOP");
    let sent = store.release(&name("a"), &token("one")).await.expect_err("it is stopped");
    assert_eq!(sent.effect(), Effect::Unknown, "{sent:?}");
    // That connection is not used again, and another one cannot be made.
    let unsent = store.release(&name("a"), &token("one")).await.expect_err("it is stopped");
    assert_eq!(unsent.effect(), Effect::NotExecuted, "{unsent:?}");
    assert!(store.health().await.is_err());
    server.signal("-CONT");
    let free = async || store.release(&name("a"), &token("one")).await.ok();
    eventually(free).await;
    granted(store.acquire(&ask("a", "two", 2)).await.unwrap());
    let writer = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {writer}");
    eventually(async || (server.ask::<i64>("postgres", &writer).await == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_a_stopped_server_end_by_their_deadline() {
    let server = PostgresServer::start().await;
    failover::requests_end_by_their_deadline(&server.url("postgres"), |signal| {
        server.signal(signal);
    })
    .await;
}

#[tokio::test]
async fn host_that_is_stopped_does_not_keep_from_the_next_one() {
    let (stopped, server) = (PostgresServer::start().await, PostgresServer::start().await);
    stopped.signal("-STOP");
    let _store = open_held(&both(&stopped, &server)).await;
}

#[tokio::test]
async fn server_that_takes_no_writes_any_more_is_left() {
    let (first, second) = (PostgresServer::start().await, PostgresServer::start().await);
    let store = open_held(&both(&first, &second)).await;
    let mut changes = store.changes(&name("a"));
    first.set(&[("default_transaction_read_only", "on")]).await;
    // A look may not be answered by what the old server has.
    let left = async || match store.look(&name("a")).await {
        Ok(found) => found.is_none().then_some(()),
        Err(error) => not_executed(&error),
    };
    eventually(left).await;
    let written = async || match store.acquire(&ask("a", "two", 2)).await {
        Ok(found) => Some(found),
        Err(error) => not_executed(&error),
    };
    granted(eventually(written).await);
    // What others announce comes from the new server as well.
    until(&mut changes, |hint| *hint == Hint::Missed).await;
    let other = open(&second.url("postgres")).await;
    release_wakes(&other, &store, "b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_goes_over_to_a_promoted_standby() {
    let primary = PostgresServer::start().await;
    // The table is there before the standby has its copy.
    open(&primary.url("postgres")).await;
    let standby = primary.standby().await;
    let url = both(&primary, &standby);
    failover::the_line_goes_on(&url, async || fail_over(&primary, &standby).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_go_over_to_a_promoted_standby() {
    let primary = PostgresServer::start().await;
    open(&primary.url("postgres")).await;
    let standby = primary.standby().await;
    let url = both(&primary, &standby);
    failover::what_was_done_is_known(&url, async || fail_over(&primary, &standby).await).await;
}

#[tokio::test]
async fn cut_wait_for_the_standby_is_reported_as_lost() {
    let server = PostgresServer::start().await;
    let store = open(&server.url("postgres")).await;
    for (attempt, end) in [(1, "pg_cancel_backend"), (2, "pg_terminate_backend")] {
        let under_way = waits_for_standby(&server, &store, attempt).await;
        let ended: i64 = server
            .ask("postgres", &WAITING.replace("count(*)", &format!("count({end}(pid))")))
            .await;
        assert_eq!(ended, 1);
        let lost = soon("the answer", under_way).await.unwrap();
        assert!(matches!(lost, Err(StoreError::Lost(_))), "{end}: {lost:?}");
        server.set(&[("synchronous_standby_names", "")]).await;
        let name = format!("lock {attempt}");
        held(eventually(async || store.acquire(&ask(&name, "two", 9)).await.ok()).await);
    }
    // An administrator who asks for no standby any more has decided that there is nothing to wait
    // for.
    let under_way = waits_for_standby(&server, &store, 3).await;
    server.set(&[("synchronous_standby_names", "")]).await;
    granted(soon("the answer", under_way).await.unwrap().unwrap());
}

#[tokio::test]
async fn standby_that_is_missing_at_the_first_start_is_no_error() {
    let server = PostgresServer::start().await;
    server.set(&[("synchronous_standby_names", "nowhere")]).await;
    commits_wait(&server, 0).await;
    // Nothing that it does is ever answered, the table's making included.
    let store = open(&server.url("postgres")).await;
    server.set(&[("synchronous_standby_names", "")]).await;
    granted(eventually(async || store.acquire(&ask("a", "one", 1)).await.ok()).await);
}

/// No answer yet, and the error says that nothing was done.
#[track_caller]
fn not_executed<T>(error: &StoreError) -> Option<T> {
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
    None
}

/// An acquire that has been written and waits for a standby that does not exist.
async fn waits_for_standby(
    server: &PostgresServer,
    store: &OpenStore,
    attempt: u64,
) -> JoinHandle<Result<AcquireReply, StoreError>> {
    // So that this connection has what it needs.
    granted(store.acquire(&ask(&format!("before {attempt}"), "one", attempt)).await.unwrap());
    server.set(&[("synchronous_standby_names", "nowhere")]).await;
    commits_wait(server, attempt).await;
    let (store, name) = (store.clone(), format!("lock {attempt}"));
    let under_way = tokio::spawn(async move { store.acquire(&ask(&name, "one", attempt)).await });
    eventually(async || (server.ask::<i64>("postgres", WAITING).await == 1).then_some(())).await;
    under_way
}

/// Returns when commits wait for a standby: the server takes note of it later than its new
/// connections, so the first probes may not wait.
async fn commits_wait(server: &PostgresServer, attempt: u64) {
    let probes = Cell::new(0);
    eventually(async || {
        let number = probes.replace(probes.get() + 1);
        let probe = server.connect("postgres").await.expect("it takes connections");
        let table = format!("CREATE TABLE probe_{attempt}_{number} ()");
        tokio::spawn(async move { probe.batch_execute(&table).await });
        // A commit of the server's own may wait as well.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        (server.ask::<i64>("postgres", waits).await >= 1).then_some(())
    })
    .await;
}

/// A connection that keeps all others from writing for as long as it lives.
pub(crate) async fn blocked(server: &PostgresServer) -> impl Send + use<> {
    let blocker = server.connect("postgres").await.expect("it takes connections");
    let lock = "BEGIN; LOCK TABLE keylatch.entries IN EXCLUSIVE MODE";
    blocker.batch_execute(lock).await.unwrap();
    blocker
}

/// Kills the primary, and promotes the standby once it has everything.
async fn fail_over(primary: &PostgresServer, standby: &PostgresServer) {
    let behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()";
    eventually(async || (primary.ask::<i64>("postgres", behind).await == 1).then_some(())).await;
    primary.kill();
    standby.promote().await;
}

/// A URL with two hosts.
fn both(first: &PostgresServer, second: &PostgresServer) -> String {
    let hosts = format!("{},{}", first.address(), second.address());
    first.url("postgres").replace(&first.address(), &hosts)
}
