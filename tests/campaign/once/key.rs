//! The keys of the campaign, and what the upstream does for each.
//!
//! Goal: the ledger, the shopper and the judge agree on a key without exchanging a word.
//!
//! Method: the number of a key decides its route, its kind and what a later run does, so each run
//! of the campaign has the same mixture. `guilt.rs` picks its keys by these rules.

use std::ops::Range;

use keylatch_testkit::Dice;
use serde::Deserialize;

/// The first number of a key of which the guard asks the upstream.
const SETTLED: u64 = 1 << 40;

/// A key of the campaign; its number says all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Key {
    pub(super) number: u64,
}

/// What the upstream does for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// 201.
    Plain,
    /// 201, after more than a lease.
    Slow,
    /// 422, and nothing done.
    Invalid,
    /// 429, and nothing done; 201 from the second run on.
    Busy,
    /// 500 in place of the first answer, with nothing done.
    FailsBefore,
    /// 500 in place of the first answer, with it done.
    FailsAfter,
    /// A first answer that breaks off, with nothing done.
    ResetBefore,
    /// A first answer that breaks off, with it done.
    ResetAfter,
}

impl Key {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(Self { number: text.strip_prefix("key-")?.parse().ok()? })
    }

    pub(super) fn name(self) -> String {
        format!("key-{}", self.number)
    }

    /// Whether what was interrupted is run again.
    pub(super) fn is_rerun(self) -> bool {
        self.number % 3 == 2
    }

    /// Whether its client calls the API, and does the work itself.
    pub(super) fn is_by_calls(self) -> bool {
        self.kind() == Kind::Plain && self.number % 6 == 1 && !self.is_settled()
    }

    /// Whether its client sends no key, and the guard derives one.
    pub(super) fn is_derived(self) -> bool {
        self.number % 6 == 4 || self.is_settled()
    }

    /// Whether the guard asks the upstream what became of it.
    pub(super) fn is_settled(self) -> bool {
        self.number >= SETTLED
    }

    /// So many keys of which the guard asks.
    pub(super) fn settled(count: u64) -> Range<u64> {
        SETTLED..SETTLED + count
    }

    /// What names the scope of its record, unless the key is derived.
    pub(super) fn scope(self) -> String {
        if self.is_by_calls() {
            String::new()
        } else {
            format!("?method=POST&path={}", self.path())
        }
    }

    pub(super) fn path(self) -> String {
        match (self.is_derived(), self.is_rerun()) {
            _ if self.is_settled() => format!("/taps/{}", self.number),
            (true, _) => format!("/clicks/{}", self.number),
            (false, true) => "/mails".to_owned(),
            (false, false) => "/orders".to_owned(),
        }
    }

    pub(super) fn kind(self) -> Kind {
        match Dice(self.number).below(32) {
            0 | 1 => Kind::Slow,
            2 | 3 => Kind::Invalid,
            4 | 5 => Kind::Busy,
            6 => Kind::FailsBefore,
            7 => Kind::FailsAfter,
            8 => Kind::ResetBefore,
            9 => Kind::ResetAfter,
            _ => Kind::Plain,
        }
    }
}

impl Kind {
    /// What it is from the second run on.
    pub(super) fn later(self) -> Self {
        match self {
            Self::Slow | Self::Invalid => self,
            _ => Self::Plain,
        }
    }

    /// Whether the first run leaves an unknown outcome even without a kill.
    pub(super) fn is_doubtful(self) -> bool {
        use Kind::{FailsAfter, FailsBefore, ResetAfter, ResetBefore};
        matches!(self, FailsBefore | FailsAfter | ResetBefore | ResetAfter)
    }
}
