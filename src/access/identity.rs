//! Identities, and the file that lists them, as types that cannot be wrong.
//!
//! The file is TOML with an `[[identity]]` for each. Parsing checks all of it: names are unique, no
//! key is that of two, unknown members are errors. An identity may have several keys, each with an
//! end of its own, so that keys can be replaced one after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use keylatch_core::idempotency::{Principal, RecordReader};
use keylatch_core::lock::LockName;
use serde::Deserialize;

use super::certificate::CertificateNames;
use super::credential::RefusedCredential;
use super::key::{ApiKey, KeyHash};
use super::permission::{Allowance, Namespace, Permissions};
use super::quota::{Meter, Quota};

/// How long what an identity had is kept after its name was last in the file: an editor may write a
/// file in parts, and every part of it is a file.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// In `act_for`: every principal.
const EVERY_PRINCIPAL: &str = "*";

/// A program or a person that the service knows.
#[derive(Debug)]
pub struct Identity {
    /// What it is called.
    pub name: IdentityName,
    /// What it may do.
    pub permissions: Permissions,
    /// How much it may have, and what it has.
    pub meter: Meter,
    /// The same for what it does in each namespace for which `allow` has a quota.
    namespaces: Vec<(Namespace, Meter)>,
    /// Whose keys it may use: its own and those that `act_for` names; `None` for everyone's.
    principals: Option<BTreeSet<Principal>>,
}

impl Identity {
    /// Whether it may use the idempotency keys of this principal: its own, and those that `act_for`
    /// names.
    pub fn may_act_for(&self, principal: &Principal) -> bool {
        self.principals.as_ref().is_none_or(|all| all.contains(principal))
    }

    /// Which records it may read.
    pub fn record_reader(&self) -> RecordReader {
        let keys = self.permissions.readable_keys().map(str::to_owned).collect();
        RecordReader { keys, principals: self.principals.clone() }
    }

    /// The meters of the namespaces that have some of these locks, each with those that it has.
    pub fn namespaces_of_locks<'a>(
        &'a self,
        names: &'a [LockName],
    ) -> impl Iterator<Item = (&'a Meter, Vec<LockName>)> {
        self.namespaces.iter().filter_map(|(namespace, meter)| {
            let names = names.iter().filter(|name| namespace.has_lock(name.as_str()));
            let names: Vec<_> = names.cloned().collect();
            (!names.is_empty()).then_some((meter, names))
        })
    }

    /// The meters that count what is done with this idempotency key: its own and those of
    /// namespaces.
    pub fn meters_of_key(&self, key: &str) -> impl Iterator<Item = &Meter> {
        let of_key = self.namespaces.iter().filter(move |(namespace, _)| namespace.has_key(key));
        std::iter::once(&self.meter).chain(of_key.map(|(_, meter)| meter))
    }

    /// All meters: its own and those of namespaces.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        std::iter::once(&self.meter).chain(self.namespaces.iter().map(|(_, meter)| meter))
    }
}

/// The name of an identity: 1 to 64 of A-Z a-z 0-9 . _ - @
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct IdentityName(String);

impl IdentityName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdentityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for IdentityName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if (1..=64).contains(&name.len()) && name.chars().all(is_plain) {
            return Ok(Self(name));
        }
        Err("must be 1 to 64 of A-Z a-z 0-9 . _ - @")
    }
}

impl std::str::FromStr for IdentityName {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::try_from(name.to_owned())
    }
}

/// All identities, by the hashes of their keys, the names in their certificates and the claims of
/// their tokens.
#[derive(Debug, Default)]
pub struct Identities {
    by_key: HashMap<KeyHash, KnownKey>,
    by_certificate: HashMap<String, Arc<Identity>>,
    by_claim: HashMap<String, Arc<Identity>>,
    by_name: BTreeMap<IdentityName, Arc<Identity>>,
    /// Those that were there, and since when they are not.
    gone: BTreeMap<IdentityName, (Arc<Identity>, Instant)>,
}

#[derive(Debug)]
struct KnownKey {
    identity: Arc<Identity>,
    expires: Option<Timestamp>,
}

