//! Every way in which a request can fail, and the JSON that says so (RFC 9457).
//!
//! `problem_table!` below is the one table of statuses: a row has the code, the status, the slug,
//! what a client does next, a title and an advice. The service answers by it, the pages under
//! `/problems/` show it, the OpenAPI document lists it, and the Rust client decides by it whether
//! to try again. The enum is made from the rows, so a code without a row cannot be written.
//!
//! A code's slug, status and `retry` are the API and never change their meaning; a new way to fail
//! is a new row. `tests` check that each code has its page and its place in the document.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{BreakNote, FirstWaiter, Holder, LostLock, PublicHolder};

/// What the table says of a [`Code`].
struct Row {
    slug: &'static str,
    /// Where the page about the problem is: the member `type`.
    page: &'static str,
    status: u16,
    retry: Retry,
    title: &'static str,
    advice: &'static str,
}

/// Makes [`Code`] and its rows of lines `Code = status "slug" Retry "title" "advice";`.
macro_rules! problem_table {
    ($($code:ident = $status:literal $slug:literal $retry:ident $title:literal $advice:literal;)+) => {
        /// Every way in which a request can fail.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $title] $code,)+
        }

        impl Code {
            const ALL: &[Self] = &[$(Self::$code),+];

            const fn row(self) -> &'static Row {
                match self {
                    $(Self::$code => &Row {
                        slug: $slug,
                        page: concat!("/problems/", $slug),
                        status: $status,
                        retry: Retry::$retry,
                        title: $title,
                        advice: $advice,
                    },)+
                }
            }
        }
    };
}

