//! A guarded route of the configuration: what each setting must be, and the route that it comes to.
//!
//! `config/keylatch.toml` says what each setting means. The routes are those of the gateway under the
//! layer. Tested in `tests/api/idempotency_gateway.rs` and `tests/cli/config`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, Uri};
use serde::Deserialize;

use crate::gateway::{Admission, Gateway, Principal, PrincipalHeader, ServerHooks};
use crate::{BodyLimits, FailurePolicy, IdempotencyLayer, OnFailure, Policy};
use keylatch_client::https::HttpsClient;
use keylatch_core::idempotency::{IdempotencyService, OnCrash};

/// The methods that change nothing, and so are never guarded (RFC 9110, section 9.2.1).
const SAFE: [Method; 4] = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
/// What a guarded request may take beside its waits: two steps of the store, and some.
const SLACK: Duration = Duration::from_secs(10);

/// A guarded route: one `[[guard]]` of the configuration, where `config/keylatch.toml` says what
/// each setting means.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Guard {
    pub path: String,
    pub upstream: String,
    pub methods: Vec<String>,
    pub require_key: bool,
    pub on_failure: FailurePolicy,
    pub on_crash: OnCrash,
    pub lease_ms: u64,
    pub retention_ms: u64,
    pub max_wait_ms: u64,
    pub timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub body_limit_bytes: usize,
    pub answer_limit_bytes: usize,
    pub ignore_fields: Vec<String>,
    pub principal_header: String,
    pub require_principal: bool,
    pub cross_origin: CrossOrigin,
    pub access: GuardAccess,
    pub upstream_idempotent: bool,
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

impl Default for Guard {
    fn default() -> Self {
        Self {
            path: String::new(),
            upstream: String::new(),
            methods: vec!["POST".to_owned(), "PATCH".to_owned()],
            require_key: true,
            on_failure: OnFailure::Unknown.into(),
            on_crash: OnCrash::Unknown,
            lease_ms: 30_000,
            retention_ms: 86_400_000,
            max_wait_ms: 30_000,
            timeout_ms: 30_000,
            body_timeout_ms: 10_000,
            body_limit_bytes: 1024 * 1024,
            answer_limit_bytes: 1024 * 1024,
            ignore_fields: Vec::new(),
            principal_header: String::new(),
            require_principal: true,
            cross_origin: CrossOrigin::Refuse,
            access: GuardAccess::Public,
            upstream_idempotent: false,
        }
    }
}