/// What is wrong with a file of identities. It repeats nothing of the file but names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidIdentities(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    identity: Vec<IdentityEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityEntry {
    name: IdentityName,
    keys: Option<Vec<KeyEntry>>,
    certificates: Option<Vec<String>>,
    claims: Option<Vec<String>>,
    #[serde(default)]
    allow: Allowance,
    #[serde(default)]
    act_for: BTreeSet<String>,
    #[serde(default)]
    quota: Quota,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    sha256: KeyHash,
    expires: Option<Expiry>,
}

/// A moment, as text or as a date of TOML, with its offset from UTC.
#[derive(Deserialize)]
#[serde(try_from = "toml::Value")]
struct Expiry(Timestamp);

impl TryFrom<toml::Value> for Expiry {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        let moment = match value {
            toml::Value::Datetime(date) => date.to_string().parse(),
            value => value.as_str().unwrap_or_default().parse(),
        };
        moment.map(Self).map_err(|_| "must be a moment like 2030-01-31T12:00:00Z")
    }
}

impl Identities {
    /// Reads a file. An identity that was there `before` has what it had.
    pub fn parse(file: &[u8], before: &Self) -> Result<Self, InvalidIdentities> {
        let wrong = |at: usize, message: &str| {
            let line = file[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            InvalidIdentities(format!("line {line}: {message}"))
        };
        let text = std::str::from_utf8(file)
            .map_err(|error| wrong(error.valid_up_to(), "it is not text in UTF-8"))?;
        let document: Document = toml::from_str(text).map_err(|error: toml::de::Error| {
            // The error's own text repeats the line, which may hold a key.
            let at = error.span().map_or(0, |span| span.start.min(file.len()));
            wrong(at, &without_values(error.message()))
        })?;
        if document.identity.is_empty() {
            let why = "there is no `[[identity]]`, so no client could use the service";
            return Err(InvalidIdentities(why.to_owned()));
        }
        let mut all = Self::default();
        for entry in document.identity {
            all.add(entry, before)?;
        }
        let now = Instant::now();
        let left = before.by_name.iter().map(|(name, it)| (name, (Arc::clone(it), now)));
        let gone = before.gone.iter().map(|(name, gone)| (name, gone.clone()));
        let gone = gone.filter(|(_, (_, since))| now.duration_since(*since) < KEPT).chain(left);
        let gone = gone.filter(|(name, _)| !all.by_name.contains_key(*name));
        all.gone = gone.map(|(name, gone)| (name.clone(), gone)).collect();
        Ok(all)
    }

    fn add(&mut self, entry: IdentityEntry, before: &Self) -> Result<(), InvalidIdentities> {
        let IdentityEntry { name, keys, certificates, claims, allow, act_for, quota } = entry;
        if keys.is_none() && certificates.is_none() && claims.is_none() {
            return Err(InvalidIdentities(format!(
                "`{name}` has neither `keys` nor `certificates` nor `claims`"
            )));
        }
        let gone = || before.gone.get(&name).map(|(gone, _)| gone);
        let (mut meter, before) = (Meter::new(quota), before.by_name.get(&name).or_else(gone));
        if let Some(before) = before {
            meter = meter.succeed(&before.meter);
        }
        let Allowance { permissions, quotas } = allow;
        let namespaces = quotas.into_iter().map(|(namespace, quota)| {
            let meter = meter_in(&namespace, quota, before);
            (namespace, meter)
        });
        let principals = whom(&name, &act_for);
        let namespaces = namespaces.collect();
        let identity = Identity { name: name.clone(), permissions, meter, namespaces, principals };
        let identity = Arc::new(identity);
        if self.by_name.insert(name.clone(), Arc::clone(&identity)).is_some() {
            return Err(InvalidIdentities(format!("there are two identities `{name}`")));
        }
        for KeyEntry { sha256, expires } in keys.unwrap_or_default() {
            let expires = expires.map(|Expiry(at)| at);
            let known = KnownKey { identity: Arc::clone(&identity), expires };
            add_new(&mut self.by_key, sha256, known, "key", &name)?;
        }
        for certificate in certificates.unwrap_or_default() {
            let identity = Arc::clone(&identity);
            add_new(&mut self.by_certificate, certificate, identity, "certificate", &name)?;
        }
        for claim in claims.unwrap_or_default() {
            add_new(&mut self.by_claim, claim, Arc::clone(&identity), "claim", &name)?;
        }
        Ok(())
    }

    pub(super) fn find_name(&self, name: &IdentityName) -> Option<Arc<Identity>> {
        self.by_name.get(name).cloned()
    }

    /// Whose certificate has these names.
    pub fn find_certificate(
        &self,
        names: &CertificateNames,
    ) -> Result<Arc<Identity>, RefusedCredential> {
        let found = names.iter().filter_map(|name| self.by_certificate.get(name));
        let several = RefusedCredential::AmbiguousCertificate;
        one_of(found, RefusedCredential::UnknownCertificate, several)
    }

    /// Whose token has these values of the claim.
    pub(super) fn find_claim(&self, values: &[String]) -> Result<Arc<Identity>, RefusedCredential> {
        let found = values.iter().filter_map(|value| self.by_claim.get(value));
        one_of(found, RefusedCredential::UnknownClaim, RefusedCredential::AmbiguousClaim)
    }

    /// Whose key this text is, at the moment that `now` gives, which is asked only where the key
    /// has an end.
    pub fn find(
        &self,
        key: &[u8],
        now: impl FnOnce() -> Timestamp,
    ) -> Result<Arc<Identity>, RefusedCredential> {
        let known = self.by_key.get(&KeyHash::of(key)).ok_or_else(|| refusal_of_unknown(key))?;
        if known.expires.is_some_and(|end| now() >= end) {
            return Err(RefusedCredential::Expired);
        }
        Ok(Arc::clone(&known.identity))
    }

    /// All identities, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Identity>> {
        self.by_name.values()
    }

