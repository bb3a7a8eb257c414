//! A service for the tests of programs that use the client: in the test's own process, without a
//! network.
//!
//! The client's own code runs over it, on the clock of the runtime. Pause that (`start_paused`),
//! and an hour passes at once with every renewal in its place. It has locks, sets, and things done
//! once; no entries, holds and watches, and no order among those that wait. Tested in
//! `crates/client/tests/fake.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::{Method, Request, Response};
use keylatch_wire::{Code, ProblemDocument, millis};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock::Clock;
use crate::transport::Exchanged;
use crate::{Body, Client};

/// A service in the process. Clones are of the same one.
#[derive(Debug, Clone)]
pub struct Fake(Arc<Service>);

#[derive(Debug)]
struct Service {
    start: Instant,
    state: Mutex<State>,
    /// Something may be free now.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    fence: u64,
    holders: Vec<Holder>,
    records: HashMap<String, Record>,
}

#[derive(Debug)]
struct Holder {
    name: String,
    token: String,
    fence: u64,
    /// How many may hold the lock together.
    limit: u64,
    slot: u64,
    owner: Value,
    ttl: Duration,
    until: Instant,
}

#[derive(Debug)]
struct Record {
    token: String,
    fence: u64,
    begin: Value,
    until: Instant,
    /// What it came to; `None` while it is under way.
    end: Option<End>,
}

#[derive(Debug)]
enum End {
    Done(Value),
    Unknown,
}

/// A response, or the end of a wait of that length.
type Answer = Result<(u16, Value), Code>;

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A service on which nothing is held.
    #[must_use]
    pub fn new() -> Self {
        let (state, changed) = (Mutex::default(), Notify::new());
        Self(Arc::new(Service { start: Instant::now(), state, changed }))
    }

    /// A client of this service.
    #[must_use]
    pub fn client(&self) -> Client {
        let service = Arc::clone(&self.0);
        let mut settings = Client::builder("http://fake");
        settings.clock = Clock::Runtime(self.0.start);
        let settings = settings.transport(move |request| Arc::clone(&service).exchange(request));
        settings.build().unwrap_or_else(|error| unreachable!("it is a URL: {error}"))
    }

    /// Lets so much time pass, with every renewal that is due in it. Where the clock is paused this
    /// takes none. `tokio::time::advance` in its place is a process that was suspended.
    pub async fn advance(&self, time: Duration) {
        sleep(time).await;
    }

    /// Takes the lock from those that hold it, and returns when they have heard of it, at their
    /// next renewal.
    pub async fn lose(&self, name: &str) {
        let longest = self.0.state().of(name).map(|holder| holder.ttl).max().unwrap_or_default();
        self.0.state().holders.retain(|holder| holder.name != name);
        self.0.changed.notify_waiters();
        self.advance(longest / 3 + Duration::from_millis(1)).await;
    }
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(self: Arc<Self>, request: Request<Full<Bytes>>) -> Exchanged {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let header = |name: &str| head.headers.get(name)?.to_str().ok();
            let token = header("lock-token").unwrap_or_default();
            let waits = header("prefer").and_then(|it| it.strip_prefix("wait=")?.parse().ok());
            let wait = waits.map_or(number(&body, "wait_ms", 0), |seconds: u64| seconds * 1000);
            let sent = Instant::now();
            let end = sent + Duration::from_millis(wait);
            loop {
                let changed = self.changed.notified();
                let answer = {
                    let call =
                        (&head.method, head.uri.path(), head.uri.query().unwrap_or_default());
                    self.state().answer(call, token, &body, sent)
                };
                let is_passing = matches!(&answer, Err(Code::LockHeld | Code::RequestInProgress));
                if !is_passing || Instant::now() >= end {
                    self.changed.notify_waiters();
                    return Ok(response(answer, sent));
                }
                // What expires tells nobody.
                let soon = end.min(Instant::now() + Duration::from_millis(50));
                let _ = timeout_at(soon, changed).await;
            }
        })
    }
}