impl Guard {
    /// What types alone do not rule out: the setting, and what it must be.
    ///
    /// # Errors
    ///
    /// A setting is not as it must be.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        let whole = self.path.starts_with('/') && !self.path.ends_with('/');
        let steps = self.path.split('/').skip(1);
        let dots = steps.into_iter().any(|step| matches!(step, "" | "." | ".."));
        rule(
            "path",
            whole && !dots && self.path.chars().all(plain),
            "must be a path like `/v1/orders`, of A-Z a-z 0-9 - _ . ~ and without a slash at its end",
        )?;
        rule(
            "upstream",
            self.origin().is_some(),
            "must be a URL like `http://orders.internal:8080`, without a path",
        )?;
        rule(
            "methods",
            self.methods().is_some(),
            "must be one or more methods that change something, in capitals, such as `POST`",
        )?;
        rule("lease_ms", (100..=86_400_000).contains(&self.lease_ms), "must be 100 to 86400000")?;
        rule(
            "retention_ms",
            (1000..=31_536_000_000).contains(&self.retention_ms),
            "must be 1000 to 31536000000",
        )?;
        rule("max_wait_ms", self.max_wait_ms <= 300_000, "must be at most 300000")?;
        rule("timeout_ms", (1..=3_600_000).contains(&self.timeout_ms), "must be 1 to 3600000")?;
        rule("body_timeout_ms", self.body_timeout_ms > 0, "must be more than 0")?;
        rule(
            "principal_header",
            self.principal_header.is_empty() || self.principal().is_some(),
            "must be the name of a header",
        )?;
        rule(
            "principal_header",
            self.principal_header.is_empty() || self.access == GuardAccess::Public,
            "must be empty with `access = \"identity\"`: the identity is the principal",
        )
    }

    /// How long a request may take altogether.
    pub fn deadline(&self) -> Duration {
        let waits = self.body_timeout_ms + self.max_wait_ms + self.timeout_ms;
        Duration::from_millis(waits) + SLACK
    }

    /// The routes of the service behind. `None` when [`Guard::check`] says why not.
    pub fn upstream(
        &self,
        client: &HttpsClient<Body>,
        server: ServerHooks,
    ) -> Option<Router> {
        let timeout = Duration::from_millis(self.timeout_ms);
        let tries = if self.upstream_idempotent { 3 } else { 1 };
        let gateway = Gateway::new(client.clone(), self.origin()?, timeout, tries, server);
        Some(gateway.router(&self.path))
    }

    /// What lets requests in, beside these other guards. `None` when [`Guard::check`] says why not.
    pub fn admission(&self, others: &[Self]) -> Option<Admission> {
        let inner = others.iter().filter(|other| holds(&self.path, &other.path));
        let inner = inner.map(|guard| guard.path.clone()).filter(|path| *path != self.path);
        let principal = self.principal().map(|name| PrincipalHeader {
            name,
            is_credential: self.names_a_credential(),
            is_required: self.require_principal,
        });
        Some(Admission::new(principal, self.methods()?, inner.collect()))
    }

    /// What runs each request once. `None` when [`Guard::check`] says why not.
    pub fn layer(
        &self,
        service: Arc<IdempotencyService>,
        server: ServerHooks,
    ) -> Option<IdempotencyLayer> {
        Some(IdempotencyLayer::over(service, self.policy(server)?))
    }

    fn policy(&self, server: ServerHooks) -> Option<Policy> {
        let is_identity = self.access == GuardAccess::Identity;
        let principal = move |parts: &Parts| {
            if is_identity {
                return (server.identity)(parts);
            }
            Some(parts.extensions.get::<Principal>()?.0.clone())
        };
        Some(Policy {
            methods: self.methods()?,
            require_key: self.require_key,
            on_failure: self.on_failure.clone(),
            on_crash: self.on_crash,
            lease: Duration::from_millis(self.lease_ms),
            answer_timeout: Some(Duration::from_millis(self.timeout_ms)),
            retention: Duration::from_millis(self.retention_ms),
            max_wait: Duration::from_millis(self.max_wait_ms),
            body_limits: BodyLimits {
                bytes: self.body_limit_bytes,
                time: Duration::from_millis(self.body_timeout_ms),
            },
            answer_limit: self.answer_limit_bytes,
            ignore: self.ignore_fields.clone(),
            principal: Arc::new(principal),
            principal_is_secret: self.names_a_credential(),
            resolve_url: Arc::new(move |scope| Some((server.resolve_url)(scope))),
        })
    }

    /// Whether the header of the principal is one that has a secret, by its name. To take another for one
    /// costs an operator the principal in a list, and the reverse would put a secret into the store.
    fn names_a_credential(&self) -> bool {
        let name = self.principal_header.to_ascii_lowercase();
        ["auth", "cookie", "key", "secret", "token"].iter().any(|part| name.contains(part))
    }

    /// The guarded methods. Methods are case-sensitive, so `post` is one that no client sends.
    fn methods(&self) -> Option<BTreeSet<Method>> {
        let parse = |method: &String| {
            let is_upper = !method.bytes().any(|byte| byte.is_ascii_lowercase());
            Method::from_bytes(method.as_bytes()).ok().filter(|_| is_upper)
        };
        let methods: Option<BTreeSet<_>> = self.methods.iter().map(parse).collect();
        let methods = methods.filter(|methods| !methods.is_empty());
        methods.filter(|methods| SAFE.iter().all(|safe| !methods.contains(safe)))
    }

    fn principal(&self) -> Option<HeaderName> {
        HeaderName::from_bytes(self.principal_header.as_bytes()).ok()
    }

    /// The scheme and authority of the service behind the guard.
    fn origin(&self) -> Option<Uri> {
        let uri: Uri = self.upstream.parse().ok()?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        let bare = uri.path() == "/" && uri.query().is_none() && !self.upstream.ends_with('/');
        let named = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        (known && bare && named).then_some(uri)
    }
}

/// Whether a path is another one or above it.
pub fn holds(outer: &str, inner: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn rule(
    key: &'static str,
    holds: bool,
    rule: &'static str,
) -> Result<(), (&'static str, &'static str)> {
    if holds { Ok(()) } else { Err((key, rule)) }
}
