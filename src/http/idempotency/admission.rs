//! What happens to a request at a guarded route before the layer reads it: it becomes what the upstream may
//! read.
//!
//! The layer takes key, principal and fingerprint from the same request that the gateway sends on, so
//! whatever is taken away is taken away before. What keylatch adds for the upstream (fencing token, key)
//! is added behind this, where no client reaches it. Tested in `tests/api/gateway_headers.rs`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderName;
use axum::middleware::Next;
use axum::response::Response;
use keylatch_axum::{IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY};

use super::headers::{remove_twins, strip};

/// What a guarded route lets in.
#[derive(Debug)]
pub(super) struct Admission {
    /// The headers that are keylatch's or a trusted proxy's to set.
    pub(super) own_headers: Vec<HeaderName>,
}

impl Admission {
    /// The rules of a guard whose principals stand in this header.
    pub(super) fn new(principal: Option<HeaderName>) -> Self {
        let own_headers = [IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY].into_iter().chain(principal);
        Self { own_headers: own_headers.collect() }
    }

    fn admit(&self, mut request: Request) -> Request {
        let headers = request.headers_mut();
        strip(headers, &self.own_headers);
        remove_twins(headers, &self.own_headers);
        request
    }
}

/// The middleware in front of the layer of a guarded route.
pub(super) async fn admit(
    State(admission): State<Arc<Admission>>,
    request: Request,
    next: Next,
) -> Response {
    next.run(admission.admit(request)).await
}
