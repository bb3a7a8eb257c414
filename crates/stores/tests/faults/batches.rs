//! Goal: commands that come together share a sync, and a batch is one change of the file.
//!
//! Method: the fault disk holds the writer while commands queue; the test then counts the syncs and
//! pages of the next batch.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use keylatch_core::idempotency::{BeginCommand, BeginReply, OnCrash, RecordStatus};
use keylatch_core::lock::{AcquireReply, FencingToken, Ttl};
use keylatch_stores::test_medium::{TestStore, configure};
use tokio::time::{advance, pause};

use crate::disk::Disk;
use crate::requests::{Acquire, LEASE, begin};

/// Holds the writer in a commit until the disk resumes, so that what comes is the next batch.
async fn hold_the_writer(store: &Arc<TestStore>, disk: &Disk, round: u32) {
    drop(Acquire::new(&format!("first {round}"), "one").hang(store, disk).await);
}

#[tokio::test]
async fn changes_that_come_together_share_a_sync() {
    assert_eq!(syncs_of_40_changes().await, 1, "syncs for 40 changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_come_together_share_a_sync_though_a_worker_is_spare() {
    assert_eq!(syncs_of_40_changes().await, 1, "syncs for 40 changes");
}

/// How many syncs it takes to write 40 changes that are queued while the disk hangs in another
/// commit.
async fn syncs_of_40_changes() -> u64 {
    let (disk, store) = Disk::with_store();
    for number in 0..10 {
        Acquire::new(&format!("before {number}"), "one").run(store.port()).await.unwrap();
    }
    hold_the_writer(&store, &disk, 0).await;
    let locks: Vec<_> = (0..20).map(|n| Acquire::new(&format!("lock {n}"), "one")).collect();
    let runs: Vec<_> = (0..20).map(|n| begin(&format!("record {n}"), "one")).collect();
    let mut acquires = pin!(join_all(locks.iter().map(|lock| lock.run(store.port()))));
    let mut begins = pin!(join_all(runs.iter().map(|run| store.port().begin(run))));
    assert!(poll!(acquires.as_mut()).is_pending() && poll!(begins.as_mut()).is_pending());
    let before = disk.syncs();
    disk.resume();
    assert!(acquires.await.iter().all(Result::is_ok) && begins.await.iter().all(Result::is_ok));
    // The commit that hung has one as well.
    disk.syncs() - before - 1
}

#[tokio::test]
async fn fences_rise_over_a_grant_and_its_end_in_one_batch() {
    let (disk, store) = Disk::with_store();
    let (lock, mut last) = (Acquire::new("lock", "one"), FencingToken::NONE);
    for round in 0..50 {
        hold_the_writer(&store, &disk, round).await;
        let both = async { tokio::join!(lock.run(store.port()), lock.withdraw(store.port())) };
        let mut both = pin!(both);
        assert!(poll!(both.as_mut()).is_pending());
        disk.resume();
        let (Ok(AcquireReply::Granted(leases)), Ok(())) = both.await else {
            panic!("granted and withdrawn");
        };
        let given = leases[0].fencing_token;
        assert!(given > last, "{given:?} after {last:?}");
        last = given;
    }
    let again = Disk::new(disk.durable(), 1).open().unwrap();
    assert_eq!(again.port().look(&lock.name).await.unwrap(), None);
    let AcquireReply::Granted(leases) = lock.run(again.port()).await.unwrap() else {
        panic!("it is free");
    };
    let given = leases[0].fencing_token;
    assert!(given > last, "{given:?} after {last:?} and a power cut");
}

#[tokio::test]
async fn what_a_batch_withdraws_itself_is_not_written() {
    let (disk, store) = Disk::with_store();
    // The limit of the fencing tokens is written with the first grant.
    Acquire::new("before", "one").run(store.port()).await.unwrap();
    hold_the_writer(&store, &disk, 0).await;
    let lock = Acquire::new("lock", "one");
    let both = async { tokio::join!(lock.run(store.port()), lock.withdraw(store.port())) };
    let mut both = pin!(both);
    assert!(poll!(both.as_mut()).is_pending());
    let syncs = disk.syncs();
    disk.resume();
    assert!(matches!(both.await, (Ok(AcquireReply::Granted(_)), Ok(()))));
    assert_eq!(disk.syncs(), syncs + 1, "a lock that came and went was synced");
}

#[tokio::test]
async fn a_grant_that_expires_on_its_way_leaves_the_disk_as_well() {
    let (disk, store) = Disk::with_store();
    pause();
    let mut lock = Acquire::new("lock", "one");
    lock.command.ttl = Ttl::from_millis(100).unwrap();
    let acquire = lock.hang(&store, &disk).await;
    advance(Duration::from_secs(1)).await;
    disk.resume();
    assert!(matches!(acquire.await.unwrap(), Ok(AcquireReply::Granted(_))));
    store.sweep().await.unwrap();
    drop(store);
    let again = Disk::new(disk.content(), 1).open().unwrap();
    assert_eq!(again.port().look(&lock.name).await.unwrap(), None);
}

#[tokio::test]
async fn what_expires_or_ends_by_itself_is_written_down() {
    let (disk, store) = Disk::with_store();
    pause();
    let short = Duration::from_secs(60);
    let gone = BeginCommand {
        on_crash: OnCrash::Rerun,
        lease: short,
        retention: short,
        ..begin("gone", "one")
    };
    let unknown = BeginCommand { lease: short, ..begin("unknown", "one") };
    for begin in [&gone, &unknown] {
        store.port().begin(begin).await.unwrap();
    }
    advance(2 * short).await;
    store.sweep().await.unwrap();
    drop(store);
    let again = Disk::new(disk.content(), 1).open().unwrap();
    assert_eq!(again.port().find(&gone.key).await.unwrap(), None);
    let view = again.port().find(&unknown.key).await.unwrap().expect("a record");
    assert!(matches!(view.phase, RecordStatus::Unknown { .. }), "{view:?}");
}

#[tokio::test]
async fn a_change_after_the_first_is_one_page_of_the_log() {
    let (disk, store) = Disk::with_store();
    let lock = Acquire::new("lock", "one");
    lock.run(store.port()).await.unwrap();
    store.port().release(&lock.name, &lock.command.token).await.unwrap();
    let before = disk.log().len();
    lock.run(store.port()).await.unwrap();
    assert_eq!(disk.log().len() - before, 24 + 4096);
}

#[tokio::test]
async fn records_that_begin_together_share_pages_among_very_many() {
    let disk = Disk::with_clock(1);
    let store = Arc::new(disk.open().unwrap());
    let begin_many = async |kind: &str, count: usize| {
        let runs: Vec<_> = (0..count).map(|n| begin(&format!("{kind} {n}"), "one")).collect();
        let begun = join_all(runs.iter().map(|run| store.port().begin(run))).await;
        assert!(begun.iter().all(Result::is_ok));
    };
    begin_many("before", 3000).await;
    hold_the_writer(&store, &disk, 0).await;
    let mut together = pin!(begin_many("together", 150));
    assert!(poll!(together.as_mut()).is_pending());
    let before = disk.log().len();
    disk.resume();
    together.await;
    let pages = (disk.log().len() - before) / (24 + 4096);
    assert!(pages <= 150 / 5, "{pages} pages for 150 records, of which some 15 fit in one");
}

#[tokio::test]
async fn log_goes_into_the_file_at_a_thousand_pages_though_rows_share_them() {
    let disk = Disk::with_clock(1);
    let store = disk.open().unwrap();
    let mut longest = 0;
    for wave in 0..300 {
        let runs: Vec<_> = (0..150).map(|n| begin(&format!("{wave} {n}"), "one")).collect();
        let begun = join_all(runs.iter().map(|run| store.port().begin(run))).await;
        assert!(begun.iter().all(Result::is_ok));
        longest = longest.max(disk.log().len() / (24 + 4096));
    }
    assert!((1000..1100).contains(&longest), "{longest} pages");
}

/// How many rows the records of a file have.
fn record_rows(disk: &Disk) -> i64 {
    let file = disk.connect().unwrap();
    // It makes the connection this process's alone, without which the disk of the tests has no log.
    configure(&file).unwrap();
    file.query_row("SELECT count(*) FROM records", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_record_that_runs_again_has_the_row_of_its_last_run_alone() {
    let (disk, store) = Disk::with_store();
    pause();
    let short = Duration::from_secs(60);
    let run = |runner: &str| BeginCommand {
        on_crash: OnCrash::Rerun,
        lease: short,
        ..begin("record", runner)
    };
    let mut last = FencingToken::NONE;
    for runner in ["one", "two", "three"] {
        let BeginReply::Started(started) = store.port().begin(&run(runner)).await.unwrap() else {
            panic!("{runner} does not run it")
        };
        assert!(started.fencing_token > last);
        last = started.fencing_token;
        advance(2 * short).await;
    }
    drop(store);
    assert_eq!(record_rows(&disk), 1);
    let disk = Disk::new(disk.content(), 1);
    let again = disk.open().unwrap();
    let view = again.port().find(&run("any").key).await.unwrap().expect("a record");
    assert_eq!((view.fencing_token, view.attempts), (last, 3));
    advance(100 * LEASE).await;
    again.sweep().await.unwrap();
    drop(again);
    assert_eq!(record_rows(&disk), 0, "rows of a record that is gone");
}

/// Runs a record again and cuts the power after so many operations. Gives which of its runs the
/// disk has, and whether the second one was answered.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn run_again_until_the_cut(operations: u64, seed: u64) -> (u32, bool) {
    let disk = Disk::formatted(seed);
    let store = disk.open().unwrap();
    let run = |runner: &str| BeginCommand { on_crash: OnCrash::Rerun, ..begin("record", runner) };
    store.port().begin(&run("one")).await.unwrap();
    advance(2 * LEASE).await;
    disk.cut_after(operations);
    let again = store.port().begin(&run("two")).await;
    let is_answered = disk.has_power() && matches!(again, Ok(BeginReply::Started(_)));
    drop(store);
    let disk = Disk::new(disk.cut(), seed);
    assert_eq!(record_rows(&disk), 1, "after {operations} operations");
    let left = disk.open().unwrap();
    let view = left.port().find(&run("any").key).await.unwrap().expect("a record");
    (view.attempts, is_answered)
}

#[test]
fn a_power_cut_while_a_record_runs_again_leaves_the_row_of_one_run() {
    let mut left = Vec::new();
    for operations in 0..1000 {
        let cuts: Vec<_> = (0..8).map(|seed| run_again_until_the_cut(operations, seed)).collect();
        left.extend(cuts.iter().map(|(run, _)| *run));
        assert!(
            !cuts.contains(&(1, true)),
            "an answered run is lost after {operations} operations"
        );
        if cuts.iter().all(|(_, is_answered)| *is_answered) {
            assert!(left.contains(&1) && left.contains(&2), "{left:?}");
            return;
        }
    }
    panic!("the second run is never answered");
}
