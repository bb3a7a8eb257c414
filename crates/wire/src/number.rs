//! Whole numbers in the JSON of requests.
//!
//! JSON has one kind of number, and programs whose numbers are floats write 5000 as `5000.0` or
//! `5e3`. Both are the whole number 5000 to JSON Schema, and to this API.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// The largest number up to which a float tells all whole numbers apart.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Reads a whole number, however it is written, or `null`.
///
/// # Errors
///
/// It is no number, or not a whole one, or too large.
pub fn whole_number<'de, D, N>(deserializer: D) -> Result<Option<N>, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<u64>,
{
    deserializer.deserialize_any(Whole("a whole number of 0 or more", PhantomData))
}

/// Reads a TTL likewise, and says of another value which ones there are.
pub(crate) fn ttl_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Whole("100 to 86400000 (24 h)", PhantomData))
}

/// What is expected, in words.
struct Whole<N>(&'static str, PhantomData<N>);

impl<N: TryFrom<u64>> Visitor<'_> for Whole<N> {
    type Value = Option<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let out_of_range = || E::invalid_value(Unexpected::Unsigned(number), &self);
        N::try_from(number).ok().map(Some).ok_or_else(out_of_range)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        if number.fract() == 0.0 && (0.0..=MAX_EXACT).contains(&number) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is whole, not negative, and below 2^53"
            )]
            return self.visit_u64(number as u64);
        }
        Err(E::invalid_type(Unexpected::Float(number), &self))
    }
}