problem_table! {
    InvalidHost = 400 "invalid-host" NewKey
        "The Host is not valid"
        "A request of HTTP/1.1 has one Host header, with a host and perhaps a port. Nothing was done.";
    InvalidName = 400 "invalid-name" NewKey
        "The lock name is not valid"
        "A name is 1 to 255 bytes of UTF-8 without control characters. Percent-encode it: `/` travels as `%2F`.";
    InvalidKey = 400 "invalid-key" NewKey
        "The Idempotency-Key is not valid"
        "One Idempotency-Key header with 1 to 255 visible ASCII characters, bare or in double quotes. In quotes it may have spaces and `;`. A form field `idempotency_key` may stand in for it and must not contradict it. A guard may take its key from another place, which `field` names, or only keys that keylatch issued for this route and user. Nothing was run.";
    KeyRequired = 400 "key-required" NewKey
        "An Idempotency-Key is required"
        "Make a new key for each intent, such as a UUID, and send it with every try of it. `field` names where the guard looks for it. Nothing was run.";
    InvalidToken = 400 "invalid-token" NewKey
        "The Lock-Token is not valid"
        "A token is 20 to 128 of A-Z, a-z, 0-9, `_` and `-`, in one Lock-Token header. A UUID fits.";
    InvalidBody = 400 "invalid-body" NewKey
        "The request body is not valid"
        "The API takes a JSON object or no body; `field` names the wrong member. At a guard the body broke off, or a compressed body is not one whole stream.";
    InvalidPrincipal = 400 "invalid-principal" NewKey
        "The request names two principals"
        "The header that names whose request it is, `principal_header` of the guard, comes once. A proxy in front sets it, and replaces what a client sends. Nothing was run.";
    InvalidQuery = 400 "invalid-query" NewKey
        "The query is not valid"
        "`field` names the parameter that is wrong.";
    Unauthenticated = 401 "unauthenticated" Never
        "An API key is required"
        "Send the key as `Authorization: Bearer KEY`, or as the password of a user; on a guarded route that asks for it, in `Keylatch-Authorization`. Nothing was done.";
    PrincipalRequired = 401 "principal-required" SameKey
        "The request names no principal"
        "A trusted proxy sends the header that `principal_header` of the guard names, once the person has signed in. `require_principal = false` lets requests without it share their keys; a guard that derives keys needs `anonymous = true` too. Nothing was run.";
    Forbidden = 403 "forbidden" Never
        "The identity may not do this"
        "`allow` of the identity says what it may do, by prefix of the name, and `act_for` for whom. Nothing was done.";
    BreakDisabled = 403 "break-disabled" Never
        "No lease is broken here"
        "`lock.break` says where a client may break the lease of another: by default on loopback alone. Nothing was done.";
    BackupDisabled = 403 "backup-disabled" Never
        "No copy of the store is given here"
        "`backup` says where a client may copy the store: by default on loopback alone, or with identities. Nothing was done.";
    CrossOrigin = 403 "cross-origin" Never
        "A web page of another origin sent this"
        "Only the service's own pages, and those of origins in `cors.allow_origins`, may change something. `cross_origin = \"pass\"` lets a guarded route take requests of any page. Nothing was done.";
    NotFound = 404 "not-found" NewKey
        "There is nothing here"
        "See /docs for what there is. A `/` within a lock name travels as `%2F`.";
    LockNotHeld = 404 "lock-not-held" NewKey
        "No client holds this lock"
        "No client acquired it, or its lease was released or has expired. A holder that gets this has lost the lock: stop, and acquire it again.";
    NoRecord = 404 "no-record" NewKey
        "There is no record of this key"
        "It was never used in this scope, a run freed it, or its retention is over. `method`, `path` and `principal` in the query name the scope of a guarded route, and `source` where its key is not from `Idempotency-Key`.";
    MethodNotAllowed = 405 "method-not-allowed" NewKey
        "The method is not for this resource"
        "The Allow header lists the methods that are. On a guarded route a method is written in capitals, and no header such as `X-HTTP-Method-Override` stands in for it. Nothing was done.";
    RequestTimeout = 408 "request-timeout" SameKey
        "The request did not arrive in time"
        "The body took too long. Nothing was done; send the request again.";
    LockHeld = 409 "lock-held" SameKey
        "The lock is held"
        "Another client holds it; `holder` says who and for how long, or `holders` where several do. Try again after `Retry-After` seconds.";
    LockBroken = 409 "lock-broken" NewKey
        "The lease was broken"
        "Someone ended your lease; `broken` says who and why. It cannot be renewed. Stop what you did under it.";
    WaitEnded = 409 "wait-ended" NewKey
        "The wait was ended"
        "Someone ended your wait for the lock; `broken` says who and why. You hold nothing of what you asked for. If you ask again, you wait at the end of the queue.";
    RequestInProgress = 409 "request-in-progress" SameKey
        "The request is being carried out"
        "The same request under the same key is under way. Send it again after `Retry-After` seconds, or with `Prefer: wait=10`, to get its response.";
    CopyUnderWay = 409 "copy-under-way" SameKey
        "A copy of the store is being made"
        "One copy is made at a time, and it takes `backup_timeout_ms` at most. Nothing was done. Try again after `Retry-After` seconds.";
    OutcomeUnknown = 409 "outcome-unknown" Never
        "It is not known whether the request was carried out"
        "It was begun, and how it ended is not known. It is not run again under this key. Find out what happened, then settle it: `resolve` of the problem is the URL to which an operator posts `outcome` (`completed` or `not-executed`), `reason` and `by`.";
    AlreadyDone = 409 "already-done" Never
        "It was done before"
        "The guard runs one request for each user or path (`once_per`), and another request was first. `Location` leads to its result, if the first response had one. An operator frees it with `outcome` `undone`. Nothing was run.";
    AnswerNotKept = 409 "answer-not-kept" Never
        "The request was carried out, and its response was not kept"
        "The headers of the response were too large to keep, the upstream asked to keep its status alone, or an operator erased it. It is not run again under this key. Read the resource itself to see what came of it.";
    NothingToResolve = 409 "nothing-to-resolve" NewKey
        "The outcome is not unknown"
        "Only an unknown outcome can be resolved, and only what was done can be `undone`. A `fencing_token` has to be that of the last run; `undone` needs one. `GET` the record to see its state.";
    KeyExpired = 410 "key-expired" Never
        "The key has expired"
        "The key was issued for a time that is over, and nothing runs under it any more. If it was sent before, see whether that was carried out. Then load the page again, which has a new key. Nothing was run now.";
    TokenMismatch = 412 "token-mismatch" NewKey
        "The lock is held with another token"
        "Your lease is over and another client has the lock, or the token was never right. Stop what you did under it.";
    FenceMismatch = 412 "fence-mismatch" NewKey
        "Another grant holds the lock"
        "The grant with this fencing token is over, and `holder` or `holders` say who holds the lock now. Nothing was broken.";
    PayloadTooLarge = 413 "payload-too-large" Never
        "The request body is too large"
        "A request for a lock takes some dozens of bytes. `server.body_limit_bytes` sets the limit, and a guarded route has a `body_limit_bytes` of its own. Nothing was done.";
    UnsupportedMediaType = 415 "unsupported-media-type" NewKey
        "The body's media type is not taken from a web page"
        "A web page sends JSON, as `application/json`. A guarded route takes forms as well, and nothing as `text/plain`. Nothing was done.";
    MisdirectedRequest = 421 "misdirected-request" Never
        "The request is for another host"
        "A service on loopback goes by `localhost`, loopback addresses and the names in `server.hosts`, so that no web page can make a name of its own lead to it. Nothing was done.";
    IdempotencyKeyReused = 422 "idempotency-key-reused" NewKey
        "The Idempotency-Key was used for another request"
        "A key belongs to one request with one body. Send what you sent before, or make a new key for what is new, unless `retry` is `never`. Nothing was run, and the first request is as it was.";
    ValidationFailed = 422 "validation-failed" NewKey
        "The order or payment is not valid"
        "The sandbox wants an `amount` of 1 to 99999999 in the smallest unit and a `currency` of three capital letters. `field` names what is wrong. This response is kept for its key: send the corrected request with a new one.";
    TokenRequired = 428 "token-required" NewKey
        "A Lock-Token is required"
        "Send the token that the lock was created with in the Lock-Token header.";
    QuotaExceeded = 429 "quota-exceeded" SameKey
        "The identity has as much as it may"
        "`quota` says of what: `locks`, `waiters`, `streams`, `records`, `bytes` or `requests_per_second`. Nothing was done. Try again after `Retry-After` seconds; an operator sets quotas in the file of identities.";
    TooManyWaiters = 429 "too-many-waiters" SameKey
        "Too many wait"
        "The queue for this lock is full, or all queues of this instance together are. Try again after `Retry-After` seconds.";
    TooManyHolders = 429 "too-many-holders" SameKey
        "Too many hold the lock"
        "At most 1000 hold a lock together, a holder enters it under at most 64 names, and all holders have 96 KiB together, labels and names included. Nothing was done.";
    Internal = 500 "internal" SameKey
        "Something went wrong in the service"
        "This is a defect of keylatch. The request may have been carried out; the same request with the same token can be retried. The log has the cause under the X-Request-Id.";
    NotSupported = 501 "not-supported" Never
        "The store cannot do this"
        "Not every store can do everything: `redlock:` keeps no records of idempotency keys and no shared locks, for one. `GET /v1/info` says what the store is. Nothing was done.";
    UpgradeRefused = 501 "upgrade-refused" NewKey
        "No other protocol follows a guarded request"
        "A connection that becomes another protocol has no response that a retry could get. Send the request without `Upgrade`. Nothing was run.";
    UpstreamUnreachable = 502 "upstream-unreachable" SameKey
        "The service behind keylatch cannot be reached"
        "The request was not sent on, so nothing was run. Send it again after `Retry-After` seconds, under the same key.";
    AnswerUnreadable = 503 "answer-unreadable" SameKey
        "The request was carried out, and its response cannot be decrypted"
        "This instance lacks the key that the kept response is encrypted with, or the response was changed in the store; the log says which. An operator puts the key back into `idempotency.encryption_keys_file`. The request is not run again. Send it again later, under the same key.";
    StoreUnavailable = 503 "store-unavailable" SameKey
        "The store gave no response"
        "With `outcome` `not-executed` nothing was done. With `unknown` it may have been: the same request with the same token can be retried safely.";
    StoreTooSlow = 503 "store-too-slow" SameKey
        "The lease was over before it could be answered"
        "The store took longer than the lease lasts. The service withdrew a new grant. Use a longer TTL, or look after the store.";
    StoreFull = 503 "store-full" SameKey
        "The store has no room left"
        "What is held can still be released. With `outcome` `unknown` the request may have been carried out all the same: the same request with the same token can be retried safely. An operator has to make room.";
    Overloaded = 503 "overloaded" SameKey
        "The service is full"
        "Nothing was done. Try again after `Retry-After` seconds.";
    Timeout = 503 "timeout" SameKey
        "The request took too long"
        "It may have been carried out: the same request with the same token can be retried safely.";
    UpstreamSilent = 504 "outcome-unknown" Never
        "The service behind keylatch gave no response"
        "The request was sent on, and whether it was carried out is not known. It is not run again under this key. Find out what happened, then settle it: `resolve` of the problem is the URL to which an operator posts `outcome` (`completed` or `not-executed`), `reason` and `by`.";
}

