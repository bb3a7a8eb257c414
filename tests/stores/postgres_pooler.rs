//! Goal: keylatch works through a PgBouncer in transaction mode, which runs each statement on any
//! of its connections to the server, and never takes its words for the server's.
//!
//! Method: a real PgBouncer whose connections the test ends, so that the next statement runs on one
//! that knows no prepared statement, or other ones under the same names.

use futures_util::future::join_all;
use keylatch_core::store::StoreError;
use keylatch_testkit::{OpenStore, PgBouncer, PostgresServer, Service, eventually, soon};
use serde_json::json;

use crate::lock_conformance::{ask, granted, name, token};
use crate::postgres::{open, open_held};
use crate::postgres_faults::blocked;

#[tokio::test]
async fn statement_that_the_connection_forgot_is_sent_unnamed() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server, 1).await;
    let store = open(&pooler.url("postgres")).await;
    work(&store, "before").await;
    renew_connection(&server, &pooler, "").await;
    work(&store, "after").await;
}

#[tokio::test]
async fn statement_under_whose_name_there_is_another_is_sent_unnamed() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server, 1).await;
    let names: String = (0..1000).map(|it| format!("PREPARE s{it} AS SELECT 1;")).collect();
    renew_connection(&server, &pooler, &names).await;
    // Here the names are taken when the statements are prepared,
    work(&open(&pooler.url("postgres")).await, "at first").await;
    // and here they have come to mean something else since.
    renew_connection(&server, &pooler, "").await;
    let store = open(&pooler.url("postgres")).await;
    work(&store, "before").await;
    renew_connection(&server, &pooler, &names).await;
    work(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_through_the_pooler() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server, 4).await;
    let url = pooler.url("postgres");
    let (one, other) = (Service::start(&url).await, Service::start(&url).await);
    let serve = async |lock: String| {
        let holder = one.create(&lock, &json!({})).await;
        let patient = json!({"wait_ms": 60_000});
        let release = async {
            let waits = async || (one.look(&lock).await.json["waiting"] == 1).then_some(());
            eventually(waits).await;
            assert_eq!(one.release(&lock, &holder.token()).await.status, 204);
        };
        let waiter = soon("the waiter", other.create(&lock, &patient));
        let (waiter, ()) = tokio::join!(waiter, release);
        assert_eq!(waiter.status, 201, "{waiter:?}");
    };
    // Many at once make the pooler use all its connections.
    join_all((0..20).map(|number| serve(format!("lock-{number}")))).await;
}

#[tokio::test]
async fn server_lost_behind_the_pooler_leaves_the_write_unknown() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server, 4).await;
    let store = open_held(&pooler.url("postgres")).await;
    let _blocker = blocked(&server).await;
    let under_way = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&ask("b", "one", 1)).await }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually(async || (server.ask::<i64>("postgres", waits).await == 1).then_some(())).await;
    server.kill();
    let lost = soon("the answer", under_way).await.unwrap();
    assert!(matches!(lost, Err(StoreError::Lost(_))), "{lost:?}");
}

/// Takes a lock and gives it back.
async fn work(store: &OpenStore, lock: &str) {
    granted(store.acquire(&ask(lock, "one", 1)).await.unwrap());
    store.release(&name(lock), &token("one")).await.unwrap();
    assert_eq!(store.look(&name(lock)).await.unwrap(), None);
}

/// Ends the pooler's connections to the server, and runs statements on the next one.
async fn renew_connection(server: &PostgresServer, pooler: &PgBouncer, statements: &str) {
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert!(server.ask::<i64>("postgres", ended).await > 0);
    let rest = "SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    eventually(async || (server.ask::<i64>("postgres", rest).await == 0).then_some(())).await;
    let statements = format!("SELECT 1; {statements}");
    eventually(async || {
        let client = pooler.connect("postgres").await?;
        client.batch_execute(&statements).await.ok()
    })
    .await;
}
