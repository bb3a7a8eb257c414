//! What an identity may do, by prefix of the name: a list of rules, and the one question that is
//! asked of it. A copy of the store has every name in it and the metrics have none, so the
//! permissions for them have no prefix.
//!
//! Rules only add. A rule covers every name that begins with its prefix, so one for `team-a/` says
//! nothing of `team-ab`, and an empty prefix covers all. What covers a prefix covers all names
//! below it, so the question of a listing is the same as that of a name. Tested here, and over HTTP
//! in `tests/api/permissions.rs`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use toml::Value;

use super::quota::Quota;

/// What is done with a lock. As a text it is the verb of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LockAct {
    /// Create, hold, renew and release it.
    Acquire,
    /// Look at it, list it, watch it, read its history.
    Read,
    /// Break the lease of another.
    Break,
}

/// What is done with an idempotency key, likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum KeyAct {
    /// Begin, renew, complete and abandon a run.
    Use,
    /// Look at its record.
    Read,
    /// Settle an unknown outcome.
    Resolve,
    /// Remove what is kept of a response.
    #[strum(serialize = "erase the response of")]
    Erase,
}

/// The names that begin with a prefix, of locks or of idempotency keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Namespace {
    Locks(String),
    Keys(String),
}

impl Namespace {
    pub(super) fn has_lock(&self, name: &str) -> bool {
        matches!(self, Self::Locks(prefix) if name.starts_with(prefix))
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        matches!(self, Self::Keys(prefix) if key.starts_with(prefix))
    }
}

/// What `allow` says: what an identity may do, and how much of it in each namespace with a quota.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<AllowEntry>")]
pub(super) struct Allowance {
    pub(super) permissions: Permissions,
    pub(super) quotas: Vec<(Namespace, Quota)>,
}

/// What an identity may do with locks and keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Permissions {
    locks: Vec<Rule<LockAct>>,
    keys: Vec<Rule<KeyAct>>,
    /// Not for the console, which offers no copy.
    #[serde(skip_serializing)]
    backup: bool,
    #[serde(skip_serializing)]
    metrics: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Rule<A> {
    prefix: String,
    may: Vec<A>,
}

impl Permissions {
    /// Those of a client where there are no identities.
    pub fn everything() -> Self {
        let locks = vec![LockAct::Acquire, LockAct::Read, LockAct::Break];
        let keys = vec![KeyAct::Use, KeyAct::Read, KeyAct::Resolve, KeyAct::Erase];
        let prefix = String::new();
        Self {
            locks: vec![Rule { prefix: prefix.clone(), may: locks }],
            keys: vec![Rule { prefix, may: keys }],
            backup: true,
            metrics: true,
        }
    }

    /// Whether a lock of this name, or all locks that begin so, may be used in this way.
    pub fn cover_lock(&self, act: LockAct, name: &str) -> bool {
        covers(&self.locks, act, name)
    }

    /// The same for an idempotency key.
    pub fn cover_key(&self, act: KeyAct, key: &str) -> bool {
        covers(&self.keys, act, key)
    }

    /// The beginnings of the keys that may be read.
    pub(super) fn readable_keys(&self) -> impl Iterator<Item = &str> {
        let readable = self.keys.iter().filter(|rule| rule.may.contains(&KeyAct::Read));
        readable.map(|rule| rule.prefix.as_str())
    }

    /// Whether some keys may be used, so that one may be issued.
    pub fn cover_issuing(&self) -> bool {
        self.keys.iter().any(|rule| rule.may.contains(&KeyAct::Use))
    }

    /// Whether every lock and every key may be read.
    pub fn cover_all_reading(&self) -> bool {
        self.cover_lock(LockAct::Read, "") && self.cover_key(KeyAct::Read, "")
    }

    /// Whether the metrics may be read. They show no more than the names do.
    pub fn cover_metrics(&self) -> bool {
        self.metrics || self.cover_all_reading()
    }

    /// Whether the store may be copied.
    pub fn cover_backup(&self) -> bool {
        self.backup
    }
}