impl Code {
    /// All codes, in the order of their statuses.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied()
    }

    /// The code that a problem with this slug and this HTTP status has, if this version knows it.
    /// Two codes may share a slug, with a status each.
    pub fn find(slug: &str, status: u16) -> Option<Self> {
        Self::all().find(|code| code.slug() == slug && code.status() == status)
    }

    /// The code as the API writes it.
    pub fn slug(self) -> &'static str {
        self.row().slug
    }

    /// The path of the page that explains the code: the member `type` of its problems.
    pub fn page(self) -> &'static str {
        self.row().page
    }

    /// The HTTP status that the code is answered with.
    pub fn status(self) -> u16 {
        self.row().status
    }

    /// What happened, the same for every problem of this code.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// What the client can do about it, in a sentence or more.
    pub fn advice(self) -> &'static str {
        self.row().advice
    }

    /// What the client sends next.
    pub fn retry(self) -> Retry {
        self.row().retry
    }
}

/// What a client sends after a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Retry {
    /// The same request, with the same `Idempotency-Key` or `Lock-Token`.
    SameKey,
    /// Another request: what was wrong is changed, and the key or token is a new one.
    NewKey,
    /// Nothing: no retry helps until the service's settings or the request itself are others, or a
    /// person has to find out first what happened.
    Never,
}

