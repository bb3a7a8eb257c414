//! A client that wants one order, submits its key again and again, and records the answers.
//!
//! Goal: the judge has every answer that a client read, in an order that it can trust.
//!
//! Method: the shopper submits at once and in turn, leaves in the middle, and insists on a final
//! answer. It numbers what it sends and reads by the steps of the campaign, not by time. It only
//! counts a try that broke off or that it left. `guilt.rs` tests the judge on such histories.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use keylatch_testkit::{Answer, Dice, soon};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use super::LEASE;
use super::fleet::Fleet;
use super::key::Key;
use super::steps::Steps;
use crate::locks::pass;

/// How long a shopper insists before it says that there is no end to it: many leases, also on a
/// busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that wants one order, under one key, and writes down the answers.
#[derive(Debug)]
pub(super) struct Shopper {
    pub(super) key: Key,
    pub(super) fleet: Arc<Fleet>,
    pub(super) steps: Arc<Steps>,
    pub(super) http: Client,
    /// Where the work is done.
    pub(super) upstream: String,
}

/// The answers under one key.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) told: Vec<ReadAnswer>,
    /// How many tries were broken off by the other side.
    pub(super) broken: usize,
    /// How many tries the shopper left.
    pub(super) left: usize,
}

/// An answer that was read.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadAnswer {
    /// The last step before it was sent, and when it was read.
    pub(super) sent: u64,
    pub(super) read: u64,
    pub(super) status: u16,
    /// The code of a problem, which is keylatch's own.
    pub(super) code: Option<String>,
    pub(super) body: String,
    pub(super) replayed: bool,
    /// Whether it says until when it is kept.
    pub(super) kept: bool,
}

enum Heard {
    ReadAnswer(ReadAnswer),
    Broken,
    Left,
}

impl ReadAnswer {
    fn of(answer: Answer) -> Self {
        let is_problem = answer.header("content-type") == "application/problem+json";
        let code = answer.json["code"].as_str().filter(|_| is_problem).map(str::to_owned);
        Self { status: answer.status.as_u16(), code, body: answer.text, ..Self::default() }
    }

    /// Whether every later answer is the same.
    pub(super) fn is_final(&self) -> bool {
        match (self.status, self.code.as_deref()) {
            (409, Some(code)) => code == "outcome-unknown",
            (status, _) => (200..300).contains(&status) || status == 422,
        }
    }

    /// Whether it says that somebody else has the request in hand.
    fn is_in_progress(&self) -> bool {
        self.code.as_deref() == Some("request-in-progress")
    }

    /// Whether it says that the outcome is unknown.
    pub(super) fn is_unknown(&self) -> bool {
        self.status == 409 && self.code.as_deref() == Some("outcome-unknown")
    }
}

impl History {
    fn note(&mut self, heard: Heard) {
        match heard {
            Heard::ReadAnswer(told) => self.told.push(told),
            Heard::Broken => self.broken += 1,
            Heard::Left => self.left += 1,
        }
    }

    fn is_final(&self) -> bool {
        self.told.iter().any(ReadAnswer::is_final)
    }
}

impl Shopper {
    /// Clicks a few times at once, sometimes leaving in the middle, asks until there is an answer
    /// for good, and perhaps once more.
    pub(super) async fn shop(&self) -> History {
        let mut dice = Dice(!self.key.number);
        let mut history = History::default();
        let clicks = (0..=dice.below(3)).map(|click| {
            let patience = (dice.below(4) == 0).then(|| dice.below(200));
            self.submit(Dice(dice.below(1 << 60) + click), patience)
        });
        for heard in join_all(clicks).await {
            history.note(heard);
        }
        self.insist(&mut history, &mut dice).await;
        if dice.below(2) == 0 {
            history.note(self.submit(dice, None).await);
        }
        history
    }

    /// Clicks twice at once, and asks until nothing is unknown; gives what each answer says that
    /// was done.
    pub(super) async fn click_twice(&self) -> Vec<String> {
        let mut dice = Dice(!self.key.number);
        let (one, two) = (dice.below(u64::MAX), dice.below(u64::MAX));
        let (one, two) = tokio::join!(self.submit(Dice(one), None), self.submit(Dice(two), None));
        let mut history = History::default();
        [one, two].into_iter().for_each(|heard| history.note(heard));
        while !history.told.iter().any(|told| matches!(told.status, 201 | 422)) {
            pass(LEASE / 3).await;
            history.note(self.submit(Dice(dice.below(u64::MAX)), None).await);
        }
        let done = history.told.into_iter().filter(|told| told.status == 201);
        done.map(|told| told.body).collect()
    }

    /// Asks once more, until there is an answer for good.
    pub(super) async fn audit(&self, history: &mut History) {
        let mut again = History::default();
        self.insist(&mut again, &mut Dice(self.key.number)).await;
        history.told.extend(again.told);
    }

    /// Resolves an unknown outcome by what was done, and asks again.
    pub(super) async fn resolve(&self, effect: Option<&str>) -> ReadAnswer {
        let (record, _) = self.willing(|record| self.http.get(record), "").await;
        let fencing_token = &record.json["fencing_token"];
        let outcome = match effect.map(serde_json::from_str::<Value>) {
            Some(json) => {
                let answer = json!({"status": 201, "json": json.expect("an effect is JSON")});
                json!({"outcome": "completed", "fencing_token": fencing_token, "answer": answer})
            }
            None => json!({"outcome": "not-executed", "fencing_token": fencing_token}),
        };
        let post = |url| self.http.post(url).json(&outcome);
        let (resolved, refused) = self.willing(post, "/resolve").await;
        // An answer that was lost may have been that it is resolved; then the key is free.
        let settled = resolved.status.is_success() || (refused > 0 && resolved.status == 404);
        assert!(settled, "{}: {resolved:?}", self.key.name());
        let mut history = History::default();
        self.audit(&mut history).await;
        history.told.pop().expect("an answer")
    }

