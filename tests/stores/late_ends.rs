//! What becomes of the end of a run that comes after its lease: it is kept where nothing else can
//! have run, as long as nobody has settled the record.
//!
//! Method: the fake engine is cut off until the lease of a run is over, so that the service cannot
//! renew it; it is back before the run ends, or afterwards. tokio's clock is stopped and jumps from
//! timer to timer.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::idempotency::{
    IdempotencyService, OnCrash, OnceRun, RecordStatus, RecordView, ResolveCommand, RunEnd,
    RunRequest, RunResult, StoredResponse, UnknownReason,
};
use keylatch_core::store::Store;
use keylatch_testkit::{FakeEngine, Faults};

use crate::conditional::{pass, two_on};
use crate::record_conformance::ask;

const LEASE: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(2);

/// An engine, a service on it, and another process that looks at its records.
struct Places {
    engine: FakeEngine,
    records: Arc<IdempotencyService>,
    other: Arc<dyn Store>,
}

impl Places {
    fn new(make: fn(Faults, u64) -> FakeEngine) -> Self {
        let (engine, [store, other]) = two_on(make);
        Self { engine, records: IdempotencyService::start(store, DEADLINE), other }
    }

    /// Runs work that ends after its lease, as `end`; what happens meanwhile comes before that.
    async fn run_late(
        &self,
        on_crash: OnCrash,
        end: Option<u16>,
        is_back: bool,
        meanwhile: impl AsyncFn(RecordView),
    ) -> Option<Duration> {
        let begin = ask(1, "one");
        let request = RunRequest {
            key: begin.key,
            scope: begin.scope,
            fingerprint: begin.fingerprint,
            lease: LEASE,
            retention: begin.retention,
            on_crash,
            panic_releases: false,
            wait: Duration::ZERO,
            step_limit: None,
            answer_bytes: 0,
        };
        let end = end.map(|status| RunEnd::Done(StoredResponse::Mark(status)));
        let engine = self.engine.clone();
        let work = async move |_| {
            engine.cut_off(true);
            pass(2 * LEASE).await;
            engine.cut_off(!is_back);
            pass(LEASE).await;
            RunResult { answer: (), end, late: None }
        };
        let settled = async {
            pass(2 * LEASE + Duration::from_secs(1)).await;
            if let Some(view) = self.look().await.filter(|_| is_back) {
                meanwhile(view).await;
            }
        };
        let (ran, ()) = tokio::join!(self.records.once(request, work), settled);
        match ran.unwrap() {
            OnceRun::Ran { kept, .. } => kept,
            other => panic!("{other:?}"),
        }
    }

    async fn look(&self) -> Option<RecordView> {
        self.other.find(&ask(1, "one").key).await.ok().flatten()
    }

    async fn status(&self) -> Option<RecordStatus> {
        Some(self.look().await?.phase)
    }
}

const ENGINES: [fn(Faults, u64) -> FakeEngine; 3] =
    [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful];

#[tokio::test(start_paused = true)]
async fn answer_that_comes_after_the_lease_is_kept() {
    for make in ENGINES {
        let places = Places::new(make);
        let is_unknown = async |view: RecordView| {
            let reason = UnknownReason::Interrupted;
            assert!(
                matches!(view.phase, RecordStatus::Unknown { reason: why, .. } if why == reason)
            );
        };
        let kept = places.run_late(OnCrash::Unknown, Some(201), true, is_unknown).await;
        assert!(kept.is_some(), "its client reads that it is not kept");
        let status = places.status().await;
        assert!(matches!(status, Some(RecordStatus::Done { .. })), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_the_store_does_not_take_at_once_is_kept_once_it_does() {
    let places = Places::new(FakeEngine::without_clock);
    places.run_late(OnCrash::Unknown, Some(201), false, async |_| ()).await;
    pass(Duration::from_secs(30)).await;
    places.engine.cut_off(false);
    pass(Duration::from_secs(10)).await;
    let status = places.status().await;
    assert!(matches!(status, Some(RecordStatus::Done { .. })), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn key_stays_unknown_after_a_run_that_came_to_nothing_after_its_lease() {
    let places = Places::new(FakeEngine::new);
    places.run_late(OnCrash::Unknown, None, true, async |_| ()).await;
    let status = places.status().await;
    assert!(matches!(status, Some(RecordStatus::Unknown { .. })), "{status:?}");
}

/// What a person said stays.
#[tokio::test(start_paused = true)]
async fn answer_that_comes_after_a_person_freed_the_key_is_not_kept() {
    let places = Places::new(FakeEngine::new);
    let free = async |view: RecordView| {
        let (key, fencing_token) = (ask(1, "one").key, Some(view.fencing_token));
        let resolve = ResolveCommand { key, fencing_token, end: None.into() };
        places.other.resolve(&resolve).await.unwrap();
    };
    let kept = places.run_late(OnCrash::Unknown, Some(201), true, free).await;
    assert_eq!(kept, None);
    assert!(places.look().await.is_none(), "the freed key is used");
}

/// Another client may have run it again by then.
#[tokio::test(start_paused = true)]
async fn answer_of_a_run_that_may_run_again_is_not_kept_after_its_lease() {
    let places = Places::new(FakeEngine::new);
    let kept = places.run_late(OnCrash::Rerun, Some(201), true, async |_| ()).await;
    assert_eq!(kept, None);
}
