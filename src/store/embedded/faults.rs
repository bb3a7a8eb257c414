//! The store on a disk that loses power, fills up and fails: what was answered is kept, and what
//! was refused has not happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::{Dice, Disk};
use super::engine::set_number;
use super::*;
use crate::lock::{FencingToken, Outcome, Owner, Token};

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

#[tokio::test]
async fn a_full_disk_refuses_and_nothing_has_happened_until_there_is_room() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    let mut held = Vec::new();
    disk.fill_up_to(256 * 1024);
    let refused = loop {
        let ask = ask(&format!("lock {}", held.len()), "one");
        match store.acquire(&ask).await {
            Ok(_) => held.push(ask),
            Err(error) => break (ask, error),
        }
    };
    assert_eq!(refused.1.outcome(), Outcome::NotExecuted, "{:?}", refused.1);
    assert_eq!(store.get(&refused.0.name).await.unwrap(), None, "it has happened in memory");
    assert!(store.ping().await.is_err(), "a store that cannot write says that it is well");
    // What is held is still told and refused to others.
    let other = Acquire { token: token("two"), ..held[0].clone() };
    assert!(matches!(store.acquire(&other).await, Ok(Acquisition::Held(_))));
    disk.mend();
    store.ping().await.expect("it works again without a restart");
    assert!(matches!(store.acquire(&refused.0).await, Ok(Acquisition::Granted(_))));
    drop(store);
    let again = open(&Disk::new(disk.content(), 2)).unwrap();
    for ask in held.iter().chain([&refused.0]) {
        assert!(matches!(again.acquire(ask).await, Ok(Acquisition::Repeated(_))), "{ask:?}");
    }
}

