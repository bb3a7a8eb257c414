//! Goal: a test of a program that uses the client needs no service: time moves, leases are lost,
//! work is done once.
//!
//! Method: the client over the fake, on a paused clock.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use keylatch_client::testing::Fake;
use keylatch_client::{
    AcquireOptions, BeginReply, Client, Error, FOREVER, Lease, Limit, LossReason, OnceOptions,
    ReleaseReply, Response, Token,
};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_for_hours_and_lost_when_the_test_says_so() {
    let fake = Fake::new();
    let guard = fake.client().lock("a", &AcquireOptions::default()).await.expect("it is free");
    fake.advance(HOUR).await;
    guard.check().expect("it is renewed");
    fake.lose("a").await;
    assert_eq!(guard.loss(), Some(LossReason::NotHeld));
    assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::NotHeld);
}

/// The requests that a client has sent.
type Sent = Arc<Mutex<Vec<String>>>;

/// A client to whose requests no response comes.
fn unanswered() -> Result<(Client, Sent), Error> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let client = Client::builder("http://k").retries(1).pause(|| Duration::ZERO);
    let client = client.transport(move |request| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(format!("{} {}", request.method(), request.uri()));
        async { Err(Error::Unanswered("it is lost".to_owned())) }
    });
    Ok((client.build()?, sent))
}

#[tokio::test]
async fn transport_of_ones_own_sends_each_request() {
    let (client, sent) = unanswered().expect("a URL");
    let shown = client.show("a").await;
    assert!(matches!(shown, Err(Error::Unanswered(_))), "{shown:?}");
    assert_eq!(*sent.lock().expect("no panic"), ["GET http://k/v1/locks/a"; 2]);
}

/// By that token another acquisition may hold the lock. An entry is that of one acquisition.
#[tokio::test]
async fn lost_response_under_a_token_of_ones_own_releases_nothing() {
    let token = Some(Token::generate().expect("a token"));
    let own = AcquireOptions { token, ..AcquireOptions::default() };
    let entered = AcquireOptions { entry: Some("e".to_owned()), ..own.clone() };
    for (options, release) in [
        (&AcquireOptions::default(), Some("DELETE http://k/v1/locks/a")),
        (&own, None),
        (&entered, Some("DELETE http://k/v1/locks/a?entry=e")),
    ] {
        let (client, sent) = unanswered().expect("a URL");
        client.lock("a", options).await.expect_err("no response comes");
        client.close().await;
        let sent = sent.lock().expect("no panic");
        let released = sent.iter().map(String::as_str).find(|it| it.starts_with("DELETE"));
        assert_eq!(released, release);
    }
}

/// With one subscriber alone, tracing remembers whether the first thread that reached a line had a
/// subscriber, and a test without one silences the line for all. With two it asks each time.
static SECOND_SUBSCRIBER: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
    let everything = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
    tracing::Dispatch::new(everything.with_writer(std::io::sink).finish())
});

/// What a program logs, and counts: each request with its time, and each loss.
#[tokio::test(start_paused = true)]
async fn requests_and_losses_are_events() {
    LazyLock::force(&SECOND_SUBSCRIBER);
    let log = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::clone(&log);
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || Written(Arc::clone(&written)));
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    let fake = Fake::new();
    let guard = fake.client().lock("a", &AcquireOptions::default()).await.expect("it is free");
    fake.lose("a").await;
    drop(guard);
    let log = String::from_utf8(log.lock().expect("no panic").clone()).expect("a text");
    let has = |words: [&str; 2]| log.lines().any(|line| words.iter().all(|it| line.contains(it)));
    assert!(has(["a request method=POST path=\"/v1/locks/a\" took=", "failure=None"]), "{log}");
    assert!(has(["WARN", "a lease is lost what=\"`a`\""]), "{log}");
}

struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn suspended_process_has_lost_its_lease() {
    let fake = Fake::new();
    let guard = fake.client().lock("a", &AcquireOptions::default()).await.expect("it is free");
    tokio::time::advance(HOUR).await;
    assert_eq!(guard.loss(), Some(LossReason::Paused));
    drop(guard);
    let again = fake.client().lock("a", &AcquireOptions::waiting(HOUR)).await;
    again.expect("it has expired");
}

