//! Goal: a PostgreSQL that a team already has keeps locks without a step by hand, for a role that
//! may do no more than it must, and all instances hear of each other's changes.
//!
//! Method: databases, roles, schemas and settings of the test's own on a real server; what the
//! store does is seen through its port, and in the database.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use keylatch::config::Config;
use keylatch_core::lock::{AcquireReply, Change, LockName, ReleaseReply};
use keylatch_core::store::{Hint, Hints, Tier};
use keylatch_testkit::{
    Acquire, OpenStore, PostgresDatabase, PostgresServer, config, default_config, eventually, soon,
};
use tokio::task::JoinHandle;

use crate::lock_conformance::{TTL, ask, granted, held, name, token};
use crate::queue_conformance::id_of;
use crate::redis_records::is_refused_with_advice;

#[tokio::test]
async fn role_without_rights_reads_the_grants_and_no_password() {
    let (database, role) = (PostgresDatabase::create().await, Role::create().await);
    let url = role.url(&database);
    let before = open_error(&url).await;
    open(&database.url()).await;
    let after = open_error(&url).await;
    database.run(&format!("GRANT USAGE ON SCHEMA keylatch TO {}", role.name)).await;
    let halfway = open_error(&url).await;
    for error in [before, after, halfway] {
        for part in [
            "CREATE SCHEMA \"keylatch\" AUTHORIZATION role",
            "GRANT USAGE ON SCHEMA \"keylatch\" TO role",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON \"keylatch\".entries TO role",
        ] {
            assert!(error.contains(part), "no `{part}` in: {error}");
        }
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn wrong_role_is_an_error_that_says_so() {
    let database = PostgresDatabase::create().await;
    let error = open_error(&database.url().replace("keylatch@", "nobody:s3cret@")).await;
    assert!(error.contains("nobody") && !error.contains("s3cret"), "{error}");
}

#[tokio::test]
async fn role_with_the_documented_grants_can_do_everything() {
    let (database, role) = (PostgresDatabase::create().await, Role::create().await);
    open(&database.url()).await;
    role.is_given(&database, "ON keylatch.entries TO").await;
    everything_works(&open(&role.url(&database)).await).await;
}

#[tokio::test]
async fn role_with_a_schema_of_its_own_makes_the_table() {
    let (database, role) = (PostgresDatabase::create().await, Role::create().await);
    role.is_given(&database, "SCHEMA keylatch AUTHORIZATION").await;
    everything_works(&open(&role.url(&database)).await).await;
    let owner = "SELECT tableowner::text FROM pg_tables WHERE schemaname = 'keylatch'";
    assert_eq!(database.ask::<String>(owner).await, role.name);
}

#[tokio::test]
async fn instances_that_share_a_database_are_counted() {
    let (database, elsewhere) =
        (PostgresDatabase::create().await, PostgresDatabase::create().await);
    let store = open(&database.url()).await;
    let _stranger = open(&elsewhere.url()).await;
    let counted = async |count: &str| {
        eventually(async || (store.health().await.ok()?.facts["instances"] == count).then_some(()))
            .await;
    };
    counted("1").await;
    let other = open(&database.url()).await;
    counted("2").await;
    drop(other);
    counted("1").await;
}

#[tokio::test]
async fn table_of_another_shape_is_refused_with_advice_and_stays() {
    let shape = "SELECT string_agg(column_name || ' ' || data_type, ', ' ORDER BY column_name)
        FROM information_schema.columns WHERE table_schema = 'keylatch'";
    for change in ["DROP COLUMN finished", "ALTER COLUMN version TYPE text", "RENAME was TO before"]
    {
        let database = PostgresDatabase::create().await;
        drop(open(&database.url()).await);
        database.run(&format!("ALTER TABLE keylatch.entries {change}")).await;
        let before: String = database.ask(shape).await;
        let error = open_error(&database.url()).await;
        assert!(error.contains("set postgres.schema to another schema"), "{change}: {error}");
        assert_eq!(database.ask::<String>(shape).await, before, "{change}");
    }
}

/// As a build before the first release left them: a row, and the floor of a bucket.
#[tokio::test]
async fn rows_of_another_format_are_refused_with_advice_and_stay() {
    let database = PostgresDatabase::create().await;
    drop(open(&database.url()).await);
    let bucket = name("free").bucket();
    let rows = format!("('\\x6c61', 7, 0, '\\x0100'), ('\\x66{bucket:02x}', 7, 0, '\\x0100')");
    let columns = "keylatch.entries (key, version, was, value)";
    database.run(&format!("INSERT INTO {columns} VALUES {rows}")).await;
    let store = open(&database.url()).await;
    is_refused_with_advice(&store.acquire(&ask("a", "one", 1)).await.unwrap_err());
    is_refused_with_advice(&store.look(&name("a")).await.unwrap_err());
    is_refused_with_advice(&store.acquire(&ask("free", "one", 1)).await.unwrap_err());
    granted(store.acquire(&ask("of another bucket", "one", 1)).await.unwrap());
    let kept = "SELECT count(*) FROM keylatch.entries WHERE version = 7 AND value = '\\x0100'";
    assert_eq!(database.ask::<i64>(kept).await, 2);
}

#[tokio::test]
async fn schemas_keep_their_locks_apart() {
    let database = PostgresDatabase::create().await;
    let [one, other] = ["Team_1", "Team_2"].map(|schema| {
        let mut config = config(&database.url());
        config.postgres.schema = schema.to_owned();
        config
    });
    let (one, other) = (open_with(&one).await, open_with(&other).await);
    for store in [&one, &other] {
        granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    }
    let schemas = "SELECT string_agg(schemaname, ' ' ORDER BY schemaname) FROM pg_tables
        WHERE tablename = 'entries'";
    assert_eq!(database.ask::<String>(schemas).await, "Team_1 Team_2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_database_is_opened_by_many_at_once() {
    let database = PostgresDatabase::create().await;
    let config = config(&database.url());
    let opening = (0..16).map(|_| keylatch_stores::open(config.store.expose(), config.stores()));
    let stores = try_join_all(opening).await.expect("every one opens");
    for store in stores.into_iter().map(OpenStore) {
        let found = store.acquire(&ask("a", "one", 1)).await.unwrap();
        assert!(!matches!(found, AcquireReply::Busy(_)), "{found:?}");
    }
}

#[tokio::test]
async fn table_that_was_dropped_is_made_again() {
    let database = PostgresDatabase::create().await;
    let store = open_held(&database.url()).await;
    database.run("DROP SCHEMA keylatch CASCADE").await;
    eventually(async || store.acquire(&ask("b", "one", 1)).await.ok()).await;
    assert_eq!(database.ask::<i64>("SELECT count(*) FROM keylatch.entries").await, 1);
}

#[tokio::test]
async fn warning_of_something_else_leaves_no_doubt() {
    let database = PostgresDatabase::create().await;
    let store = open(&database.url()).await;
    database
        .run(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE WARNING 'of something else'; RETURN NULL; END $$;
            CREATE TRIGGER warn AFTER INSERT ON keylatch.entries EXECUTE FUNCTION warn()",
        )
        .await;
    for attempt in 1..3 {
        let held = store.acquire(&ask(&format!("lock {attempt}"), "one", attempt)).await;
        granted(held.unwrap());
    }
}

#[tokio::test]
async fn change_that_waited_for_another_row_is_judged_when_its_turn_comes() {
    let database = PostgresDatabase::create().await;
    let store = open(&database.url()).await;
    for lock in ["a", "b", "c"] {
        granted(store.acquire(&ask(lock, "one", 1)).await.unwrap());
    }
    store.release(&name("c"), &token("one")).await.unwrap();
    // One change is under way, and the next two are one batch behind it.
    let (first, second) = (locked(&database, "a").await, locked(&database, "b").await);
    let releasing = release_soon(&store, "a");
    one_is_blocked(&database).await;
    let behind = release_soon(&store, "b");
    let granting = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&ask("c", "two", 2)).await }
    });
    one_is_blocked(&database).await;
    drop(first);
    soon("the release", releasing).await.unwrap();
    one_is_blocked(&database).await;
    // When the turn of "c" comes, the time of its decision is over.
    database.advance(TTL / 2).await;
    drop(second);
    soon("the release", behind).await.unwrap();
    granted(soon("the grant", granting).await.unwrap().unwrap());
    let left = store.look(&name("c")).await.unwrap().expect("it is held").first.expires_in;
    assert!(left > TTL / 2, "{left:?} are left of a lease that has just begun");
}

