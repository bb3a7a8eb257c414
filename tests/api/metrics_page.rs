//! Goal: the page about operating lists the metrics that there are, each with its type, its labels
//! and their values, and they count what happens to locks and keys.
//!
//! Method: a tour of requests that touches every metric; the tables of the page are compared with
//! `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use keylatch::config::Config;
use keylatch::http::{Guard, Mode};
use keylatch_testkit::{Answer, Keyring, Service, Shop, eventually};
use keylatch_wire::Code;
use reqwest::Method;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../docs/operating.md");
const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }, \
                   { keys = \"\", may = [\"use\", \"read\", \"resolve\"] }]\n\
                   quota = { locks = 2 }";

/// Metrics by name, each with its type and its labels.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// The metrics in the table of the page.
fn documented() -> Metrics {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `keylatch_"));
    let metrics = rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').to_owned();
        // What is in parentheses are the values of a label.
        let labels =
            cells[3].split('(').next().unwrap_or_default().to_owned() + &after_values(cells[3]);
        let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (name, (cells[2].to_owned(), labels))
    });
    metrics.collect()
}

/// The labels behind the values of the first one.
fn after_values(cell: &str) -> String {
    cell.split_once("), ")
        .map_or_else(String::new, |(_, rest)| rest.split('(').next().unwrap_or_default().to_owned())
}

/// The metrics of a scrape.
fn scraped(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    let mut family = (String::new(), String::new());
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of.split_once(' ').expect("a type");
            family = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') {
            let suffix = match family.1.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let (_, labels) = metrics
                .entry(family.0.clone() + suffix)
                .or_insert_with(|| (family.1.clone(), BTreeSet::new()));
            let inside = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
            let names = inside.map_or("", |(inside, _)| inside).split("\",").filter_map(|label| {
                let (name, _) = label.split_once('=')?;
                (name != "le").then(|| name.to_owned())
            });
            labels.extend(names);
        }
    }
    metrics
}

/// Values by the label that they are of.
type Values = BTreeMap<String, BTreeSet<String>>;

/// The words in backquotes of a cell.
fn words(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The values of the labels that have a list of them on the page.
fn documented_values() -> Values {
    let mut values = Values::new();
    let mut label = String::new();
    for line in PAGE.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        match cells[..] {
            ["", first, "values", ""] | ["", first, "what the step does", ""] => {
                label = first.trim_matches('`').to_owned();
            }
            ["", "`outcome`", "meaning", ""] => label = "outcome".to_owned(),
            ["", _, _, ""] if label.is_empty() => {}
            ["", name, listed, ""] if label == "label" => {
                values.entry(name.trim_matches('`').to_owned()).or_default().extend(words(listed));
            }
            ["", names, _, ""] => values.entry(label.clone()).or_default().extend(words(names)),
            _ => label.clear(),
        }
    }
    let metrics = PAGE.lines().filter(|line| line.starts_with("| `keylatch_quota"));
    let quotas = metrics.filter_map(|row| row.split_once("`quota` (")?.1.split_once(')'));
    let quotas = quotas.flat_map(|(quotas, _)| words(quotas).collect::<Vec<_>>());
    values.insert("quota".to_owned(), quotas.collect());
    values
}

/// The values of the labels of a scrape.
fn scraped_values(text: &str) -> Values {
    let mut values = Values::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let inside = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
        for label in inside.map_or("", |(inside, _)| inside).split("\",") {
            if let Some((name, value)) = label.split_once("=\"") {
                let value = value.trim_end_matches('"').to_owned();
                values.entry(name.to_owned()).or_default().insert(value);
            }
        }
    }
    values
}

struct Tour {
    service: Service,
    _keyring: Keyring,
    key: String,
}

impl Tour {
    async fn start() -> Self {
        Self::start_with(Vec::new()).await
    }

