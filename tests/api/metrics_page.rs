//! Goal: the page about operating lists the metrics that there are, each with its type and its labels.
//!
//! Method: a tour of requests that touches every metric; the table of the page is compared with `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use keylatch_testkit::{Answer, Keyring, Service, eventually};
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

struct Tour {
    service: Service,
    _keyring: Keyring,
    key: String,
}

impl Tour {
    async fn start() -> Self {
        let mut keyring = Keyring::default();
        let key = keyring.add("all", ALL);
        let service = Service::start_with(keyring.config()).await;
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
    let tour = Tour::start().await;
    tour.send(Method::POST, "/v1/locks/b/hold", json!({"max_hold_ms": 100})).await;
    for name in ["a", "b"] {
        tour.send(Method::POST, &format!("/v1/locks/{name}"), json!({"wait_ms": 1000})).await;
    }
    tour.send(Method::POST, "/v1/locks/c", json!({})).await.is_problem(429, "quota-exceeded");
    let (page, seen) = (documented(), scraped(&tour.scrape().await));
    assert!(page.len() > 15, "{page:?}");
    assert_eq!(seen, page);
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
    let unknown = async || {
        let count = tour.sample("keylatch_idempotency_records{state=\"unknown\"}").await;
        (count == Some(1.0)).then_some(())
    };
    eventually(unknown).await;
    let run = begin("done", "f", 30_000).await;
    assert_eq!(tour.sample("keylatch_idempotency_records{state=\"in_flight\"}").await, Some(1.0));
    let complete = tour.service.request(Method::PUT, "/v1/idempotency/done").bearer_auth(&tour.key);
    let complete = complete.header("Lock-Token", run.token()).json(&json!({"status": 200}));
    let completed = Answer::of(complete).await;
    assert!(completed.status.is_success(), "{completed:?}");
    begin("done", "f", 30_000).await;
    begin("done", "other", 30_000).await;
    for (name, count) in [
        ("keylatch_idempotency_records{state=\"in_flight\"}", 0.0),
        ("keylatch_idempotency_replays_total", 1.0),
        ("keylatch_idempotency_mismatches_total", 1.0),
        ("keylatch_store_up", 1.0),
    ] {
        assert_eq!(tour.sample(name).await, Some(count), "{name}");
    }
}
