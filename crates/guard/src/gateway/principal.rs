//! Whose request it is at a guarded route, as a header says.
//!
//! A proxy in front sets the header when a person has signed in, so it is believed from trusted
//! proxies, and taken off requests of all others: the upstream believes it too. A credential
//! (`Authorization`, `Cookie`) is the client's own, proves itself and is the upstream's to check,
//! so it is believed from every client. Tested in `tests/api/principals.rs`.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::{Code, Guard, Problem};
use keylatch_core::idempotency::Principal;

/// Begins the principal of a name that is not UTF-8. No header has this character, so no name is
/// like it.
const ENCODED: char = '\u{1}';

/// An extension of each request to a guarded route that a trusted proxy sent.
#[derive(Debug, Clone, Copy)]
pub struct TrustedProxy;

/// The header that names principals.
#[derive(Debug)]
pub(super) struct PrincipalHeader {
    pub(super) name: HeaderName,
    /// Whether its value is a credential, which proves itself.
    pub(super) is_credential: bool,
    /// Whether a guarded request has to have it.
    is_required: bool,
}

impl PrincipalHeader {
    /// That of a guard. A header that has a secret by its name is a credential. To take another for
    /// one costs an operator the principal in a list, and the reverse would put a secret into the
    /// store.
    pub(super) fn of(guard: &Guard) -> Option<Self> {
        let name = HeaderName::from_bytes(guard.principal_header.as_bytes()).ok()?;
        let of_secrets = ["auth", "cookie", "key", "secret", "token"];
        let is_credential = of_secrets.iter().any(|part| name.as_str().contains(part));
        Some(Self { name, is_credential, is_required: guard.require_principal })
    }

    /// Reads whose request it is, and leaves it in the extensions. A header that is there twice is
    /// refused, and a guarded request without one that counts.
    pub(super) fn read(&self, request: &mut Request, is_guarded: bool) -> Result<(), Problem> {
        if !self.is_credential && request.extensions().get::<TrustedProxy>().is_none() {
            request.headers_mut().remove(&self.name);
        }
        let mut values = request.headers().get_all(&self.name).iter();
        let value = values.next().filter(|value| !value.is_empty());
        if values.next().is_some() {
            let detail = "The header of the principal is there more than once. Nothing was run.";
            let problem = Problem::new(Code::InvalidPrincipal, detail);
            return Err(problem.with_field(self.name.as_str()));
        }
        if value.is_none() && is_guarded && self.is_required {
            let name = &self.name;
            let detail = match self.is_credential {
                true => format!(
                    "The request has no `{name}`, which `principal_header` of the guard names. Nothing was run."
                ),
                false => format!(
                    "No proxy of `server.trusted_proxies` says in `{name}`, which `principal_header` of the guard names, \
                     whose request this is. Nothing was run."
                ),
            };
            let problem = Problem::new(Code::PrincipalRequired, detail);
            return Err(problem.with_field(self.name.as_str()));
        }
        if let Some(principal) = value.map(text_of) {
            request.extensions_mut().insert(Principal::User(principal));
        }
        Ok(())
    }

    /// Writes whose request it is, as the request of this principal had it.
    pub(super) fn write(&self, request: &mut Request, principal: &Principal) {
        let Principal::User(text) = principal else { return };
        if let Some(value) = value_of(text) {
            request.headers_mut().insert(&self.name, value);
        }
    }
}

fn value_of(text: &str) -> Option<HeaderValue> {
    match text.strip_prefix(ENCODED) {
        Some(encoded) => HeaderValue::from_bytes(&percent_decode_str(encoded).collect::<Vec<_>>()),
        None => HeaderValue::from_bytes(text.as_bytes()),
    }
    .ok()
}

/// A value as text, no two of them as the same.
fn text_of(value: &HeaderValue) -> String {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("{ENCODED}{}", percent_encode(value.as_bytes(), NON_ALPHANUMERIC)),
    }
}
