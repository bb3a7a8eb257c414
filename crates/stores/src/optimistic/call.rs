//! A call of an engine: how many bytes a row of it has at most, how long it may take, and its error
//! for each command that it carries.
//!
//! Both tasks call the engine in this way, that of the single locks and records (`worker.rs`) and
//! that of the sets (`sets.rs`). Invariant: every call ends, and what a call may have carried out
//! stays unknown for all of its commands. The fake engine's tests hold it.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::store::StoreError;
use tokio::time::timeout;

use super::conditional::Timeline;
use super::value::{Kind, Value};

const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A value as the engine keeps it, in `limit` bytes at most.
pub(super) fn encode<E: Kind>(
    value: &Value<E>,
    timeline: Option<&Timeline>,
    limit: usize,
) -> Result<Vec<u8>, StoreError> {
    let value = value.encode(timeline).map_err(|error| StoreError::Refused(error.into()))?;
    match value.len() {
        bytes if bytes > limit => Err(StoreError::TooLarge { bytes, limit }),
        _ => Ok(value),
    }
}

/// What a call of the engine gives, within the time that a call may take.
pub(super) async fn within_limit<T>(
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(CALL_LIMIT, call).await.unwrap_or(Err(StoreError::Deadline(CALL_LIMIT)))
}

/// The error of a call for one of its commands.
pub(super) fn shared(error: &Arc<StoreError>) -> StoreError {
    let cause = Arc::clone(error).into();
    match **error {
        StoreError::Unreachable(_) => StoreError::Unreachable(cause),
        StoreError::Refused(_) => StoreError::Refused(cause),
        StoreError::Full(_) => StoreError::Full(cause),
        StoreError::Unsupported => StoreError::Unsupported,
        StoreError::TooLarge { bytes, limit } => StoreError::TooLarge { bytes, limit },
        // What else there is leaves the outcome unknown.
        _ => StoreError::Lost(cause),
    }
}
