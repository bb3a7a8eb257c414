//! Sweeps through what the table has, in short steps: what has expired, and what has become older.
//!
//! A step looks at a limited number of entries, and holds one shard at a time, so that no request
//! waits for a sweep of millions of entries. The locks of a shard in which none is due are not
//! looked at ([`Due`]), so that millions of locks that are held for long cost no sweep anything.
//! Records are swept more rarely, and have no such bound.
//!
//! Invariant: no lock of a shard ends by itself before the shard's bound, but for what a sweep has
//! found and its caller has not written down. Tested below and in `memory.rs`.

use std::marker::PhantomData;
use std::ops::Bound;
use std::time::Duration;

use super::{Shard, Table, TableEntry};
use keylatch_core::lock::Moment;

/// How many entries a step looks at: about half a millisecond's work where all of them have
/// expired.
const LOOKS: usize = 512;

/// A bound of the time at which the first of some entries ends by itself.
#[derive(Debug)]
pub(crate) struct Due {
    bound: Duration,
    /// The same of what was looked at or written since a look at all entries began.
    next: Duration,
}

impl Default for Due {
    fn default() -> Self {
        Self { bound: Duration::MAX, next: Duration::MAX }
    }
}

impl Due {
    pub(super) fn add(&mut self, end: Duration) {
        self.bound = self.bound.min(end);
        self.next = self.next.min(end);
    }

    /// All entries are looked at from now on.
    fn begin(&mut self) {
        self.next = Duration::MAX;
    }

    /// All entries were looked at.
    fn finish(&mut self) {
        self.bound = self.next;
    }
}

/// How far a sweep through the entries of one kind has come.
#[derive(Debug)]
pub(crate) struct Sweep<E: TableEntry> {
    bucket: usize,
    /// The last entry of the bucket that was looked at.
    after: Option<E::Key>,
    looks: usize,
    kind: PhantomData<E>,
}

impl<E: TableEntry> Default for Sweep<E> {
    fn default() -> Self {
        Self { bucket: 0, after: None, looks: 0, kind: PhantomData }
    }
}

impl<E: TableEntry> Sweep<E> {
    pub(crate) fn looks(&self) -> usize {
        self.looks
    }

    /// The bucket that is next; `None` after the last.
    fn bucket(&self) -> Option<u8> {
        u8::try_from(self.bucket).ok()
    }
}

/// What a look at some entries of a shard found.
#[derive(Debug)]
struct Found<K> {
    keys: Vec<K>,
    looks: usize,
    /// The last entry that was looked at; `None` at the end of the shard.
    last: Option<K>,
}

impl<K> Found<K> {
    const NONE: Self = Self { keys: Vec::new(), looks: 0, last: None };
}

impl Table {
    /// Forgets what has expired among the next entries of a sweep, and writes down what has ended
    /// by itself. Whether there is more to sweep.
    pub(crate) fn forget_expired<E: TableEntry>(&self, sweep: &mut Sweep<E>) -> bool {
        self.step_of_sweep(sweep, |shard, sweep, most| {
            let moment = self.moment(shard);
            let found = shard.look_for_stale(sweep, &moment, most);
            for key in &found.keys {
                let before: E = shard.state(key);
                self.put(shard, key, &before, before.live(&moment));
            }
            found
        })
    }

    /// Adds to `expired` what has expired or ended by itself among the next entries of a sweep.
    /// Whether there is more to sweep. What the caller does not write down, a later sweep finds
    /// again.
    pub(crate) fn find_expired<E: TableEntry>(
        &self,
        sweep: &mut Sweep<E>,
        expired: &mut Vec<E::Key>,
    ) -> bool {
        self.step_of_sweep(sweep, |shard, sweep, most| {
            let moment = self.moment(shard);
            let mut found = shard.look_for_stale(sweep, &moment, most);
            if let Some(due) = E::due(shard).filter(|_| !found.keys.is_empty()) {
                due.add(moment.now);
            }
            expired.append(&mut found.keys);
            found
        })
    }

    /// Adds to `matching` the next entries of a sweep that `is_wanted` admits. Whether there is
    /// more to sweep.
    pub(crate) fn find<E: TableEntry>(
        &self,
        sweep: &mut Sweep<E>,
        matching: &mut Vec<E::Key>,
        is_wanted: impl Fn(&E) -> bool,
    ) -> bool {
        self.step_of_sweep(sweep, |shard, sweep, most| {
            let mut found = shard.look(sweep, most, &is_wanted);
            matching.append(&mut found.keys);
            found
        })
    }

