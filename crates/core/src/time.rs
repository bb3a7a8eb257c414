//! The wall clock as numbers, for what people read and for the floor of fencing tokens.
//!
//! Validity is never counted on this clock: it may jump. A time before 1970 reads as 0.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
pub fn unix_micros() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}
