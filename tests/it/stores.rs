//! Every store against the conformance functions.

use std::time::Duration;

use async_trait::async_trait;
use keylatch_core::lock::LockStore;
use keylatch_stores::{EmbeddedStore, MemoryStore, RedisStore};
use tempfile::TempDir;

use crate::conformance::{self, Clock};
use crate::line_conformance;
use crate::support::{Cluster, Nodes, RedisServer, Sentinels, config};

/// Defines a test of each conformance function for each store; those behind `at once`, which take
/// long to start, are started once for all functions.
macro_rules! conform {
    (
        each { $($store:ident => $start:expr, $($part:ident)+;)+ }
        at once { $($set:ident => $set_start:expr;)+ }
    ) => {
        $(mod $store {
            use super::*;

            $(conform! { @$part one $start })+
        })+
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $set() {
            let set = $set_start.await;
            conform! { @locks all set }
            conform! { @lines all set }
        })+
    };
    (@locks $kind:ident $start:expr) => {
        conform! { @$kind $start, conformance:
            a_free_lock_is_granted,
            the_same_token_again_is_the_same_grant,
            another_token_is_told_who_holds_the_lock,
            a_lock_is_free_after_its_release,
            a_lock_is_free_after_its_ttl,
            a_lease_says_what_is_left_of_it,
            only_the_token_renews,
            a_renewal_starts_the_ttl_anew_and_keeps_the_fence,
            a_renewal_may_shorten_the_lease,
            an_expired_lease_is_not_renewed,
            only_the_token_releases,
            fences_rise_over_release_and_expiry,
            fences_fit_in_53_bits_and_follow_the_time,
            an_attempt_withdraws_what_it_got,
            an_attempt_withdraws_nothing_that_another_was_given_too,
            an_attempt_withdraws_nothing_after_a_renewal,
            an_attempt_withdraws_nothing_of_another_token,
            one_of_many_at_once_is_granted,
            names_that_look_alike_are_different_locks,
            owners_and_names_come_back_as_they_were,
            a_listing_has_every_lock_once,
            a_listing_keeps_to_its_prefix,
            a_listing_knows_its_own_cursors_only,
            expired_locks_are_swept,
            a_store_that_works_says_so
        }
    };
    (@lines $kind:ident $start:expr) => {
        conform! { @$kind $start, line_conformance:
            who_came_first_is_served_first,
            many_are_served_in_the_order_in_which_they_came,
            asking_again_keeps_the_place,
            a_place_is_lost_after_its_time,
            a_free_lock_goes_on_when_the_first_in_line_is_lost,
            who_has_no_place_does_not_overtake,
            an_expired_lock_goes_to_the_first_in_line,
            whoever_joins_the_line_of_a_free_lock_calls_the_first,
            an_attempt_that_is_withdrawn_leaves_the_line,
            an_attempt_leaves_no_place_that_another_asked_for,
            a_grant_leaves_the_line,
            everybody_sees_how_many_wait,
            a_release_calls_the_first_in_line_and_nobody_else,
            a_withdrawal_calls_who_is_next,
            a_line_that_goes_on_calls_nobody_while_the_lock_is_held,
            what_is_taken_back_is_told_as_released
        }
    };
    (@one $start:expr, $module:ident: $($function:ident),+) => {
        $(#[tokio::test]
        async fn $function() {
            let (store, clock) = $start.await;
            $module::$function(store.as_ref(), clock.as_ref()).await;
        })+
    };
    (@all $set:expr, $module:ident: $($function:ident),+) => {
        $({
            println!(stringify!($function));
            $set.flush().await;
            let store = RedisStore::open(&$set.url(), &config("memory:").redis).await;
            $module::$function(&store.expect("the store opens"), &$set).await;
        })+
    };
}

conform! {
    each {
        embedded => embedded(), locks lines;
        memory => memory(), locks lines;
        redis => redis(), locks lines;
        redlock => redlock(), locks;
    }
    at once {
        redis_sentinel => Sentinels::start(0, 1);
        redis_cluster => Cluster::start(3, 0);
    }
}

/// A store, and what moves its time on.
pub(crate) type Subject = (Box<dyn LockStore>, Box<dyn Clock>);

pub(crate) async fn embedded() -> Subject {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(directory.path()).await.expect("the store opens");
    tokio::time::pause();
    // The directory lives as long as the clock, which a test keeps to its end.
    (Box::new(store), Box::new(PausedClock::with(directory)))
}

pub(crate) async fn memory() -> Subject {
    tokio::time::pause();
    (Box::new(MemoryStore::new()), Box::new(PausedClock::default()))
}

pub(crate) async fn redis() -> Subject {
    let server = RedisServer::start().await;
    let settings = config("memory:").redis;
    let store = RedisStore::open(&server.url(), &settings).await.expect("the store opens");
    (Box::new(store), Box::new(server))
}

pub(crate) async fn redlock() -> Subject {
    let nodes = Nodes::start().await;
    let store = nodes.store().await;
    (Box::new(store), Box::new(nodes))
}

/// tokio's clock, which stands still until it is told.
#[derive(Default)]
pub(crate) struct PausedClock {
    _directory: Option<TempDir>,
}

impl PausedClock {
    /// One that keeps a directory until it is gone.
    pub(crate) fn with(directory: TempDir) -> Self {
        Self { _directory: Some(directory) }
    }
}

#[async_trait]
impl Clock for PausedClock {
    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

#[async_trait]
impl Clock for RedisServer {
    async fn advance(&self, by: Duration) {
        self.age(by).await;
    }
}

#[async_trait]
impl Clock for Nodes {
    async fn advance(&self, by: Duration) {
        self.age(by).await;
    }
}