    /// How many identities there are.
    pub fn count(&self) -> usize {
        self.by_name.len()
    }
}

/// Why a text that is the key of no identity is refused. Only such a text is read: one that is
/// known was a key.
fn refusal_of_unknown(text: &[u8]) -> RefusedCredential {
    let key = std::str::from_utf8(text).ok().and_then(|text| ApiKey::parse(text).ok());
    key.map_or(RefusedCredential::Malformed, |_| RefusedCredential::Unknown)
}

/// The meter of a namespace, which begins with what the identity `before` has there.
fn meter_in(namespace: &Namespace, quota: Quota, before: Option<&Arc<Identity>>) -> Meter {
    let meter = Meter::new(quota);
    let of_it = before.iter().flat_map(|identity| &identity.namespaces);
    let before = of_it.into_iter().find(|(other, _)| other == namespace);
    match before {
        Some((_, before)) => meter.succeed(before),
        None => meter,
    }
}

/// Whose keys the identity may use; `None` for everyone's.
fn whom(name: &IdentityName, act_for: &BTreeSet<String>) -> Option<BTreeSet<Principal>> {
    let own = Principal::Identity(name.as_str().to_owned());
    let named = act_for.iter().map(|named| Principal::parse(named));
    (!act_for.contains(EVERY_PRINCIPAL)).then(|| named.chain([own]).collect())
}

/// The one identity that all of these are.
fn one_of<'a>(
    mut found: impl Iterator<Item = &'a Arc<Identity>>,
    none: RefusedCredential,
    several: RefusedCredential,
) -> Result<Arc<Identity>, RefusedCredential> {
    let identity = found.next().ok_or(none)?;
    let is_one = found.all(|other| other.name == identity.name);
    is_one.then(|| Arc::clone(identity)).ok_or(several)
}

/// Adds what no identity has yet.
fn add_new<K: Eq + Hash, V>(
    all: &mut HashMap<K, V>,
    key: K,
    value: V,
    what: &str,
    name: &IdentityName,
) -> Result<(), InvalidIdentities> {
    match all.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(InvalidIdentities(format!("a {what} of `{name}` is there twice"))),
    }
}

