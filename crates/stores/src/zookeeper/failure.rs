//! What the errors of the client say of the call that they are about.
//!
//! Invariant: a call counts as not executed only where a server answered it with an error, or it
//! was never given to the client. Everything else is unknown: the client fails what was sent with
//! whatever ended the connection, and sends what it still has when it is connected again. Tested in
//! `tests/stores/zookeeper`.

use keylatch_core::store::StoreError;
use zookeeper_client::{Error, MultiWriteError};

/// What an error of a call says of it.
pub(super) fn classify(error: Error) -> StoreError {
    if is_answer(&error) {
        StoreError::Refused(error.into())
    } else {
        StoreError::Lost(error.into())
    }
}

/// Whether the version or the absence that a write names is not what the server has. Nothing was
/// executed.
pub(super) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::BadVersion | Error::NodeExists | Error::NoNode)
}

/// The error of the operation that failed, or of the request.
pub(super) fn cause_of(error: MultiWriteError) -> Error {
    match error {
        MultiWriteError::RequestFailed { source }
        | MultiWriteError::OperationFailed { source, .. } => source,
    }
}

/// Whether a server answered so, to this call.
pub(super) fn is_answer(error: &Error) -> bool {
    is_conflict(error)
        || matches!(
            error,
            Error::NoAuth
                | Error::InvalidAcl
                | Error::NotEmpty
                | Error::NoChildrenForEphemerals
                | Error::QuotaExceeded
                | Error::Throttled
                | Error::NotReadOnly
                | Error::Unimplemented
                | Error::BadArguments(_)
        )
}
