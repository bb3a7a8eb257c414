//! What the service reports about itself: `GET /v1/info`.
//!
//! A client reads the tier of the store from it before it relies on a lock, and an operator the version and the
//! limits. Members are added and never renamed. Tested in `tests/api/system.rs`.

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
    /// The guards that another instance on the same store has with other settings, by path, and which settings those are;
    /// as a rule none.
    #[cfg_attr(feature = "openapi", schema(example = json!({"/v1/payments": ["principal_header"]})))]
    pub differing_guards: BTreeMap<String, Vec<Cow<'static, str>>>,
}

/// The store and how much its grants are worth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreInfo {
    /// The kind of store, as in its URL's scheme.
    pub kind: Cow<'static, str>,
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