impl State {
    fn answer(
        &mut self,
        (method, path, query): (&Method, &str, &str),
        token: &str,
        body: &Value,
        sent: Instant,
    ) -> Answer {
        self.expire();
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let mut parts = path.split('/').skip(2);
        let kind = parts.next().unwrap_or_default();
        let (name, step) = (parts.next().map(decode), parts.next().unwrap_or_default());
        let names: Vec<_> = match &name {
            Some(name) => vec![name.clone()],
            None if *method == Method::DELETE => {
                query.split('&').filter_map(|it| it.strip_prefix("name=")).map(decode).collect()
            }
            None => body["names"].as_array().into_iter().flatten().map(text).collect(),
        };
        match (kind, method.as_str(), step, name) {
            ("locks", "POST", "", one) => self.create(&names, one.is_some(), token, body, sent),
            ("locks", "PUT", "", one) => {
                self.renew(&names, token, body)?;
                Ok((200, self.grant(&names, one.is_some(), token, sent)))
            }
            ("locks", "DELETE", "", _) => self.release(&names, token),
            ("locks", "GET", "", Some(name)) => self.show(&name),
            ("idempotency", "POST", "", Some(key)) => self.begin(key, token, body),
            ("idempotency", method, step, Some(key)) => self.end(&key, method, step, token, body),
            _ => Err(Code::NotSupported),
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.holders.retain(|holder| holder.until > now);
        self.records.retain(|_, record| {
            let is_gone = record.end.is_none() && record.until <= now;
            if is_gone {
                record.end = Some(End::Unknown);
            }
            !(is_gone && record.begin["on_crash"] == "rerun")
        });
    }

    fn create(
        &mut self,
        names: &[String],
        is_one: bool,
        token: &str,
        body: &Value,
        sent: Instant,
    ) -> Answer {
        let limit = body["mode"].as_str().map_or(1, |_| number(body, "limit", u64::MAX));
        if limit == 0 || number(body, "ttl_ms", 0) == 0 {
            return Err(Code::InvalidBody);
        }
        for name in names {
            let others = self.of(name).filter(|holder| holder.token != token);
            let (count, room) =
                others.fold((0, limit), |(n, room), it| (n + 1, room.min(it.limit)));
            if count >= room {
                return Err(Code::LockHeld);
            }
        }
        for name in names {
            if self.held(name, token).is_err() {
                self.fence += 1;
                let is_free = |slot: &u64| self.of(name).all(|holder| holder.slot != *slot);
                let slot = (0..u64::MAX).find(is_free).unwrap_or_default();
                let (name, token, owner) = (name.clone(), token.to_owned(), body["owner"].clone());
                let (fence, ttl, until) = (self.fence, Duration::ZERO, sent);
                self.holders.push(Holder { name, token, fence, limit, slot, owner, ttl, until });
            }
        }
        self.renew(names, token, body)?;
        Ok((201, self.grant(names, is_one, token, sent)))
    }

    fn of(&self, name: &str) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(move |holder| holder.name == name)
    }

    fn held(&mut self, name: &str, token: &str) -> Result<&mut Holder, Code> {
        let is_free = self.of(name).next().is_none();
        let mut holders = self.holders.iter_mut();
        let mine = holders.find(|holder| holder.name == name && holder.token == token);
        mine.ok_or(if is_free { Code::LockNotHeld } else { Code::TokenMismatch })
    }

    fn renew(&mut self, names: &[String], token: &str, body: &Value) -> Result<(), Code> {
        for name in names {
            let holder = self.held(name, token)?;
            holder.ttl = Duration::from_millis(number(body, "ttl_ms", millis(holder.ttl)));
            holder.until = Instant::now() + holder.ttl;
        }
        Ok(())
    }

    fn release(&mut self, names: &[String], token: &str) -> Answer {
        let lost = names.iter().find_map(|name| self.held(name, token).err());
        self.holders.retain(|holder| holder.token != token || !names.contains(&holder.name));
        lost.map_or(Ok((204, Value::Null)), Err)
    }

