//! Requests and answers about idempotency keys: begin, complete, resolve, look.
//!
//! Doc comments here are the descriptions in `openapi/openapi.json`, and a name in
//! `schema(as = …)` is the name of the schema there: both are published.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::SecretToken;
use crate::number::{ttl_ms, whole_number};

/// What to begin with. Every member is optional, and so is the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = BeginRecord))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct BeginRecordRequest {
    /// What is to be done, in any words or as a digest: another fingerprint under the same key is
    /// refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 1024))]
    pub fingerprint: Option<String>,
    /// The HTTP request that is to be done once. The service makes its fingerprint as a guard of
    /// its method and path does; then `fingerprint` must be absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<DescribedRequest>,
    /// How long you may go unheard before you count as gone, in milliseconds.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub lease_ms: Option<u64>,
    /// How long the answer is kept, in milliseconds.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(default = 86400000_u64, minimum = 1000, maximum = 31536000000_u64)
    )]
    pub retention_ms: Option<u64>,
    /// What you leave behind if you are gone in the middle: `unknown`, which is the default (it is
    /// not done again before an operator has resolved it) or `rerun` (the next one does it, under a
    /// higher fencing token).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub on_crash: Option<OnCrash>,
}

/// A request as its client sent it. Its method and its path are those in the query of the call.
/// Every member is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct DescribedRequest {
    /// Its query, without the question mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Its `Content-Type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Further headers by name, each with the list of its values. `Content-Encoding` counts, and
    /// those that the guard has in `fingerprint_headers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, Vec<String>>>))]
    pub headers: Option<BTreeMap<String, HeaderValues>>,
    /// Its body as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Its body in base64, in place of `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// For which request a key is issued.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = IssueKey))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct IssueKeyRequest {
    /// The method of the request, such as `POST`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required, pattern = "^[A-Za-z]+$"))]
    pub method: String,
    /// The path of the request, without its query.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required, pattern = "^/[^?#]*$"))]
    pub path: String,
    /// Whose request it will be, such as `user:ann`: as the guard knows it. Left out it is the
    /// identity of the caller or, where there are none, nobody; empty it is nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// How long the key is good, in milliseconds: at most for the retention of its guard. Left out
    /// it is that, or a day if that is shorter.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1000, maximum = 31536000000_u64))]
    pub ttl_ms: Option<u64>,
}

/// A key that was issued for one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedKey {
    /// The key, for the `Idempotency-Key` header or the form field `idempotency_key`.
    pub key: String,
    /// When it expires (RFC 3339). From then on it is refused, also where it ran.
    pub expires_at: String,
    /// How long it is good, in milliseconds.
    pub ttl_ms: u64,
}

/// What a run leaves behind whose caller went away in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnCrash {
    /// An unknown outcome: the request does not run again before a person has resolved it.
    Unknown,
    /// A free key: the next request runs, under a higher fencing token.
    Rerun,
}

/// What it came to: an HTTP response. Every member is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CompleteRecord))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct CompleteRecordRequest {
    /// The HTTP status.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 200, minimum = 200, maximum = 599))]
    pub status: Option<u16>,
    /// Headers by name, each with the list of its values; a text alone is taken too. What belongs
    /// to one connection, such as `Content-Length` or `Date`, is left out, and so is `Set-Cookie`.
    /// A repeat on a guarded route has `Content-Security-Policy: sandbox` and
    /// `X-Content-Type-Options: nosniff` as well, so that no browser runs what a client chose as a
    /// page of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, Vec<String>>>))]
    pub headers: Option<BTreeMap<String, HeaderValues>>,
    /// The body as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in base64, in place of `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The body as JSON, in place of `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub json: Option<Value>,
}

/// The values of one header. The OpenAPI document has the list alone, which every generator of
/// clients takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HeaderValues {
    /// A text.
    One(String),
    /// A list of texts, each in its own header line.
    Many(Vec<String>),
}

/// What is known now of an outcome that was unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ResolveRecord))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct ResolveRecordRequest {
    /// `completed`, `not-executed`, or `undone`: it was done, and that was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required))]
    pub outcome: Option<String>,
    /// The run that you mean, as the record shows it. Required with `undone`.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// With `completed`: the response that every repeat is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<CompleteRecordRequest>,
    /// How you found out, for the record and the audit log: 1 to 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub reason: Option<String>,
    /// A label for people that says who settles it: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub by: Option<String>,
}

/// What a run says that failed half way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = FailRecord))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct FailRecordRequest {
    /// What went wrong, for the audit log: 1 to 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub reason: Option<String>,
}

/// The record of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IdempotencyRecord {
    /// `in-flight`, `done` or `unknown`.
    pub state: Cow<'static, str>,
    /// The fencing token of the last run: larger than that of every earlier one.
    pub fencing_token: u64,
    /// How many runs there were.
    pub attempts: u32,
    /// When it was first begun by the store's clock (RFC 3339, UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub begun_at: Option<String>,
    /// When it was done, or since when it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub ended_at: Option<String>,
    /// How long the run may last without a renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_in_ms: Option<u64>,
    /// How long the key is remembered, at least.
    pub expires_in_ms: u64,
    /// Why the outcome is unknown: `interrupted`, `failed`, `panicked` or `no-answer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// The status of the response; of an unknown outcome, what the upstream responded with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Whether the response was kept whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_kept: Option<bool>,
    /// Who settled the outcome when it was unknown, and how they found out; absent where a run
    /// ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<SettlementNote>,
    /// The response, for a client that begins again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<IdempotencyAnswer>,
    /// The headers of a response whose body was not kept, for a client that begins again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, Vec<String>>>,
    /// The proof that completing asks for, for the client that is to do it. Keep it secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub token: Option<SecretToken<'static>>,
}

/// Who settled an unknown outcome, and why so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettlementNote {
    /// The label of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How the operator found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Some of the records, in no order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordPage {
    /// The records. There may be fewer than asked for, or none, although more follow.
    pub records: Vec<ListedRecord>,
    /// How many records of this page the identity may not read; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<u64>,
    /// Pass it as `cursor` to read on; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A record, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedRecord {
    /// The client's name for its intent.
    pub key: String,
    /// The method of the guarded route; empty for a key of this API's own.
    pub method: String,
    /// The path of the guarded route, or its first 1024 bytes.
    pub path: String,
    /// Who sent the request: an identity by its name, a user of a guarded route as `user:NAME`, or
    /// empty.
    pub principal: String,
    /// Where the route has the key from, as `derived` or `json:/order_no`; not there for an
    /// `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether key, method, path and principal lead to the record: a store cuts a path that is very
    /// long.
    pub is_whole: bool,
    /// How far it is.
    pub state: Cow<'static, str>,
    /// How many runs there were.
    pub attempts: u32,
    /// The fencing token of the last run.
    pub fencing_token: u64,
    /// When it was first begun by the store's clock (RFC 3339, UTC).
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub begun_at: String,
    /// When it was done, or since when it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub ended_at: Option<String>,
    /// Why the outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// The status of the response; of an unknown outcome, what the upstream responded with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Of an unknown outcome: where it is settled, as a path of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolve: Option<String>,
}

/// A response that was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IdempotencyAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers, each with its values.
    pub headers: BTreeMap<String, Vec<String>>,
    /// The body, where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in base64, where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}
