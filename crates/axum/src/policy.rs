use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use axum::http::request::Parts;
use serde::Deserialize;

use crate::BodyLimits;
use keylatch_core::idempotency::OnCrash;

/// What a server error or a panic of the handler comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Nobody knows how far it came, so it is not run again before somebody says so.
    Unknown,
    /// Nothing was done, as the route's owner knows, so the key is free again.
    Release,
}

/// Who a request is from, for requests of different people to have keys of their own.
pub type PrincipalOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// How requests are guarded.
#[derive(Clone)]
pub struct Policy {
    /// The methods that are; others pass through.
    pub methods: BTreeSet<Method>,
    /// Whether a request without a key is refused, or runs unguarded.
    pub require_key: bool,
    /// What a server error or a panic comes to.
    pub on_failure: OnFailure,
    /// What a process that dies in the middle leaves behind.
    pub on_crash: OnCrash,
    /// How long a run may go unheard; it is renewed at a third.
    pub lease: Duration,
    /// How long an answer is kept.
    pub retention: Duration,
    /// The longest time for which `Prefer: wait` is granted.
    pub max_wait: Duration,
    /// What the body of a request may be.
    pub body_limits: BodyLimits,
    /// The largest answer that is kept, in bytes.
    pub answer_limit: usize,
    /// Members of a JSON object, or fields of a form, that may differ between two tries.
    pub ignore: Vec<String>,
    /// Who a request is from: an identity that outlives the refreshing of a credential.
    pub principal: PrincipalOf,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            methods: BTreeSet::from([Method::POST, Method::PATCH]),
            require_key: true,
            on_failure: OnFailure::Unknown,
            on_crash: OnCrash::Unknown,
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 60 * 60),
            max_wait: Duration::from_secs(30),
            body_limits: BodyLimits { bytes: 1024 * 1024, time: Duration::from_secs(10) },
            answer_limit: 1024 * 1024,
            ignore: Vec::new(),
            principal: Arc::new(|_| None),
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("methods", &self.methods)
            .field("require_key", &self.require_key)
            .field("on_failure", &self.on_failure)
            .field("on_crash", &self.on_crash)
            .field("lease", &self.lease)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}