#[tokio::test(start_paused = true)]
async fn waiter_has_the_lock_after_its_release_with_a_larger_token() {
    let fake = Fake::new();
    let (client, options) = (fake.client(), AcquireOptions::waiting(FOREVER));
    let first = client.lock("a", &options).await.expect("it is free");
    let before = first.fencing_token();
    let held = client.lock("a", &AcquireOptions::waiting(HOUR)).await;
    assert!(matches!(held, Err(Error::Held(held)) if held.name == "a"));
    let (second, released) = tokio::join!(client.lock("a", &options), first.close());
    assert_eq!(released.expect("an answer"), ReleaseReply::Released);
    assert!(second.expect("it is free").fencing_token() > before);
}

#[tokio::test(start_paused = true)]
async fn places_and_sets_are_given_out_as_the_service_does() {
    let fake = Fake::new();
    let client = fake.client();
    let pair = AcquireOptions { limit: Limit::Counted(2), ..AcquireOptions::default() };
    let one = client.lock("a", &pair).await.expect("a place");
    let two = client.lock("a", &pair).await.expect("a place");
    assert_eq!((one.slot(), two.slot()), (Some(0), Some(1)));
    assert!(client.try_lock("a", &pair).await.expect("an answer").is_none());
    let alone = AcquireOptions::default();
    assert!(matches!(client.lock_all(["b", "a"], &alone).await, Err(Error::Held(_))));
    drop((one, two));
    client.close().await;
    let set = client.lock_all(["b", "a"], &alone).await.expect("they are free");
    assert_eq!(set.locks().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn thing_is_done_once_and_its_duplicate_waits() {
    let fake = Fake::new();
    let client = fake.client();
    let options = OnceOptions { wait: HOUR, ..OnceOptions::default() };
    let work = async |_| {
        tokio::time::sleep(HOUR / 2).await;
        Ok::<_, Error>(Response::new("sent"))
    };
    let (first, second) =
        tokio::join!(client.once("k", &options, work), client.once("k", &options, work));
    let (first, second) = (first.expect("an answer"), second.expect("an answer"));
    assert_ne!(first.replayed, second.replayed);
    assert_eq!(first.response.body(), second.response.body());

    let Ok(BeginReply::Begun(run)) = client.begin("l", &options).await else { panic!("it is new") };
    run.leave();
    fake.advance(HOUR).await;
    let unknown = client.begin("l", &options).await;
    assert!(
        matches!(&unknown, Err(Error::Problem(it)) if it.code == "outcome-unknown"),
        "{unknown:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn elected_one_leads_again_after_a_loss() {
    let fake = Fake::new();
    let (client, terms) = (fake.client(), Arc::new(Mutex::new(Vec::new())));
    let told = Arc::clone(&terms);
    let election = tokio::spawn(async move {
        let lead = |lease: Lease| {
            let told = Arc::clone(&told);
            async move {
                lease.lost().cancelled().await;
                told.lock().expect("no panic").push((lease.fencing_token(), lease.valid_for()));
            }
        };
        client.elect("leader", &AcquireOptions::default(), lead).await
    });
    for term in 1..=2 {
        fake.advance(HOUR).await;
        fake.lose("leader").await;
        assert_eq!(terms.lock().expect("no panic").len(), term);
    }
    election.abort();
    assert!(election.await.expect_err("it leads for ever").is_cancelled());
    let [(first, left), (second, _)] = terms.lock().expect("no panic")[..] else { panic!("two") };
    assert!(second > first && !left.is_zero());
    let next = fake.client().lock("leader", &AcquireOptions::waiting(HOUR)).await;
    assert!(next.expect("it is given up").fencing_token() > second);
}

#[tokio::test(start_paused = true)]
async fn elected_one_that_goes_on_is_stopped_soon_after_its_lease_is_gone() {
    let fake = Fake::new();
    let (client, terms) = (fake.client(), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&terms);
    let election = tokio::spawn(async move {
        let lead = |_| {
            *counted.lock().expect("no panic") += 1;
            std::future::pending()
        };
        client.elect("leader", &AcquireOptions::default(), lead).await
    });
    fake.advance(HOUR).await;
    fake.lose("leader").await;
    fake.advance(Duration::from_secs(2)).await;
    assert_eq!(*terms.lock().expect("no panic"), 2);
    election.abort();
}
