use super::super::*;
use super::client::Client;
use super::disk::{Dice, Disk};
use super::store::{ask, begin, key, name, open, token};
use keylatch_core::idempotency::RecordStore as _;
use keylatch_core::lock::Outcome;

#[tokio::test]
async fn a_full_disk_refuses_and_nothing_has_happened_until_there_is_room() {
    fills_up(|_| {}).await.unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[tokio::test]
async fn the_check_finds_what_is_lost_on_a_disk_that_does_not_say_that_it_is_full() {
    let found = fills_up(Disk::lose_what_is_too_much).await;
    assert!(found.is_err(), "a disk that loses what is too much was not noticed");
}

/// Holds locks until the disk is full, makes room, and looks for all of them after a restart.
async fn fills_up(prepare: impl Fn(&Disk)) -> Result<(), String> {
    let disk = Disk::formatted(1);
    prepare(&disk);
    let store = open(&disk).unwrap();
    let (mut held, mut refused) = (Vec::new(), None);
    disk.fill_up_to(256 * 1024);
    while refused.is_none() && held.len() < 5000 {
        let ask = ask(&format!("lock {}", held.len()), "one");
        match store.acquire(&ask).await {
            Ok(_) => held.push(ask),
            Err(error) => refused = Some((ask, error)),
        }
    }
    if let Some((ask, error)) = refused {
        is_refused(&store, &ask, &error, &held[0]).await?;
        disk.mend();
        store.ping().await.map_err(|error| format!("there is room again: {error}"))?;
        let granted = store.acquire(&ask).await;
        if !matches!(granted, Ok(Acquisition::Granted(_))) {
            return Err(format!("there is room again: {granted:?}"));
        }
        held.push(ask);
    }
    drop(store);
    let content = disk.content();
    let opened = std::panic::catch_unwind(|| open(&Disk::new(content, 2)));
    let opened = opened.map_err(|_| "the engine gave up".to_owned())?;
    let again = opened.map_err(|error| error.to_string())?;
    for ask in &held {
        let found = again.acquire(ask).await;
        if !matches!(found, Ok(Acquisition::Repeated(_))) {
            return Err(format!("{:?} is lost: {found:?}", ask.name));
        }
    }
    Ok(())
}

/// Whether an acquire has not happened, and what is held is still told and refused to others.
async fn is_refused(
    store: &EmbeddedStore,
    ask: &Acquire,
    error: &StoreError,
    held: &Acquire,
) -> Result<(), String> {
    let of_another = Acquire { token: token("two"), ..held.clone() };
    let checks = [
        (error.outcome() == Outcome::NotExecuted, "it may have happened"),
        (matches!(store.get(&ask.name).await, Ok(None)), "it has happened in memory"),
        (store.ping().await.is_err(), "the store says that it is well"),
        (
            matches!(store.acquire(&of_another).await, Ok(Acquisition::Held(_))),
            "what is held is not refused to others",
        ),
    ];
    match checks.into_iter().find(|(right, _)| !right) {
        Some((_, wrong)) => Err(format!("{wrong}: {error:?}")),
        None => Ok(()),
    }
}

#[tokio::test]
async fn a_disk_that_turns_read_only_refuses_and_nothing_has_happened_until_it_is_mended() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    let held = ask("held", "one");
    store.acquire(&held).await.unwrap();
    disk.turn_read_only();
    // Also the second time, when the file is no longer open.
    for lock in ["new", "newer"] {
        let ask = ask(lock, "one");
        let error = store.acquire(&ask).await.unwrap_err();
        is_refused(&store, &ask, &error, &held).await.unwrap_or_else(|wrong| panic!("{wrong}"));
        let error = store.begin(&begin(lock, "one")).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotExecuted, "{error:?}");
        assert_eq!(store.find(&key(lock)).await.unwrap(), None);
    }
    assert!(store.release(&held.name, &held.token).await.is_err());
    assert!(store.get(&held.name).await.unwrap().is_some(), "it was not released");
    disk.mend();
    store.ping().await.expect("it works again without a restart");
    for name in ["new", "newer"] {
        assert!(matches!(store.acquire(&ask(name, "two")).await, Ok(Acquisition::Granted(_))));
    }
    assert_eq!(store.release(&held.name, &held.token).await.unwrap(), Release::Released);
    drop(store);
    let again = open(&Disk::new(disk.content(), 2)).unwrap();
    assert_eq!(again.get(&held.name).await.unwrap(), None);
    assert!(again.get(&name("new")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_disk_that_fails_now_and_then_never_contradicts_an_answer() {
    for seed in 0..100 {
        let disk = Disk::formatted(seed);
        let store = open(&disk).unwrap();
        let mut dice = Dice(seed);
        let mut client = Client::new(0, seed);
        for _ in 0..40 {
            match dice.below(8) {
                0 => disk.break_down(),
                1 => disk.fill_up_to(dice.below(20_000)),
                2 => disk.turn_read_only(),
                _ => disk.mend(),
            }
            client.step(&store).await;
        }
        disk.mend();
        store.ping().await.expect("it is mended");
        client.check(&store).await.unwrap_or_else(|lost| panic!("seed {seed}, running: {lost}"));
        drop(store);
        let again = open(&Disk::new(disk.content(), seed)).unwrap();
        let kept = client.check(&again).await.and(client.check_fences(&again));
        kept.unwrap_or_else(|lost| panic!("seed {seed}, restarted: {lost}"));
    }
}

#[tokio::test]
async fn what_is_in_doubt_is_never_answered_from_memory() {
    let mut doubts = 0;
    for round in 0..60 {
        let disk = Disk::formatted(round);
        let store = open(&disk).unwrap();
        let (ask, begin) = (ask("lock", "one"), begin("record", "one"));
        disk.break_down_after(round % 12);
        let answers = tokio::join!(store.acquire(&ask), store.begin(&begin));
        disk.break_down();
        let lost = |error: StoreError| error.outcome() == Outcome::Unknown;
        if answers.0.is_err_and(lost) {
            doubts += 1;
            assert!(answers.1.is_err_and(lost), "both were in one transaction");
            let withdrawn = store.withdraw(&ask.name, &ask.token, ask.attempt).await;
            assert!(withdrawn.is_err(), "a grant in doubt cannot be known to be taken back");
            assert!(store.release(&ask.name, &ask.token).await.is_err(), "round {round}");
            assert!(store.get(&ask.name).await.is_err(), "round {round}");
            assert!(store.find(&begin.key).await.is_err(), "round {round}");
        }
        disk.mend();
        store.withdraw(&ask.name, &ask.token, ask.attempt).await.expect("it is mended");
        store.abandon(&begin.key, &begin.token).await.expect("it is mended");
        assert_eq!(store.get(&ask.name).await.unwrap(), None, "round {round}: it came back");
        assert_eq!(store.find(&begin.key).await.unwrap(), None, "round {round}: it came back");
        drop(store);
        let again = open(&Disk::new(disk.content(), round)).unwrap();
        assert_eq!(again.get(&ask.name).await.unwrap(), None, "round {round}: it was left behind");
        assert_eq!(
            again.find(&begin.key).await.unwrap(),
            None,
            "round {round}: it was left behind"
        );
    }
    assert!(doubts > 0, "nothing was ever in doubt");
}

#[tokio::test]
async fn a_failed_sync_is_never_taken_for_success() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    disk.fail_the_next_sync();
    let error = store.acquire(&ask("lock", "one")).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
    assert!(store.ping().await.is_err(), "nothing that is read proves what is on disk");
    let again = open(&Disk::new(disk.durable(), 1)).unwrap();
    assert!(matches!(again.acquire(&ask("lock", "two")).await, Ok(Acquisition::Granted(_))));
}

#[tokio::test]
async fn a_batch_without_changes_does_not_make_a_full_disk_well() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    disk.fill_up_to(0);
    let mut refused = false;
    for number in 0..1000 {
        refused |= store.acquire(&ask(&format!("lock {number}"), "one")).await.is_err();
        if refused {
            break;
        }
    }
    assert!(refused, "a full disk refused nothing");
    store.writer.forget::<LockState>(Vec::new()).await.expect("there is nothing to write");
    assert!(store.ping().await.is_err(), "the disk is as full as before");
}
