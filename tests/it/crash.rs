//! The embedded store under kill -9: what was answered is there after the restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;
use tokio::sync::Notify;

use crate::support::{Dice, Process, soon};

/// How often the process is killed; the long form sets another number.
fn rounds() -> u64 {
    std::env::var("KILLS").map_or(100, |kills| kills.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_loses_nothing_that_was_answered() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("embedded:{}", directory.path().display());
    campaign(&store, rounds()).await.unwrap_or_else(|lost| panic!("{lost}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_check_finds_what_a_store_without_a_disk_loses() {
    let found = campaign("memory:", 10).await;
    assert!(found.is_err(), "a store that keeps nothing was not noticed");
}

/// Kills the service again and again under load, and compares it with its clients' own record.
async fn campaign(store: &str, rounds: u64) -> Result<(), String> {
    let mut clients: Vec<_> = (0..6).map(Recorder::new).collect();
    let mut dice = Dice(1);
    for round in 0..rounds {
        let service = Process::start(&["--store", store], &[]).await;
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

/// A client that writes down what it was told of its own locks.
struct Recorder {
    number: u64,
    http: Client,
    dice: Dice,
    steps: u64,
    /// Which of its names for each lock the client is at: a name in doubt is not used again.
    names: [u64; 8],
    locks: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    /// The token and the fencing token of the lease, if the client has one.
    lease: Option<(String, u64)>,
    last_fence: u64,
    /// The request that was not answered.
    in_doubt: Option<Method>,
}

impl Recorder {
    fn new(number: u64) -> Self {
        let http = Client::builder().no_proxy().build().expect("a client");
        Self {
            number,
            http,
            dice: Dice(number + 100),
            steps: 0,
            names: [0; 8],
            locks: BTreeMap::new(),
        }
    }

    /// Creates, renews or releases one lock; `false` once the service is gone.
    async fn step(&mut self, address: SocketAddr) -> bool {
        self.steps += 1;
        let slot = self.dice.below(8) as usize;
        let lock = format!("lock-{slot}-{}-of-{}", self.names[slot], self.number);
        let known = self.locks.entry(lock.clone()).or_default();
        let (method, token) = match &known.lease {
            None => (Method::POST, format!("token-{}-{:020}", self.number, self.steps)),
            Some((token, _)) if self.dice.below(3) == 0 => (Method::PUT, token.clone()),
            Some((token, _)) => (Method::DELETE, token.clone()),
        };
        let request = request(&self.http, address, method.clone(), &lock);
        let request = request.header("Lock-Token", &token).body(r#"{"ttl_ms":86400000}"#);
        let answered = async {
            let answer = request.send().await?;
            Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.text().await?))
        };
        let Ok((status, text)) = answered.await else {
            known.in_doubt = Some(method);
            self.names[slot] += 1;
            return false;
        };
        match (&method, status) {
            (&Method::POST, 201) => {
                let fence = fence(&text);
                assert!(
                    fence > known.last_fence,
                    "{lock}: fence {fence} after {}",
                    known.last_fence
                );
                *known = Known { lease: Some((token, fence)), last_fence: fence, in_doubt: None };
            }
            (&Method::PUT, 200) => {}
            (&Method::DELETE, 204) => known.lease = None,
            _ => panic!("{method} {lock}: {status} {text}"),
        }
        true
    }

    /// Whether the restarted service says of each lock what the client was told, or what the one
    /// request that was not answered would have made of it.
    async fn check(&mut self, address: SocketAddr) -> Result<(), String> {
        for (lock, known) in &mut self.locks {
            let answer = request(&self.http, address, Method::GET, lock).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            let held = answer.status() == 200;
            let text = answer.text().await.map_err(|error| error.to_string())?;
            let found = held.then(|| fence(&text));
            let told = known.lease.as_ref().map(|(_, fence)| *fence);
            let right = match &known.in_doubt {
                None | Some(Method::PUT) => found == told,
                Some(Method::DELETE) => found == told || found.is_none(),
                Some(_) => found.is_none_or(|fence| fence > known.last_fence),
            };
            if !right {
                let doubt = &known.in_doubt;
                return Err(format!("{lock}: {found:?}, the client was told {told:?} ({doubt:?})"));
            }
        }
        self.locks.retain(|_, known| known.in_doubt.is_none());
        Ok(())
    }
}

fn request(http: &Client, address: SocketAddr, method: Method, lock: &str) -> RequestBuilder {
    http.request(method, format!("http://{address}/v1/locks/{lock}"))
}

fn fence(json: &str) -> u64 {
    let json: Value = serde_json::from_str(json).expect("JSON");
    json["fencing_token"].as_u64().expect("a fencing token")
}