#[tokio::test]
async fn waiter_and_watcher_hear_of_another_process() {
    let database = PostgresDatabase::create().await;
    let (one, other) = (open(&database.url()).await, open(&database.url()).await);
    // An announcement has the whole name.
    let longest = "ä".repeat(LockName::MAX_BYTES / 2);
    release_wakes(&one, &other, &longest).await;
    hears_of(&one, &other, "a").await;
}

#[tokio::test]
async fn hints_work_again_after_the_listener_was_ended() {
    let database = PostgresDatabase::create().await;
    let (one, other) = (open(&database.url()).await, open(&database.url()).await);
    let mut changes = other.changes(&name("a"));
    // They have no other connection yet.
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'keylatch'";
    assert_eq!(database.ask::<i64>(ended).await, 2);
    let missed = soon("the hint that some were missed", changes.next()).await;
    assert_eq!(missed, Some(Hint::Missed));
    release_wakes(&one, &other, "a").await;
    hears_of(&one, &other, "b").await;
}

#[tokio::test]
async fn tier_is_what_the_server_says_of_itself() {
    let server = PostgresServer::start_with(&[]).await;
    let store = open(&server.url("postgres")).await;
    reaches(&store, Tier::Strict).await;
    for (setting, weak, strong) in [
        ("synchronous_commit", "off", "on"),
        ("fsync", "off", "on"),
        ("full_page_writes", "off", "on"),
    ] {
        server.set(&[(setting, weak)]).await;
        reaches(&store, Tier::BestEffort).await;
        server.set(&[(setting, strong)]).await;
        reaches(&store, Tier::Strict).await;
    }
    let _standby = server.standby().await;
    reaches(&store, Tier::Fenced).await;
    server.set(&[("synchronous_standby_names", "*")]).await;
    reaches(&store, Tier::Strict).await;
    server.set(&[("synchronous_commit", "remote_write")]).await;
    reaches(&store, Tier::Fenced).await;
    server.set(&[("synchronous_commit", "remote_apply")]).await;
    reaches(&store, Tier::Strict).await;
    server.set(&[("synchronous_commit", "local")]).await;
    reaches(&store, Tier::Fenced).await;
}

