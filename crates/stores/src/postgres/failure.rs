//! What the server's errors and warnings say of the call that they are about.
//!
//! Invariant: a call counts as not executed only where the server answered it with an error, which
//! undoes the statement, or never received it. An error that ends the connection says nothing: the
//! commit may be done and its wait for the standby cut, and a pooler reports in its own words that
//! the server behind it was lost. Tested in `tests/stores/postgres`.

use std::error::Error as _;

use keylatch_core::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// What an error of a statement that commits by itself says of it.
pub(super) fn classify(error: Error) -> StoreError {
    let Some(found) = error.as_db_error() else { return StoreError::Lost(error.into()) };
    let not_yet_or_not_here = [SqlState::CANNOT_CONNECT_NOW, SqlState::READ_ONLY_SQL_TRANSACTION];
    if not_yet_or_not_here.contains(found.code()) {
        StoreError::Unreachable(error.into())
    } else if found.parsed_severity() != Some(Severity::Error) || is_of_the_connection(found) {
        StoreError::Lost(error.into())
    } else {
        StoreError::Refused(error.into())
    }
}

/// Whether the error is about the connection, the pooler's to the server among them, or about the
/// end of the server.
fn is_of_the_connection(error: &DbError) -> bool {
    let class = error.code().code().get(..2);
    class == Some("08") || class == Some("57")
}

/// Whether the server answered that it does not let this role in, or does not let it do its work.
/// What passes by itself is no refusal: a start, a shutdown, a want of connections, a pooler
/// without its server, a lock of the table.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<Error>());
    match source.and_then(Error::as_db_error) {
        Some(found) => {
            let passes = ["53", "55"].iter().any(|class| found.code().code().starts_with(class));
            !is_of_the_connection(found) && !passes
        }
        None => matches!(error, StoreError::Refused(_)),
    }
}

/// Whether a pooler handed a prepared statement to a server connection that has it not, or has
/// another one under its name. Nothing was executed.
pub(super) fn is_of_another_connection(error: &Error) -> bool {
    let codes = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT];
    error.as_db_error().is_some_and(|found| {
        // The parameters are those of another statement.
        codes.contains(found.code()) || found.routine() == Some("exec_bind_message")
    })
}

/// Whether the statement of [`write_all`](super::sql::Sql::write_all) found that it would leave a
/// row out. Nothing was executed.
pub(super) fn is_of_a_part(error: &Error) -> bool {
    error.as_db_error().is_some_and(|found| *found.code() == SqlState::DIVISION_BY_ZERO)
}

/// Whether a warning says that a commit did not wait for its standby to the end. Nothing but the
/// name of the server's function tells it from other warnings in every language.
pub(super) fn is_of_a_cut_wait(notice: &DbError) -> bool {
    let is_warning = notice.parsed_severity() == Some(Severity::Warning);
    is_warning && notice.routine().is_none_or(|routine| routine == "SyncRepWaitForLSN")
}
