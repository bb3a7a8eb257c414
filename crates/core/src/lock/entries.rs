//! The entries of a holder: under which names its token entered a lock.
//!
//! A count that each request raises is unsafe to repeat, so an entry has a name that the client
//! chooses: the same name again is the same entry, and a lock is free when the last entry of its
//! holder is gone. A request without a name makes the one unnamed entry, which is all that most
//! holders have.
//!
//! Invariant: a holder has at least one entry, and each name at most once.

use std::sync::Arc;

use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Serialize, Serializer};

use super::{Attempt, EntryName};

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
}

/// The entries of a holder, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Entry>")]
pub struct Entries {
    first: Entry,
    /// As a rule there are none, and they take no memory.
    rest: Option<Arc<Vec<Entry>>>,
}

impl Entries {
    /// How many entries a holder has at most.
    pub const MAX: usize = 64;

    /// Those of a holder that has one.
    pub fn of(entry: Entry) -> Self {
        Self { first: entry, rest: None }
    }

    /// The entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        [&self.first].into_iter().chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    /// The names of those that have one.
    pub fn names(&self) -> impl Iterator<Item = &EntryName> {
        self.iter().filter_map(|entry| entry.name.as_ref())
    }

    /// The names of those that have one, which most holders do without.
    pub(super) fn to_names(&self) -> Vec<EntryName> {
        match self {
            Self { first: Entry { name: None, .. }, rest: None } => Vec::new(),
            _ => self.names().cloned().collect(),
        }
    }

    /// How many bytes they have in a row, at most.
    pub(super) fn bytes(&self) -> usize {
        let name = |entry: &Entry| entry.name.as_ref().map_or(0, |name| name.as_str().len());
        self.iter().map(|entry| Entry::BYTES + name(entry)).sum()
    }

    fn len(&self) -> usize {
        1 + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Enters under `name`: again, where there is such an entry, and with a new one else, if the
    /// lock has room for one. Whether there was room for it.
    pub(super) fn enter(
        &mut self,
        name: Option<&EntryName>,
        attempt: Attempt,
        has_room: bool,
    ) -> bool {
        if self.first.name.as_ref() == name {
            self.first.repeat(attempt);
            return true;
        }
        let position = self.rest.iter().flat_map(|rest| rest.iter());
        let position = position.clone().position(|entry| entry.name.as_ref() == name);
        if position.is_none() && (self.len() == Self::MAX || !has_room) {
            return false;
        }
        let rest = Arc::make_mut(self.rest.get_or_insert_default());
        match position {
            Some(position) => rest[position].repeat(attempt),
            None => rest.push(Entry { name: name.cloned(), sole_attempt: Some(attempt) }),
        }
        true
    }

    /// What remains without the entries that `is_left` admits; `None` where nothing does.
    pub(super) fn without(&self, is_left: impl Fn(&Entry) -> bool) -> Option<Self> {
        if !self.iter().any(&is_left) {
            return Some(self.clone());
        }
        self.iter().filter(|entry| !is_left(entry)).cloned().collect::<Vec<_>>().try_into().ok()
    }

    /// No attempt may withdraw any entry from now on.
    pub fn settle(&mut self) {
        self.first.sole_attempt = None;
        if let Some(rest) = &mut self.rest {
            Arc::make_mut(rest).iter_mut().for_each(|entry| entry.sole_attempt = None);
        }
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        let mut list = output.serialize_seq(Some(self.len()))?;
        self.iter().try_for_each(|entry| list.serialize_element(entry))?;
        list.end()
    }
}

impl Entry {
    fn repeat(&mut self, attempt: Attempt) {
        self.sole_attempt = self.sole_attempt.filter(|&sole| sole == attempt);
    }
}

impl TryFrom<Vec<Entry>> for Entries {
    type Error = NoEntry;

    fn try_from(entries: Vec<Entry>) -> Result<Self, NoEntry> {
        let mut entries = entries.into_iter();
        let first = entries.next().ok_or(NoEntry)?;
        let rest: Vec<_> = entries.collect();
        Ok(Self { first, rest: (!rest.is_empty()).then(|| Arc::new(rest)) })
    }
}

/// A holder has at least one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a holder has at least one entry")]
pub struct NoEntry;