    /// What a token holds, as the lease of one lock or of a set.
    fn grant(&mut self, names: &[String], is_one: bool, token: &str, sent: Instant) -> Value {
        let (mut locks, mut valid, mut ttl) = (Vec::new(), Duration::MAX, Duration::ZERO);
        for name in names {
            if let Ok(holder) = self.held(name, token) {
                valid = valid.min(holder.until - Instant::now());
                ttl = holder.ttl;
                let slot = (2..u64::MAX).contains(&holder.limit).then_some(holder.slot);
                locks.push(json!({"name": name, "fencing_token": holder.fence, "slot": slot, "owner": holder.owner}));
            }
        }
        let mut grant =
            if is_one { locks.pop().unwrap_or_default() } else { json!({"locks": locks}) };
        grant["token"] = token.into();
        grant["expires_at"] = "".into();
        grant["ttl_ms"] = millis(ttl).into();
        grant["waited_ms"] = millis(sent.elapsed()).into();
        grant["valid_for_ms"] = millis(valid).into();
        grant
    }

    fn show(&self, name: &str) -> Answer {
        let holder = self.of(name).next().ok_or(Code::LockNotHeld)?;
        let left = millis(holder.until - Instant::now());
        let lock = json!({
            "name": name, "owner": holder.owner, "fencing_token": holder.fence, "acquired_at": "",
            "expires_in_ms": left, "waiting": 0,
        });
        Ok((200, lock))
    }

    fn begin(&mut self, key: String, token: &str, body: &Value) -> Answer {
        let fence = self.fence + 1;
        let record = self.records.entry(key).or_insert_with(|| Record {
            token: token.to_owned(),
            fence,
            begin: body.clone(),
            until: Instant::now() + Duration::from_millis(number(body, "lease_ms", 30_000)),
            end: None,
        });
        self.fence = fence;
        if record.begin["fingerprint"] != body["fingerprint"] {
            return Err(Code::IdempotencyKeyReused);
        }
        let (status, state, answer) = match &record.end {
            None if record.token == token => (201, "in-flight", None),
            None => return Err(Code::RequestInProgress),
            Some(End::Done(answer)) => (200, "done", Some(answer)),
            Some(End::Unknown) => return Err(Code::OutcomeUnknown),
        };
        let shown = json!({
            "state": state, "fencing_token": record.fence, "attempts": 1, "expires_in_ms": 0,
            "token": token, "status": answer.map(|it| &it["status"]), "answer": answer,
        });
        Ok((status, shown))
    }

    fn end(&mut self, key: &str, method: &str, step: &str, token: &str, body: &Value) -> Answer {
        let record = self.records.get_mut(key).ok_or(Code::NoRecord)?;
        if record.token != token || record.end.is_some() && method != "PUT" {
            return Err(Code::TokenMismatch);
        }
        match (method, step) {
            ("PUT", "") => record.end = Some(End::Done(body.clone())),
            ("POST", "fail") => record.end = Some(End::Unknown),
            ("DELETE", "") => drop(self.records.remove(key)),
            ("POST", "renew") => {
                let lease = number(&record.begin, "lease_ms", 30_000);
                record.until = Instant::now() + Duration::from_millis(lease);
            }
            _ => return Err(Code::NotSupported),
        }
        Ok((204, Value::Null))
    }
}

fn response(answer: Answer, sent: Instant) -> Response<Body> {
    let (status, body) = answer.unwrap_or_else(|code| {
        let mut problem = ProblemDocument::new(code, code.title());
        problem.waited_ms = (code == Code::LockHeld).then(|| millis(sent.elapsed()));
        (code.status(), json!(problem))
    });
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let body = Full::new(body).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    response
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(body: &Value, member: &str, default: u64) -> u64 {
    body[member].as_u64().unwrap_or(default)
}