/// The message of a parser without the values of the file, which may be keys in the place of their
/// hashes: it repeats a value of the wrong type in double quotes, and an unknown member as it is.
fn without_values(message: &str) -> String {
    let message = message.trim();
    let quoted = message.find('"').zip(message.rfind('"'));
    let message = match quoted {
        Some((first, last)) => format!("{}..{}", &message[..first], &message[last + 1..]),
        None => message.to_owned(),
    };
    if message.contains("kl_") {
        return "an API key stands where none belongs: the file has hashes alone".to_owned();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Identities::parse(text.as_bytes(), &Identities::default()).expect_err(text).to_string()
    }

    #[test]
    fn key_leads_to_its_identity_until_it_expires() {
        let (old, new) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
        let end: Timestamp = "2030-01-31T12:00:00Z".parse().unwrap();
        for written in ["2030-01-31T13:00:00+01:00", "\"2030-01-31T12:00:00Z\""] {
            let text = format!(
                "[[identity]]\nname = \"ci\"\nact_for = [\"shop\"]\n\
                 keys = [{{ sha256 = \"{}\", expires = {written} }}, {{ sha256 = \"{}\" }}]",
                old.hash(),
                new.hash()
            );
            let identities = Identities::parse(text.as_bytes(), &Identities::default()).unwrap();
            let identity =
                identities.find(new.expose().as_bytes(), || panic!("it has no end")).unwrap();
            assert_eq!((identity.name.as_str(), identities.count()), ("ci", 1));
            let acts = |named| identity.may_act_for(&Principal::parse(named));
            assert_eq!(
                ["ci", "shop", "other", "user:ci", "user:shop", ""].map(acts),
                [true, true, false, false, false, false]
            );
            let before = end - jiff::SignedDuration::from_nanos(1);
            let find = |key: &ApiKey, now| identities.find(key.expose().as_bytes(), || now).err();
            assert_eq!(find(&old, before), None);
            assert_eq!(find(&old, end), Some(RefusedCredential::Expired));
            let other = ApiKey::generate().unwrap();
            assert_eq!(find(&other, before), Some(RefusedCredential::Unknown));
            let typed = other.expose().replace("kl_", "kl-");
            let refused = identities.find(typed.as_bytes(), || before).err();
            assert_eq!(refused, Some(RefusedCredential::Malformed));
        }
    }

    #[test]
    fn whatever_is_wrong_is_named_and_no_key_repeated() {
        assert!(refusal("").starts_with("there is no `[[identity]]`"));
        let hash = ApiKey::generate().unwrap().hash();
        let of = |name: &str| {
            format!("[[identity]]\nname = \"{name}\"\nkeys = [{{ sha256 = \"{hash}\" }}]\n")
        };
        assert_eq!(refusal(&of("a").repeat(2)), "there are two identities `a`");
        assert_eq!(refusal(&(of("a") + &of("b"))), "a key of `b` is there twice");
        for (line, text) in [
            (2, "[[identity]]\nname = \"a b\"\nkeys = []"),
            (3, "[[identity]]\nname = \"a\"\nkeys = [{ sha256 = \"kl_secret\" }]"),
            (4, "[[identity]]\nname = \"a\"\nkeys = []\nalow = []"),
            (4, "[[identity]]\nname = \"a\"\nkeys = []\nallow = [{ locks = \"\", may = [] }]"),
            (3, "[[identity]]\nname = \"a\"\nkeys = [{ sha256 = \"kl_secret\", expires = 7 }]"),
            (1, "[[identities]]\n"),
            (3, "[[identity]]\nname = \"a\"\nkeys = [\"kl_secret\"]"),
            (3, "[[identity]]\nname = \"a\"\nkeys = \"a \\\"kl_secret\\\" b\""),
            (4, "[[identity]]\nname = \"a\"\nkeys = []\nkl_secret = 1"),
        ] {
            let error = refusal(text);
            assert!(error.starts_with(&format!("line {line}: ")), "{error}");
            assert!(!error.contains("kl_secret"), "{error}");
        }
    }
}
