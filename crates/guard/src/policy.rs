//! What a failure of the handler comes to, and what becomes of a key after a response.
//!
//! After a response the key is freed, the response is stored, or the outcome is marked unknown.
//! That rule is a pure function of the response and of the route's [`FailurePolicy`]. Invariant: it
//! errs to the safe side, so what may have had an effect does not run again by itself. The tests of
//! the layer hold it over HTTP.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

/// What a failure of the handler comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnFailure {
    /// An unknown outcome: the request does not run again before a person has resolved it.
    Unknown,
    /// A free key: the route's owner knows that a handler that fails has done nothing.
    Release,
}

/// What server errors and panics of the handler come to: one rule for all, and others for some
/// statuses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "FailureSetting")]
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

    pub(crate) fn for_panic(&self) -> OnFailure {
        self.all
    }

    /// What a server error comes to. A 503 that says when to come again is of a service that has
    /// not begun.
    fn for_server_error(&self, status: u16, headers: &HeaderMap) -> OnFailure {
        let begun = status != 503 || !headers.contains_key(header::RETRY_AFTER);
        if begun { self.all } else { OnFailure::Release }
    }
}

/// The setting as it is written.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "must be `unknown`, `release`, or a table of statuses with one of these each"
)]
enum FailureSetting {
    All(OnFailure),
    ByStatus(BTreeMap<String, OnFailure>),
}

impl TryFrom<FailureSetting> for FailurePolicy {
    type Error = &'static str;

    fn try_from(setting: FailureSetting) -> Result<Self, &'static str> {
        let rules = match setting {
            FailureSetting::All(rule) => return Ok(rule.into()),
            FailureSetting::ByStatus(rules) => rules,
        };
        rules.into_iter().try_fold(Self::from(OnFailure::Unknown), |policy, (status, rule)| {
            let status = status.parse().ok().filter(|status| (400..600).contains(status));
            Ok(policy.with_status(status.ok_or("a status must be 400 to 599")?, rule))
        })
    }
}

/// What becomes of a key after a response. A handler that knows better than its status says so puts
/// one into the extensions of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetentionPolicy {
    /// The response is stored, and every repeat reads it.
    Answer,
    /// Only the status is stored: the request does not run again, and no repeat reads the response.
    Status,
    /// The key is free: the request was not carried out, and the same key may be tried again.
    Release,
    /// The outcome is unknown, and the request does not run again before it is resolved.
    Unknown,
}

impl RetentionPolicy {
    /// What becomes of the key after a response with this status and these headers.
    ///
    /// 2xx, 3xx and 4xx are answers. Some 4xx are none: they are about the moment, about the
    /// credentials of the client, or about what it wrote (400 and 422), and the next try may fare
    /// better. So is a 503 with `Retry-After`. After another 5xx it is unknown how far the handler
    /// came. The route's owner may say for each of these statuses what it comes to.
    pub fn for_response(
        status: StatusCode,
        headers: &HeaderMap,
        on_failure: &FailurePolicy,
    ) -> Self {
        let status = status.as_u16();
        let rule = match (on_failure.by_status.get(&status), status) {
            (Some(rule), _) => *rule,
            (None, 400 | 401 | 403 | 407 | 408 | 421 | 422 | 425 | 426 | 429) => OnFailure::Release,
            (None, ..500) => return Self::Answer,
            (None, _) => on_failure.for_server_error(status, headers),
        };
        match rule {
            OnFailure::Release => Self::Release,
            OnFailure::Unknown => Self::Unknown,
        }
    }
}

/// In an upstream's response: what the record keeps of it. No client sees it.
#[cfg(feature = "gateway")]
pub(crate) const KEYLATCH_KEEP: axum::http::HeaderName =
    axum::http::HeaderName::from_static("keylatch-keep");

/// In the extensions of a response: how long it is kept, whatever the guard says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepFor(pub Duration);

#[cfg(feature = "gateway")]
impl KeepFor {
    const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

    fn parse(parameter: &str) -> Option<Self> {
        let seconds = parameter.trim().strip_prefix("for=")?.parse().ok()?;
        (1..=Self::MAX_SECONDS).contains(&seconds).then(|| Self(Duration::from_secs(seconds)))
    }
}

/// What an upstream says of its response by [`KEYLATCH_KEEP`]; `None` where that is there and says
/// nothing that is known.
#[cfg(feature = "gateway")]
pub(crate) fn read_keep(headers: &HeaderMap) -> Option<(Option<RetentionPolicy>, Option<KeepFor>)> {
    let mut values = headers.get_all(KEYLATCH_KEEP).iter();
    let Some(value) = values.next() else { return Some((None, None)) };
    let mut parts = value.to_str().ok().filter(|_| values.next().is_none())?.split(';');
    let policy = match parts.next()?.trim() {
        "response" => RetentionPolicy::Answer,
        "status" => RetentionPolicy::Status,
        "nothing" => RetentionPolicy::Release,
        _ => return None,
    };
    let lasts = match parts.next() {
        Some(parameter) => Some(KeepFor::parse(parameter)?),
        None => None,
    };
    parts.next().is_none().then_some((Some(policy), lasts))
}
