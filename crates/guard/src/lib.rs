//! A layer that runs each request once, however often a client sends it.
//!
//! A client that gets no response cannot know whether its order was placed. It sends the order
//! again, with the same `Idempotency-Key` header, and [`IdempotencyLayer`] runs the handler only if
//! no earlier request under that key ran it: every repeat gets the first response, marked with
//! `Idempotent-Replayed: true`. The record of the key is in a store of
//! [keylatch](keylatch_core::idempotency), so it also holds between processes and after a crash.
//!
//! # Routes of your own
//!
//! ```
//! use axum::Router;
//! use axum::body::Body;
//! use axum::extract::Extension;
//! use axum::http::{Request, StatusCode};
//! use axum::routing::post;
//! use keylatch_axum::IdempotencyLayer;
//! use keylatch_core::lock::FencingToken;
//! use keylatch_stores::memory;
//! use tower::ServiceExt as _;
//!
//! /// Runs once for each key. The fencing token is for what the order changes: a database that
//! /// remembers the largest one it saw refuses a run that was overtaken.
//! async fn order(
//!     Extension(fencing_token): Extension<FencingToken>,
//!     what: String,
//! ) -> (StatusCode, String) {
//!     (StatusCode::CREATED, format!("ordered {what} under fencing token {fencing_token}"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A program that must not forget takes a store on disk; several that share the work share one.
//! let store = memory();
//! // The key of one customer is not that of another.
//! let layer = IdempotencyLayer::new(store)
//!     .with_principal(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned()));
//! let orders = Router::new().route("/orders", post(order).route_layer(layer));
//!
//! let request = || {
//!     let keyed = Request::post("/orders").header("Idempotency-Key", "order-17");
//!     keyed.body(Body::from("2 coffees"))
//! };
//! let first = orders.clone().oneshot(request()?).await?;
//! assert_eq!(first.status(), StatusCode::CREATED);
//! let repeat = orders.clone().oneshot(request()?).await?;
//! assert_eq!(repeat.status(), StatusCode::CREATED);
//! assert_eq!(repeat.headers()["idempotent-replayed"], "true");
//!
//! let other = Request::post("/orders").header("Idempotency-Key", "order-17");
//! let other = orders.oneshot(other.body(Body::from("3 coffees"))?).await?;
//! assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
//! # Ok(())
//! # }
//! ```
//!
//! Put the layer inside of authentication and limits, and outside of everything that a repeat must
//! not run again. The layer reads the whole body of a request that it guards. By `route_layer` it
//! is around the methods that a route has, so a client that sends another gets 405 before it is
//! asked for a key.
//!
//! A guarded method in other letters, such as `post`, and a header such as `X-HTTP-Method-Override`
//! are refused with 405, because what stands behind may take them for the method.
//!
//! # What a client reads
//!
//! | the record of the key | answer |
//! | --- | --- |
//! | none | the handler's, with `Idempotency-Key-Expires` |
//! | done | the first response again |
//! | in flight | 409 `request-in-progress`; with `Prefer: wait=10`, the response within 10 s |
//! | unknown: the process died, or the handler failed | 409 `outcome-unknown` until a person resolves it |
//! | of a request with another body | 422 `idempotency-key-reused` |
//!
//! Every refusal is a [`Problem`] (RFC 9457). Its member `retry` says whether the client sends the
//! same key again, a new one, or nothing. This crate does not serve the pages to which the `type`
//! of a problem leads.
//!
//! # What becomes of the key
//!
//! By default the status decides: see [`RetentionPolicy::for_response`]. A handler that knows
//! better puts a [`RetentionPolicy`] into the extensions of its response.
//!
//! ```
//! use axum::extract::Extension;
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use keylatch_axum::RetentionPolicy;
//!
//! /// The bank said no before anything was booked, so the same key may be tried again.
//! async fn declined() -> impl IntoResponse {
//!     (StatusCode::PAYMENT_REQUIRED, Extension(RetentionPolicy::Release), "declined")
//! }
//! # let _ = declined;
//! ```
//!
//! # Settings
//!
//! [`Guard`] has the methods, the times and the limits. A program builds it in code or reads it
//! from TOML, and [`IdempotencyLayer::with_guard`] checks it.
//!
//! # What a person looks at
//!
//! [`IdempotencyLayer::records`] gives the [`Records`]: look at one, list those that are unknown,
//! and settle them. [`IdempotencyLayer::drain`] is for the end of the program.
//!
//! The keylatch service guards the routes of its configuration with this very layer. The tests are
//! with the service, where they run over HTTP on every store.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod canonical_json;
mod content;
mod escapes;
mod fields;
mod fingerprint;
#[cfg(fuzzing)]
mod fuzzing;
#[cfg(feature = "gateway")]
pub mod gateway;
mod guard;
mod issued_key;
mod key_source;
mod layer;
mod media_type;
mod observe;
mod path_reading;
mod policy;
mod problem;
mod records;
mod response;
mod submission;
mod worker;

pub use fields::{FieldName, JsonPointer};
#[cfg(fuzzing)]
pub use fuzzing::{canonical_json, canonical_json_of, fingerprint_of, is_issued};
pub use guard::{
    BodyLimits, CrossOrigin, Guard, GuardAccess, InvalidSetting, Mode, OnStoreDown, Settle,
};
pub use issued_key::{InvalidSecrets, IssuedKeys};
pub use key_source::{DeriveKey, IDEMPOTENCY_KEY, KeyPart, KeySource, MissingKey};
pub use keylatch_wire::Code;
pub use layer::{GuardService, IDEMPOTENCY_FENCE, IdempotencyLayer, RanUnguarded};
pub use observe::Observed;
pub use policy::{FailurePolicy, KeepFor, OnFailure, RetentionPolicy};
pub use problem::{Problem, ProblemCause, ProblemCode, status_code, with_resolve};
pub use records::Records;
pub use response::{
    CHOSEN, CHOSEN_BY, CHOSEN_REASON, IDEMPOTENT_BODY, has_body, kept_within, name_no_source,
    repeat_response, stored_headers, with_applied_wait,
};
pub use submission::{normalize_path, preferred_wait, read_body};
