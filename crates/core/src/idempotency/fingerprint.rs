//! What a request asks for, as a digest: another one under the same key is another request.
//!
//! A store keeps a [`Fingerprint`] for as long as its record, so each digest is computed for ever
//! as it is now: the kind of what is hashed first, then each piece with its length before it, so
//! that none flows into the next. `keylatch-axum` takes the fingerprint of an HTTP request; golden
//! values in the tests there and here hold it.

use sha2::{Digest, Sha256};

use crate::digest::digest;

digest! {
    /// The SHA-256 of what a request asks for: another one under the same key is another request.
    Fingerprint
}

impl Fingerprint {
    /// The fingerprint of what a caller says that its request is.
    pub fn of_text(text: &str) -> Self {
        let mut hasher = FingerprintHasher::new("text");
        hasher.add(text);
        hasher.finish()
    }
}

/// Hashes pieces, each with its length, so that none flows into the next.
#[derive(Debug)]
pub struct FingerprintHasher(Sha256);

impl FingerprintHasher {
    /// A hasher of one kind of request: the same pieces of two kinds have two fingerprints.
    pub fn new(kind: &str) -> Self {
        let mut hasher = Self(Sha256::new());
        hasher.add(kind);
        hasher
    }

    /// Adds a piece.
    pub fn add(&mut self, piece: impl AsRef<[u8]>) -> &mut Self {
        let piece = piece.as_ref();
        self.0.update((piece.len() as u64).to_be_bytes());
        self.0.update(piece);
        self
    }

    /// Adds a list of pairs with their number, so that what follows is not taken for a pair.
    pub fn add_pairs(&mut self, pairs: &[(String, String)]) -> &mut Self {
        self.0.update((pairs.len() as u64).to_be_bytes());
        for (name, value) in pairs {
            self.add(name).add(value);
        }
        self
    }

    /// The fingerprint of all pieces.
    pub fn finish(self) -> Fingerprint {
        Fingerprint(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value was computed from the definition, by another program.
    #[test]
    fn fingerprints_of_stored_texts_stay_equal() {
        let digest = Fingerprint::of_text("order of 2 coffees");
        let hex: String = digest.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0cf1a9db4bd6129351799734e1acdd19a8b061ca46aa37aa015593d443525749");
    }
}
