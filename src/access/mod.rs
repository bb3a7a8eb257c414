//! Who a client is, and what it may do: API keys, tokens, identities, their permissions by prefix
//! of a name, and their quotas.
//!
//! A file of the operator's has the identities. It is parsed once, at the edge, into types that
//! cannot be wrong; a request then costs one hash and one lookup. What an identity may do is a pure
//! function of its permissions, so it is decided before the store is asked, and the store knows
//! nothing of it. Without such a file there are no identities, and every client may do everything.
//!
//! Invariant: nothing here holds, prints or logs a key after it was hashed; the file has hashes
//! alone. Tested over HTTP in `tests/api/identities.rs`, `permissions.rs`, `tokens.rs` and
//! `quotas.rs`, and as a process in `tests/cli/keys.rs`.

mod authenticator;
mod certificate;
mod comparison;
mod credential;
mod identity;
mod jwt;
mod key;
mod ledger;
mod permission;
mod quota;

pub use authenticator::Authenticator;
pub use certificate::CertificateNames;
pub use comparison::compare_quotas;
pub use credential::{KEYLATCH_AUTHORIZATION, RefusedCredential};
pub use identity::{Identities, Identity, IdentityName, InvalidIdentities};
pub use jwt::JwtSettings;
pub use key::{ApiKey, InvalidApiKey, KeyHash};
pub use permission::{KeyAct, LockAct, Permissions};
pub use quota::{
    LockClaim, Meter, Quota, QuotaKind, QuotaPermit, QuotaRefusal, RecordClaim, RefusalPause,
};
