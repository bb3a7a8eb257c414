use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use serde::Deserialize;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Which web pages may use the service. `config/keylatch.toml` says what each setting means.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Cors {
    pub allow_origins: Vec<String>,
}

/// How long a browser may remember what it is allowed.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);

impl Cors {
    /// Whether each origin is `*`, or a scheme and an authority, as browsers send them.
    pub fn is_valid(&self) -> bool {
        self.allow_origins.iter().all(|origin| origin == "*" || is_origin(origin))
    }

    /// Whether the pages of an origin, as a browser sends it, may use the service.
    pub(super) fn allows(&self, origin: &str) -> bool {
        self.allow_origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    /// The layer that answers for browsers; `None` where no page is allowed.
    pub(super) fn layer(&self) -> Option<CorsLayer> {
        if self.allow_origins.is_empty() {
            return None;
        }
        let any = self.allow_origins.iter().any(|origin| origin == "*");
        let origins = self.allow_origins.iter().filter_map(|origin| origin.parse().ok());
        let origins = origins.collect::<Vec<HeaderValue>>();
        let origins = if any { AllowOrigin::any() } else { AllowOrigin::list(origins) };
        let named = HeaderName::from_static;
        Some(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([
                    Method::GET,
                    Method::POST,
                    Method::PUT,
                    Method::PATCH,
                    Method::DELETE,
                ])
                .allow_headers([
                    header::CONTENT_TYPE,
                    header::ACCEPT,
                    header::AUTHORIZATION,
                    named("idempotency-key"),
                    named("lock-token"),
                    named("prefer"),
                    named("x-request-id"),
                ])
                .expose_headers([
                    header::LOCATION,
                    header::RETRY_AFTER,
                    named("idempotency-key-expires"),
                    named("idempotent-replayed"),
                    named("lock-token"),
                    named("x-request-id"),
                ])
                .max_age(MAX_AGE),
        )
    }
}

fn is_origin(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| {
        !authority.is_empty() && !authority.contains(['/', '?', '#', '@', '*', ' '])
    }) && HeaderValue::from_str(origin).is_ok()
}