/// A store at `url`, as the service opens it.
pub(crate) async fn open(url: &str) -> OpenStore {
    open_with(&config(url)).await
}

/// The same with the limits that users have: it soon leaves a host that is silent.
pub(crate) async fn open_by_default(url: &str) -> OpenStore {
    open_with(&default_config(url)).await
}

/// The store of [`open`], where the lock `a` is held by `one`.
pub(crate) async fn open_held(url: &str) -> OpenStore {
    holding(open(url).await).await
}

/// The same of [`open_by_default`].
pub(crate) async fn open_held_by_default(url: &str) -> OpenStore {
    holding(open_by_default(url).await).await
}

async fn holding(store: OpenStore) -> OpenStore {
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    store
}

async fn open_with(config: &Config) -> OpenStore {
    let opened = keylatch_stores::open(config.store.expose(), config.stores()).await;
    OpenStore(opened.expect("the store opens"))
}

/// Why a store cannot be opened.
pub(crate) async fn open_error(url: &str) -> String {
    let opened = keylatch_stores::open(url, config(url).stores()).await;
    opened.expect_err("the store is not fit").to_string()
}

/// A role that may log in, and nothing else.
pub(crate) struct Role {
    pub(crate) name: String,
}

impl Role {
    pub(crate) async fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("role_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let statement = format!("CREATE ROLE {name} LOGIN PASSWORD 's3cret'");
        PostgresServer::shared().await.run("postgres", &statement).await;
        Self { name }
    }

    pub(crate) fn url(&self, database: &PostgresDatabase) -> String {
        database.url().replace("keylatch@", &format!("{}:s3cret@", self.name))
    }

