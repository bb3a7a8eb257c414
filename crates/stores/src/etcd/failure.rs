//! What the status of a call says of the change that it was to make.
//!
//! Invariant: a change counts as not executed only where etcd itself answered so before it proposed
//! the change to the others, or where the call was never sent. A status that the client makes of a
//! broken connection, one of a proxy, and a time-out of etcd say nothing: the change may be on its
//! way through the majority. Tested in `tests/stores/etcd_faults.rs`.

use std::error::Error;
use std::iter::successors;

use keylatch_core::store::StoreError;
use tonic::{Code, ConnectError, Status};

/// What etcd's own messages begin with.
const OWN: &str = "etcdserver: ";
/// What etcd says when its database is full.
const FULL: &str = "mvcc: database space exceeded";

/// What a status says of the call that it is the response to.
pub(super) fn classify(status: Status) -> StoreError {
    let (code, message) = (status.code(), status.message());
    if is_unsent(&status) {
        return StoreError::Unreachable(status.into());
    }
    match message.strip_prefix(OWN) {
        // It may be otherwise with another member, or with a token of another time.
        Some("no leader" | "invalid auth token" | "revision of auth store is old") => {
            StoreError::Unreachable(status.into())
        }
        // The member at which the quota is reached carries the change out, and answers so all the
        // same.
        Some(FULL) => StoreError::Full(status.into()),
        Some(_) if is_refusal(code) => StoreError::Refused(status.into()),
        _ => StoreError::Lost(status.into()),
    }
}

/// Whether there was no connection to send the call on.
fn is_unsent(status: &Status) -> bool {
    successors(status.source(), |&cause| cause.source()).any(|cause| cause.is::<ConnectError>())
}

/// Whether etcd answers so only before it does anything.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

/// Why a call failed, in the words of etcd and the client, for the log and for errors at start.
pub(super) fn causes(error: &StoreError) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    let texts: Vec<_> = causes
        .filter(|cause| !cause.is::<StoreError>())
        .map(|cause| match cause.downcast_ref::<Status>() {
            Some(status) => status.message().to_owned(),
            None => cause.to_string(),
        })
        .collect();
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_etcd_say_that_nothing_was_done() {
        let classify = |code, message: &str| classify(Status::new(code, message));
        for (code, message) in [
            (Code::InvalidArgument, "etcdserver: request is too large"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
        ] {
            let error = classify(code, message);
            assert!(matches!(error, StoreError::Refused(_)), "{message}: {error:?}");
        }
        for (code, message) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
        ] {
            let error = classify(code, message);
            assert!(matches!(error, StoreError::Unreachable(_)), "{message}: {error:?}");
        }
        for (code, message) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "transport is closing"),
            (Code::PermissionDenied, "HTTP status 403"),
            (Code::ResourceExhausted, "h2 protocol error"),
        ] {
            let error = classify(code, message);
            assert!(matches!(error, StoreError::Lost(_)), "{message}: {error:?}");
        }
        let full = classify(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, StoreError::Full(_)), "{full:?}");
    }
}
