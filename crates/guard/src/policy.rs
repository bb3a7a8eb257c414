//! How a layer guards: which requests, for how long, what a failure comes to, and what becomes of a
//! key after a response.
//!
//! After a response the key is freed, the response is stored, or the outcome is marked unknown. That
//! rule is a pure function of the response and of the route's [`FailurePolicy`]. Invariant: it errs to the
//! safe side, so what may have had an effect does not run again by itself. The tests of the layer
//! hold it over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer as _, MapAccess, Visitor};

use keylatch_core::idempotency::{OnCrash, RecordScope};

/// What a server error or a panic of the handler comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnFailure {
    /// An unknown outcome: the request does not run again before a person has resolved it.
    Unknown,
    /// A free key: the route's owner knows that a handler that fails has done nothing.
    Release,
}

/// What server errors and panics of the handler come to: one rule for all, and others for some statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailurePolicy {
    all: OnFailure,
    by_status: BTreeMap<u16, OnFailure>,
}

impl From<OnFailure> for FailurePolicy {
    fn from(all: OnFailure) -> Self {
        Self { all, by_status: BTreeMap::new() }
    }
}

impl FailurePolicy {
    /// The same, with a rule of its own for a status.
    #[must_use]
    pub fn with_status(mut self, status: u16, rule: OnFailure) -> Self {
        self.by_status.insert(status, rule);
        self
    }

    /// What a panic comes to.
    pub(crate) fn for_panic(&self) -> OnFailure {
        self.all
    }

    /// What a server error comes to. A 503 that says when to come again is of a service that has not begun.
    fn for_response(&self, status: u16, headers: &HeaderMap) -> OnFailure {
        match self.by_status.get(&status) {
            Some(rule) => *rule,
            None if status == 503 && headers.contains_key(header::RETRY_AFTER) => {
                OnFailure::Release
            }
            None => self.all,
        }
    }
}

impl<'de> Deserialize<'de> for FailurePolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rules;

        impl<'de> Visitor<'de> for Rules {
            type Value = FailurePolicy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`unknown`, `release`, or a table of statuses with one of these each")
            }

            fn visit_str<E: Error>(self, rule: &str) -> Result<FailurePolicy, E> {
                OnFailure::deserialize(rule.into_deserializer()).map(FailurePolicy::from)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FailurePolicy, A::Error> {
                let mut policy = FailurePolicy::from(OnFailure::Unknown);
                while let Some((status, rule)) = map.next_entry::<String, OnFailure>()? {
                    let status = status.parse().ok().filter(|status| (500..600).contains(status));
                    let no_error = || A::Error::custom("a status must be 500 to 599");
                    policy = policy.with_status(status.ok_or_else(no_error)?, rule);
                }
                Ok(policy)
            }
        }

        deserializer.deserialize_any(Rules)
    }
}

/// What becomes of a key after a response. A handler that knows better than its status says so puts
/// one into the extensions of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetentionPolicy {
    /// The response is stored, and every repeat reads it.
    Answer,
    /// The key is free: the request was not carried out, and the same key may be tried again.
    Release,
    /// The outcome is unknown, and the request does not run again before it is resolved.
    Unknown,
}

impl RetentionPolicy {
    /// What becomes of the key after a response with this status and these headers.
    ///
    /// 2xx, 3xx and 4xx are answers. Some 4xx are none: they are about the moment, or about the
    /// credentials of the client, and the next try may fare better. So is a 503 with `Retry-After`. After
    /// another 5xx it is unknown how far the handler came, unless the route's owner says that it comes to
    /// nothing.
    pub fn for_response(
        status: StatusCode,
        headers: &HeaderMap,
        on_failure: &FailurePolicy,
    ) -> Self {
        match status.as_u16() {
            401 | 403 | 407 | 408 | 421 | 425 | 426 | 429 => Self::Release,
            ..500 => Self::Answer,
            status => match on_failure.for_response(status, headers) {
                OnFailure::Release => Self::Release,
                OnFailure::Unknown => Self::Unknown,
            },
        }
    }
}

/// Gives the principal of a request: the user or system for which it comes. Each principal has its
/// own keys.
pub type PrincipalFn = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// How requests are guarded.
///
/// The default guards POST and PATCH, requires a key, and leaves an unknown outcome after a failure
/// and after a crash; a run has a lease of 30 s, and its answer is stored for a day.
#[derive(Clone)]
pub struct Policy {
    /// The methods that are guarded; requests of others pass through.
    pub methods: BTreeSet<Method>,
    /// Whether a request without a key is refused; if not, it runs unguarded.
    pub require_key: bool,
    /// What a server error or a panic comes to.
    pub on_failure: FailurePolicy,
    /// What a process that dies in the middle leaves behind.
    pub on_crash: OnCrash,
    /// How long the lease of a run lasts unless renewed; the layer renews it at a third.
    pub lease: Duration,
    /// How long a client waits for the whole answer of a run, if there is a limit. Then it reads 504, the
    /// outcome is unknown, and an answer that comes within a lease from then on is stored nevertheless.
    pub answer_timeout: Option<Duration>,
    /// How long a record is kept after its run has ended.
    pub retention: Duration,
    /// The longest wait that `Prefer: wait` is granted.
    pub max_wait: Duration,
    /// What the body of a request may be.
    pub body_limits: BodyLimits,
    /// The largest answer that is stored, headers and body, in bytes. Of a larger one the record keeps no body.
    pub answer_limit: usize,
    /// Members of a JSON object, or fields of a form, that may differ between two tries.
    pub ignore: Vec<String>,
    /// The principal of a request: an identity that outlives the refreshing of a credential.
    pub principal: PrincipalFn,
    /// Whether the principal is a credential: then it tells keys apart, and no store keeps it.
    pub principal_is_secret: bool,
    /// Where an operator settles the unknown outcome of a request, for the problem that says so (`resolve`). It
    /// has the scope of the request; a problem whose scope is not kept whole has no such member.
    pub resolve_url: ResolveUrlFn,
}

/// Where an operator settles the unknown outcome of a request with this scope, if there is such a place.
pub type ResolveUrlFn = Arc<dyn Fn(&RecordScope) -> Option<String> + Send + Sync>;

impl Default for Policy {
    fn default() -> Self {
        Self {
            methods: BTreeSet::from([Method::POST, Method::PATCH]),
            require_key: true,
            on_failure: OnFailure::Unknown.into(),
            on_crash: OnCrash::Unknown,
            lease: Duration::from_secs(30),
            answer_timeout: None,
            retention: Duration::from_secs(24 * 60 * 60),
            max_wait: Duration::from_secs(30),
            body_limits: BodyLimits { bytes: 1024 * 1024, time: Duration::from_secs(10) },
            answer_limit: 1024 * 1024,
            ignore: Vec::new(),
            principal: Arc::new(|_| None),
            principal_is_secret: false,
            resolve_url: Arc::new(|_| None),
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

/// What the body of a request may be.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// How large, in bytes.
    pub bytes: usize,
    /// How long it may take to arrive.
    pub time: Duration,
}
