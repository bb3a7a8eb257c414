//! Reading the body of a request, within limits.
//!
//! A body that is too large or too slow is refused with a problem that closes its connection, since
//! the rest of it is not read.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::{Code, Problem};

/// What the body of a request may be.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// How large, in bytes.
    pub bytes: usize,
    /// How long it may take to arrive.
    pub time: Duration,
}

/// The whole body, within the limits of size and time.
///
/// # Errors
///
/// The body is too large or too slow, or breaks off.
pub async fn read_body(body: Body, limits: BodyLimits) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let too_large = || {
        let detail = format!("The body has more than {} bytes.", limits.bytes);
        Problem::new(Code::PayloadTooLarge, detail)
    };
    // What says that it is too large is not even read.
    if body.size_hint().lower() > limits.bytes as u64 {
        return Err(too_large());
    }
    let limited = Limited::new(body, limits.bytes);
    match tokio::time::timeout(limits.time, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Code::InvalidBody, "The body broke off.")),
        Err(_) => Err(Problem::new(Code::RequestTimeout, "The body did not arrive in time.")),
    }
}