#[tokio::test]
async fn a_disk_that_fails_now_and_then_never_contradicts_an_answer() {
    for seed in 0..100 {
        let disk = Disk::formatted(seed);
        let store = open(&disk).unwrap();
        let mut dice = Dice(seed);
        let mut client = Client::new(0, seed);
        for _ in 0..40 {
            match dice.below(6) {
                0 => disk.break_down(),
                1 => disk.fill_up_to(dice.below(20_000)),
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
async fn a_flipped_byte_is_noticed_or_does_no_harm() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    let asks: Vec<_> = (0..50).map(|n| ask(&format!("lock {n}"), "one")).collect();
    for ask in &asks {
        store.acquire(ask).await.unwrap();
    }
    drop(store);
    let (content, mut dice, mut noticed) = (disk.content(), Dice(7), 0);
    for _ in 0..300 {
        let mut damaged = content.clone();
        let place = dice.below(damaged.len() as u64) as usize;
        damaged[place] ^= 1 << dice.below(8);
        match std::panic::catch_unwind(|| open(&Disk::new(damaged, 1))) {
            Ok(Ok(store)) => {
                for ask in &asks {
                    let found = store.acquire(ask).await;
                    assert!(
                        matches!(found, Ok(Acquisition::Repeated(_))),
                        "byte {place}: {found:?}"
                    );
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
async fn what_is_in_doubt_is_never_answered_from_memory() {
    let mut doubts = 0;
    for round in 0..60 {
        let disk = Disk::formatted(round);
        let store = open(&disk).unwrap();
        let ask = ask("lock", "one");
        disk.break_down_after(round % 12);
        let answer = store.acquire(&ask).await;
        disk.break_down();
        if answer.is_err_and(|error| error.outcome() == Outcome::Unknown) {
            doubts += 1;
            let withdrawn = store.withdraw(&ask.name, &ask.token, ask.attempt).await;
            assert!(withdrawn.is_err(), "a grant in doubt cannot be known to be taken back");
            assert!(store.release(&ask.name, &ask.token).await.is_err(), "round {round}");
            assert!(store.get(&ask.name).await.is_err(), "round {round}");
        }
        disk.mend();
        store.withdraw(&ask.name, &ask.token, ask.attempt).await.expect("it is mended");
        assert_eq!(store.get(&ask.name).await.unwrap(), None, "round {round}: it came back");
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
    let mut number = 0;
    while store.acquire(&ask(&format!("lock {number}"), "one")).await.is_ok() {
        number += 1;
    }
    store.writer.forget::<LockState>(Vec::new()).await.expect("there is nothing to write");
    assert!(store.ping().await.is_err(), "the disk is as full as before");
}

#[tokio::test]
async fn fences_rise_over_a_grant_and_release_in_one_batch() {
    let disk = Disk::formatted(1);
    // A counter ahead of the clock, as after the clock was set back.
    let database = (disk.medium().open)().unwrap();
    set_number(&database, "last_fence", 1 << 52).unwrap();
    drop(database);
    let store = open(&disk).unwrap();
    let (ask, mut last) = (ask("lock", "one"), FencingToken::NONE);
    for _ in 0..50 {
        let release = Return { token: ask.token };
        let both = tokio::join!(
            store.writer.run(ask.name.clone(), on_lock(ask.clone())),
            store.writer.run(ask.name.clone(), on_lock(release))
        );
        let (Ok(Acquisition::Granted(lease)), Ok(Release::Released)) = both else {
            panic!("granted and released, not {both:?}");
        };
        assert!(lease.fence > last, "{:?} after {last:?}", lease.fence);
        last = lease.fence;
    }
}

#[tokio::test]
async fn a_grant_that_expires_on_its_way_leaves_the_disk_as_well() {
    let disk = Disk::formatted(1);
    let store = open(&disk).unwrap();
    tokio::time::pause();
    let ask = Acquire { ttl: Ttl::from_millis(100).unwrap(), ..ask("lock", "one") };
    store.acquire(&ask).await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    let expired = store.table.look::<LockState>(&ask.name).0;
    store.table.install(&ask.name, expired);
    store.sweep().await.unwrap();
    drop(store);
    let again = open(&Disk::new(disk.content(), 1)).unwrap();
    assert_eq!(again.get(&ask.name).await.unwrap(), None);
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

/// Some clients work on the store until the power goes; then the disk is read again.
fn campaign(seed: u64, prepare: impl Fn(&Disk)) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
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
        for record in &records {
            record.check(&again).await?;
            record.check_fences(&again)?;
        }
        Ok(())
    })
}

/// What a client was told of each of its locks. Nobody else uses them.
struct Client {
    number: u64,
    dice: Dice,
    steps: u64,
    locks: BTreeMap<String, Known>,
}

/// The last answer, and the command whose answer never came.
#[derive(Debug, Clone, Default)]
struct Known {
    holder: Option<(String, FencingToken)>,
    last_fence: FencingToken,
    in_doubt: bool,
}

impl Client {
    fn new(number: u64, seed: u64) -> Self {
        Self { number, dice: Dice(seed ^ (number + 1)), steps: 0, locks: BTreeMap::new() }
    }

    /// A step whose answer counts only if it came while there was power.
    async fn step_before_the_cut(&mut self, store: &EmbeddedStore, disk: &Disk) {
        let before = self.locks.clone();
        let lock = self.step(store).await;
        if !disk.has_power() {
            let known = before.get(&lock).cloned().unwrap_or_default();
            self.locks.insert(lock, Known { in_doubt: true, ..known });
        }
    }

    /// Acquires, renews or releases one of the client's locks, and remembers what it was told.
    async fn step(&mut self, store: &EmbeddedStore) -> String {
        self.steps += 1;
        let lock = format!("lock {} of {}", self.dice.below(5), self.number);
        let known = self.locks.entry(lock.clone()).or_default();
        if known.in_doubt {
            return lock;
        }
        let name = LockName::parse(&lock).unwrap();
        let failed = match known.holder.clone() {
            None => {
                let holder = format!("{}-{}", self.number, self.steps);
                match store.acquire(&ask(&lock, &holder)).await {
                    Ok(Acquisition::Granted(lease)) => {
                        assert!(lease.fence > known.last_fence, "{lock}: the fence fell");
                        known.last_fence = lease.fence;
                        known.holder = Some((holder, lease.fence));
                        None
                    }
                    Ok(other) => panic!("{lock} is nobody else's: {other:?}"),
                    Err(error) => Some(error),
                }
            }
            Some((holder, _)) if self.dice.below(3) == 0 => {
                store.renew(&name, &token(&holder), Ttl::DEFAULT).await.err()
            }
            Some((holder, _)) => match store.release(&name, &token(&holder)).await {
                Ok(Release::Released) => {
                    known.holder = None;
                    None
                }
                Ok(other) => panic!("{lock} was {holder}'s: {other:?}"),
                Err(error) => Some(error),
            },
        };
        // What was refused has not happened; of what was lost, nobody knows.
        if failed.is_some_and(|error| error.outcome() == Outcome::Unknown) {
            known.in_doubt = true;
        }
        lock
    }

    /// Whether the store that was opened again gives fences above all that the client was given.
    fn check_fences(&self, again: &EmbeddedStore) -> Result<(), String> {
        let floor = again.last_fence();
        match self.locks.iter().find(|(_, known)| known.last_fence > floor) {
            Some((lock, known)) => {
                Err(format!("{lock}: fences go on above {floor}, below {}", known.last_fence))
            }
            None => Ok(()),
        }
    }

    /// Whether the store says of each lock what the client was told.
    async fn check(&self, store: &EmbeddedStore) -> Result<(), String> {
        for (lock, known) in &self.locks {
            let found = store.get(&LockName::parse(lock).unwrap()).await.unwrap();
            let fence = found.map(|holder| holder.fence);
            let told = known.holder.as_ref().map(|(_, fence)| *fence);
            if !known.in_doubt && fence != told {
                return Err(format!("{lock}: held under {fence:?}, and the client knows {told:?}"));
            }
        }
        Ok(())
    }
}

impl EmbeddedStore {
    /// The least that the counters start from: what was on disk, without the floor of the time.
    fn last_fence(&self) -> FencingToken {
        self.table.look::<LockState>(&LockName::parse("any").unwrap()).1.last_fence
    }
}

fn open(disk: &Disk) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::on(disk.medium(), "a disk".into(), None)
}

fn ask(lock: &str, holder: &str) -> Acquire {
    Acquire {
        name: LockName::parse(lock).unwrap(),
        token: token(holder),
        ttl: Ttl::from_millis(Ttl::MAX_MILLIS).unwrap(),
        owner: Owner::parse(holder).unwrap(),
        attempt: Attempt::new(1),
    }
}

fn token(holder: &str) -> TokenHash {
    Token::parse(&format!("token-of-the-holder-{holder}")).unwrap().hash()
}
