//! Random numbers that a seed decides.
//!
//! A test that fails prints its seed, and the same seed makes the same choices again. It is no
//! source of secrets and is not uniform to the last bit.

/// A small generator of numbers that a seed decides (Steele et al., SplitMix64, OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number from 0 to below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}
