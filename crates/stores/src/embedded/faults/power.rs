use std::sync::Arc;

use super::client::Client;
use super::disk::{Dice, Disk};
use super::store::open;

/// Power cuts in each campaign; the long form sets another number.
fn rounds() -> u64 {
    std::env::var("POWER_CUTS").map_or(1000, |rounds| rounds.parse().unwrap())
}

#[test]
fn a_power_cut_loses_nothing_that_was_answered() {
    for seed in 0..rounds() {
        campaign(seed, |_| {}).unwrap_or_else(|lost| panic!("seed {seed}: {lost}"));
    }
}

#[test]
fn the_check_finds_what_is_lost_without_the_sync() {
    let lost = (0..rounds()).filter(|&seed| campaign(seed, Disk::lie).is_err()).count();
    assert!(lost > 0, "a disk that does not sync was not noticed");
}

#[test]
fn the_check_finds_a_lock_and_a_record_that_are_lost() {
    let lost = (0..rounds()).filter_map(|seed| campaign(seed, Disk::be_late).err());
    let lost: Vec<_> = lost.collect();
    for what in ["lock", "record", "fences"] {
        let found = lost.iter().any(|lost| lost.contains(what));
        assert!(found, "a disk that syncs too late lost no {what}: {lost:?}");
    }
}

/// Some clients work on the store until the power goes; then the disk is read again.
fn campaign(seed: u64, prepare: impl Fn(&Disk)) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let disk = Disk::formatted(seed);
        prepare(&disk);
        let mut dice = Dice(seed);
        disk.cut_after(dice.below(400));
        let store = Arc::new(open(&disk).map_err(|error| error.to_string())?);
        let mut clients = Vec::new();
        for number in 0..4 {
            let (store, disk) = (Arc::clone(&store), disk.clone());
            let mut client = Client::new(number, seed);
            clients.push(tokio::spawn(async move {
                while disk.has_power() && client.steps < 60 {
                    client.step_before_the_cut(&store, &disk).await;
                }
                client
            }));
        }
        let mut records = Vec::new();
        for client in clients {
            records.push(client.await.unwrap());
        }
        let content = disk.after_the_cut().unwrap_or_else(|| disk.cut());
        // On a disk that lied, the engine may give up in the middle of what it reads.
        let opened = std::panic::catch_unwind(|| open(&Disk::new(content, seed)));
        let opened = opened.map_err(|_| "the engine gave up".to_owned())?;
        let again = opened.map_err(|error| error.to_string())?;
        let mut lost = Vec::new();
        for record in &records {
            lost.extend(record.check(&again).await.err());
            lost.extend(record.check_fences(&again).err());
        }
        if lost.is_empty() { Ok(()) } else { Err(lost.join("; ")) }
    })
}
