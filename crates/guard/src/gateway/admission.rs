//! What happens to a request at a guarded route before the layer reads it: it becomes what the upstream may
//! read.
//!
//! The layer takes key, principal and fingerprint from the same request that the gateway sends on, so
//! whatever is taken away is taken away before. What keylatch adds for the upstream (fencing token, key, where the
//! request comes from) is added behind this, where no client reaches it and no repeat pays for it. It is a step of the
//! one middleware and costs no layer. Tested in `tests/api/gateway_headers.rs`, `gateway_paths.rs` and `principals.rs`.

use axum::extract::Request;
use axum::http::HeaderName;

use super::forwarding::{
    FORWARDED, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, is_claim,
};
use super::headers::{offer_upgrade, remove_those, strip, upgrade_of};
use super::path_reading::PathReading;
use super::principal::{PrincipalHeader, TrustedProxy};
use crate::guard::is_plain_header;
use crate::response::is_mark;
use crate::{Code, Guard, GuardAccess, IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY, Problem};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The headers that are keylatch's or a trusted proxy's to set, on every guarded route.
const OWN_HEADERS: [HeaderName; 7] = [
    IDEMPOTENCY_FENCE,
    IDEMPOTENCY_KEY,
    FORWARDED,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    X_REQUEST_ID,
];

/// What a guarded route lets in.
#[derive(Debug)]
pub struct Admission {
    /// [`OWN_HEADERS`], and that of the principal.
    own_headers: Vec<HeaderName>,
    /// The paths of the guards within this one.
    inner_guards: Vec<String>,
    principal: Option<PrincipalHeader>,
    guard: Guard,
}

impl Admission {
    /// The rules of a guard beside these other guards.
    pub fn new(guard: &Guard, others: &[Guard]) -> Self {
        let principal = PrincipalHeader::of(guard);
        let of_principal = principal.as_ref().map(|header| header.name.clone());
        let own_headers = OWN_HEADERS.into_iter().chain(of_principal).collect();
        let paths = others.iter().map(|other| &other.path);
        let inner = paths.filter(|path| holds(&guard.path, path) && **path != guard.path);
        let inner_guards = inner.cloned().collect();
        Self { own_headers, inner_guards, principal, guard: guard.clone() }
    }

    /// Who may use the route.
    pub fn access(&self) -> GuardAccess {
        self.guard.access
    }

    /// Takes from a request what its client may not say to the upstream.
    ///
    /// # Errors
    ///
    /// The guard does not let the request in: its path, its upgrade or its principal is none that it takes.
    pub fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        self.check_path(request.uri().path())?;
        let is_guarded = self.guard.guards(request.method());
        let protocols = upgrade_of(request.headers());
        if is_guarded && protocols.is_some() {
            let detail = "A guarded request cannot become another protocol. Nothing was run.";
            return Err(Problem::new(Code::UpgradeRefused, detail).with_field("Upgrade"));
        }
        let is_trusted = request.extensions().get::<TrustedProxy>().is_some();
        let headers = request.headers_mut();
        strip(headers, &self.own_headers);
        remove_those(headers, |name| self.drops(name, is_trusted));
        if let Some(principal) = &self.principal {
            principal.read(request, is_guarded)?;
        }
        if let Some(protocols) = protocols {
            offer_upgrade(request.headers_mut(), protocols);
        }
        Ok(())
    }

    /// Whether nobody but keylatch and its proxies has to say what a header says.
    fn drops(&self, name: &HeaderName, is_trusted: bool) -> bool {
        let is_principal = self.principal.as_ref().is_some_and(|header| header.name == *name);
        // CGI, WSGI and PHP take `_` for `-`, and so one name for another.
        !is_plain_header(name.as_str())
            || is_mark(name)
            || self
                .guard
                .drop_headers
                .iter()
                .any(|dropped| name.as_str().eq_ignore_ascii_case(dropped))
            || !is_principal && is_claim(name, is_trusted)
    }

    fn check_path(&self, path: &str) -> Result<(), Problem> {
        let refused = |detail| Err(Problem::new(Code::NotFound, detail));
        let Some(reading) = PathReading::of(path).filter(|reading| !reading.climbs()) else {
            return refused("A path with `..`, or with what may hide one, is not sent on.");
        };
        let is_within = |guard: &String| !reading.is_plain() || reading.is_within(guard);
        if self.inner_guards.iter().any(is_within) {
            return refused(
                "Written so, the path is not sent on: a server may read it as that of another guard.",
            );
        }
        Ok(())
    }
}

/// Whether a path is another one or above it.
pub fn holds(outer: &str, inner: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
