//! The names of the locks that a step is on: of one lock, or of several.
//!
//! One name is a set of one, so that whatever runs steps is written once. Invariant: a set has 1 to
//! 16 names, each once. The tests `sets` over HTTP hold what a client may name.

use std::collections::BTreeSet;
use std::fmt;
use std::slice;
use std::sync::Arc;

use super::LockName;

/// The names of the locks of a step: 1 to 16, each once, in the order in which the client named
/// them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockSet(Names);

/// One name takes no list.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Names {
    One(LockName),
    Several(Arc<[LockName]>),
}

impl LockSet {
    /// The most locks of a set.
    pub const MAX: usize = 16;

    /// Checks several names.
    ///
    /// # Errors
    ///
    /// There are too few or too many, or one is there twice.
    pub fn new(names: Vec<LockName>) -> Result<Self, InvalidLockSet> {
        match names.as_slice() {
            [name] => return Ok(name.into()),
            several if (1..=Self::MAX).contains(&several.len()) => {}
            wrong => return Err(InvalidLockSet::Count(wrong.len())),
        }
        let mut seen = BTreeSet::new();
        match names.iter().find(|name| !seen.insert(*name)) {
            Some(twice) => Err(InvalidLockSet::Twice(twice.clone())),
            None => Ok(Self(Names::Several(names.into()))),
        }
    }

    /// The names, in the order in which the client named them.
    pub fn names(&self) -> &[LockName] {
        match &self.0 {
            Names::One(name) => slice::from_ref(name),
            Names::Several(names) => names,
        }
    }
}

impl From<LockName> for LockSet {
    fn from(name: LockName) -> Self {
        Self(Names::One(name))
    }
}

impl From<&LockName> for LockSet {
    fn from(name: &LockName) -> Self {
        name.clone().into()
    }
}

impl From<&Self> for LockSet {
    fn from(names: &Self) -> Self {
        names.clone()
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Why names are no [`LockSet`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLockSet {
    /// There are so many.
    #[error("has 1 to 16 names, this one has {0}")]
    Count(usize),
    /// One is there twice.
    #[error("has each name once, this one has `{}` twice", .0.as_str())]
    Twice(LockName),
}
