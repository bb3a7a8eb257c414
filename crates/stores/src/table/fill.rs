//! Filling a table with what was kept, before it serves.
//!
//! Entries come bucket by bucket, so a shard's tree is built of them at once: no search for each,
//! and full nodes. With millions of locks a store opens sooner by that, and takes less memory. No
//! waiter and no watcher is there yet, so none is woken. Invariant: a table that was filled is the
//! one that installing each entry would give. Tested below.

use std::collections::BTreeMap;

use super::{Table, TableEntry};

/// Puts entries into a table.
#[derive(Debug)]
pub(crate) struct Fill<'a, E: TableEntry> {
    table: &'a Table,
    bucket: u8,
    /// Those of the bucket so far.
    entries: Vec<(E::Key, E)>,
}

impl<'a, E: TableEntry> Fill<'a, E> {
    pub(crate) fn of(table: &'a Table) -> Self {
        Self { table, bucket: 0, entries: Vec::new() }
    }

    /// Adds an entry. Those of a bucket come one after another, or each would cost a tree of its
    /// own.
    pub(crate) fn add(&mut self, key: E::Key, state: E) {
        let bucket = E::bucket(&key);
        debug_assert!(bucket >= self.bucket, "an entry of bucket {bucket} after {}", self.bucket);
        if bucket != self.bucket {
            self.finish();
            self.bucket = bucket;
        }
        if !state.is_empty() {
            self.entries.push((key, state));
        }
    }

    /// Puts the last ones into the table.
    pub(crate) fn finish(&mut self) {
        let mut shard = self.table.shard(self.bucket);
        let none = E::default();
        let mut entries: BTreeMap<_, _> = self.entries.drain(..).collect();
        for (key, state) in &entries {
            none.count(state, &self.table.counts);
            shard.note(key, &none, state);
        }
        E::all_mut(&mut shard.entries).append(&mut entries);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keylatch_core::lock::{
        AcquireCommand, Attempt, FencingToken, LockCommand, LockName, LockState, TokenHash, Ttl,
    };
    use keylatch_core::store::Command;

    use super::*;
    use crate::table::Sweep;

    const COUNT: usize = 3000;

    #[tokio::test(start_paused = true)]
    async fn filled_table_is_the_one_that_was_kept() {
        let [kept, filled] = [(); 2].map(|()| Table::new(FencingToken::NONE));
        for number in 0..COUNT {
            let ttl = Ttl::from_millis(if number % 2 == 0 { 1000 } else { 60_000 }).unwrap();
            let token = TokenHash::from_bytes([1; 32]);
            let acquire = AcquireCommand::new(token, ttl, Attempt::new(1));
            let name = LockName::parse(&format!("lock-{number}")).unwrap();
            kept.step(&Command::Lock(name.into(), LockCommand::Acquire(acquire)));
        }
        let mut fill = Fill::<LockState>::of(&filled);
        for bucket in 0..=u8::MAX {
            for (name, state) in &kept.shard(bucket).entries.locks {
                fill.add(name.clone(), state.clone());
            }
        }
        fill.finish();
        for bucket in 0..=u8::MAX {
            let (kept, filled) = (kept.shard(bucket), filled.shard(bucket));
            assert_eq!(filled.entries.locks, kept.entries.locks);
            assert_eq!(filled.last_fencing_token, kept.last_fencing_token);
        }
        assert_eq!(filled.gauges().entries, kept.gauges().entries);
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut sweep = Sweep::<LockState>::default();
        while filled.forget_expired(&mut sweep) {}
        assert_eq!(filled.len(), COUNT / 2, "what is due was not noted");
    }
}
