//! Asks an upstream what became of the runs whose outcome is unknown, where a guard says how.
//!
//! A task of the service reads the list of unknown records again and again, puts one question for
//! each, and settles what the response says: the order is there and its response is kept, or it is
//! not there and the key is free. Invariant: only the run that was asked about is settled, in one
//! conditional step by its fencing token, and no key becomes free before the upstream was asked
//! `after_ms` after the outcome became unknown. One instance asks at a time; if two do, the second
//! step changes nothing. Tested in `tests/api/settling.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::admission::holds;
use super::principal::PrincipalHeader;
use super::proxy::{Gateway, ServerHooks};
use crate::guard::{Settle, rule};
use crate::path_reading::PathReading;
use crate::response::{CHOSEN_BY, run_result};
use crate::{Guard, GuardAccess, InvalidSetting, RetentionPolicy};
use keylatch_client::https::HttpsClient;
use keylatch_core::idempotency::{
    Answer, IdempotencyService, PhaseName, Principal, RecordFilter, RecordScope, RecordSummary,
    ResolveCommand, ResolveReply, RunEnd, Settlement, StoredResponse, UNKNOWN_RETENTION,
};
use keylatch_core::lock::FencingToken;
use keylatch_core::store::{Effect, ListRecords};

/// What a key keeps in a path as it is (RFC 3986, section 2.3).
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Where the key stands in `get`.
const KEY: &str = "{key}";
/// How many questions an upstream has at a time.
const QUESTIONS: usize = 4;
const PAGE: usize = 100;

impl Settle {
    /// What types alone do not rule out, in this guard.
    pub(super) fn check(&self, guard: &Guard) -> Result<(), InvalidSetting> {
        rule(
            "settle",
            self.get.matches(KEY).count() == 1 && is_path(&self.get.replace(KEY, "k")),
            "needs a `get` like `/orders/by-key/{key}`: a path with `{key}` in it once",
        )?;
        let mut statuses = self.done.iter().chain(&self.not_done);
        let is_told = !self.done.is_empty() && statuses.all(|status| (200..500).contains(status));
        rule(
            "settle",
            is_told && !self.done.iter().any(|status| self.not_done.contains(status)),
            "needs statuses of 200 to 499 in `done` and `not_done`, and none in both: a 5xx does not say what happened",
        )?;
        let is_long = (1..=UNKNOWN_RETENTION.as_millis()).contains(&u128::from(self.for_ms));
        rule(
            "settle",
            (100..=3_600_000).contains(&self.every_ms) && is_long && self.after_ms < self.for_ms,
            "needs an `every_ms` of 100 to 3600000, a `for_ms` of at most 2592000000 (30 days), and an `after_ms` below that",
        )?;
        rule(
            "settle",
            guard.access == GuardAccess::Public
                && PrincipalHeader::of(guard).is_none_or(|header| !header.is_credential),
            "cannot ask as an identity, or as a principal whose credential no store keeps: name a header in `principal_header` that is no credential, which a proxy in front sets; or leave `settle` out",
        )
    }

    /// The path and query of the question. `None` where the key would be more than a segment of the
    /// path to some server, which then answers for something else.
    fn question(&self, key: &str) -> Option<String> {
        let is_in_query = self.get.split(KEY).next().is_some_and(|before| before.contains('?'));
        let asks = is_in_query || PathReading::is_segment(key);
        asks.then(|| self.get.replace(KEY, &utf8_percent_encode(key, PLAIN).to_string()))
    }
}

/// Whether a text is a path, with a query or without.
fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"#{}".contains(&byte))
}

/// A step that settles a run, before it is taken and after.
#[derive(Debug, Clone, Copy)]
pub struct SettleStep<'a> {
    /// What the run is about.
    pub scope: &'a RecordScope,
    /// Which run it is.
    pub run: FencingToken,
    /// Whether the upstream says that it was done.
    pub is_done: bool,
    /// What came of the step: whether it changed the record, or what is known where the store gave
    /// no response. `None` before it.
    pub result: Option<Result<bool, Effect>>,
}

