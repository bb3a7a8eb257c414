//! The id of a request: the client's own where it sent a usable one, else one that no other request has.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request};

/// The header that has the id, in requests and in answers.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id of a client that is used.
const MAX_LEN: usize = 128;

/// Makes ids of a random number for the process and a count.
#[derive(Debug)]
pub(super) struct RequestIds {
    process: u32,
    next: AtomicU64,
}

impl RequestIds {
    /// # Errors
    ///
    /// The operating system has no random bytes, which set the ids of this process apart.
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self { process: getrandom::u32()?, next: AtomicU64::new(1) })
    }

    /// The id of a request. That of a client has 1 to 128 visible ASCII characters.
    pub(super) fn id_of(&self, request: &Request<Body>) -> HeaderValue {
        let is_usable = |id: &&HeaderValue| {
            (1..=MAX_LEN).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        if let Some(id) = request.headers().get(X_REQUEST_ID).filter(is_usable) {
            return id.clone();
        }
        let id = format!("{:08x}-{:x}", self.process, self.next.fetch_add(1, Ordering::Relaxed));
        // Hexadecimal digits and a hyphen are always a header value.
        HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}
