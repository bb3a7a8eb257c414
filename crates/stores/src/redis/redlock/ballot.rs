use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// How many digits each of the two numbers of a ballot has.
const DIGITS: usize = 20;

/// Under what an attempt proposes a fencing token, as in Paxos: of two the higher one counts, and no two
/// attempts have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ballot {
    micros: u64,
    by: u64,
}

impl Ballot {
    /// Below every other.
    pub(super) const NONE: Self = Self { micros: 0, by: 0 };

    /// A ballot above `last`, and by the clock above those of others before, for the attempt or
    /// renewal with this number.
    pub(super) fn above(last: Self, by: u64) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_1970.as_micros()).unwrap_or(0);
        Self { micros: micros.max(last.micros.saturating_add(1)), by }
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$}{:0DIGITS$}", self.micros, self.by)
    }
}

impl FromStr for Ballot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no ballot");
        let (micros, by) = text.split_at_checked(DIGITS).ok_or_else(wrong)?;
        let number = |digits: &str| digits.parse().map_err(|_| wrong());
        Ok(Self { micros: number(micros)?, by: number(by)? })
    }
}