    /// Runs the block of the documents that has `part`, for this role.
    pub(crate) async fn is_given(&self, database: &PostgresDatabase, part: &str) {
        let page = include_str!("../../docs/stores/postgres.md");
        let mut blocks = page.split("```").filter_map(|block| block.strip_prefix("sql\n"));
        let block = blocks.find(|block| block.contains(part)).expect("a block");
        let statements = block.lines().filter(|line| !line.starts_with("CREATE ROLE"));
        let statements = statements.collect::<Vec<_>>().join("\n");
        let statements = statements.replace("AUTHORIZATION keylatch", "AUTHORIZATION ROLE");
        let statements = statements.replace("TO keylatch", "TO ROLE").replace("ROLE", &self.name);
        // The database's own clock is the test's.
        let clock = "GRANT USAGE ON SCHEMA shifted TO ROLE; GRANT SELECT ON shifted.by TO ROLE;";
        database.run(&(clock.replace("ROLE", &self.name) + &statements)).await;
    }
}

/// Acquires, renews, waits for, lists and releases a lock.
pub(crate) async fn everything_works(store: &OpenStore) {
    let waiter = Acquire { queue: Some(TTL), ..ask("a", "two", 1) };
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    held(store.acquire(&waiter).await.unwrap());
    store.release(&name("a"), &token("one")).await.unwrap();
    granted(store.acquire(&waiter).await.unwrap());
    assert_eq!(store.look(&name("a")).await.unwrap().expect("it is held").first.waiting, 0);
    assert!(store.health().await.is_ok());
}

/// A connection that keeps others from writing a lock's row for as long as it lives.
async fn locked(database: &PostgresDatabase, lock: &str) -> impl Send + use<> {
    let locker = database.connect().await;
    let row = format!("BEGIN; SELECT FROM keylatch.entries WHERE key = 'l{lock}' FOR UPDATE");
    locker.batch_execute(&row).await.unwrap();
    locker
}

fn release_soon(store: &OpenStore, lock: &str) -> JoinHandle<ReleaseReply> {
    let (store, name) = (store.clone(), name(lock));
    tokio::spawn(async move { store.release(&name, &token("one")).await.unwrap() })
}

async fn one_is_blocked(database: &PostgresDatabase) {
    let blocked = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually(async || (database.ask::<i64>(blocked).await == 1).then_some(())).await;
}

/// Waits at one store for what is released at another one.
pub(crate) async fn release_wakes(one: &OpenStore, other: &OpenStore, lock: &str) {
    granted(one.acquire(&ask(lock, "one", 1)).await.unwrap());
    let waiter = Acquire { queue: Some(TTL), ..ask(lock, "two", 2) };
    let turn = other.wakeup(&waiter.name, &waiter.token);
    held(other.acquire(&waiter).await.unwrap());
    one.release(&name(lock), &token("one")).await.unwrap();
    soon("the turn of the waiter", turn).await;
    granted(other.acquire(&waiter).await.unwrap());
}

/// Watches at one store what happens at another one.
pub(crate) async fn hears_of(one: &OpenStore, other: &OpenStore, lock: &str) {
    let mut changes = other.changes(&name(lock));
    let lease = granted(one.acquire(&ask(lock, "one", 1)).await.unwrap());
    until(&mut changes, |hint| match hint {
        Hint::Changed(Change::Acquired(holder)) => holder.fencing_token == lease.fencing_token,
        // The first change of a lock is news of which this process does not know the rest.
        hint => *hint == Hint::Missed,
    })
    .await;
    one.release(&name(lock), &token("one")).await.unwrap();
    let released = Hint::Changed(Change::Released(id_of(&lease)));
    until(&mut changes, |hint| *hint == released).await;
}

pub(crate) async fn until(hints: &mut Hints, mut is_it: impl FnMut(&Hint) -> bool) {
    let found = async {
        while let Some(hint) = hints.next().await {
            if is_it(&hint) {
                return;
            }
        }
        panic!("the hints ended");
    };
    soon("the hint", found).await;
}

async fn reaches(store: &OpenStore, tier: Tier) {
    let is_so = async || store.health().await.is_ok_and(|health| health.tier == tier);
    eventually(async || is_so().await.then_some(())).await;
}
