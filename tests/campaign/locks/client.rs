//! The HTTP client of the lock campaign.
//!
//! Goal: the history has what a client sent, when it sent it, and what it read.
//!
//! Method: `ask` reads the clock before it sends and after it has read, so the service answered
//! between the two times. A request without an answer becomes `LockAnswer::Nothing`. What an answer
//! means is in `answers.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylatch_testkit::{Answer, Dice};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::answers;
use super::clock::{micros, now};
use super::history::{Ask, Event, LockAnswer, Micros};
use super::mode::Mode;

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

/// What is asked of a lock, or of several at once.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) locks: Vec<usize>,
    pub(super) token: u64,
    pub(super) mode: Mode,
    pub(super) ask: Ask,
    /// In ms.
    pub(super) ttl: u64,
    pub(super) wait: u64,
    /// How long the answer is waited for.
    pub(super) patience: Duration,
    /// The token asked for the same before. A set that is new to the service may then have locks
    /// that are not.
    pub(super) is_repeat: bool,
}

impl Request {
    pub(super) fn new(locks: &[usize], token: u64, ask: Ask) -> Self {
        let (locks, mode, patience) = (locks.to_vec(), Mode::Exclusive, PATIENCE);
        Self { locks, token, mode, ask, ttl: 0, wait: 0, patience, is_repeat: false }
    }

    pub(super) fn acquire(locks: &[usize], token: u64, ttl: u64, wait: u64) -> Self {
        let ask = Ask::Acquire { waits: wait > 0 };
        Self { ttl, wait, ..Self::new(locks, token, ask) }
    }

    pub(super) fn renew(locks: &[usize], token: u64, ttl: u64) -> Self {
        let ask = Ask::Renew { ttl: micros(Duration::from_millis(ttl)) };
        Self { ttl, ..Self::new(locks, token, ask) }
    }

    /// Asks in another mode than exclusively.
    pub(super) fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Waits for the answer as long as it may take by itself.
    pub(super) fn patient(mut self) -> Self {
        self.patience = PATIENCE + Duration::from_millis(self.wait);
        self
    }

    /// What a client writes down of a request: an event of each lock.
    pub(super) fn events(
        &self,
        number: u64,
        [sent, read]: [Micros; 2],
        mut told: impl FnMut(usize) -> LockAnswer,
    ) -> Vec<Event> {
        let Self { token, mode, ask, .. } = *self;
        let event =
            |&lock: &usize| Event { number, lock, token, mode, ask, sent, read, told: told(lock) };
        self.locks.iter().map(event).collect()
    }

    /// Who holds what this request gets, for all to see.
    fn owner(&self, number: u64) -> String {
        format!("{number} {} {}", self.token, self.mode)
    }

    fn method_and_body(&self, number: u64) -> (Method, Option<Value>) {
        let Self { ttl, wait, .. } = self;
        match self.ask {
            Ask::Acquire { .. } => {
                let owner = self.owner(number);
                let mut body = json!({"ttl_ms": ttl, "wait_ms": wait, "owner": owner});
                self.mode.add_to(&mut body);
                (Method::POST, Some(body))
            }
            Ask::Renew { .. } => (Method::PUT, Some(json!({"ttl_ms": ttl}))),
            Ask::Release => (Method::DELETE, None),
            Ask::Look | Ask::Recall => (Method::GET, None),
            Ask::Break { fencing_token, at_once } => {
                let mut body =
                    json!({"reason": "the campaign breaks leases", "fencing_token": fencing_token});
                if at_once {
                    body["grace_ms"] = json!(0);
                }
                (Method::POST, Some(body))
            }
        }
    }

    /// Where it is sent, and its body, which names the locks where there are several.
    fn path_and_body(&self, body: Option<Value>) -> (String, Option<Value>) {
        let names: Vec<_> = self.locks.iter().map(|lock| lock_name(*lock as u64)).collect();
        match (&names[..], self.ask) {
            ([name], Ask::Break { .. }) => (format!("/v1/locks/{name}/break"), body),
            ([name], Ask::Recall) => (format!("/v1/locks/{name}/history"), body),
            ([name], _) => (format!("/v1/locks/{name}"), body),
            (_, Ask::Release) => (format!("/v1/locks?name={}", names.join("&name=")), body),
            _ => {
                let named = |mut body: Value| {
                    body["names"] = json!(names);
                    body
                };
                ("/v1/locks".to_owned(), body.map(named))
            }
        }
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

    /// Sends a request to some instance, and gives what came of it, for each lock.
    pub(super) async fn ask(&self, request: &Request, dice: &mut Dice) -> Vec<Event> {
        let address = self.addresses[dice.below(self.addresses.len() as u64) as usize];
        let number = self.number();
        let http = self.http_request(address, request, number);
        let sent = now();
        let answer = timeout(request.patience, Answer::try_of(http)).await;
        let read = now();
        request.events(number, [sent, read], |lock| match &answer {
            Ok(Ok(answer)) => answers::told(request, lock, answer),
            _ => LockAnswer::Nothing,
        })
    }

    fn http_request(&self, address: SocketAddr, request: &Request, number: u64) -> RequestBuilder {
        let (method, body) = request.method_and_body(number);
        let (path, body) = request.path_and_body(body);
        let http = self.http.request(method, format!("http://{address}{path}"));
        let http = match request.ask {
            Ask::Look | Ask::Recall | Ask::Break { .. } => http,
            _ => http.header("Lock-Token", format!("campaign-token-{:020}", request.token)),
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
