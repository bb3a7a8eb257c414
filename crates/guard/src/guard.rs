//! The settings of a guarded route, read from TOML or built in code, and what each must be.
//!
//! They are the data of a guard. What is code stands beside them: the functions of a layer
//! ([`IdempotencyLayer::with_principal`](crate::IdempotencyLayer::with_principal)), and the
//! gateway. In the service a guard is one `[[guard]]` of its configuration; `config/keylatch.toml`
//! describes the same settings for operators. Tested in `tests/cli/config` and over HTTP in the
//! `idempotency_*.rs` files of `tests/api`.

use std::time::Duration;

use axum::http::Method;
use serde::Deserialize;

use crate::fields::CountedFields;
use crate::key_source::{DeriveKey, KeyPart, KeySource, MissingKey};
use crate::{FailurePolicy, FieldName, OnFailure};
use keylatch_core::idempotency::OnCrash;

const DAY_MILLIS: u64 = 86_400_000;
const YEAR_MILLIS: u64 = 365 * DAY_MILLIS;

/// The methods that a guard may have: those of HTTP and of WebDAV that change something.
const GUARDABLE: [&str; 10] =
    ["POST", "PUT", "PATCH", "DELETE", "COPY", "LOCK", "MKCOL", "MOVE", "PROPPATCH", "UNLOCK"];

/// The headers that say what is asked, where a guard names no others: which operation, of which
/// version or part of a resource, and where it goes. No client changes them between two tries.
const FINGERPRINT_HEADERS: [&str; 6] = [
    "SOAPAction",
    "X-Amz-Target",
    "If-Match",
    "Content-Range",
    "Destination",
    "Content-Disposition",
];

/// How requests are guarded.
///
/// The default guards POST and PATCH, requires a key, and leaves an unknown outcome after a failure
/// and after a crash; a run has a lease of 30 s, and its answer is stored for a day. What is about
/// the upstream means nothing to a layer in a program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// The path: itself and all below it. A more specific guard wins.
    pub path: String,
    /// Scheme, host and port of the service that runs the requests.
    pub upstream: String,
    /// Whether requests run once, or pass and are counted.
    pub mode: Mode,
    /// The methods that are guarded, in capitals; requests of others pass through.
    pub methods: Vec<String>,
    /// Where the key of a request is. The first source that the request has counts.
    pub key: Vec<KeySource>,
    /// What becomes of a request that has no key.
    pub missing_key: MissingKey,
    /// How a key is derived where `missing_key` says so.
    pub derive: DeriveKey,
    /// The guard makes the key of these parts: one request runs for each principal, for each path,
    /// or for each pair of both. Empty where keys are used.
    pub once_per: Vec<KeyPart>,
    /// What a server error or a panic comes to.
    pub on_failure: FailurePolicy,
    /// What a process that dies in the middle leaves behind.
    pub on_crash: OnCrash,
    /// What becomes of a request where the store cannot be used, and nothing was begun.
    pub on_store_down: OnStoreDown,
    /// How long the lease of a run lasts unless renewed; the layer renews it at a third.
    pub lease_ms: u64,
    /// How long a record is kept after its run has ended: a day, or 365 with `once_per`, unless
    /// said otherwise. A derived key has its window instead.
    pub retention_ms: Option<u64>,
    /// The longest wait that `Prefer: wait` is granted.
    pub max_wait_ms: u64,
    /// How long the upstream may take for its whole response.
    pub timeout_ms: u64,
    /// How long the body of a request may take to arrive.
    pub body_timeout_ms: u64,
    /// The largest body of a request.
    pub body_limit_bytes: usize,
    /// The largest answer that is stored, headers and body. Of a larger one the record keeps no
    /// body.
    pub response_limit_bytes: usize,
    /// Fields of JSON or of a form that may differ between two tries.
    pub ignore_fields: Vec<FieldName>,
    /// The opposite: the fields that alone count. Empty where all do that are not ignored.
    pub compare_fields: Vec<FieldName>,
    /// Headers that say what is asked, and so count for whether two requests are the same.
    pub fingerprint_headers: Vec<String>,
    /// Further headers that are taken from every request.
    pub drop_headers: Vec<String>,
    /// Whether the principal is a credential: then it tells keys apart, and no store keeps it. Set
    /// in code alone.
    #[serde(skip)]
    pub principal_is_secret: bool,
    /// The header that names the principal of a request; empty where all clients share their keys.
    pub principal_header: String,
    /// Whether a guarded request without that header is refused.
    pub require_principal: bool,
    /// Whether the route takes requests of foreign pages.
    pub cross_origin: CrossOrigin,
    /// The file of the page that a browser shows in place of a problem; empty for keylatch's own.
    pub error_page: String,
    /// Who may use the route.
    pub access: GuardAccess,
    /// Whether a request that got no answer is sent again, because the upstream is idempotent by
    /// itself.
    pub upstream_idempotent: bool,
    /// How the upstream is asked what became of a run whose outcome is unknown; without it a person
    /// finds out.
    pub settle: Option<Settle>,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            path: String::new(),
            upstream: String::new(),
            mode: Mode::Enforce,
            methods: vec!["POST".to_owned(), "PATCH".to_owned()],
            key: KeySource::standard(),
            missing_key: MissingKey::Refuse,
            derive: DeriveKey::default(),
            once_per: Vec::new(),
            on_failure: OnFailure::Unknown.into(),
            on_crash: OnCrash::Unknown,
            on_store_down: OnStoreDown::Refuse,
            lease_ms: 30_000,
            retention_ms: None,
            max_wait_ms: 30_000,
            timeout_ms: 30_000,
            body_timeout_ms: 10_000,
            body_limit_bytes: 1024 * 1024,
            response_limit_bytes: 1024 * 1024,
            ignore_fields: Vec::new(),
            compare_fields: Vec::new(),
            fingerprint_headers: FINGERPRINT_HEADERS.map(str::to_owned).to_vec(),
            drop_headers: Vec::new(),
            principal_is_secret: false,
            principal_header: String::new(),
            require_principal: true,
            cross_origin: CrossOrigin::Refuse,
            error_page: String::new(),
            access: GuardAccess::Public,
            upstream_idempotent: false,
            settle: None,
        }
    }
}

