//! The keys of kept responses: read from their file, and used to seal and open one.
//!
//! The cipher is AES-256-GCM with a random nonce. The record's key, the digest of its run's token
//! and the status that lists show are associated data. Invariant: a response opens in the record of
//! its run alone, whatever was moved in the store. Tested in `tests` here and in
//! `tests/api/encrypted_responses.rs`.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use keylatch_core::idempotency::{Answer, RecordKey, SealedAnswer};
use keylatch_core::lock::TokenHash;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// What associated data begins with.
const DOMAIN: &[u8] = b"keylatch kept response 1";
const MAX_ID: usize = 32;

/// Keys in the order of their file: the first encrypts, and all decrypt. Clones are the same keys.
#[derive(Clone)]
pub(crate) struct EncryptionKeys(Arc<RwLock<Vec<Key>>>);

#[derive(Clone)]
struct Key {
    id: String,
    cipher: LessSafeKey,
}

impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKeys(..)")
    }
}

/// A file that has no keys of responses. No message shows a word of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidKeys {
    #[error("it has no key: write a line `ID = KEY`, and get KEY from `openssl rand -base64 32`")]
    None,
    #[error(
        "line {0} must be `ID = KEY`: ID is 1 to {MAX_ID} of A-Z a-z 0-9 . _ -, and KEY is 32 bytes in base64, as \
         `openssl rand -base64 32` prints them"
    )]
    Line(usize),
    #[error("line {0} has the id of an earlier line: give each key an id of its own")]
    Twice(usize),
}

/// Why a response does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// There is no key of its id.
    MissingKey,
    /// The bytes are not those that were sealed with this key for this run.
    Changed,
}

impl EncryptionKeys {
    /// Takes the keys of a text, each on its line.
    pub(crate) fn read(text: &[u8]) -> Result<Self, InvalidKeys> {
        Ok(Self(Arc::new(RwLock::new(keys(text)?))))
    }

    /// Takes other keys, here and in all clones; after an error the keys stay.
    pub(crate) fn replace(&self, text: &[u8]) -> Result<(), InvalidKeys> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys(text)?;
        Ok(())
    }

    /// Encrypts the response of the run with this token.
    pub(crate) fn seal(
        &self,
        record: &RecordKey,
        run: &TokenHash,
        answer: &Answer,
    ) -> Result<SealedAnswer, Box<dyn std::error::Error + Send + Sync>> {
        let Key { id: key_id, cipher } = self.find(|_| true).ok_or("there is no key")?;
        let (status, mut nonce) = (answer.status, [0; NONCE_LEN]);
        let mut bytes = postcard::to_allocvec(answer)?;
        getrandom::fill(&mut nonce)?;
        let sealed_for = Aad::from(associated_data(record, run, status));
        cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), sealed_for, &mut bytes)
            .map_err(|_| "the response is too long to be encrypted")?;
        bytes.extend(nonce);
        Ok(SealedAnswer { status, key_id, bytes: bytes.into() })
    }

    /// Decrypts the response of the run with this token.
    pub(crate) fn open(
        &self,
        record: &RecordKey,
        run: &TokenHash,
        sealed: &SealedAnswer,
    ) -> Result<Answer, Unopened> {
        let key = self.find(|key| key.id == sealed.key_id).ok_or(Unopened::MissingKey)?;
        let (bytes, nonce) = sealed.bytes.split_last_chunk().ok_or(Unopened::Changed)?;
        let (mut bytes, nonce) = (bytes.to_vec(), Nonce::assume_unique_for_key(*nonce));
        let sealed_for = Aad::from(associated_data(record, run, sealed.status));
        let bytes = key.cipher.open_in_place(nonce, sealed_for, &mut bytes);
        postcard::from_bytes(bytes.map_err(|_| Unopened::Changed)?).map_err(|_| Unopened::Changed)
    }

    fn find(&self, is_it: impl Fn(&Key) -> bool) -> Option<Key> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().find(|key| is_it(key)).cloned()
    }
}

