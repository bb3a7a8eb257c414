//! What happens to a request at a guarded route before the layer reads it: it becomes what the
//! upstream may read.
//!
//! The layer takes key, principal and fingerprint from the same request that the gateway sends on,
//! so whatever is taken away is taken away before. What keylatch adds for the upstream (fencing
//! token, key, where the request comes from) is added behind this, where no client reaches it and
//! no repeat pays for it. It is a step of the one middleware and costs no layer. Tested in
//! `tests/api/gateway_headers.rs`, `gateway_paths.rs` and `principals.rs`.

use std::io;

use axum::extract::Request;
use axum::http::{HeaderName, Method};

use super::error_page::ErrorPage;
use super::forwarding::{
    FORWARDED, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, is_claim,
};
use super::headers::{offer_upgrade, remove_those, strip, upgrade_of};
use super::principal::{PrincipalHeader, TrustedProxy};
use crate::guard::is_plain_header;
use crate::observe::WouldRefuse;
use crate::path_reading::PathReading;
use crate::response::{X_REQUEST_ID, is_mark};
use crate::submission::check_method;
use crate::{Code, Guard, GuardAccess, IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY, Problem};

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
    inner_guards: Vec<String>,
    principal: Option<PrincipalHeader>,
    /// What names the principal at other guards, whose upstream may be the same.
    other_principals: Vec<HeaderName>,
    page: ErrorPage,
    guard: Guard,
}

impl Admission {
    /// The rules of a guard beside these other guards.
    ///
    /// # Errors
    ///
    /// Its `error_page` cannot be read.
    pub fn new(guard: &Guard, others: &[Guard]) -> io::Result<Self> {
        let principal = PrincipalHeader::of(guard);
        let of_principal = principal.as_ref().map(|header| header.name.clone());
        let other_principals = others.iter().filter_map(PrincipalHeader::of);
        let other_principals = other_principals.filter(|header| !header.is_credential);
        let other_principals: Vec<_> = other_principals.map(|header| header.name).collect();
        let own_headers = OWN_HEADERS.into_iter().chain(of_principal);
        let own_headers = own_headers.chain(other_principals.iter().cloned()).collect();
        let page = ErrorPage::read(&guard.error_page)?;
        let (inner_guards, guard) = (guard.paths_within(others), guard.clone());
        Ok(Self { own_headers, inner_guards, principal, other_principals, page, guard })
    }

    /// Who may use the route.
    pub fn access(&self) -> GuardAccess {
        self.guard.access
    }

    /// Whether each response to a request of this method says where its key comes from.
    pub fn names_source(&self, method: &Method) -> bool {
        !self.guard.path.is_empty() && !self.guard.observes() && self.guard.guards(method)
    }

    /// The page for a browser whose request the guard refuses.
    pub fn page(&self) -> &ErrorPage {
        &self.page
    }

    /// Takes from a request what its client may not say to the upstream.
    ///
    /// # Errors
    ///
    /// The guard does not let the request in: its path, its upgrade or its principal is none that
    /// it takes.
    pub fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        self.check_path(request.uri().path(), request.method())?;
        if self.guard.path.is_empty() {
            // At a guard its layer does both.
            check_method(&self.guard, request)?;
            request.headers_mut().remove(IDEMPOTENCY_FENCE);
        }
        let is_guarded = self.guard.guards(request.method());
        let protocols = upgrade_of(request.headers());
        if is_guarded && protocols.is_some() {
            let detail = "A guarded request cannot become another protocol. Nothing was run.";
            let problem = Problem::new(Code::UpgradeRefused, detail).with_field("Upgrade");
            self.refuse(request, problem)?;
        }
        let is_trusted = request.extensions().get::<TrustedProxy>().is_some();
        let headers = request.headers_mut();
        strip(headers, &self.own_headers);
        remove_those(headers, |name| self.drops(name, is_trusted));
        if let Some(principal) = &self.principal {
            principal.read(request, is_guarded).or_else(|why| self.refuse(request, why))?;
        }
        if let Some(protocols) = protocols {
            offer_upgrade(request.headers_mut(), protocols);
        }
        Ok(())
    }

    /// Refuses a request, unless a guard that only observes would do so: then it passes, and is
    /// counted as refused.
    ///
    /// # Errors
    ///
    /// The guard enforces, or it is not the guard that refuses.
    pub fn refuse(&self, request: &mut Request, problem: Problem) -> Result<(), Problem> {
        let is_of_guard = matches!(
            problem.code(),
            Code::CrossOrigin
                | Code::UnsupportedMediaType
                | Code::UpgradeRefused
                | Code::PrincipalRequired
                | Code::InvalidPrincipal
        );
        if !self.guard.observes() || !is_of_guard {
            return Err(problem);
        }
        request.extensions_mut().insert(WouldRefuse);
        Ok(())
    }

    /// Whether nobody but keylatch and its proxies has to say what a header says.
    fn drops(&self, name: &HeaderName, is_trusted: bool) -> bool {
        let is_own = self.principal.as_ref().is_some_and(|header| header.name == *name);
        let is_others = !is_own && self.other_principals.contains(name);
        // CGI, WSGI and PHP take `_` for `-`, and so one name for another.
        !is_plain_header(name.as_str())
            || is_mark(name)
            || self
                .guard
                .drop_headers
                .iter()
                .any(|dropped| name.as_str().eq_ignore_ascii_case(dropped))
            || is_others && !is_trusted
            || !is_own && !is_others && is_claim(name, is_trusted)
    }

    fn check_path(&self, path: &str, method: &Method) -> Result<(), Problem> {
        let refused = |detail| Err(Problem::new(Code::NotFound, detail));
        let reading = PathReading::of(path).filter(|_| path.starts_with('/'));
        let Some(reading) = reading.filter(|reading| !reading.climbs()) else {
            return refused("A path with `..`, or with what may hide one, is not sent on.");
        };
        let changes = !method.is_safe();
        let is_within = |guard: &String| !reading.is_plain() || reading.is_within(guard, changes);
        if self.inner_guards.iter().any(is_within) {
            return refused(
                "Written so, the path is not sent on: a server may read it as that of another guard.",
            );
        }
        Ok(())
    }
}

impl Guard {
    /// The paths of those of these guards that are within this one.
    pub(super) fn paths_within(&self, others: &[Self]) -> Vec<String> {
        let paths = others.iter().map(|other| &other.path);
        let inner = paths.filter(|path| holds(&self.path, path) && **path != self.path);
        inner.cloned().collect()
    }
}

/// Whether a path is another one or above it.
pub fn holds(outer: &str, inner: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