/// Called before and after each step that settles a run.
pub type SettleObserver = Arc<dyn Fn(SettleStep<'_>) + Send + Sync>;

/// Says at the beginning of a round whether this instance is the one that asks.
pub type SettleTurn = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

struct Settler {
    settle: Settle,
    guard: Guard,
    inner_guards: Vec<String>,
    principal: Option<PrincipalHeader>,
    gateway: Gateway,
    service: Arc<IdempotencyService>,
    turn: SettleTurn,
    observer: SettleObserver,
}

impl Guard {
    /// Asks the upstream for what is unknown below this path and not below another of these guards,
    /// until the service drains. Does nothing where the guard does not say how.
    ///
    /// # Errors
    ///
    /// A setting is not as it must be.
    pub fn start_settling(
        &self,
        others: &[Self],
        client: &HttpsClient<Body>,
        service: &Arc<IdempotencyService>,
        server: ServerHooks,
        turn: SettleTurn,
        observer: SettleObserver,
    ) -> Result<(), InvalidSetting> {
        let Some(settle) = self.settle.clone() else { return Ok(()) };
        let settler = Settler {
            settle,
            guard: self.clone(),
            inner_guards: self.paths_within(others),
            principal: PrincipalHeader::of(self),
            gateway: Gateway::new(self, client.clone(), server)?,
            service: Arc::clone(service),
            turn,
            observer,
        };
        service.spawn_until_drain(Arc::new(settler).run());
        Ok(())
    }
}

impl Settler {
    async fn run(self: Arc<Self>) {
        let mut rounds = interval(Duration::from_millis(self.settle.every_ms));
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            if (self.turn)().await {
                self.ask_for_all().await;
            }
        }
    }

    /// One round: every record that is unknown now.
    async fn ask_for_all(self: &Arc<Self>) {
        let (phase, path_prefix) = (Some(PhaseName::Unknown), self.guard.path.clone());
        let filter = RecordFilter { phase, path_prefix, ..RecordFilter::default() };
        let mut query = ListRecords { filter, limit: PAGE, cursor: None };
        loop {
            let page = match self.service.list(&query).await {
                Ok(Some(page)) => page,
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "unknown outcomes are not yet asked for");
                    return;
                }
            };
            let asking = stream::iter(page.entries).map(|record| {
                let settler = Arc::clone(self);
                async move { settler.ask_for(&record).await }
            });
            asking.buffer_unordered(QUESTIONS).collect::<()>().await;
            query.cursor = page.next;
            if query.cursor.is_none() {
                return;
            }
        }
    }

    async fn ask_for(&self, record: &RecordSummary) {
        if record.age > Duration::from_millis(self.settle.for_ms) || !self.is_of_guard(record) {
            return;
        }
        let is_early = record.age < Duration::from_millis(self.settle.after_ms);
        match self.ask(record).await {
            Some(Settlement::NotExecuted) if is_early => {}
            Some(end) => self.settle(record, end).await,
            None => {}
        }
    }

    /// Whether the record is of a request to this guard, and has all that the question needs.
    fn is_of_guard(&self, record: &RecordSummary) -> bool {
        let scope = &record.scope;
        let names_principal = match scope.principal() {
            Principal::None => true,
            Principal::User(_) => self.principal.is_some(),
            Principal::Identity(_) => false,
        };
        names_principal
            && self.guard.methods.iter().any(|method| method == scope.method())
            && holds(&self.guard.path, scope.path())
            && !self.inner_guards.iter().any(|inner| holds(inner, scope.path()))
            && scope.leads_to(&record.key)
    }

    /// Puts the question; `None` where the response does not say what happened.
    async fn ask(&self, record: &RecordSummary) -> Option<Settlement> {
        let scope = &record.scope;
        let mut question = Request::builder()
            .method(Method::GET)
            .uri(self.settle.question(scope.key().as_str())?)
            .body(Body::empty())
            .ok()?;
        if let Some(header) = &self.principal {
            header.write(&mut question, scope.principal());
        }
        let end = Instant::now() + Duration::from_millis(self.guard.timeout_ms);
        let mut response = self.gateway.ask(question, end).await?;
        let status = response.status().as_u16();
        if self.settle.not_done.contains(&status) {
            return Some(Settlement::NotExecuted);
        }
        if !self.settle.done.contains(&status) {
            return None;
        }
        if response.extensions().get::<RetentionPolicy>().is_none() {
            response.extensions_mut().insert(RetentionPolicy::Answer);
        }
        let kept = run_result(response, &self.guard, &self.service, scope);
        match timeout_at(end, kept).await.ok()?.end? {
            RunEnd::Done(kept) => Some(Settlement::Done(by_upstream(kept))),
            RunEnd::DoneFor(kept, lasts) => Some(Settlement::DoneFor(by_upstream(kept), lasts)),
            RunEnd::Unknown(_) | RunEnd::SentOn(..) => None,
        }
    }

    /// Takes the one step, unless another run began or somebody was sooner.
    async fn settle(&self, record: &RecordSummary, end: Settlement) {
        let (scope, run) = (&record.scope, record.fencing_token);
        let is_done = end != Settlement::NotExecuted;
        let observe = |result| (self.observer)(SettleStep { scope, run, is_done, result });
        observe(None);
        let resolve = ResolveCommand { key: record.key, fencing_token: Some(run), end };
        let result = match self.service.resolve(&resolve).await {
            Ok(ResolveReply::Completed(_) | ResolveReply::Freed(_)) => Ok(true),
            Ok(ResolveReply::Refused(_) | ResolveReply::Absent) => Ok(false),
            Err(error) => {
                tracing::warn!(%error, "it is not known whether an outcome is settled");
                Err(error.effect())
            }
        };
        observe(Some(result));
    }
}

/// A response with the mark that says who settled the run.
fn by_upstream(kept: StoredResponse) -> StoredResponse {
    let StoredResponse::Answer(answer) = kept else { return kept };
    let mut answer = Answer::clone(&answer);
    answer.headers.push((CHOSEN_BY.to_owned(), "upstream".into()));
    StoredResponse::Answer(Arc::new(answer))
}
