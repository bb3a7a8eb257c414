//! The entries of a holder: under which names its token entered a lock.
//!
//! A count that each request raises is unsafe to repeat, so an entry has a name that the client
//! chooses: the same name again is the same entry, and a lock is free when the last entry of its
//! holder is gone. A request without a name makes the one unnamed entry, which is all that most
//! holders have.
//!
//! Invariant: a holder has at least one entry, and each name at most once.

use serde::{Deserialize, Serialize, Serializer};

use super::{Attempt, EntryName};
use crate::entry::Few;

/// One entry of a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name; `None` for the entry of a request that gave none.
    pub name: Option<EntryName>,
    /// The attempt that made it, for as long as no other attempt got it too.
    pub sole_attempt: Option<Attempt>,
}

impl Entry {
    /// How many bytes it has in a row beside its name, at most.
    const BYTES: usize = 13;
    /// How many it has at most.
    pub(super) const BYTES_MAX: usize = Self::BYTES + EntryName::MAX_BYTES;

    fn repeat(&mut self, attempt: Attempt) {
        self.sole_attempt = self.sole_attempt.filter(|&sole| sole == attempt);
    }
}

/// The entries of a holder, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Entry>")]
pub struct Entries(Few<Entry>);

impl Entries {
    /// How many entries a holder has at most.
    pub const MAX: usize = 64;

    /// Those of a holder that has one.
    pub fn of(entry: Entry) -> Self {
        Self(Few::from_buf([entry]))
    }

    /// The names of those that have one.
    pub fn names(&self) -> impl Iterator<Item = &EntryName> {
        self.0.iter().filter_map(|entry| entry.name.as_ref())
    }

    /// How many bytes they have in a row, at most.
    pub(super) fn bytes(&self) -> usize {
        let name = |entry: &Entry| entry.name.as_ref().map_or(0, |name| name.as_str().len());
        self.0.iter().map(|entry| Entry::BYTES + name(entry)).sum()
    }

    /// Enters under `name`: again, where there is such an entry, and with a new one else, if the
    /// lock has room for one. Whether there was room for it.
    pub(super) fn enter(
        &mut self,
        name: Option<&EntryName>,
        attempt: Attempt,
        has_room: bool,
    ) -> bool {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.name.as_ref() == name) {
            entry.repeat(attempt);
            return true;
        }
        let is_taken = self.0.len() < Self::MAX && has_room;
        if is_taken {
            self.0.push(Entry { name: name.cloned(), sole_attempt: Some(attempt) });
        }
        is_taken
    }

    /// What remains without the entries that `is_left` admits; `None` where nothing does.
    pub(super) fn without(&self, is_left: impl Fn(&Entry) -> bool) -> Option<Self> {
        let rest: Few<_> = self.0.iter().filter(|entry| !is_left(entry)).cloned().collect();
        (!rest.is_empty()).then_some(Self(rest))
    }

    /// No attempt may withdraw any entry from now on.
    pub fn settle(&mut self) {
        self.0.iter_mut().for_each(|entry| entry.sole_attempt = None);
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.collect_seq(&self.0)
    }
}

impl TryFrom<Vec<Entry>> for Entries {
    type Error = NoEntry;

    fn try_from(entries: Vec<Entry>) -> Result<Self, NoEntry> {
        if entries.is_empty() { Err(NoEntry) } else { Ok(Self(entries.into())) }
    }
}

/// A holder has at least one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a holder has at least one entry")]
pub struct NoEntry;
