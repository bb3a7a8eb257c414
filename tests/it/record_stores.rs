//! Every store of records against the conformance functions.

use keylatch_core::idempotency::RecordStore;
use keylatch_stores::{EmbeddedStore, MemoryStore, RedisStore};

use crate::conformance::Clock;
use crate::record_conformance;
use crate::stores::PausedClock;
use crate::support::{Cluster, RedisServer, Sentinels, config};

/// Defines a test of each conformance function for each store; those behind `at once`, which take
/// long to start, are started once for all functions.
macro_rules! conform {
    (each { $($store:ident => $start:expr;)+ } at once { $($set:ident => $set_start:expr;)+ }) => {
        $(conform! { @all store, $store, $start; })+
        $(conform! { @all set, $set, $set_start; })+
    };
    (@all $kind:ident, $store:ident, $start:expr;) => {
        conform! { @$kind $store, $start,
            a_new_key_starts_a_run,
            the_same_token_again_is_the_same_run,
            another_token_is_told_of_the_run_in_flight,
            another_fingerprint_is_a_reuse_at_every_stage,
            only_the_token_ends_extends_or_abandons,
            nothing_is_done_to_a_key_that_was_never_used,
            an_abandoned_key_is_as_if_never_used,
            an_extension_lets_the_lease_last_its_full_time,
            fences_of_runs_rise_and_fit_in_53_bits,
            one_of_many_at_once_starts,
            keys_that_differ_in_one_bit_are_different_records,
            what_was_done_is_found_and_not_begun_again,
            an_unknown_end_is_kept_with_its_reason,
            answers_come_back_as_they_were,
            the_same_end_again_is_the_same_end,
            another_end_is_refused,
            what_has_ended_is_not_abandoned_or_extended,
            an_unknown_outcome_is_resolved_by_an_answer,
            an_unknown_outcome_is_resolved_as_not_executed,
            only_an_unknown_outcome_is_resolved,
            another_run_than_the_one_that_is_meant_is_not_resolved,
            a_run_whose_lease_is_over_has_an_unknown_outcome,
            a_run_that_may_be_repeated_is_run_again_under_a_higher_fence,
            the_latest_run_says_what_a_crash_leaves_behind,
            what_was_done_is_forgotten_after_its_retention,
            an_unknown_outcome_is_kept_for_30_days,
            a_run_that_may_be_repeated_is_forgotten_after_its_retention,
            what_is_kept_for_no_time_is_gone,
            a_sweep_forgets_nothing_that_is_still_kept,
        }
    };
    (@store $store:ident, $start:expr, $($function:ident,)+) => {
        mod $store {
            use super::*;

            $(#[tokio::test]
            async fn $function() {
                let (store, clock) = $start.await;
                record_conformance::$function(store.as_ref(), clock.as_ref()).await;
            })+
        }
    };
    (@set $store:ident, $start:expr, $($function:ident,)+) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $store() {
            let set = $start.await;
            $({
                println!(stringify!($function));
                set.flush().await;
                let store = RedisStore::open(&set.url(), &config("memory:").redis).await;
                record_conformance::$function(&store.expect("the store opens"), &set).await;
            })+
        }
    };
}

conform! {
    each {
        embedded => embedded();
        memory => memory();
        redis => redis();
    }
    at once {
        redis_sentinel => Sentinels::start(0, 1);
        redis_cluster => Cluster::start(3, 0);
    }
}

/// A store, and what moves its time on.
pub(crate) type Subject = (Box<dyn RecordStore>, Box<dyn Clock>);

pub(crate) async fn embedded() -> Subject {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(directory.path()).await.expect("the store opens");
    tokio::time::pause();
    (Box::new(store), Box::new(PausedClock::with(directory)))
}

pub(crate) async fn memory() -> Subject {
    tokio::time::pause();
    (Box::new(MemoryStore::new()), Box::new(PausedClock::default()))
}

pub(crate) async fn redis() -> Subject {
    let server = RedisServer::start().await;
    let store = RedisStore::open(&server.url(), &config("memory:").redis).await;
    (Box::new(store.expect("the store opens")), Box::new(server))
}