    async fn start_with(guard: Vec<Guard>) -> Self {
        let mut keyring = Keyring::default();
        let key = keyring.add("all", ALL);
        let service = Service::start_with(Config { guard, ..keyring.config() }).await;
        Self { service, _keyring: keyring, key }
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Answer {
        Answer::of(self.service.request(method, path).bearer_auth(&self.key).json(&body)).await
    }

    async fn scrape(&self) -> String {
        self.send(Method::GET, "/metrics", json!({})).await.text
    }

    /// The value of a sample.
    async fn sample(&self, name: &str) -> Option<f64> {
        let text = self.scrape().await;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

#[tokio::test]
async fn page_lists_the_metrics_that_there_are() {
    let guard = Guard { mode: Mode::Observe, ..Shop::guard("http://127.0.0.1:1") };
    let tour = Tour::start_with(vec![guard]).await;
    tour.send(Method::POST, "/orders", json!({})).await;
    tour.send(Method::POST, "/v1/locks/b/hold", json!({"max_hold_ms": 100})).await;
    for name in ["a", "b"] {
        tour.send(Method::POST, &format!("/v1/locks/{name}"), json!({"wait_ms": 1000})).await;
    }
    tour.send(Method::POST, "/v1/locks/c", json!({})).await.is_problem(429, "quota-exceeded");
    let (page, seen) = (documented(), scraped(&tour.scrape().await));
    assert!(page.len() > 15, "{page:?}");
    assert_eq!(seen, page);
}

/// Labels that take what the operator names or a standard does have no list, and a tour provokes
/// some of the values of others.
#[tokio::test]
async fn page_lists_the_values_that_labels_have() {
    const UNLISTED: [&str; 6] = ["le", "version", "route", "status", "identity", "code"];
    const WHOLE: [&str; 3] = ["kind", "mode", "state"];
    let tour = Tour::start().await;
    tour.send(Method::POST, "/v1/locks/a/hold", json!({"max_hold_ms": 100})).await;
    tour.send(Method::POST, "/v1/locks/b", json!({"mode": "shared"})).await;
    tour.send(Method::POST, "/v1/locks/c", json!({"mode": "shared", "limit": 2})).await;
    tour.send(Method::POST, "/v1/locks/d", json!({})).await.is_problem(429, "quota-exceeded");
    for path in ["/v1/locks/b/events?limit=1", "/console/locks"] {
        let stream = tour.service.request(Method::GET, path).bearer_auth(&tour.key).send();
        drop(stream.await.expect("an answer"));
    }
    tour.send(Method::POST, "/v1/idempotency/k", json!({})).await;
    let (page, seen) = (documented_values(), scraped_values(&tour.scrape().await));
    for (label, values) in &seen {
        if UNLISTED.contains(&label.as_str()) {
            continue;
        }
        let listed = page.get(label).unwrap_or_else(|| panic!("`{label}` has no list: {page:?}"));
        assert!(values.is_subset(listed), "{label}: {values:?} of {listed:?}");
        if WHOLE.contains(&label.as_str()) {
            assert_eq!(values, listed, "{label}");
        }
    }
    assert!(WHOLE.iter().all(|label| seen.contains_key(*label)), "{seen:?}");
    let slugs: BTreeSet<_> = Code::all().map(|code| code.slug().replace('-', "_")).collect();
    assert!(seen["code"].contains("quota_exceeded"), "{seen:?}");
    assert!(seen["code"].is_subset(&slugs), "{:?}", seen["code"]);
}

#[tokio::test]
async fn locks_are_counted_from_grant_to_end() {
    let service = Service::start("memory:").await;
    let held = async |count| assert_eq!(service.metric("keylatch_locks_held").await, count);
    let ended = async |count| {
        assert_eq!(service.metric("keylatch_lock_held_seconds_count").await, count);
    };
    held(0).await;
    let one = service.create("one", &json!({})).await;
    let two = service.create("two", &json!({})).await;
    service.create("one", &json!({})).await.is_problem(409, "lock-held");
    assert_eq!(service.metric("keylatch_problems_total{code=\"lock_held\"}").await, 1);
    held(2).await;
    assert_eq!(service.release("one", &one.token()).await.status, 204);
    held(1).await;
    ended(1).await;
    let body = json!({"fencing_token": two.fencing_token(), "reason": "it hangs", "grace_ms": 0});
    let request = service.request(Method::POST, "/v1/locks/two/break").json(&body);
    let broken = Answer::of(request).await;
    assert_eq!(broken.status, 200, "{broken:?}");
    assert_eq!(service.metric("keylatch_lock_breaks_total").await, 1);
    held(0).await;
    service.create("three", &json!({"ttl_ms": 1500})).await;
    service.granted("three").await;
    service.reaches("keylatch_lock_expiries_total", 1).await;
    // The release, the broken lease and the expired one.
    ended(3).await;
    held(1).await;
}

#[tokio::test]
async fn locks_of_a_set_are_counted_one_by_one() {
    let service = Service::start("memory:").await;
    let token = "the-token-of-both-locks";
    let set = service.create_set_as(&["a", "b"], token, &json!({})).await;
    assert_eq!(set.status, 201, "{set:?}");
    assert_eq!(service.metric("keylatch_locks_held").await, 2);
    assert_eq!(service.release_set(&["a", "b"], token).await.status, 204);
    assert_eq!(service.metric("keylatch_lock_held_seconds_count").await, 2);
    assert_eq!(service.metric("keylatch_locks_held").await, 0);
}

#[tokio::test]
async fn records_and_repeats_are_counted() {
    let tour = Tour::start().await;
    let begin = async |key: &str, fingerprint: &str, lease_ms: u64| {
        let body = json!({"fingerprint": fingerprint, "lease_ms": lease_ms});
        tour.send(Method::POST, &format!("/v1/idempotency/{key}"), body).await
    };
    assert_eq!(tour.sample("keylatch_idempotency_records{state=\"unknown\"}").await, Some(0.0));
    begin("left", "f", 100).await;
    // Those that are not done are counted once in a while.
    let reaches = async |state: &str, records: f64| {
        let name = format!("keylatch_idempotency_records{{state=\"{state}\"}}");
        eventually(async || (tour.sample(&name).await == Some(records)).then_some(())).await;
    };
    reaches("unknown", 1.0).await;
    let run = begin("done", "f", 30_000).await;
    reaches("in_flight", 1.0).await;
    let complete = tour.service.request(Method::PUT, "/v1/idempotency/done").bearer_auth(&tour.key);
    let complete = complete.header("Lock-Token", run.token()).json(&json!({"status": 200}));
    let completed = Answer::of(complete).await;
    assert!(completed.status.is_success(), "{completed:?}");
    begin("done", "f", 30_000).await;
    begin("done", "other", 30_000).await;
    begin("left", "f", 30_000).await.is_problem(409, "outcome-unknown");
    reaches("in_flight", 0.0).await;
    for (name, count) in [
        ("keylatch_idempotency_replays_total", 1.0),
        ("keylatch_idempotency_mismatches_total", 1.0),
        ("keylatch_idempotency_unknowns_total", 1.0),
        ("keylatch_idempotency_records{state=\"done\"}", 1.0),
        ("keylatch_store_up", 1.0),
    ] {
        assert_eq!(tour.sample(name).await, Some(count), "{name}");
    }
}
