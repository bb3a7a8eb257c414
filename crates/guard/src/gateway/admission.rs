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
    FORWARDED, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, remove_claims,
};
use super::headers::{offer_upgrade, remove_twins, strip, upgrade_of};
use super::path_reading::PathReading;
use super::principal::PrincipalHeader;
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
        let headers = request.headers_mut();
        strip(headers, &self.own_headers);
        remove_twins(headers, &self.own_headers);
        if let Some(principal) = &self.principal {
            principal.read(request, is_guarded)?;
        }
        remove_claims(request);
        if let Some(protocols) = protocols {
            offer_upgrade(request.headers_mut(), protocols);
        }
        Ok(())
    }

    fn check_path(&self, path: &str) -> Result<(), Problem> {
        let reading = PathReading::of(path);
        if reading.climbs() {
            return Err(Problem::new(Code::NotFound, "A path with `..` is not sent on."));
        }
        if self.inner_guards.iter().any(|guard| reading.is_within(guard)) {
            let detail = "Written so, the path is not sent on: a server may read it as that of another guard.";
            return Err(Problem::new(Code::NotFound, detail));
        }
        Ok(())
    }
}

/// Whether a path is another one or above it.
pub fn holds(outer: &str, inner: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
