//! Goal: a file that is damaged, of another format, or not yet synced when the process was killed
//! is refused with a sentence, or does no harm.
//!
//! Method: bytes of a real file are flipped, cut and replaced, and a store opens it.

use keylatch_core::idempotency::BeginReply;
use keylatch_core::lock::AcquireReply;
use keylatch_stores::test_medium::{FILE_FORMAT, write_lock_row};

use crate::dice::Dice;
use crate::disk::Disk;
use crate::requests::{Acquire, begin, name};

#[tokio::test]
async fn a_flipped_byte_is_noticed_or_does_no_harm() {
    let (disk, store) = Disk::with_store();
    let locks: Vec<_> = (0..50).map(|n| Acquire::new(&format!("lock {n}"), "one")).collect();
    let runs: Vec<_> = (0..50).map(|n| begin(&format!("record {n}"), "one")).collect();
    for (lock, run) in locks.iter().zip(&runs) {
        lock.run(store.port()).await.unwrap();
        store.port().begin(run).await.unwrap();
    }
    drop(store);
    let (content, mut dice, mut noticed) = (disk.content(), Dice(7), 0);
    for _ in 0..300 {
        let mut damaged = content.clone();
        let file = damaged.get_mut("locks").unwrap();
        let place = dice.below(file.len() as u64) as usize;
        file[place] ^= 1 << dice.below(8);
        match std::panic::catch_unwind(|| Disk::new(damaged, 1).open()) {
            Ok(Ok(store)) => {
                for (lock, run) in locks.iter().zip(&runs) {
                    let found = (lock.run(store.port()).await, store.port().begin(run).await);
                    let same =
                        matches!(found, (Ok(AcquireReply::Repeated(_)), Ok(BeginReply::Again(_))));
                    assert!(same, "byte {place}: {found:?}");
                }
            }
            Ok(Err(error)) => {
                assert!(error.to_string().contains("damaged"), "byte {place}: {error}");
                noticed += 1;
            }
            Err(_) => noticed += 1,
        }
    }
    assert!(noticed > 0, "no byte mattered");
}

#[tokio::test]
async fn a_file_of_another_format_is_refused_and_left_as_it_is() {
    for format in (0..=9).filter(|format| *format != FILE_FORMAT) {
        let disk = Disk::of_format(format, 1);
        let before = (disk.content()["locks"].clone(), disk.log());
        let sentence = disk.open().unwrap_err().to_string();
        let says = |words: &str| sentence.contains(words);
        assert!(says(&format!("has format {format}")) && says("move the file away"), "{sentence}");
        let after = (disk.content()["locks"].clone(), disk.log());
        assert!(before == after, "format {format}: something was written");
    }
}

#[tokio::test]
async fn a_file_with_a_row_of_another_format_is_refused_and_left_as_it_is() {
    let disk = Disk::formatted(1);
    write_lock_row(&disk.connect().unwrap(), &name("lock"), &[3, 0, 0, 0]).unwrap();
    let content = disk.content();
    let sentence = disk.open().unwrap_err().to_string();
    assert!(sentence.contains("another version of keylatch wrote this"), "{sentence}");
    assert!(sentence.contains("restore it from a backup, or move it away"), "{sentence}");
    assert!(disk.content() == content, "something was written");
}

/// What a killed process leaves: most of what it wrote is in the log.
#[tokio::test]
async fn a_log_that_is_broken_before_its_end_is_refused_and_left_as_it_is() {
    let (disk, store) = Disk::with_store();
    let locks: Vec<_> = (0..20).map(|n| Acquire::new(&format!("lock {n}"), "one")).collect();
    let mut before_the_last = 0;
    for lock in &locks {
        before_the_last = disk.log().len();
        lock.run(store.port()).await.unwrap();
    }
    let (content, mut dice) = (disk.content(), Dice(7));
    let length = content["locks-wal"].len();
    for round in 0..300 {
        let mut damaged = content.clone();
        // All of what comes after the log's header, which a power cut may have torn.
        let place = 32 + dice.below((length - 32) as u64) as usize;
        damaged.get_mut("locks-wal").unwrap()[place] ^= 1 << dice.below(8);
        let disk = Disk::new(damaged.clone(), round);
        match disk.open() {
            // The last transaction may be one that was never synced, and so never answered.
            Ok(again) => {
                assert!(place >= before_the_last, "byte {place} of {length} was overlooked");
                for lock in &locks[..19] {
                    let found = again.port().look(&lock.name).await.unwrap();
                    assert!(found.is_some(), "byte {place}");
                }
            }
            Err(error) => {
                assert!(error.to_string().contains("damaged"), "byte {place}: {error}");
                assert!(disk.content() == damaged, "byte {place}: something was written");
            }
        }
    }
    let mut garbage = content.clone();
    garbage.insert("locks-wal".to_owned(), vec![b'x'; length]);
    let refused = Disk::new(garbage, 1).open().unwrap_err().to_string();
    assert!(refused.contains("damaged"), "{refused}");
}

/// A process that is killed leaves in the log what was never synced.
#[tokio::test]
async fn what_is_found_in_the_log_is_synced_before_it_is_read() {
    let disk = Disk::formatted(1);
    let killed = disk.open().unwrap();
    disk.lie();
    let lock = Acquire::new("lock", "one");
    lock.run(killed.port()).await.unwrap();
    disk.mend();
    let again = disk.open().unwrap();
    assert!(again.port().look(&lock.name).await.unwrap().is_some());
    let after_a_cut = Disk::new(disk.durable(), 1).open().unwrap();
    let found = after_a_cut.port().look(&lock.name).await.unwrap();
    assert!(found.is_some(), "it was read and is lost");
}
