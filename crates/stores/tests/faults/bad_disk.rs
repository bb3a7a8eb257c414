//! Goal: on a disk that fills up, turns read-only or fails, what was refused has not happened, and
//! no guess answers what is in doubt.
//!
//! Method: the fault disk below SQLite fails as a test says. The file is then read by a new store,
//! and its answers are compared with those before.

use keylatch_core::lock::{AcquireCommand, AcquireReply, ReleaseReply};
use keylatch_core::store::{Effect, Store, StoreError};

use crate::client::Client;
use crate::dice::Dice;
use crate::disk::Disk;
use crate::requests::{Acquire, begin, key, name, token};

#[tokio::test]
async fn a_full_disk_refuses_and_nothing_has_happened_until_there_is_room() {
    fill_up(|_| {}).await.unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[tokio::test]
async fn the_check_finds_what_is_lost_on_a_disk_that_does_not_say_that_it_is_full() {
    let found = fill_up(Disk::lose_what_is_too_much).await;
    assert!(found.is_err(), "a disk that loses what is too much was not noticed");
}

/// Holds locks until the disk is full, makes room, and looks for all of them after a restart.
async fn fill_up(prepare: impl Fn(&Disk)) -> Result<(), String> {
    let disk = Disk::formatted(1);
    prepare(&disk);
    let store = disk.open().unwrap();
    let (mut held, mut refused) = (Vec::new(), None);
    disk.fill_up_to(256 * 1024);
    while refused.is_none() && held.len() < 5000 {
        let acquire = Acquire::new(&format!("lock {}", held.len()), "one");
        match acquire.run(store.port()).await {
            Ok(_) => held.push(acquire),
            Err(error) => refused = Some((acquire, error)),
        }
    }
    if let Some((acquire, error)) = refused {
        check_refused(store.port(), &acquire, &error, &held[0]).await?;
        disk.mend();
        store.port().health().await.map_err(|error| format!("there is room again: {error}"))?;
        let granted = acquire.run(store.port()).await;
        if !matches!(granted, Ok(AcquireReply::Granted(_))) {
            return Err(format!("there is room again: {granted:?}"));
        }
        held.push(acquire);
    }
    drop(store);
    let content = disk.content();
    let opened = std::panic::catch_unwind(|| Disk::new(content, 2).open());
    let opened = opened.map_err(|_| "the engine gave up".to_owned())?;
    let again = opened.map_err(|error| error.to_string())?;
    for acquire in &held {
        let found = acquire.run(again.port()).await;
        if !matches!(found, Ok(AcquireReply::Repeated(_))) {
            return Err(format!("{:?} is lost: {found:?}", acquire.name));
        }
    }
    Ok(())
}

/// Whether an acquire has not happened, and what is held is still seen and refused to others.
async fn check_refused(
    store: &dyn Store,
    acquire: &Acquire,
    error: &StoreError,
    held: &Acquire,
) -> Result<(), String> {
    let command = AcquireCommand { token: token("two"), ..held.command.clone() };
    let other = Acquire { command, ..held.clone() };
    let checks = [
        (error.effect() == Effect::NotExecuted, "it may have happened"),
        (matches!(store.look(&acquire.name).await, Ok(None)), "it has happened in memory"),
        (store.health().await.is_err(), "the store says that it is well"),
        (
            matches!(other.run(store).await, Ok(AcquireReply::Busy(_))),
            "what is held is not refused to others",
        ),
    ];
    match checks.into_iter().find(|(right, _)| !right) {
        Some((_, wrong)) => Err(format!("{wrong}: {error:?}")),
        None => Ok(()),
    }
}

/// The log of a process that was killed goes into the file at the start, for which there is no room
/// here.
#[tokio::test]
async fn a_start_on_a_full_disk_serves_reads_and_goes_on_once_there_is_room() {
    let disk = Disk::formatted(1);
    let killed = disk.open().unwrap();
    let long: Vec<_> = (0..200).map(|n| Acquire::new(&format!("lock {n}"), "one")).collect();
    for lock in &long {
        lock.run(killed.port()).await.unwrap();
    }
    disk.fill_up_to(0);
    let opened = disk.open().expect("it serves reads");
    let store = opened.port();
    for lock in &long {
        assert!(store.look(&lock.name).await.unwrap().is_some(), "{:?} is not read", lock.name);
    }
    let new = Acquire::new("new", "one");
    let error = new.run(store).await.unwrap_err();
    let refused = check_refused(store, &new, &error, &long[0]).await;
    refused.unwrap_or_else(|wrong| panic!("{wrong}"));
    let after_a_cut = Disk::new(disk.durable(), 2).open().unwrap();
    assert!(
        after_a_cut.port().look(&long[199].name).await.unwrap().is_some(),
        "it was read and is lost"
    );
    disk.mend();
    store.health().await.expect("it goes on without a restart");
    assert!(matches!(new.run(store).await, Ok(AcquireReply::Granted(_))));
    drop(opened);
    let again = Disk::new(disk.content(), 3).open().unwrap();
    for lock in long.iter().chain([&new]) {
        assert!(again.port().look(&lock.name).await.unwrap().is_some(), "{:?} is lost", lock.name);
    }
}

#[tokio::test]
async fn a_disk_that_turns_read_only_refuses_and_nothing_has_happened_until_it_is_mended() {
    let (disk, opened) = Disk::with_store();
    let store = opened.port();
    let held = Acquire::new("held", "one");
    held.run(store).await.unwrap();
    disk.turn_read_only();
    // Also the second time, when the file is no longer open.
    for lock in ["new", "newer"] {
        let acquire = Acquire::new(lock, "one");
        let error = acquire.run(store).await.unwrap_err();
        let refused = check_refused(store, &acquire, &error, &held).await;
        refused.unwrap_or_else(|wrong| panic!("{wrong}"));
        let error = store.begin(&begin(lock, "one")).await.unwrap_err();
        assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
        assert_eq!(store.find(&key(lock)).await.unwrap(), None);
    }
    assert!(store.release(&held.name, &held.command.token).await.is_err());
    assert!(store.look(&held.name).await.unwrap().is_some(), "it was not released");
    disk.mend();
    store.health().await.expect("it works again without a restart");
    for name in ["new", "newer"] {
        let granted = Acquire::new(name, "two").run(store).await;
        assert!(matches!(granted, Ok(AcquireReply::Granted(_))), "{granted:?}");
    }
    let released = store.release(&held.name, &held.command.token).await;
    assert_eq!(released.unwrap(), ReleaseReply::Released);
    drop(opened);
    let again = Disk::new(disk.content(), 2).open().unwrap();
    assert_eq!(again.port().look(&held.name).await.unwrap(), None);
    assert!(again.port().look(&name("new")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_disk_that_fails_now_and_then_never_contradicts_an_answer() {
    for seed in 0..100 {
        let disk = Disk::formatted(seed);
        let store = disk.open().unwrap();
        let mut dice = Dice(seed);
        let mut client = Client::new(0, seed);
        for _ in 0..40 {
            match dice.below(8) {
                0 => disk.break_down(),
                1 => disk.fill_up_to(dice.below(20_000)),
                2 => disk.turn_read_only(),
                _ => disk.mend(),
            }
            client.step(store.port(), &disk).await;
        }
        disk.mend();
        store.port().health().await.expect("it is mended");
        let checked = client.check(store.port()).await;
        checked.unwrap_or_else(|lost| panic!("seed {seed}, running: {lost}"));
        drop(store);
        let again = Disk::new(disk.content(), seed).open().unwrap();
        let kept = client.check(again.port()).await.and(client.check_fences(again.port()).await);
        kept.unwrap_or_else(|lost| panic!("seed {seed}, restarted: {lost}"));
    }
}

#[tokio::test]
async fn what_is_in_doubt_is_never_answered_from_memory() {
    let mut doubts = 0;
    for round in 0..60 {
        let disk = Disk::formatted(round);
        let opened = disk.open().unwrap();
        let store = opened.port();
        let (acquire, begin) = (Acquire::new("lock", "one"), begin("record", "one"));
        disk.break_down_after(round % 12);
        let answers = tokio::join!(acquire.run(store), store.begin(&begin));
        disk.break_down();
        let lost = |error: StoreError| error.effect() == Effect::Unknown;
        if answers.0.is_err_and(lost) {
            doubts += 1;
            assert!(answers.1.is_err(), "what comes after a doubt cannot be known");
            let withdrawn = acquire.withdraw(store).await;
            assert!(withdrawn.is_err(), "a grant in doubt cannot be known to be withdrawn");
            let released = store.release(&acquire.name, &acquire.command.token).await;
            assert!(released.is_err(), "round {round}");
            assert!(store.look(&acquire.name).await.is_err(), "round {round}");
            assert!(store.find(&begin.key).await.is_err(), "round {round}");
        }
        disk.mend();
        acquire.withdraw(store).await.expect("it is mended");
        store.abandon(&begin.key, &begin.token).await.expect("it is mended");
        assert_eq!(store.look(&acquire.name).await.unwrap(), None, "round {round}: it came back");
        assert_eq!(store.find(&begin.key).await.unwrap(), None, "round {round}: it came back");
        drop(opened);
        let again = Disk::new(disk.content(), round).open().unwrap();
        let found = (again.port().look(&acquire.name).await, again.port().find(&begin.key).await);
        assert!(matches!(found, (Ok(None), Ok(None))), "round {round}: {found:?} was left behind");
    }
    assert!(doubts > 0, "nothing was ever in doubt");
}

#[tokio::test]
async fn a_failed_sync_is_never_taken_for_success() {
    let (disk, store) = Disk::with_store();
    disk.fail_the_next_sync();
    let error = Acquire::new("lock", "one").run(store.port()).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    assert!(store.port().health().await.is_err(), "no read proves what is on disk");
    let again = Disk::new(disk.durable(), 1).open().unwrap();
    let granted = Acquire::new("lock", "two").run(again.port()).await;
    assert!(matches!(granted, Ok(AcquireReply::Granted(_))), "{granted:?}");
}

#[tokio::test]
async fn a_batch_without_changes_does_not_make_a_full_disk_well() {
    let (disk, store) = Disk::with_store();
    disk.fill_up_to(0);
    let mut refused = false;
    for number in 0..1000 {
        refused |= Acquire::new(&format!("lock {number}"), "one").run(store.port()).await.is_err();
        if refused {
            break;
        }
    }
    assert!(refused, "a full disk refused nothing");
    let nothing = Acquire::new("never asked for", "one").withdraw(store.port()).await;
    nothing.expect("there is nothing to write");
    assert!(store.port().health().await.is_err(), "the disk is as full as before");
}
