//! Goal: no grant, no beginning and no end that was answered is lost by a power cut.
//!
//! Method: seeded clients work until the fault disk loses power and what was not synced, in any
//! order and torn. The check itself is tested on disks that lose what they may not.

use std::sync::Arc;

use keylatch_core::idempotency::RunEnd;
use tokio::time::{advance, pause};

use crate::client::{Client, Entry, Known, Outcome};
use crate::dice::Dice;
use crate::disk::{Disk, Files};
use crate::requests::LEASE;
use crate::scale::scaled;

/// How many power cuts a campaign has.
fn rounds() -> u64 {
    scaled(1000)
}

#[test]
fn a_power_cut_loses_nothing_that_was_answered() {
    let mut known = Vec::new();
    for seed in 0..rounds() {
        let one = campaign(seed, |_| {}, Disk::cut);
        known.extend(one.unwrap_or_else(|lost| panic!("seed {seed}: {lost}")));
    }
    // A campaign in which nothing was at stake proves nothing.
    let any = |is: &dyn Fn(&Entry, &Outcome) -> bool| {
        known.iter().any(|(entry, known)| known.or.is_none() && is(entry, &known.answered))
    };
    assert!(any(&|entry, it| matches!((entry, it), (Entry::Lock(_), Outcome::Taken(_)))));
    assert!(any(&|entry, it| matches!((entry, it), (Entry::Record(_), Outcome::Taken(_)))));
    assert!(any(&|_, it| matches!(it, Outcome::Ended(_, RunEnd::Done(_)))));
    assert!(any(&|_, it| matches!(it, Outcome::Ended(_, RunEnd::Unknown(_)))));
    assert!(known.iter().any(|(_, known)| known.or.is_some()), "no answer was ever lost");
}

#[test]
fn the_check_finds_what_is_lost_without_the_sync() {
    let mut lost = (0..rounds()).filter(|&seed| campaign(seed, Disk::lie, Disk::cut).is_err());
    assert!(lost.next().is_some(), "a disk that does not sync was not noticed");
}

#[test]
fn the_check_finds_a_lock_a_record_and_fences_that_are_lost() {
    let lost = (0..rounds()).filter_map(|seed| campaign(seed, Disk::be_late, Disk::cut).err());
    let lost: Vec<_> = lost.collect();
    for what in ["lock", "record", "fences"] {
        let found = lost.iter().any(|lost| lost.contains(what));
        assert!(found, "a disk that syncs too late lost no {what}: {lost:?}");
    }
}

/// Most of what was not synced leaves no file that can be read. This one can, and is empty.
#[test]
fn the_check_finds_what_a_whole_disk_has_not() {
    let empty = |disk: &Disk| {
        disk.cut();
        Disk::formatted(1).content()
    };
    let found = (0..20).filter(|&seed| campaign(seed, |_| {}, empty).is_err()).count();
    assert!(found > 10, "{found} of 20 times it was noticed");
}

/// Some clients work on the store until the power goes. Then the disk is read again, as it is
/// `after` that. Gives what the clients know.
fn campaign(
    seed: u64,
    prepare: impl Fn(&Disk),
    after: impl Fn(&Disk) -> Files,
) -> Result<Vec<(Entry, Known)>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let disk = Disk::formatted(seed);
        prepare(&disk);
        disk.cut_after(Dice(seed).below(400));
        let clients = work_until_the_cut(&disk, seed).await?;
        let content = after(&disk);
        // On a disk that lied, the engine may give up in the middle of what it reads.
        let opened = std::panic::catch_unwind(|| Disk::new(content, seed).open());
        let opened = opened.map_err(|_| "the engine gave up".to_owned())?;
        let again = opened.map_err(|error| error.to_string())?;
        let mut lost = Vec::new();
        for client in &clients {
            lost.extend(client.check(again.port()).await.err());
            lost.extend(client.check_fences(again.port()).await.err());
        }
        // The leases of the clients that died with the power end.
        pause();
        advance(LEASE).await;
        for client in &clients {
            lost.extend(client.check_crash(again.port()).await.err());
        }
        if lost.is_empty() {
            Ok(clients.into_iter().flat_map(|client| client.entries).collect())
        } else {
            Err(lost.join("; "))
        }
    })
}

async fn work_until_the_cut(disk: &Disk, seed: u64) -> Result<Vec<Client>, String> {
    let store = Arc::new(disk.open().map_err(|error| error.to_string())?);
    let mut tasks = Vec::new();
    for number in 0..4 {
        let (store, disk) = (Arc::clone(&store), disk.clone());
        let mut client = Client::new(number, seed);
        tasks.push(tokio::spawn(async move {
            while disk.has_power() && client.steps < 60 {
                client.step(store.port(), &disk).await;
            }
            client
        }));
    }
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(task.await.unwrap());
    }
    Ok(clients)
}
