use super::super::*;
use super::disk::{Dice, Disk};
use super::store::{ask, begin, open};
use keylatch_core::idempotency::{Begun, RecordStore as _};
use row::Head;

#[tokio::test]
async fn a_flipped_byte_is_noticed_or_does_no_harm() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    let asks: Vec<_> = (0..50).map(|n| ask(&format!("lock {n}"), "one")).collect();
    let runs: Vec<_> = (0..50).map(|n| begin(&format!("record {n}"), "one")).collect();
    for (ask, run) in asks.iter().zip(&runs) {
        store.acquire(ask).await.unwrap();
        store.begin(run).await.unwrap();
    }
    drop(store);
    let (content, mut dice, mut noticed) = (disk.content(), Dice(7), 0);
    for _ in 0..300 {
        let mut damaged = content.clone();
        let file = damaged.get_mut("locks").unwrap();
        let place = dice.below(file.len() as u64) as usize;
        file[place] ^= 1 << dice.below(8);
        match std::panic::catch_unwind(|| open(&Disk::new(damaged, 1))) {
            Ok(Ok(store)) => {
                for (ask, run) in asks.iter().zip(&runs) {
                    let found = (store.acquire(ask).await, store.begin(run).await);
                    let same = matches!(found, (Ok(Acquisition::Repeated(_)), Ok(Begun::Again(_))));
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

#[test]
fn a_file_of_another_format_is_refused_with_a_sentence() {
    let refused = |format| {
        let disk = Disk::formatted(1);
        let connection = (disk.medium().open)().unwrap();
        let head = Head { format, ..tables::head(&connection).unwrap() };
        tables::write_head(&connection, &head).unwrap();
        drop(connection);
        Engine::open(disk.medium()).unwrap_err().to_string()
    };
    let (older, newer) = (refused(3), refused(5));
    assert!(older.contains("before the first release"), "{older}");
    assert!(newer.contains("format 5") && newer.contains("up to 4"), "{newer}");
}

/// What a killed process leaves: most of what it wrote is in the log.
#[tokio::test]
async fn a_log_that_is_broken_before_its_end_is_refused_and_left_as_it_is() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    let asks: Vec<_> = (0..20).map(|n| ask(&format!("lock {n}"), "one")).collect();
    let mut before_the_last = 0;
    for ask in &asks {
        before_the_last = disk.content()["locks-wal"].len();
        store.acquire(ask).await.unwrap();
    }
    let (content, mut dice) = (disk.content(), Dice(7));
    let length = content["locks-wal"].len();
    for round in 0..300 {
        let mut damaged = content.clone();
        // All of what comes after the log's header, which a power cut may have torn.
        let place = 32 + dice.below((length - 32) as u64) as usize;
        damaged.get_mut("locks-wal").unwrap()[place] ^= 1 << dice.below(8);
        let disk = Disk::new(damaged.clone(), round);
        match open(&disk) {
            // The last transaction may be one that was never synced, and so never answered.
            Ok(again) => {
                assert!(place >= before_the_last, "byte {place} of {length} was overlooked");
                for ask in &asks[..19] {
                    assert!(again.get(&ask.name).await.unwrap().is_some(), "byte {place}");
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
    let refused = open(&Disk::new(garbage, 1)).unwrap_err().to_string();
    assert!(refused.contains("damaged"), "{refused}");
}

/// A process that is killed leaves in the log what was never synced.
#[tokio::test]
async fn what_is_found_in_the_log_is_synced_before_it_is_told() {
    let disk = Disk::formatted(1);
    let killed = open(&disk).unwrap();
    disk.lie();
    let ask = ask("lock", "one");
    killed.acquire(&ask).await.unwrap();
    disk.mend();
    let again = open(&disk).unwrap();
    assert!(again.get(&ask.name).await.unwrap().is_some());
    let after_a_cut = open(&Disk::new(disk.durable(), 1)).unwrap();
    assert!(after_a_cut.get(&ask.name).await.unwrap().is_some(), "it was told and is lost");
}