fn covers<A: PartialEq + Copy>(rules: &[Rule<A>], act: A, name: &str) -> bool {
    rules.iter().any(|rule| rule.may.contains(&act) && name.starts_with(&rule.prefix))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowEntry {
    locks: Option<String>,
    keys: Option<String>,
    may: Vec<Value>,
    quota: Option<Quota>,
}

/// The acts of one kind; `None` where one is of no kind or of another.
fn acts<A: DeserializeOwned>(may: Vec<Value>) -> Option<Vec<A>> {
    may.into_iter().map(|act| act.try_into().ok()).collect()
}

impl TryFrom<Vec<AllowEntry>> for Allowance {
    type Error = &'static str;

    fn try_from(entries: Vec<AllowEntry>) -> Result<Self, Self::Error> {
        let mut allowance = Self::default();
        for AllowEntry { locks, keys, may, quota } in entries {
            if may.is_empty() {
                return Err("`may` must name at least one act");
            }
            let permissions = &mut allowance.permissions;
            let is_of_store = |act: &Value| matches!(act.as_str(), Some("backup" | "metrics"));
            let namespace = match (locks, keys) {
                (Some(prefix), None) => {
                    let may =
                        acts(may).ok_or("with `locks`, `may` is of `acquire`, `read`, `break`")?;
                    permissions.locks.push(Rule { prefix: prefix.clone(), may });
                    Namespace::Locks(prefix)
                }
                (None, Some(prefix)) => {
                    let may = acts(may)
                        .ok_or("with `keys`, `may` is of `use`, `read`, `resolve`, `erase`")?;
                    permissions.keys.push(Rule { prefix: prefix.clone(), may });
                    Namespace::Keys(prefix)
                }
                (None, None) if may.iter().all(is_of_store) && quota.is_none() => {
                    permissions.backup |= may.iter().any(|act| act.as_str() == Some("backup"));
                    permissions.metrics |= may.iter().any(|act| act.as_str() == Some("metrics"));
                    continue;
                }
                _ => {
                    return Err("an entry must have either `locks` or `keys`, \
                                or be `{ may = [\"backup\", \"metrics\"] }` or one of both");
                }
            };
            if let Some(quota) = quota {
                check_quota(&namespace, &quota)?;
                allowance.quotas.push((namespace, quota));
            }
        }
        Ok(allowance)
    }
}

fn check_quota(namespace: &Namespace, quota: &Quota) -> Result<(), &'static str> {
    match namespace {
        Namespace::Locks(_) if !quota.is_of_locks() => {
            Err("with `locks`, `quota` is of `locks`, `waiters`, `streams`")
        }
        Namespace::Keys(_) if !quota.is_of_keys() => {
            Err("with `keys`, `quota` is of `records`, `bytes`")
        }
        Namespace::Locks(_) | Namespace::Keys(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permissions(allow: &str) -> Result<Permissions, String> {
        #[derive(Deserialize)]
        struct Entry {
            allow: Allowance,
        }
        let entry = toml::from_str::<Entry>(&format!("allow = {allow}"));
        entry.map(|entry| entry.allow.permissions).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn rule_of_no_kind_of_both_or_of_the_wrong_acts_is_refused() {
        for allow in [
            "[{ may = [\"read\"] }]",
            "[{ locks = \"\", keys = \"\", may = [\"read\"] }]",
            "[{ locks = \"\", may = [] }]",
            "[{ locks = \"\" }]",
            "[{ locks = \"\", may = [\"use\"] }]",
            "[{ locks = \"\", may = [\"backup\"] }]",
            "[{ may = [\"backup\", \"read\"] }]",
            "[{ keys = \"\", may = [\"break\"] }]",
            "[{ keys = \"\", may = [\"everything\"] }]",
            "[{ keys = \"\", may = [\"read\"], deny = true }]",
            "[{ keys = \"\", may = [\"use\"], quota = { locks = 1 } }]",
            "[{ locks = \"\", may = [\"acquire\"], quota = { records = 1 } }]",
            "[{ locks = \"\", may = [\"acquire\"], quota = { requests_per_second = 1 } }]",
            "[{ locks = \"\", may = [\"acquire\"], quota = { locks = 0 } }]",
        ] {
            assert!(permissions(allow).is_err(), "{allow}");
        }
        assert_eq!(permissions("[]"), Ok(Permissions::default()));
        assert!(!permissions("[]").unwrap().cover_backup());
        for may in ["[\"backup\"]", "[\"metrics\"]", "[\"backup\", \"metrics\"]"] {
            let of_store = permissions(&format!("[{{ may = {may} }}]")).unwrap();
            assert_eq!(of_store.cover_backup(), may.contains("backup"), "{may}");
            assert_eq!(of_store.cover_metrics(), may.contains("metrics"), "{may}");
        }
    }
}