    /// The answer to a request about the record, or something below it, once the store can give
    /// one; and how often it could not.
    async fn willing(
        &self,
        request: impl Fn(String) -> RequestBuilder,
        below: &str,
    ) -> (Answer, usize) {
        let mut dice = Dice(self.key.number);
        let name = self.key.name();
        let begun = Instant::now();
        let mut refused = 0;
        while begun.elapsed() < PATIENCE {
            let address = self.fleet.any(&mut dice).await;
            let (name, scope) = match self.derived_name(address).await {
                Ok(derived) => derived.unwrap_or((name.clone(), self.key.scope())),
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            let url = format!("http://{address}/v1/idempotency/{name}{below}{scope}");
            let answer = Answer::of(request(url)).await;
            if answer.status != 503 {
                return (answer, refused);
            }
            refused += 1;
        }
        panic!("{name}: the store is never there");
    }

    /// The name and the scope of the record whose key the guard derived, as the list of records has
    /// them.
    async fn derived_name(&self, address: SocketAddr) -> Result<Option<(String, String)>, Answer> {
        if !self.key.is_derived() {
            return Ok(None);
        }
        let list = format!("http://{address}/v1/idempotency?limit=1000&path={}", self.key.path());
        let mut page = Answer::of(self.http.get(&list)).await;
        loop {
            if page.status != 200 {
                return Err(page);
            }
            if let Some(name) = page.json["records"][0]["key"].as_str() {
                let scope = format!("{}&source=derived", self.key.scope());
                return Ok(Some((name.to_owned(), scope)));
            }
            let Some(cursor) = page.json["next_cursor"].as_str() else { return Ok(None) };
            page = Answer::of(self.http.get(format!("{list}&cursor={cursor}"))).await;
        }
    }

    async fn insist(&self, history: &mut History, dice: &mut Dice) {
        let begun = Instant::now();
        while !history.is_final() && begun.elapsed() < PATIENCE {
            history.note(self.submit(Dice(dice.below(u64::MAX)), None).await);
            if history.told.last().is_some_and(ReadAnswer::is_in_progress) {
                pass(LEASE / 30).await;
            }
        }
    }

    /// Sends the request to some instance. Leaves after `patience` steps, if there is a limit.
    async fn submit(&self, mut dice: Dice, patience: Option<u64>) -> Heard {
        let address = self.fleet.any(&mut dice).await;
        self.steps.pass().await;
        let sent = self.steps.now();
        let what = format!("the answer of {address} to {}", self.key.name());
        let answer = soon(&what, self.ask(address, &mut dice));
        let answer = match patience {
            None => answer.await,
            Some(patience) => tokio::select! {
                answer = answer => answer,
                () = self.steps.after(patience) => return Heard::Left,
            },
        };
        self.steps.pass().await;
        let Ok(answer) = answer else { return Heard::Broken };
        Heard::ReadAnswer(ReadAnswer { sent, read: self.steps.now(), ..answer })
    }

    /// Has the work done by the guard of an instance, or by calls of its API.
    async fn ask(&self, address: SocketAddr, dice: &mut Dice) -> reqwest::Result<ReadAnswer> {
        if self.key.is_by_calls() {
            return self.work(address, dice).await;
        }
        let answer = Answer::try_of(self.buy(&address.to_string(), dice)).await?;
        Ok(ReadAnswer {
            replayed: answer.header("idempotent-replayed") == "true",
            kept: !answer.header("idempotency-key-expires").is_empty(),
            ..ReadAnswer::of(answer)
        })
    }

    /// Begins at an instance, does the work, and completes it at any other.
    async fn work(&self, address: SocketAddr, dice: &mut Dice) -> reqwest::Result<ReadAnswer> {
        let record = |address| format!("http://{address}/v1/idempotency/{}", self.key.name());
        let token = format!("the-token-of-a-worker-{:020}", dice.below(u64::MAX));
        let begin = json!({ "lease_ms": LEASE.as_millis() as u64 });
        let begun = self.http.post(record(address)).header("Lock-Token", &token).json(&begin);
        let begun = Answer::try_of(begun).await?;
        match begun.status.as_u16() {
            201 => {}
            200 => {
                let answer = &begun.json["answer"];
                let body = answer["body"].as_str().unwrap_or_default().to_owned();
                let status = answer["status"].as_u64().map_or(0, |status| status as u16);
                let (replayed, kept) = (true, true);
                return Ok(ReadAnswer { status, body, replayed, kept, ..ReadAnswer::default() });
            }
            _ => return Ok(ReadAnswer::of(begun)),
        }
        let work = self.http.post(&self.upstream).header("Idempotency-Key", self.key.name());
        let work = work.header("Idempotency-Fence", begun.fencing_token());
        let done = Answer::try_of(work).await.expect("the upstream runs");
        let end = json!({ "status": done.status.as_u16(), "json": done.json });
        let end = self
            .http
            .put(record(self.fleet.any(dice).await))
            .header("Lock-Token", &token)
            .json(&end);
        let kept = Answer::try_of(end).await.is_ok_and(|ended| ended.status == 200);
        Ok(ReadAnswer { kept, ..ReadAnswer::of(done) })
    }

    fn buy(&self, address: &str, dice: &mut Dice) -> RequestBuilder {
        let request = self.http.post(format!("http://{address}{}", self.key.path()));
        let request = match self.key.is_derived() {
            true => request,
            false => request.header("Idempotency-Key", self.key.name()),
        };
        let request = request.json(&json!({"number": self.key.number}));
        if dice.below(2) == 0 { request.header("Prefer", "wait=3") } else { request }
    }
}
