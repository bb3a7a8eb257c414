//! What the service counts, in the Prometheus text format.
//!
//! Every label has a bounded set of values: matched routes, methods, statuses, codes of problems,
//! store operations and outcomes, identities of the operator's file. Never a lock name, an owner or
//! anything else that a client chooses.

mod labels;

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use self::labels::{CodeLabel, QuotaLabels, RequestLabels, StatusLabel, Words, mode};
use crate::access::{Authenticator, Identities, Identity, Meter, QuotaKind};
use crate::observed::ObservedGuards;
use crate::rolling_stats::RollingStats;
use keylatch_axum::{Code, Observed};
use keylatch_core::lock::{Limit, LockCounts};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
use strum::EnumCount as _;

pub use self::labels::{StoreOperation, StoreOutcome, StreamKind};

/// Bounds of the duration histograms, in seconds.
const BUCKETS: [f64; 10] = [0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0];

/// Bounds of the histograms of times that clients choose, in seconds: in line, and for which locks
/// are held.
const WAIT_BUCKETS: [f64; 10] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0];

/// The service's metrics and the registry that prints them.
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Histogram, fn() -> Histogram>,
    store_steps: Family<Words<2>, Histogram, fn() -> Histogram>,
    /// The histograms of `store_steps`, by operation and outcome, so that a step finds its own
    /// without a lock.
    known_steps: [[OnceLock<Histogram>; StoreOutcome::COUNT]; StoreOperation::COUNT],
    grants: Family<Words<1>, Counter>,
    streams: Family<Words<1>, Gauge>,
    waits: Histogram,
    problems: Family<[(&'static str, CodeLabel); 1], Counter>,
    held: Histogram,
    lost_holds: Family<Words<1>, Counter>,
    settled: Family<Words<1>, Counter>,
    observed: Family<[(&'static str, String); 2], Counter>,
    pub(crate) observed_guards: ObservedGuards,
    store_up: Gauge,
    /// Breaks of leases, repeats of a break among them.
    pub(crate) breaks: Counter,
    /// Leases whose expiry this instance was the first to see.
    pub(crate) expiries: Counter,
    /// Requests whose response was one that was kept.
    pub(crate) replays: Counter,
    /// Requests whose key was used for another request.
    pub(crate) mismatches: Counter,
    /// Requests whose key has an unknown outcome.
    pub(crate) unknowns: Counter,
    /// Guarded requests that ran without their keys, because the store could not be reached.
    pub(crate) unguarded: Counter,
    /// Guards that another instance has with other settings.
    pub(crate) differing_guards: Gauge,
    pub(crate) audit: AuditCounters,
    pub(crate) recent: RollingStats,
    /// Requests that are being answered.
    pub in_flight: Gauge,
    /// Connections that are open.
    pub connections: Gauge,
    /// Requests and connections turned away because the service is full.
    pub shed: Counter,
}

impl Metrics {
    /// All metrics at zero.
    #[expect(clippy::too_many_lines, reason = "it is the list of the metrics")]
    pub fn new() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut all = Registry::with_prefix("keylatch");
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "The running version", version);
        let metrics = Self {
            requests: timed(
                &mut all,
                "http_request_duration",
                "Time from a request's head to its response's; the count is that of the requests",
                Family::new_with_constructor(histogram),
            ),
            in_flight: counted(&mut all, "http_in_flight", "Requests under way"),
            connections: counted(&mut all, "http_connections", "Open connections"),
            streams: counted(&mut all, "http_streams", "Open streams of events"),
            shed: counted(&mut all, "http_shed", "Turned away because full"),
            store_steps: timed(
                &mut all,
                "store_operation_duration",
                "Time of a step of the store; the count is that of the steps",
                Family::new_with_constructor(histogram),
            ),
            known_steps: [const { [const { OnceLock::new() }; StoreOutcome::COUNT] };
                StoreOperation::COUNT],
            store_up: counted(&mut all, "store_up", "Whether the last step of the store found out"),
            grants: counted(&mut all, "lock_grants", "Grants of locks"),
            waits: timed(
                &mut all,
                "lock_wait",
                "Time in the queue of the grants that were waited for",
                Histogram::new(WAIT_BUCKETS),
            ),
            held: timed(
                &mut all,
                "lock_held",
                "Time from a grant to its release, its expiry or the end of its broken lease",
                Histogram::new(WAIT_BUCKETS),
            ),
            breaks: counted(&mut all, "lock_breaks", "Breaks of leases"),
            expiries: counted(&mut all, "lock_expiries", "Leases seen to expire"),
            lost_holds: counted(&mut all, "lock_lost_holds", "Locks that streams held and lost"),
            problems: counted(&mut all, "problems", "Problems that clients got"),
            replays: counted(&mut all, "idempotency_replays", "Retries that got a kept response"),
            mismatches: counted(
                &mut all,
                "idempotency_mismatches",
                "Keys used for another request",
            ),
            unknowns: counted(
                &mut all,
                "idempotency_unknowns",
                "Requests that read an unknown outcome",
            ),
            unguarded: counted(
                &mut all,
                "idempotency_unguarded",
                "Guarded requests that ran without their keys, because the store could not be reached",
            ),
            differing_guards: counted(
                &mut all,
                "guards_differing",
                "Guards that another instance on the store has with other settings",
            ),
            settled: counted(
                &mut all,
                "idempotency_settled",
                "Unknown outcomes that upstreams settled when they were asked",
            ),
            observed: counted(
                &mut all,
                "guard_observed",
                "Requests of guards that only observe, by what they would have come to",
            ),
            observed_guards: ObservedGuards::default(),
            audit: AuditCounters {
                lines: counted(&mut all, "audit_lines", "Lines of the audit log"),
                lost: counted(&mut all, "audit_lost", "Lines that the audit log lost"),
            },
            recent: RollingStats::default(),
            registry: Registry::default(),
        };
        for verdict in ["done", "not_done"] {
            drop(metrics.settled.get_or_create(&[("verdict", verdict)]));
        }
        Self { registry: all, ..metrics }
    }

    /// Counts an answered request. `route` is the matched route, never the path.
    pub(crate) fn request(
        &self,
        (method, route, known): (&'static str, &str, &RouteDurations),
        status: u16,
        took: Duration,
    ) {
        self.recent.count_answer(status, took);
        let (label, took) = (StatusLabel::of(status), took.as_secs_f64());
        let find = || {
            let labels = RequestLabels { method, route: route.to_owned(), status: label };
            (self.requests.get_or_create_owned(&labels), labels)
        };
        let slot = &known.0[usize::from(status) % RouteDurations::SLOTS];
        match slot.get_or_init(find) {
            (durations, of) if (of.method, &*of.route, of.status) == (method, route, label) => {
                durations.observe(took);
            }
            _ => find().0.observe(took),
        }
    }

    /// Counts a step of the store.
    pub fn store_step(&self, operation: StoreOperation, outcome: StoreOutcome, took: Duration) {
        let is_up = i64::from(outcome != StoreOutcome::Error);
        // All requests read it, and few change it.
        if self.store_up.get() != is_up {
            self.store_up.set(is_up);
        }
        self.recent.count_step(took);
        let known = &self.known_steps[operation as usize][outcome as usize];
        let labels = [("operation", operation.into()), ("outcome", outcome.into())];
        let durations = known.get_or_init(|| self.store_steps.get_or_create_owned(&labels));
        durations.observe(took.as_secs_f64());
    }

    /// Counts a grant of a lock.
    pub fn grant(&self, limit: Limit) {
        self.grants.get_or_create(&[("mode", mode(limit))]).inc();
    }

    /// Counts a grant that its client had asked to wait for.
    pub(crate) fn wait(&self, waited: Duration) {
        self.waits.observe(waited.as_secs_f64());
    }

    /// Counts a problem that a client was answered.
    pub(crate) fn problem(&self, code: Code) {
        self.problems.get_or_create(&[("code", CodeLabel(code.slug()))]).inc();
    }

    /// Counts a grant that has ended.
    pub(crate) fn held(&self, held_for: Duration) {
        self.held.observe(held_for.as_secs_f64());
    }

    /// Notes that the store gave no response to a scrape.
    pub(crate) fn store_is_silent(&self) {
        self.store_up.set(0);
    }

    /// Counts a lock that a stream held and lost; `reason` is the word of the event.
    pub(crate) fn lost_hold(&self, reason: &'static str) {
        self.lost_holds.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts an unknown outcome that an upstream settled.
    pub(crate) fn settled(&self, verdict: &'static str) {
        self.settled.get_or_create(&[("verdict", verdict)]).inc();
    }

    /// Counts a request of a guard that only observes.
    pub(crate) fn observed(&self, guard: &str, observed: Observed) {
        self.observed_guards.count(guard, observed);
        let outcome: &str = observed.into();
        let labels = [("guard", guard.to_owned()), ("outcome", outcome.to_owned())];
        self.observed.get_or_create_owned(&labels).inc();
    }

    /// Counts a stream of events for as long as what it gives lives.
    pub fn stream(&self, kind: StreamKind) -> GaugeGuard {
        GaugeGuard::new(&self.streams.get_or_create(&[("kind", kind.into())]))
    }

    /// How many streams of events of a kind are open.
    pub(crate) fn open_streams(&self, kind: StreamKind) -> i64 {
        self.streams.get_or_create(&[("kind", kind.into())]).get()
    }

    /// All metrics in the OpenMetrics text format, with what the core counts by itself.
    pub fn encode(
        &self,
        locks: LockCounts,
        records: RecordCounts,
        authenticator: Option<&Authenticator>,
        shows_quota: impl Fn(&Identity) -> bool,
    ) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &registry_of(locks, records))?;
        if let Some(authenticator) = authenticator {
            encode_registry(
                &mut text,
                &registry_of_quotas(&authenticator.identities(), shows_quota),
            )?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

/// A metric that begins at zero, under this name.
fn counted<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// A histogram of seconds, or several with labels, under this name.
fn timed<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// The histograms of one route that its requests have used, so that the next request finds its own
/// without the lock of all histograms, which all cores share. A request whose slot another method
/// or status has takes that lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouteDurations([OnceLock<(Histogram, RequestLabels)>; RouteDurations::SLOTS]);

impl RouteDurations {
    /// So many that what one route often answers has slots of its own: 200, 201, 204, 404.
    const SLOTS: usize = 11;
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// What the audit log counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditCounters {
    /// Lines that were written.
    pub(crate) lines: Counter,
    /// Lines that were not, because the disk or the writer took none.
    pub(crate) lost: Counter,
}

/// How many records there are.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordCounts {
    /// Those whose outcome is unknown; `None` where that could not be found out.
    pub unknown: Option<usize>,
    /// Those of runs that are under way; `None` where that could not be found out.
    pub in_flight: Option<usize>,
    /// Those whose outcome is kept; `None` where no store of this process has them.
    pub done: Option<u64>,
    /// The bytes of responses that this process keeps, if it keeps them.
    pub kept_bytes: Option<u64>,
}

/// What the core counts, as of now.
fn registry_of(locks: LockCounts, records: RecordCounts) -> Registry {
    let mut registry = Registry::with_prefix("keylatch");
    let waiters = ConstGauge::new(u64::try_from(locks.waiters).unwrap_or(u64::MAX));
    registry.register("waiters", "Requests that wait for a lock", waiters);
    if let Some(held) = locks.held {
        registry.register("locks_held", "Locks that are held", ConstGauge::new(held));
    }
    let help = "Writes that met one of another instance, and were decided again";
    registry.register("store_conflicts", help, ConstCounter::new(locks.store_conflicts));
    let withdrawn = ConstCounter::new(locks.withdrawn_grants);
    registry.register("lock_withdrawn_grants", "Grants withdrawn unread", withdrawn);
    let by_state = Family::<Words<1>, Gauge>::default();
    let unfinished = |count: Option<usize>| count.and_then(|count| u64::try_from(count).ok());
    for (state, count) in [
        ("unknown", unfinished(records.unknown)),
        ("in_flight", unfinished(records.in_flight)),
        ("done", records.done),
    ] {
        if let Some(count) = count.and_then(|count| i64::try_from(count).ok()) {
            by_state.get_or_create(&[("state", state)]).set(count);
        }
    }
    registry.register("idempotency_records", "Records, of all instances", by_state);
    if let Some(bytes) = records.kept_bytes {
        let help = "Bytes of responses that this process keeps for retries";
        registry.register("idempotency_kept_bytes", help, ConstGauge::new(bytes));
    }
    registry
}

/// What the identities with a quota have, as of now.
fn registry_of_quotas(identities: &Identities, shows: impl Fn(&Identity) -> bool) -> Registry {
    let mut registry = Registry::with_prefix("keylatch");
    let used = Family::<QuotaLabels, Gauge>::default();
    let refusals = Family::<QuotaLabels, Counter>::default();
    for identity in identities.iter().filter(|identity| shows(identity)) {
        let Identity { name, meter, .. } = &**identity;
        let labels =
            |kind: QuotaKind| QuotaLabels { identity: name.to_string(), quota: kind.into() };
        for (kind, count) in meter.usage() {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            used.get_or_create(&labels(kind)).set(count);
        }
        for (kind, count) in identity.meters().flat_map(Meter::refusals) {
            refusals.get_or_create(&labels(kind)).inc_by(count);
        }
    }
    registry.register("quota_used", "What identities with a quota have", used);
    registry.register("quota_refusals", "Requests above a quota", refusals);
    registry
}

/// A gauge that is one higher for as long as this lives.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    /// Counts one more on `gauge`.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Metrics, RouteDurations};

    #[test]
    fn answers_that_share_a_slot_are_counted_apart() {
        let (metrics, known) = (Metrics::new(), RouteDurations::default());
        let statuses = [201, 410];
        assert!(statuses.iter().all(|status| status % RouteDurations::SLOTS == 3));
        for status in [201, 410, 410] {
            metrics.request(("POST", "/v1/x", &known), status, Duration::ZERO);
        }
        let count = |status: u16| {
            let labels = super::RequestLabels {
                method: "POST",
                route: "/v1/x".to_owned(),
                status: super::StatusLabel::of(status),
            };
            let mut text = String::new();
            let mut registry = super::Registry::default();
            registry.register("it", "It", metrics.requests.get_or_create_owned(&labels));
            super::encode_registry(&mut text, &registry).unwrap();
            text.lines().find_map(|line| line.strip_prefix("it_count ")).unwrap().to_owned()
        };
        assert_eq!([count(201), count(410)], ["1", "2"]);
    }
}