/// What a guard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Each request runs once.
    Enforce,
    /// Each request passes as it came, and is counted by what enforcing would have made of it.
    Observe,
}

/// What becomes of a request where the store cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreDown {
    /// It is refused.
    Refuse,
    /// It runs unguarded, so a repeat runs too.
    Pass,
}

/// How an upstream is asked what became of a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settle {
    /// The path and query of the question, with `{key}` in the place of the key. Required.
    pub get: String,
    /// The statuses that say that it was done. The response is kept.
    pub done: Vec<u16>,
    /// The statuses that say that nothing was done. The key becomes free.
    pub not_done: Vec<u16>,
    /// How long an outcome has to be unknown before `not_done` counts.
    pub after_ms: u64,
    /// How long one round of questions is after the other.
    pub every_ms: u64,
    /// How long an outcome may be unknown and is asked for. Then it is left to a person.
    pub for_ms: u64,
}

impl Default for Settle {
    fn default() -> Self {
        Self {
            get: String::new(),
            done: vec![200],
            not_done: vec![404],
            after_ms: 30_000,
            every_ms: 10_000,
            for_ms: 3_600_000,
        }
    }
}

/// Who may use a guarded route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardAccess {
    /// Every client: it is for end users, whose `Authorization` belongs to the service behind.
    Public,
    /// The clients with an identity, in `Keylatch-Authorization`, which is then the principal.
    Identity,
}

/// Whether a guarded route takes requests of foreign pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrossOrigin {
    /// No: 403.
    Refuse,
    /// Yes, whatever they send: for callbacks, such as a bank's.
    Pass,
}

/// What the body of a request may be.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// How large, in bytes.
    pub bytes: usize,
    /// How long it may take to arrive.
    pub time: Duration,
}

/// A setting that is not as it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`{setting}` {rule}")]
pub struct InvalidSetting {
    /// Its name.
    pub setting: &'static str,
    /// What it must be.
    pub rule: &'static str,
}

