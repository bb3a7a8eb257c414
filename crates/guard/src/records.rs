//! The records behind a layer, for the program itself: look at one, list them by state, settle an
//! unknown outcome.
//!
//! The keylatch service has calls for this; a program that has the layer alone has no service to
//! call. The response that a person chooses is marked as such, so its replay runs no script in a
//! browser. Tested in `tests/api/idempotency_layer.rs` on every store.

use std::sync::Arc;

use axum::http::Response;
use bytes::Bytes;

use crate::response::{CHOSEN, stored_headers};
use crate::submission::normalize_path;
use keylatch_core::idempotency::{
    Answer, IdempotencyKey, IdempotencyService, RecordKey, RecordSummary, RecordView,
    ResolveCommand, ResolveReply, Scope, StoredResponse,
};
use keylatch_core::lock::FencingToken;
use keylatch_core::store::{ListRecords, Page, StoreError};

/// The records of an [`IdempotencyLayer`](crate::IdempotencyLayer), from
/// [`IdempotencyLayer::records`](crate::IdempotencyLayer::records). Clones are the same records.
///
/// ```
/// # use axum::{Router, body::Body, http::{Request, Response, StatusCode}, routing::post};
/// # use keylatch_axum::IdempotencyLayer;
/// # use tower::ServiceExt as _;
/// use keylatch_core::idempotency::{PhaseName, RecordFilter};
/// use keylatch_core::store::ListRecords;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = IdempotencyLayer::new(keylatch_stores::memory());
/// let records = layer.records();
/// // A handler that fails leaves an outcome that is unknown.
/// let orders =
///     Router::new().route("/orders", post(async || StatusCode::INTERNAL_SERVER_ERROR)).layer(layer);
/// let order = || Request::post("/orders").header("Idempotency-Key", "order-17").body(Body::empty());
/// assert_eq!(orders.clone().oneshot(order()?).await?.status(), 500);
/// assert_eq!(orders.clone().oneshot(order()?).await?.status(), 409);
///
/// // A person finds it, sees in the books that it was ordered, and says so.
/// let filter = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
/// let query = ListRecords { filter, limit: 100, cursor: None };
/// let unknown = records.list(&query).await?.ok_or("a page")?.entries;
/// let answer = Response::builder().status(201).body("ordered".into())?;
/// records.resolve_as_done(&unknown[0].key, unknown[0].fencing_token, answer).await?;
///
/// assert_eq!(orders.oneshot(order()?).await?.status(), 201);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Records(pub(crate) Arc<IdempotencyService>);

impl Records {
    /// The name of a record, by what the client sent; the path in any spelling.
    pub fn key(&self, scope: Scope<'_>, key: &IdempotencyKey) -> RecordKey {
        Scope { path: &normalize_path(scope.path), ..scope }.record(key)
    }

    /// The record under this name, if there is one.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn find(&self, key: &RecordKey) -> Result<Option<RecordView>, StoreError> {
        self.0.find(key).await
    }

    /// A page of records, by state and path; `None` when the cursor is not one that the store gave.
    ///
    /// # Errors
    ///
    /// The store could not find out, or keeps no list.
    pub async fn list(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        self.0.list(query).await
    }

    /// Settles the unknown outcome of the run with this fencing token: it was done, and every
    /// repeat reads this response. Safe to repeat.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn resolve_as_done(
        &self,
        key: &RecordKey,
        run: FencingToken,
        response: Response<Bytes>,
    ) -> Result<ResolveReply, StoreError> {
        let (parts, body) = response.into_parts();
        let mut headers = stored_headers(&parts.headers);
        headers.push((CHOSEN.to_owned(), Bytes::new()));
        let answer = Answer { status: parts.status.as_u16(), headers, body };
        self.resolve(key, run, Some(StoredResponse::Answer(Arc::new(answer)))).await
    }

    /// Settles the unknown outcome of the run with this fencing token: it was not done, and the key
    /// is free.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn resolve_as_not_done(
        &self,
        key: &RecordKey,
        run: FencingToken,
    ) -> Result<ResolveReply, StoreError> {
        self.resolve(key, run, None).await
    }

    async fn resolve(
        &self,
        key: &RecordKey,
        run: FencingToken,
        end: Option<StoredResponse>,
    ) -> Result<ResolveReply, StoreError> {
        let resolve = ResolveCommand { key: *key, fencing_token: Some(run), end: end.into() };
        self.0.resolve(&resolve).await
    }
}