    /// Has `look` look at the next entries of a sweep, shard by shard, and at no more than a step
    /// may. Whether there is more to sweep.
    fn step_of_sweep<E: TableEntry>(
        &self,
        sweep: &mut Sweep<E>,
        mut look: impl FnMut(&mut Shard, &Sweep<E>, usize) -> Found<E::Key>,
    ) -> bool {
        let mut looks = 0;
        while let Some(bucket) = sweep.bucket().filter(|_| looks < LOOKS) {
            let found = look(&mut self.shard(bucket), sweep, LOOKS - looks);
            looks += found.looks;
            sweep.looks += found.looks;
            sweep.bucket += usize::from(found.last.is_none());
            sweep.after = found.last;
        }
        sweep.bucket().is_some()
    }
}

impl Shard {
    /// The next entries of a sweep that say something else at `moment`. None is looked at where
    /// nothing is due.
    fn look_for_stale<E: TableEntry>(
        &mut self,
        sweep: &Sweep<E>,
        moment: &Moment,
        most: usize,
    ) -> Found<E::Key> {
        if let Some(due) = E::due(self).filter(|_| sweep.after.is_none()) {
            if due.bound > moment.now {
                return Found::NONE;
            }
            due.begin();
        }
        let (is_bounded, mut next) = (E::due(self).is_some(), Duration::MAX);
        let found = self.look(sweep, most, |state: &E| {
            let is_stale = state.is_stale(moment);
            if is_bounded && !is_stale {
                next = state.ends().filter(|end| *end > moment.now).fold(next, Duration::min);
            }
            is_stale
        });
        if let Some(due) = E::due(self) {
            due.add(next);
            if found.last.is_none() {
                due.finish();
            }
        }
        found
    }

    /// The next entries of a sweep that `is_wanted` admits, of `most`.
    fn look<E: TableEntry>(
        &self,
        sweep: &Sweep<E>,
        most: usize,
        mut is_wanted: impl FnMut(&E) -> bool,
    ) -> Found<E::Key> {
        let mut found = Found::NONE;
        let from = sweep.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, state) in E::all(&self.entries).range((from, Bound::Unbounded)).take(most) {
            found.looks += 1;
            if is_wanted(state) {
                found.keys.push(key.clone());
            }
            if found.looks == most {
                found.last = Some(key.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::{
        AcquireCommand, Attempt, FencingToken, LockCommand, LockName, LockState, TokenHash, Ttl,
    };
    use keylatch_core::store::Command;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn hold(table: &Table, name: &str, ttl: Duration) {
        let ttl = Ttl::from_millis(ttl.as_millis() as u64).unwrap();
        let acquire = AcquireCommand::new(TokenHash::from_bytes([1; 32]), ttl, Attempt::new(1));
        let name = LockName::parse(name).unwrap();
        table.step(&Command::Lock(name.into(), LockCommand::Acquire(acquire)));
    }

    /// In how many steps a sweep through the locks ends.
    fn forget_expired(table: &Table) -> usize {
        let mut sweep = Sweep::<LockState>::default();
        1 + (0..).take_while(|_| table.forget_expired(&mut sweep)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn sweep_looks_at_no_lock_before_one_is_due() {
        let table = Table::new(FencingToken::NONE);
        for number in 0..4 * LOOKS {
            hold(&table, &format!("lock-{number}"), 2 * MINUTE);
        }
        hold(&table, "early", MINUTE);
        assert_eq!(forget_expired(&table), 1, "locks were looked at");
        tokio::time::advance(MINUTE).await;
        forget_expired(&table);
        assert_eq!(table.len(), 4 * LOOKS);
        assert_eq!(forget_expired(&table), 1, "locks were looked at again");
        tokio::time::advance(MINUTE).await;
        assert!(forget_expired(&table) >= 4, "more locks than {LOOKS} were one step");
        assert_eq!(table.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_sweep_found_and_did_not_forget_is_found_again() {
        let table = Table::new(FencingToken::NONE);
        for number in 0..10 {
            hold(&table, &format!("lock-{number}"), MINUTE);
        }
        tokio::time::advance(MINUTE).await;
        for _ in 0..2 {
            let (mut sweep, mut expired) = (Sweep::<LockState>::default(), Vec::new());
            while table.find_expired(&mut sweep, &mut expired) {}
            assert_eq!(expired.len(), 10);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lock_that_is_taken_while_a_sweep_is_under_way_expires() {
        let table = Table::new(FencingToken::NONE);
        let names = (0..).map(|number| format!("lock-{number}"));
        let is_first = |name: &String| LockName::parse(name).unwrap().bucket() == 0;
        let mut names: Vec<_> = names.filter(is_first).take(LOOKS + 2).collect();
        names.sort_unstable();
        let early = names.remove(0);
        for name in &names {
            hold(&table, name, MINUTE);
        }
        tokio::time::advance(MINUTE).await;
        let mut sweep = Sweep::<LockState>::default();
        assert!(table.forget_expired(&mut sweep), "one step was enough");
        hold(&table, &early, MINUTE);
        while table.forget_expired(&mut sweep) {}
        assert_eq!(table.len(), 1);
        tokio::time::advance(MINUTE).await;
        forget_expired(&table);
        assert_eq!(table.len(), 0, "the lock was not found");
    }
}
