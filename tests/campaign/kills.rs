//! Goal: the embedded store loses no answered change by a kill.
//!
//! Method: the test kills a process with SIGKILL again and again under load, and compares it with
//! the answers that its clients read. A store in memory fails the same check.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keylatch_testkit::{Answer, Dice, scaled, soon};
use reqwest::{Client, Method, RequestBuilder};
use tokio::sync::Notify;

use crate::KEYLATCH;

/// How often the process is killed.
fn rounds() -> u64 {
    scaled(100)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_loses_no_answered_change() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("embedded:{}", directory.path().display());
    campaign(&store, rounds()).await.unwrap_or_else(|lost| panic!("{lost}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_losses_of_memory() {
    let found = campaign("memory:", 10).await;
    assert!(found.is_err(), "a store that keeps nothing was not noticed");
}

/// Kills the service again and again under load, and compares it with its clients' own record.
async fn campaign(store: &str, rounds: u64) -> Result<(), String> {
    let mut clients: Vec<_> = (0..6).map(Recorder::new).collect();
    let mut dice = Dice(1);
    for round in 0..rounds {
        let service = KEYLATCH.serve(&["--store", store], &[]).await;
        for client in &mut clients {
            client.check(service.address).await.map_err(|lost| format!("round {round}: {lost}"))?;
        }
        let kill = Arc::new(Kill { left: AtomicU64::new(dice.below(200)), now: Notify::new() });
        let mut working = Vec::new();
        for mut client in clients.drain(..) {
            let (address, kill) = (service.address, Arc::clone(&kill));
            working.push(tokio::spawn(async move {
                while client.step(address).await {
                    kill.count();
                }
                client
            }));
        }
        soon("the moment to kill", kill.now.notified()).await;
        service.signal("-KILL");
        for client in working {
            clients.push(soon("the client", client).await.expect("the client ends"));
        }
        service.ended().await;
    }
    Ok(())
}

/// The moment of the kill: after so many answers.
struct Kill {
    left: AtomicU64,
    now: Notify,
}

impl Kill {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.now.notify_one();
        }
    }
}

/// A client that writes down each answer about its own locks and records.
struct Recorder {
    number: u64,
    http: Client,
    dice: Dice,
    steps: u64,
    /// Which of its names for each thing the client is at: one that is in doubt or done is not used
    /// again.
    names: [u64; 8],
    known: BTreeMap<String, Known>,
}

/// What the client read of one lock or record.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The token and the fencing token of the lease, if the client has one.
    lease: Option<(String, u64)>,
    last_fencing_token: u64,
    /// The status that the run was completed with.
    done: Option<u64>,
    /// The request that was not answered.
    in_doubt: Option<Method>,
}

impl Recorder {
    fn new(number: u64) -> Self {
        let http = Client::builder().no_proxy().build().expect("a client");
        let (dice, known) = (Dice(number + 100), BTreeMap::new());
        Self { number, http, dice, steps: 0, names: [0; 8], known }
    }

    /// Creates, renews or releases one lock, or begins, completes or abandons one run; `false` once
    /// the service is gone.
    async fn step(&mut self, address: SocketAddr) -> bool {
        self.steps += 1;
        let slot = self.dice.below(8) as usize;
        let is_lock = slot < 4;
        let resource = if is_lock { "locks" } else { "idempotency" };
        let thing = format!("{resource}/{slot}-{}-of-{}", self.names[slot], self.number);
        let known = self.known.entry(thing.clone()).or_default();
        let (method, token) = match &known.lease {
            None => (Method::POST, format!("token-{}-{:020}", self.number, self.steps)),
            Some((token, _)) if self.dice.below(3) == 0 => (Method::PUT, token.clone()),
            Some((token, _)) => (Method::DELETE, token.clone()),
        };
        let status = 200 + self.steps % 100;
        let body = match (is_lock, &method) {
            (true, _) => r#"{"ttl_ms":86400000}"#.to_owned(),
            (false, &Method::POST) => r#"{"lease_ms":86400000}"#.to_owned(),
            (false, _) => format!(r#"{{"status":{status}}}"#),
        };
        let request = request(&self.http, address, method.clone(), &thing);
        let request = request.header("Lock-Token", &token).body(body);
        let Ok(answer) = Answer::try_of(request).await else {
            known.in_doubt = Some(method);
            self.names[slot] += 1;
            return false;
        };
        match (&method, answer.status.as_u16()) {
            (&Method::POST, 201) => known.began(&thing, token, answer.fencing_token()),
            (&Method::PUT, 200) if is_lock => {}
            (&Method::PUT, 200) => {
                known.done = Some(status);
                self.names[slot] += 1;
            }
            (&Method::DELETE, 204) => known.lease = None,
            _ => panic!("{method} {thing}: {answer:?}"),
        }
        true
    }

    /// Whether the restarted service shows each thing as the client last read it, or as the one
    /// request without an answer would have left it.
    async fn check(&mut self, address: SocketAddr) -> Result<(), String> {
        for (thing, known) in &self.known {
            let request = request(&self.http, address, Method::GET, thing);
            let answer = Answer::try_of(request).await.map_err(|error| error.to_string())?;
            let found = (answer.status == 200).then(|| answer.fencing_token());
            let done = answer.json["status"].as_u64().filter(|_| found.is_some());
            let told = known.lease.as_ref().map(|(_, fencing_token)| *fencing_token);
            let right = match &known.in_doubt {
                None => found == told && done == known.done,
                Some(Method::PUT) => found == told,
                Some(Method::DELETE) => found == told || found.is_none(),
                Some(_) => {
                    found.is_none_or(|fencing_token| fencing_token > known.last_fencing_token)
                }
            };
            if !right {
                return Err(format!("{thing}: {found:?} {done:?}, the client knows {known:?}"));
            }
        }
        self.known.retain(|_, known| known.in_doubt.is_none());
        Ok(())
    }
}

impl Known {
    fn began(&mut self, thing: &str, token: String, fencing_token: u64) {
        assert!(
            fencing_token > self.last_fencing_token,
            "{thing}: fence {fencing_token} after {}",
            self.last_fencing_token
        );
        *self = Self {
            lease: Some((token, fencing_token)),
            last_fencing_token: fencing_token,
            ..Self::default()
        };
    }
}

fn request(http: &Client, address: SocketAddr, method: Method, thing: &str) -> RequestBuilder {
    http.request(method, format!("http://{address}/v1/{thing}"))
}
