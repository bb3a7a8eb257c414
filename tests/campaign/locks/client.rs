//! The HTTP client of the lock campaign.
//!
//! Goal: the history has what a client sent, when it sent it, and what it read.
//!
//! Method: `ask` reads the clock before it sends and after it has read, so the service answered
//! between the two times. A request without an answer becomes `Told::Nothing`. An answer that the
//! API does not have becomes `Told::Odd`, which the checker reports under I7: `guilt.rs` has that
//! case.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylatch_testkit::{Answer, Dice};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::clock::{micros, now};
use super::history::{Ask, Event, Holder, Lease, Micros, Told};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sends requests to a service and writes down what it read. Each request has a number, and every
/// client can see by it which request got a lock.
#[derive(Debug, Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    addresses: Arc<[SocketAddr]>,
    numbers: Arc<AtomicU64>,
}

/// What is asked of a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) lock: usize,
    pub(super) token: u64,
    pub(super) ask: Ask,
    /// In ms.
    pub(super) ttl: u64,
    pub(super) wait: u64,
    /// How long the answer is waited for.
    pub(super) patience: Duration,
}

impl Request {
    pub(super) fn new(lock: usize, token: u64, ask: Ask) -> Self {
        Self { lock, token, ask, ttl: 0, wait: 0, patience: PATIENCE }
    }

    pub(super) fn acquire(lock: usize, token: u64, ttl: u64, wait: u64) -> Self {
        let ask = Ask::Acquire { waits: wait > 0 };
        Self { ttl, wait, ..Self::new(lock, token, ask) }
    }

    /// Waits for the answer as long as it may take by itself.
    pub(super) fn patient(mut self) -> Self {
        self.patience = PATIENCE + Duration::from_millis(self.wait);
        self
    }

    pub(super) fn renew(lock: usize, token: u64, ttl: u64) -> Self {
        let ask = Ask::Renew { ttl: micros(Duration::from_millis(ttl)) };
        Self { ttl, ..Self::new(lock, token, ask) }
    }
}

impl Client {
    /// A client with its own connections.
    pub(super) fn new(addresses: &[SocketAddr], numbers: &Arc<AtomicU64>) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { http, addresses: addresses.into(), numbers: Arc::clone(numbers) }
    }

    /// A number that nothing else has.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request to some instance, and gives what came of it.
    pub(super) async fn ask(&self, request: Request, dice: &mut Dice) -> Event {
        let address = self.addresses[dice.below(self.addresses.len() as u64) as usize];
        let number = self.number();
        let http = self.http_request(address, &request, number);
        let sent = now();
        let answer = timeout(request.patience, Answer::try_of(http)).await;
        let read = now();
        let told = match answer {
            Ok(Ok(answer)) => told(request.ask, &answer),
            _ => Told::Nothing,
        };
        let Request { lock, token, ask, .. } = request;
        Event { number, lock, token, ask, sent, read, told }
    }

    fn http_request(&self, address: SocketAddr, request: &Request, number: u64) -> RequestBuilder {
        let Request { lock, token, ttl, wait, .. } = request;
        let (method, body) = match request.ask {
            Ask::Acquire { .. } => {
                let body = json!({"ttl_ms": ttl, "wait_ms": wait, "owner": number.to_string()});
                (Method::POST, Some(body))
            }
            Ask::Renew { .. } => (Method::PUT, Some(json!({"ttl_ms": ttl}))),
            Ask::Release => (Method::DELETE, None),
            Ask::Look => (Method::GET, None),
        };
        let name = lock_name(*lock as u64);
        let http = self.http.request(method, format!("http://{address}/v1/locks/{name}"));
        let http = match request.ask {
            Ask::Look => http,
            _ => http.header("Lock-Token", format!("campaign-token-{token:020}")),
        };
        match body {
            Some(body) => http.json(&body),
            None => http,
        }
    }
}

/// What a lock is called.
pub(super) fn lock_name(lock: u64) -> String {
    format!("lock-{lock}")
}

/// What an answer says.
fn told(ask: Ask, answer: &Answer) -> Told {
    let json = &answer.json;
    let understood = match (ask, answer.status.as_u16(), json["code"].as_str()) {
        (Ask::Acquire { .. }, 201, _) => lease(json).map(Told::Granted),
        (Ask::Acquire { .. }, 200, _) => lease(json).map(Told::Again),
        (Ask::Acquire { .. }, 409, Some("lock-held")) if json["holder"].is_object() => {
            holder(&json["holder"]).map(|holder| Told::Held(Some(holder)))
        }
        (Ask::Acquire { .. }, 409, Some("lock-held")) => Some(Told::Held(None)),
        (Ask::Renew { .. }, 200, _) => lease(json).map(Told::Renewed),
        (Ask::Release, 204, _) => Some(Told::Released),
        (Ask::Look, 200, _) => holder(json).map(Told::Shown),
        (Ask::Renew { .. } | Ask::Release | Ask::Look, 404, Some("lock-not-held")) => {
            Some(Told::NotHeld)
        }
        (Ask::Renew { .. } | Ask::Release, 412, Some("token-mismatch")) => Some(Told::Mismatch),
        (_, 503, Some("overloaded")) => Some(Told::NotExecuted),
        (_, 503, Some("timeout")) => Some(Told::Unknown),
        (_, 503 | 429, _) => match json["outcome"].as_str() {
            Some("not-executed") => Some(Told::NotExecuted),
            Some("unknown") => Some(Told::Unknown),
            _ => None,
        },
        _ => None,
    };
    understood.unwrap_or_else(|| Told::Odd(format!("{} {}", answer.status, answer.text)))
}

fn lease(json: &Value) -> Option<Lease> {
    let valid_for = json["waited_ms"].as_u64()? + json["valid_for_ms"].as_u64()?;
    let valid_for = Duration::from_millis(valid_for);
    Some(Lease { fencing_token: json["fencing_token"].as_u64()?, valid_for: micros(valid_for) })
}

fn holder(json: &Value) -> Option<Holder> {
    let number = json["owner"].as_str()?.parse().ok()?;
    Some(Holder { fencing_token: json["fencing_token"].as_u64()?, number })
}

/// When the lease in an answer ends.
pub(super) fn ends(event: &Event) -> Option<(u64, Micros)> {
    event.told.lease().map(|lease| (lease.fencing_token, event.sent + lease.valid_for))
}
