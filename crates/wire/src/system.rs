//! What the service reports about itself: `GET /v1/info`.
//!
//! A client reads the tier of the store from it before it relies on a lock, and an operator the
//! version and the limits. Members are added and never renamed. Tested in `tests/api/system.rs`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the service is and what it promises.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Info))]
pub struct ServiceInfo {
    /// Always `keylatch`.
    pub name: Cow<'static, str>,
    /// The running version.
    pub version: Cow<'static, str>,
    /// The store behind it.
    pub store: StoreInfo,
    /// What holds for every store.
    pub promise: Vec<Cow<'static, str>>,
    /// The guards that another instance on the same store has with other settings, by path, and
    /// which settings those are; as a rule none.
    #[cfg_attr(feature = "openapi", schema(example = json!({"/v1/payments": ["principal_header"]})))]
    pub differing_guards: BTreeMap<String, Vec<Cow<'static, str>>>,
    /// What the guards with `mode = "observe"` have seen at this instance, by path.
    pub observed_guards: BTreeMap<String, ObservedGuard>,
}

/// How many requests of a guard that only observes would have come to which outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ObservedGuard {
    /// Since 00:00 UTC.
    #[cfg_attr(feature = "openapi", schema(example = json!({"first": 1250, "replayed": 17, "mismatched": 2})))]
    pub today: BTreeMap<Cow<'static, str>, u64>,
    /// Since the instance started.
    pub since_start: BTreeMap<Cow<'static, str>, u64>,
}

impl ObservedGuard {
    /// What enforcing would have changed, in a sentence.
    pub fn sentence(counts: &BTreeMap<Cow<'static, str>, u64>) -> String {
        let of = |outcome| counts.get(outcome).copied().unwrap_or_default();
        let repeats = of("replayed") + of("in_progress");
        let noun = if repeats == 1 { "duplicate" } else { "duplicates" };
        let refused = [
            ("422", of("mismatched")),
            ("400 for want of a key", of("key_required")),
            ("409", of("unknown") + of("already_done")),
            ("refused otherwise", of("unreadable")),
        ];
        let refused = refused.iter().filter(|(_, count)| *count > 0);
        let refused = refused.map(|(what, count)| format!(", {count} would have been {what}"));
        format!("{repeats} {noun} would have run once{}", refused.collect::<String>())
    }
}

/// The store and how much its grants are worth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreInfo {
    /// The kind of store, as in its URL's scheme.
    pub kind: Cow<'static, str>,
    /// Which store it is: two instances with another one share no lock. A store that was emptied
    /// has a new one. Absent of `redlock`, and where the store cannot be asked or takes no write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether it answers now.
    pub reachable: bool,
    /// `strict`, `process`, `best-effort` or `fenced`; null while the store has not said.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub tier: Option<Cow<'static, str>>,
    /// The tier in a sentence.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub tier_means: Option<Cow<'static, str>>,
    /// The longest TTL that it takes, in milliseconds.
    pub max_ttl_ms: u64,
    /// What the store said of itself.
    pub facts: BTreeMap<Cow<'static, str>, String>,
    /// What an operator should change about the store, a sentence each; as a rule nothing.
    pub advice: Vec<String>,
}