impl Guard {
    /// What types alone do not rule out.
    ///
    /// # Errors
    ///
    /// A setting is not as it must be.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        rule(
            "methods",
            !self.methods.is_empty() && self.methods.iter().all(|one| GUARDABLE.contains(&&**one)),
            "must be one or more of POST, PUT, PATCH, DELETE, COPY, LOCK, MKCOL, MOVE, PROPPATCH and UNLOCK",
        )?;
        rule(
            "fingerprint_headers",
            self.fingerprint_headers.iter().all(|name| is_plain_header(name)),
            PLAIN_HEADERS,
        )?;
        rule(
            "compare_fields",
            self.compare_fields.is_empty() || self.ignore_fields.is_empty(),
            "replaces `ignore_fields`: leave that out",
        )?;
        self.check_keys()?;
        rule("lease_ms", (100..=86_400_000).contains(&self.lease_ms), "must be 100 to 86400000")?;
        rule(
            "retention_ms",
            self.retention_ms.is_none_or(|retention| (1000..=YEAR_MILLIS).contains(&retention)),
            "must be 1000 to 31536000000",
        )?;
        rule("max_wait_ms", self.max_wait_ms <= 300_000, "must be at most 300000")?;
        rule("body_timeout_ms", self.body_timeout_ms > 0, "must be more than 0")
    }

    fn check_keys(&self) -> Result<(), InvalidSetting> {
        rule("key", !self.key.is_empty(), "must name one source or more")?;
        let (derives, issued) = (self.missing_key == MissingKey::Derive, self.takes_issued_keys());
        rule("key", !issued || self.key.len() == 1, "must have no other source beside `issued`")?;
        let is_strict = !issued || self.missing_key == MissingKey::Refuse;
        rule("missing_key", is_strict, "must be `refuse` with `key = [\"issued\"]`")?;
        let is_used = derives || self.derive == DeriveKey::default();
        rule("derive", is_used, "needs `missing_key = \"derive\"`")?;
        if let Some(derive) = self.derive() {
            rule(
                "derive",
                derive.anonymous || derive.of.contains(&KeyPart::Principal),
                "needs `principal` in `of`, or `anonymous = true`: two people who buy the same thing at once are two",
            )?;
            let window = (1000..=86_400_000).contains(&derive.window_ms);
            rule("derive", window, "needs a `window_ms` of 1000 to 86400000")?;
        }
        let is_whole = |part: &KeyPart| matches!(part, KeyPart::Principal | KeyPart::Path);
        rule("once_per", self.once_per.iter().all(is_whole), "may have `principal` and `path`")?;
        let uses_keys = self.missing_key != MissingKey::Refuse || self.key != KeySource::standard();
        rule(
            "once_per",
            self.once_per.is_empty() || !uses_keys,
            "replaces `key`, `missing_key` and `derive`: leave them out",
        )?;
        rule(
            "on_crash",
            self.once_per.is_empty() || self.on_crash == OnCrash::Unknown,
            "must be `unknown` with `once_per`: another request would wait a year for the one that was interrupted",
        )?;
        rule(
            "on_store_down",
            self.on_store_down == OnStoreDown::Refuse || (self.once_per.is_empty() && !issued),
            "must be `refuse` with `once_per` and `issued`: what is done once would be done again",
        )
    }

    pub(crate) fn derive(&self) -> Option<&DeriveKey> {
        (self.missing_key == MissingKey::Derive).then_some(&self.derive)
    }

    /// Whether a key is made of whose request it is, so that a request of nobody has none.
    pub(crate) fn needs_principal(&self) -> bool {
        let derive = self.derive();
        let derived =
            derive.is_some_and(|one| one.of.contains(&KeyPart::Principal) && !one.anonymous);
        derived || self.once_per.contains(&KeyPart::Principal)
    }

    /// Whether it refuses nothing and runs everything.
    pub fn observes(&self) -> bool {
        self.mode == Mode::Observe
    }

    /// Whether it takes the keys that the service issues, and no others.
    pub fn takes_issued_keys(&self) -> bool {
        self.key.contains(&KeySource::Issued)
    }

    /// Whether each request needs an `Idempotency-Key`, in its header or in a form.
    pub fn asks_for_header(&self) -> bool {
        !self.observes()
            && self.missing_key == MissingKey::Refuse
            && (self.key == KeySource::standard() || self.takes_issued_keys())
            && self.once_per.is_empty()
    }

    /// How long a record is kept whose key is not derived.
    pub fn retention(&self) -> Duration {
        let standard = if self.once_per.is_empty() { DAY_MILLIS } else { YEAR_MILLIS };
        Duration::from_millis(self.retention_ms.unwrap_or(standard))
    }

    pub(crate) fn counted_fields(&self) -> CountedFields {
        match self.compare_fields.as_slice() {
            [] => CountedFields::AllBut(self.ignore_fields.clone()),
            only => CountedFields::Only(only.to_vec()),
        }
    }

    pub(crate) fn guards(&self, method: &Method) -> bool {
        self.methods.iter().any(|guarded| guarded == method.as_str())
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub(crate) fn body_limits(&self) -> BodyLimits {
        let time = Duration::from_millis(self.body_timeout_ms);
        BodyLimits { bytes: self.body_limit_bytes, time }
    }
}

/// Whether a text is the name of a header that every server takes for the same.
pub(crate) fn is_plain_header(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(crate) const PLAIN_HEADERS: &str = "must be names of headers, of A-Z a-z 0-9 -";

pub(crate) fn rule(
    setting: &'static str,
    holds: bool,
    rule: &'static str,
) -> Result<(), InvalidSetting> {
    if holds { Ok(()) } else { Err(InvalidSetting { setting, rule }) }
}