/// What a failed request did to the store: the member `outcome` of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Effect {
    /// Nothing: it was not carried out.
    NotExecuted,
    /// It may have been carried out. The same request with the same token resolves the doubt.
    Unknown,
}

/// A problem document (RFC 9457), served as `application/problem+json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Problem))]
pub struct ProblemDocument {
    /// A page of this service that says what happened and what to do.
    pub r#type: Cow<'static, str>,
    /// What happened, the same for every problem of this code.
    pub title: Cow<'static, str>,
    /// The HTTP status.
    pub status: u16,
    /// What happened to this request, for people.
    pub detail: Cow<'static, str>,
    /// What happened, for programs.
    pub code: Cow<'static, str>,
    /// The member, parameter or header of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Of several locks that were asked for: the first that was not to be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of several locks: those that the client does not hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LostLock>,
    /// Who holds the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Those that hold the lock together, ten at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<PublicHolder>,
    /// How many hold the lock together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holding: Option<u64>,
    /// Why the lease was broken, or the wait ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<BreakNote>,
    /// The quota of the identity that the request is above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Cow<'static, str>>,
    /// How many were in the queue before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiter: Option<FirstWaiter>,
    /// How long the request waited for the lock, in milliseconds, where it asked to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Of an unknown outcome: where it is settled, as a path of this service with the whole scope
    /// of the key. A `POST` of `outcome`, perhaps with `answer`, `reason` and `by`, does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolve: Option<String>,
    /// When it is worth trying again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether a request that failed was carried out: `not-executed` or `unknown`.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub outcome: Option<Effect>,
    /// Which Idempotency-Key to use next: `same-key` (send the same again), `new-key` (what is
    /// changed is a new request) or `never` (no retry helps, or an operator has to find out what
    /// happened).
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub retry: Option<Retry>,
}

impl ProblemDocument {
    /// The document of a problem with this code; `detail` says what is wrong with this request.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            r#type: code.page().into(),
            title: code.title().into(),
            status: code.status(),
            detail: detail.into(),
            code: code.slug().into(),
            ..Self::default()
        }
    }

    /// Whether the problem has this code.
    pub fn is(&self, code: Code) -> bool {
        self.code == code.slug() && self.status == code.status()
    }

    /// The code, if this version knows it.
    pub fn known_code(&self) -> Option<Code> {
        Code::find(&self.code, self.status)
    }
}

/// Reads a word that this version knows; one of a newer version counts as absent.
fn known<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word<T> {
        Known(T),
        Other(serde::de::IgnoredAny),
    }

    Ok(match Word::deserialize(deserializer)? {
        Word::Known(word) => Some(word),
        Word::Other(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_found_by_its_slug_and_status() {
        for code in Code::all() {
            assert_eq!(Code::find(code.slug(), code.status()), Some(code));
            assert!((400..600).contains(&code.status()), "{code:?}");
        }
        assert_eq!(Code::find("outcome-unknown", 409), Some(Code::OutcomeUnknown));
        assert_eq!(Code::find("outcome-unknown", 504), Some(Code::UpstreamSilent));
        assert_eq!(Code::find("lock-held", 404), None);
    }

    /// A browser forgets its key on `new-key`, and a payment then runs twice.
    #[test]
    fn no_code_that_leaves_doubt_asks_for_a_new_key() {
        for code in [
            Code::RequestTimeout,
            Code::RequestInProgress,
            Code::OutcomeUnknown,
            Code::AnswerNotKept,
            Code::Internal,
            Code::UpstreamUnreachable,
            Code::StoreUnavailable,
            Code::StoreTooSlow,
            Code::Overloaded,
            Code::Timeout,
            Code::UpstreamSilent,
        ] {
            assert_ne!(code.retry(), Retry::NewKey, "{code:?}");
        }
    }

    #[test]
    fn words_of_a_newer_service_count_as_absent() {
        let mut problem = ProblemDocument::new(Code::Timeout, "It took too long.");
        problem.outcome = Some(Effect::Unknown);
        problem.retry = Some(Retry::SameKey);
        let json = serde_json::to_string(&problem).unwrap();
        assert!(json.ends_with(r#""outcome":"unknown","retry":"same-key"}"#), "{json}");
        assert_eq!(serde_json::from_str::<ProblemDocument>(&json).unwrap(), problem);

        let newer = json.replace("\"unknown\"", "\"half-done\"").replace("same-key", "ask-again");
        let read: ProblemDocument = serde_json::from_str(&newer).unwrap();
        assert_eq!((read.outcome, read.retry), (None, None));
        assert_eq!(read.known_code(), Some(Code::Timeout));
    }
}
