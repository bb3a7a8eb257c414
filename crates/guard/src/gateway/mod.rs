//! The gateway of the service: guarded routes in front of another service.
//!
//! [`Admission`] takes from a request what its client may not say, the layer runs it once, and the
//! proxy sends it on. What only the server around them knows they ask [`ServerHooks`]. Tested in
//! `tests/api/idempotency_gateway.rs`, the `gateway_*.rs` files beside it, and `tests/cli/config`.

mod admission;
mod error_page;
mod forwarding;
mod headers;
mod principal;
mod proxy;
mod settle;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Uri;
use axum::http::request::Parts;

use self::principal::PrincipalHeader;
use self::proxy::Gateway;
use crate::guard::{PLAIN_HEADERS, is_plain_header, rule};
use crate::{CrossOrigin, FieldName, Guard, GuardAccess, IdempotencyLayer, InvalidSetting};
use keylatch_client::https::HttpsClient;
use keylatch_core::idempotency::{IdempotencyService, Principal};

pub use admission::{Admission, holds};
pub use error_page::{ErrorPage, wants_page};
pub use forwarding::{ClientConnection, client_address};
pub use principal::TrustedProxy;
pub use proxy::{EndCall, ServerHooks, Tunnel};
pub use settle::{SettleObserver, SettleStep, SettleTurn};

/// What a guarded request may take beside its waits: two steps of the store, and some.
const SLACK: Duration = Duration::from_secs(10);

impl Guard {
    /// [`check`](Self::check), and what a route in front of an upstream needs.
    ///
    /// # Errors
    ///
    /// A setting is not as it must be.
    pub fn check_route(&self) -> Result<(), InvalidSetting> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        let whole = self.path.starts_with('/') && !self.path.ends_with('/');
        let dots = self.path.split('/').skip(1).any(|step| matches!(step, "" | "." | ".."));
        rule(
            "path",
            whole && !dots && self.path.chars().all(plain),
            "must be a path like `/v1/orders`, of A-Z a-z 0-9 - _ . ~ and without a slash at its end",
        )?;
        self.origin()?;
        rule("timeout_ms", (1..=3_600_000).contains(&self.timeout_ms), "must be 1 to 3600000")?;
        self.check()?;
        rule(
            "principal_header",
            self.principal_header.is_empty() || is_plain_header(&self.principal_header),
            "must be the name of a header, of A-Z a-z 0-9 -",
        )?;
        rule(
            "drop_headers",
            self.drop_headers.iter().all(|name| is_plain_header(name)),
            PLAIN_HEADERS,
        )?;
        rule(
            "principal_header",
            self.principal_header.is_empty() || self.access == GuardAccess::Public,
            "must be empty with `access = \"identity\"`: the identity is the principal",
        )?;
        let is_known = self.access == GuardAccess::Identity || !self.principal_header.is_empty();
        rule(
            "principal_header",
            is_known || !self.needs_principal(),
            "must name the header of whose request it is, since the key is made of that; or set `anonymous = true` in `derive`",
        )?;
        self.settle.as_ref().map_or(Ok(()), |settle| settle.check(self))
    }

    /// What lets every request through that these guards do not name, as strictly as they are read.
    pub fn around(upstream: &str, guards: &[Self]) -> Self {
        let all = |of: fn(&Self) -> &Vec<String>| guards.iter().flat_map(of).cloned().collect();
        Self {
            path: String::new(),
            upstream: upstream.to_owned(),
            methods: all(|guard| &guard.methods),
            drop_headers: all(|guard| &guard.drop_headers),
            // An app takes what other pages send it, and keeps what it has against them.
            cross_origin: CrossOrigin::Pass,
            // For uploads and long polls.
            timeout_ms: 300_000,
            ..Self::default()
        }
    }

    /// How long a request may take altogether.
    pub fn deadline(&self) -> Duration {
        let waits = self.body_timeout_ms + self.max_wait_ms + self.timeout_ms;
        Duration::from_millis(waits) + SLACK
    }

    /// The routes of the service behind.
    ///
    /// # Errors
    ///
    /// `upstream` is no URL of a service.
    pub fn upstream(
        &self,
        client: &HttpsClient<Body>,
        server: ServerHooks,
    ) -> Result<Router, InvalidSetting> {
        Ok(Gateway::new(self, client.clone(), server)?.router(&self.path))
    }

    /// What runs each request once.
    ///
    /// # Errors
    ///
    /// A setting is not as it must be.
    pub fn layer(
        &self,
        service: Arc<IdempotencyService>,
        server: ServerHooks,
    ) -> Result<IdempotencyLayer, InvalidSetting> {
        let is_identity = self.access == GuardAccess::Identity;
        let principal = move |parts: &Parts| match is_identity {
            true => (server.identity)(parts).map_or(Principal::None, Principal::Identity),
            false => parts.extensions.get::<Principal>().cloned().unwrap_or_default(),
        };
        let header = PrincipalHeader::of(self);
        let principal_is_secret = header.is_some_and(|header| header.is_credential);
        let layer = IdempotencyLayer::over(service)
            .with_guard(Self { principal_is_secret, ..self.clone() })?
            .with_answer_timeout(Duration::from_millis(self.timeout_ms))
            .with_principal_of(principal);
        Ok(layer.with_resolve_url(server.resolve_url).with_shares(&self.path, server.address))
    }

    /// What decides which requests are the same, and so has to be the same at all instances on one
    /// store: each setting by name, every spelling of it as one.
    pub fn shared_settings(&self) -> [(&'static str, Vec<String>); 12] {
        let set = |list: &[String], of: fn(&str) -> String| {
            list.iter().map(|one| of(one)).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let fields = |list: &[FieldName]| {
            set(&list.iter().map(ToString::to_string).collect::<Vec<_>>(), str::to_owned)
        };
        [
            ("mode", vec![format!("{:?}", self.mode)]),
            ("methods", set(&self.methods, str::to_owned)),
            ("access", vec![format!("{:?}", self.access)]),
            ("principal_header", vec![self.principal_header.to_ascii_lowercase()]),
            ("require_principal", vec![self.require_principal.to_string()]),
            ("key", self.key.iter().map(ToString::to_string).collect()),
            ("missing_key", vec![format!("{:?}", self.missing_key)]),
            ("derive", vec![format!("{:?}", self.derive)]),
            ("once_per", vec![format!("{:?}", self.once_per)]),
            ("ignore_fields", fields(&self.ignore_fields)),
            ("compare_fields", fields(&self.compare_fields)),
            ("fingerprint_headers", set(&self.fingerprint_headers, str::to_ascii_lowercase)),
        ]
    }

    /// Whether the service behind is called over TLS.
    pub fn calls_over_tls(&self) -> bool {
        self.origin().is_ok_and(|origin| origin.scheme_str() == Some("https"))
    }

    /// The scheme and authority of the service behind.
    ///
    /// # Errors
    ///
    /// `upstream` is no URL of a service.
    pub fn origin(&self) -> Result<Uri, InvalidSetting> {
        let uri = self.upstream.parse().ok().filter(|uri: &Uri| {
            let known = matches!(uri.scheme_str(), Some("http" | "https"));
            let bare = uri.path() == "/" && uri.query().is_none() && !self.upstream.ends_with('/');
            let named = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
            known && bare && named
        });
        let rule = if self.upstream.is_empty() {
            "is missing: a URL like `http://orders.internal:8080`, without a path"
        } else {
            "must be a URL like `http://orders.internal:8080`, without a path"
        };
        uri.ok_or(InvalidSetting { setting: "upstream", rule })
    }
}
