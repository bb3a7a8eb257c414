use super::super::*;
use super::disk::{Dice, Disk};
use super::store::{ask, begin, open};
use crate::idempotency::{Begun, RecordStore as _};
use engine::set_number;

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
        let place = dice.below(damaged.len() as u64) as usize;
        damaged[place] ^= 1 << dice.below(8);
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
fn a_file_of_a_newer_format_is_refused_with_a_sentence() {
    let disk = Disk::formatted(1);
    let database = (disk.medium().open)().unwrap();
    set_number(&database, "format", 3).unwrap();
    drop(database);
    let refused = Engine::open(disk.medium()).unwrap_err().to_string();
    assert!(refused.contains("format 3") && refused.contains("up to 2"), "{refused}");
}
