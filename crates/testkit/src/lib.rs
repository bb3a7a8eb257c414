//! What keylatch's tests stand on: the service, real Redis servers, a real browser, and a proxy
//! that loses answers.
//!
//! A test talks to the service over HTTP, as users do. Nothing here is a mock of keylatch's own
//! parts.
//!
//! | To | use |
//! | --- | --- |
//! | start the service in the test's process | [`Service`], [`config`] |
//! | start it as a process, or run a command of it | [`Program`], [`Process`], [`Exit`] |
//! | call its HTTP API and look at an answer | [`Api`], [`Answer`] |
//! | have identities with API keys | [`Keyring`] |
//! | read server-sent events | [`EventStream`] |
//! | send bytes that no HTTP client sends | [`RawConnection`] |
//! | guard `POST /orders` in front of a service that counts its runs | [`Shop`], [`Upstream`] |
//! | answer a guarded request with bytes of the test's own | [`raw_upstream`] |
//! | run a script under `keylatch run` | [`ScriptDirectory`] |
//! | start Redis | [`RedisServer`], [`Sentinels`], [`Cluster`], [`RedlockNodes`] |
//! | have an engine of conditional writes that does all that one may do | [`FakeEngine`], [`Faults`] |
//! | have a PostgreSQL, or a pooler before it | [`PostgresDatabase`], [`PostgresServer`], [`PgBouncer`] |
//! | have one that commits on two disks, and promote the other | [`PostgresPair`] |
//! | have an etcd, or three members of one | [`empty_etcd`], [`EtcdServer`], [`EtcdCluster`] |
//! | have a ZooKeeper, or three that are one | [`ZookeeperRoot`], [`ZookeeperServer`], [`Ensemble`] |
//! | lose, delay or cut what is on the way | [`Proxy`] |
//! | look at a page in Chromium | [`Browser`], [`Page`] |
//! | make certificates, speak TLS | [`Authority`], [`connect_tls`] |
//! | read the log | [`LogCapture`] |
//! | run a test on every store, and let time pass for it | [`store_test`], [`Locks`], [`Records`], [`TestStore`] |
//!
//! # Waiting
//!
//! A test waits for what has to happen, never for time to pass:
//!
//! - [`soon`] gives what a future gives, and fails the test after 20 s with the caller's line.
//! - [`eventually`] asks again and again, for what another process does in its own time.
//! - [`TestStore::advance`] lets time pass for a store.
//!
//! The 20 s are for the slowest machine. No test asserts that something was quick: on a busy
//! machine it is not. A test of a deadline asserts what came first. A server is ready when its
//! constructor returns, and [`config`] gives a store a minute for each step: only a test of a time
//! limit sets a shorter one.
//!
//! # How much
//!
//! [`scaled`] is the number of rounds, cases or keys of a test that can do more:
//! `KEYLATCH_TEST_SCALE` multiplies it. [`scale`] lists every environment variable that the tests
//! read.
//!
//! # Processes
//!
//! Every server takes a free port and ends with the test, also when the test fails. A child's
//! environment is what the test says and its signals have their default action, so a result does
//! not depend on how the tests were started.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod browser;
#[cfg(feature = "engines")]
pub mod engines;
mod events;
mod fake_engine;
mod keyring;
mod log_capture;
mod open_store;
mod orders;
mod port;
mod program;
mod proxy;
mod random;
mod raw_http;
pub mod raw_http2;
mod redis_server;
pub mod scale;
mod scripts;
mod service;
mod signal;
mod store_time;
pub mod stores;
mod tls;
mod upstream;
mod wall_clock;

use std::time::Duration;

pub use browser::{Browser, Page, PausedRequest};
#[cfg(feature = "engines")]
pub use engines::*;
pub use events::{Event, EventStream, refusal_of};
pub use fake_engine::{FakeEngine, Faults};
pub use keylatch_testkit_macros::{redis_test, store_test};
pub use keyring::Keyring;
pub use log_capture::LogCapture;
pub use open_store::{Acquire, OpenStore};
pub use orders::{Shop, guard_orders};
pub use port::free_port;
pub use program::{Exit, Process, Program, RunningCommand};
pub use proxy::Proxy;
pub use random::Dice;
pub use raw_http::{RawConnection, get_request, post_head};
pub use redis_server::RedisServer;
pub use scale::{scaled, seed};
pub use scripts::ScriptDirectory;
pub use service::{Answer, Api, Service, config, default_config};
pub use store_time::store_time;
pub use stores::{FromStore, Locks, Records, TestStore};
pub use tls::{Authority, Certificate, connect_tls, handshake};
pub use upstream::{ReceivedRequest, Upstream, created, raw_upstream};
pub use wall_clock::WallClock;

/// How long anything that has to happen may take, on the slowest machine. It is less than a lease
/// lasts by default, so that a lease which ends by itself is not taken for one that was released.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a server may take to start: many start at once.
const START_LIMIT: Duration = Duration::from_secs(120);

/// What a future gives; it has to come within 20 s. `what` names it in the failure.
#[track_caller]
pub fn soon<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    within(LIMIT, what, future)
}

/// Asks again and again until there is an answer, which has to come within 20 s.
#[track_caller]
pub fn eventually<T>(ask: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    within(LIMIT, "what the test waits for", answer(ask))
}

/// The same of a server that starts.
#[track_caller]
pub(crate) fn started<T>(ask: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    within(START_LIMIT, "the start of a server", answer(ask))
}

#[track_caller]
fn within<T>(
    limit: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let came = tokio::time::timeout(limit, future).await;
        came.unwrap_or_else(|_| panic!("{caller}: {what} did not happen in time"))
    }
}

/// Asks at first every 10 ms, and later after a tenth of the time so far: a question takes some
/// milliseconds of a core that other tests need.
pub(crate) async fn answer<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let (began, shortest) = (tokio::time::Instant::now(), Duration::from_millis(10));
    let mut tick = tokio::time::interval(shortest);
    loop {
        tick.tick().await;
        if let Some(answer) = ask().await {
            return answer;
        }
        tick.reset_after((began.elapsed() / 10).clamp(shortest, 20 * shortest));
    }
}