/// Each part has one length, so no two runs have the same.
fn associated_data(record: &RecordKey, run: &TokenHash, status: u16) -> Vec<u8> {
    [DOMAIN, record.as_bytes(), run.as_bytes(), &status.to_be_bytes()].concat()
}

fn keys(text: &[u8]) -> Result<Vec<Key>, InvalidKeys> {
    let mut keys: Vec<Key> = Vec::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii)) {
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let key = key(line).ok_or(InvalidKeys::Line(number))?;
        if keys.iter().any(|other| other.id == key.id) {
            return Err(InvalidKeys::Twice(number));
        }
        keys.push(key);
    }
    if keys.is_empty() { Err(InvalidKeys::None) } else { Ok(keys) }
}

fn key(line: &[u8]) -> Option<Key> {
    let (id, key) = std::str::from_utf8(line).ok()?.split_once('=')?;
    let id = id.trim_end();
    let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let bytes = STANDARD.decode(key.trim_start()).ok()?;
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
    let is_id = is_plain && (1..=MAX_ID).contains(&id.len());
    is_id.then(|| Key { id: id.to_owned(), cipher })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use keylatch_core::idempotency::{IdempotencyKey, Principal, Scope};

    fn record(key: u32) -> RecordKey {
        let scope = Scope { principal: &Principal::None, method: "", path: "", source: "" };
        scope.record(&IdempotencyKey::from(key))
    }

    fn keys(ids: &[&str]) -> EncryptionKeys {
        let line = |id: &&str| format!("{id} = {}\n", STANDARD.encode([id.len() as u8; 32]));
        EncryptionKeys::read(ids.iter().map(line).collect::<String>().as_bytes()).unwrap()
    }

    #[test]
    fn response_opens_in_the_record_of_its_run_alone() {
        let (keys, one, two) = (keys(&["k"]), TokenHash::from_bytes([1; 32]), [2; 32]);
        let headers = vec![("x-binary".to_owned(), Bytes::from_static(b"\0\xff"))];
        let answer = Answer { status: 201, headers, body: Bytes::from_static(b"\0order\xff") };
        let sealed = keys.seal(&record(1), &one, &answer).unwrap();
        assert_eq!(keys.open(&record(1), &one, &sealed), Ok(answer.clone()));
        assert_ne!(keys.seal(&record(1), &one, &answer).unwrap(), sealed, "its nonce is random");
        let two = TokenHash::from_bytes(two);
        assert_eq!(keys.open(&record(2), &one, &sealed), Err(Unopened::Changed));
        assert_eq!(keys.open(&record(1), &two, &sealed), Err(Unopened::Changed));
        let other = SealedAnswer { status: 200, ..sealed.clone() };
        assert_eq!(keys.open(&record(1), &one, &other), Err(Unopened::Changed));
        for place in 0..sealed.bytes.len() {
            let mut bytes = sealed.bytes.to_vec();
            bytes[place] ^= 1;
            let changed = SealedAnswer { bytes: bytes.into(), ..sealed.clone() };
            assert_eq!(keys.open(&record(1), &one, &changed), Err(Unopened::Changed));
            let short = SealedAnswer { bytes: sealed.bytes.slice(..place), ..sealed.clone() };
            assert_eq!(keys.open(&record(1), &one, &short), Err(Unopened::Changed));
        }
    }

    #[test]
    fn first_key_encrypts_and_all_decrypt() {
        let (record, run) = (record(1), TokenHash::from_bytes([1; 32]));
        let answer = Answer { status: 201, headers: Vec::new(), body: Bytes::new() };
        let sealed = keys(&["old"]).seal(&record, &run, &answer).unwrap();
        assert_eq!(keys(&["newer", "old"]).open(&record, &run, &sealed), Ok(answer.clone()));
        assert_eq!(keys(&["newer"]).open(&record, &run, &sealed), Err(Unopened::MissingKey));
        let of_other = SealedAnswer { key_id: "newer".to_owned(), ..sealed };
        assert_eq!(keys(&["newer"]).open(&record, &run, &of_other), Err(Unopened::Changed));
        let sealed = keys(&["newer", "old"]).seal(&record, &run, &answer).unwrap();
        assert_eq!(sealed.key_id, "newer");
    }
}
