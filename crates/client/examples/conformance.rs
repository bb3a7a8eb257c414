//! Carries out the commands of `clients/conformance` with this client.
//!
//! Every client of every language is such a program: it reads a JSON object a line, does what it says, and writes
//! a JSON object a line. `clients/conformance/README.md` has the commands, and `make clients` runs it.

#![expect(clippy::print_stdout, reason = "the runner reads what this program prints")]

use std::collections::HashMap;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Request, StatusCode};
use keylatch_client::{
    AcquireOptions, AcquireReply, AcquireSetReply, BeginReply, Client, ClientCertificate,
    EntryName, Error, Guard, LeaseStatus, Limit, LockGuard, LockName, LockSet, LossReason,
    OnceOptions, Owner, ReleaseReply, Retry, Run, Security, SetGuard, Slots, Token, Ttl,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

enum Lease {
    One(LockGuard),
    Several(SetGuard),
}

struct Program {
    client: Client,
    leases: Mutex<HashMap<String, Lease>>,
    runs: Mutex<HashMap<String, Run>>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("KEYLATCH_URL")?;
    let client = Client::with_security(&url, security()?)?
        .with_traceparent(|| std::env::var("TRACEPARENT").ok());
    let client = match std::env::var("CONFORMANCE_SILENCE_MS") {
        Ok(millis) => client.with_silence(Duration::from_millis(millis.parse()?)),
        Err(_) => client,
    };
    let program = Arc::new(Program { client, leases: Mutex::default(), runs: Mutex::default() });
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    while let Some(line) = lines.recv().await {
        let command: Value = serde_json::from_str(&line)?;
        if command["do"] == "stop" {
            break;
        }
        let program = Arc::clone(&program);
        tokio::spawn(async move {
            let said = match program.carry_out(&command).await {
                Ok(ok) => json!({"id": command["id"], "ok": ok}),
                Err(failure) => json!({"id": command["id"], "error": error_of(&*failure)}),
            };
            println!("{said}");
        });
    }
    std::process::exit(0)
}

/// What the scenario gives as arguments, over what the environment says.
fn security() -> Result<Security, Failure> {
    let file = |name: &str| std::env::var_os(format!("CONFORMANCE_{name}")).map(PathBuf::from);
    let mut security = Security::from_environment()?;
    if let Some(ca) = file("CA") {
        security.authorities = Some(ca);
    }
    if let (Some(cert), Some(key)) = (file("CERT"), file("KEY")) {
        security.certificate = Some(ClientCertificate { cert, key });
    }
    Ok(security)
}

impl Program {
    async fn carry_out(&self, command: &Value) -> Result<Value, Failure> {
        match command["do"].as_str().unwrap_or_default() {
            "lock" | "hold" => self.lock(command).await,
            "lock_set" => self.lock_set(command).await,
            "release" => self.release(command).await,
            "lease" => Ok(json!({"lost": self.is_lost(command)})),
            "show" => self.show(&text(command, "name")).await,
            "break" => self.break_lease(command).await,
            "watch" => self.watch(command),
            "begin" => self.begin(command, Duration::ZERO).await,
            "complete" => {
                let status = command["status"].as_u64().unwrap_or(200);
                self.complete(command, status, &text(command, "body")).await
            }
            "abandon" => {
                self.run(command)?.abandon().await?;
                Ok(json!({}))
            }
            "once" => self.once(command).await,
            other => Err(format!("there is no command {other}").into()),
        }
    }

    async fn lock(&self, command: &Value) -> Result<Value, Failure> {
        let name = LockName::parse(&text(command, "name"))?;
        let options = options(command)?;
        let reply = if command["do"] == "hold" {
            self.client.hold(&name, &options).await?
        } else {
            self.client.acquire(&name, &options).await?
        };
        match reply {
            AcquireReply::Held(holder) => {
                let owner = holder.and_then(|holder| holder.owner);
                Ok(json!({"held": {"name": name.as_str(), "owner": owner}}))
            }
            AcquireReply::Granted(guard) => {
                let token = guard.token().expose().to_owned();
                let mut shown =
                    json!({"fencing_token": guard.fencing_token().get(), "token": token});
                if let Some(slot) = guard.slot() {
                    shown["slot"] = json!(slot);
                }
                tell_loss(text(command, "lease"), &guard);
                self.keep(command, Lease::One(guard));
                Ok(shown)
            }
        }
    }

    async fn lock_set(&self, command: &Value) -> Result<Value, Failure> {
        let names = command["names"].as_array().into_iter().flatten();
        let names = names.map(|name| LockName::parse(name.as_str().unwrap_or_default()));
        let set = LockSet::new(names.collect::<Result<_, _>>()?)?;
        match self.client.acquire_set(&set, &options(command)?).await? {
            AcquireSetReply::Held { name, .. } => Ok(json!({"held": {"name": name.as_str()}})),
            AcquireSetReply::Granted(guard) => {
                let locks = guard.locks().iter();
                let tokens: HashMap<_, _> =
                    locks.map(|lock| (lock.name.as_str(), lock.fencing_token.get())).collect();
                let shown = json!({"fencing_tokens": tokens});
                tell_loss(text(command, "lease"), &guard);
                self.keep(command, Lease::Several(guard));
                Ok(shown)
            }
        }
    }

    async fn release(&self, command: &Value) -> Result<Value, Failure> {
        let lease = self.leases().remove(&text(command, "lease"));
        let released = match lease.ok_or("there is no such lease")? {
            Lease::One(guard) => guard.close().await?,
            Lease::Several(guard) => guard.close().await?,
        };
        Ok(json!({"released": released == ReleaseReply::Released}))
    }

    fn is_lost(&self, command: &Value) -> bool {
        match self.leases().get(&text(command, "lease")) {
            Some(Lease::One(guard)) => guard.lost().is_cancelled(),
            Some(Lease::Several(guard)) => guard.lost().is_cancelled(),
            None => true,
        }
    }

    async fn show(&self, name: &str) -> Result<Value, Failure> {
        let request = Request::get(path(name, "")).body(Bytes::new())?;
        let answer = self.client.send(request).await?;
        if answer.status() == 404 {
            return Ok(json!({"held": null}));
        }
        Ok(serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?)
    }

    async fn break_lease(&self, command: &Value) -> Result<Value, Failure> {
        let name = text(command, "name");
        let fencing_token = &self.show(&name).await?["fencing_token"];
        let body = json!({"reason": command["reason"], "fencing_token": fencing_token});
        let request = Request::post(path(&name, "/break"));
        let request = request.header("content-type", "application/json");
        self.client.send(request.body(body.to_string().into())?).await?;
        Ok(json!({}))
    }

    fn watch(&self, command: &Value) -> Result<Value, Failure> {
        let mut watch = self.client.watch(&LockName::parse(&text(command, "name"))?);
        let name = text(command, "watch");
        tokio::spawn(async move {
            while let Ok(event) = watch.next().await {
                println!("{}", json!({"event": "change", "watch": name, "type": event.kind}));
            }
        });
        Ok(json!({}))
    }

    async fn begin(&self, command: &Value, wait: Duration) -> Result<Value, Failure> {
        let options = OnceOptions {
            fingerprint: command["fingerprint"].as_str().map(str::to_owned),
            lease: Duration::from_millis(command["lease_ms"].as_u64().unwrap_or(30_000)),
            wait,
        };
        match self.client.begin(&text(command, "key"), &options).await? {
            BeginReply::Done(answer) => {
                let answer = answer.ok_or("the answer was not kept")?;
                let mut shown = serde_json::to_value(answer)?;
                shown["state"] = json!("done");
                Ok(shown)
            }
            BeginReply::Begun(run) => {
                let shown = json!({"state": "begun", "fencing_token": run.fencing_token().get()});
                self.runs().insert(text(command, "run"), run);
                Ok(shown)
            }
        }
    }

    async fn complete(&self, command: &Value, status: u64, body: &str) -> Result<Value, Failure> {
        let status = StatusCode::from_u16(u16::try_from(status)?)?;
        self.run(command)?.complete(status, body).await?;
        Ok(json!({}))
    }

    async fn once(&self, command: &Value) -> Result<Value, Failure> {
        let begun = self.begin(command, Duration::from_secs(10)).await?;
        if begun["state"] == "done" {
            return Ok(json!({"body": begun["body"], "replayed": true}));
        }
        tokio::time::sleep(Duration::from_millis(command["take_ms"].as_u64().unwrap_or(0))).await;
        self.complete(command, 200, &text(command, "body")).await?;
        Ok(json!({"body": command["body"], "replayed": false}))
    }

    fn run(&self, command: &Value) -> Result<Run, Failure> {
        self.runs().remove(&text(command, "run")).ok_or_else(|| "there is no such run".into())
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, HashMap<String, Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, command: &Value, lease: Lease) {
        self.leases().insert(text(command, "lease"), lease);
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, HashMap<String, Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn options(command: &Value) -> Result<AcquireOptions, Failure> {
    let limit = match &command["limit"] {
        Value::String(_) => Limit::Shared,
        Value::Number(number) => Limit::Counted(Slots::new(number.as_u64().unwrap_or_default())?),
        _ => Limit::Exclusive,
    };
    let given = |member: &str| command[member].as_str();
    Ok(AcquireOptions {
        ttl: Ttl::from_millis(command["ttl_ms"].as_u64().unwrap_or(Ttl::DEFAULT.as_millis()))?,
        wait: Duration::from_millis(command["wait_ms"].as_u64().unwrap_or_default()),
        owner: given("owner").map(Owner::parse).transpose()?.flatten(),
        limit,
        token: given("token").map(Token::parse).transpose()?,
        entry: given("entry").map(EntryName::parse).transpose()?,
        keep: false,
    })
}

/// Says when the lease is lost.
fn tell_loss<L>(lease: String, guard: &Guard<L>) {
    let mut status = guard.watch();
    tokio::spawn(async move {
        let lost = status.wait_for(|status| matches!(status, LeaseStatus::Lost(_))).await;
        if let Ok(LeaseStatus::Lost(reason)) = lost.as_deref() {
            let reason = match reason {
                LossReason::Broken(_) => "broken".to_owned(),
                reason => reason.to_string(),
            };
            println!("{}", json!({"event": "lost", "lease": lease, "reason": reason}));
        }
    });
}

fn error_of(failure: &(dyn std::error::Error + 'static)) -> Value {
    match failure.downcast_ref::<Error>() {
        Some(Error::Problem(problem)) => {
            let retry = problem.known_code().map_or(Retry::Never, |code| code.retry());
            json!({"kind": "problem", "code": problem.code, "retry": retry})
        }
        Some(Error::Unreachable(_)) => json!({"kind": "unreachable"}),
        Some(Error::Unanswered(_)) => json!({"kind": "unknown-effect"}),
        _ => json!({"kind": failure.to_string()}),
    }
}

fn path(name: &str, rest: &str) -> String {
    format!("/v1/locks/{}{rest}", utf8_percent_encode(name, NON_ALPHANUMERIC))
}

fn text(command: &Value, member: &str) -> String {
    command[member].as_str().unwrap_or_default().to_owned()
}
