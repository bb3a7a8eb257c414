//! Carries out the commands of `clients/conformance` with this client.
//!
//! Every client of every language is such a program: it reads a JSON object a line, does what it
//! says, and writes a JSON object a line. `clients/conformance/README.md` has the commands, and
//! `make clients` runs it.

#![expect(clippy::print_stdout, reason = "the runner reads what this program prints")]

use std::collections::HashMap;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use keylatch_client::{
    AcquireOptions, BeginReply, BoxError, BreakLockRequest, Builder, Client, ClientCertificate,
    Error, Guard, Lease, Limit, LockGuard, LossReason, NothingDone, OnCrash, OnceOptions,
    ReleaseReply, Response, Retry, Run, Scope, SetGuard, Token,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

type Failure = BoxError;

enum Held {
    One(LockGuard),
    Several(SetGuard),
}

impl Held {
    fn lease(&self) -> Lease {
        match self {
            Self::One(guard) => Lease::clone(guard),
            Self::Several(guard) => Lease::clone(guard),
        }
    }
}

/// A `work` or a `run` that is under way.
#[derive(Clone, Default)]
struct Block {
    finish: Arc<Notify>,
    cancel: Arc<Notify>,
}

/// What the end of a block throws.
#[derive(Debug, thiserror::Error)]
#[error("the caller's own error")]
struct OwnError;

struct Program {
    client: Client,
    leases: Mutex<HashMap<String, Held>>,
    runs: Mutex<HashMap<String, Run>>,
    blocks: Mutex<HashMap<String, Block>>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let program = Arc::new(Program {
        client: settings()?.build()?,
        leases: Mutex::default(),
        runs: Mutex::default(),
        blocks: Mutex::default(),
    });
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
fn settings() -> Result<Builder, Failure> {
    let file = |name: &str| std::env::var_os(format!("CONFORMANCE_{name}")).map(PathBuf::from);
    let url = std::env::var("KEYLATCH_URL")?;
    let mut settings = Client::builder(&url).with_env()?;
    settings = settings.traceparent(|| std::env::var("TRACEPARENT").ok());
    if let Some(ca) = file("CA") {
        settings = settings.authorities(ca);
    }
    if let (Some(cert), Some(key)) = (file("CERT"), file("KEY")) {
        settings = settings.certificate(ClientCertificate { cert, key });
    }
    if let Ok(millis) = std::env::var("CONFORMANCE_SILENCE_MS") {
        settings = settings.silence(Duration::from_millis(millis.parse()?));
    }
    Ok(settings)
}

impl Program {
    async fn carry_out(&self, command: &Value) -> Result<Value, Failure> {
        match command["do"].as_str().unwrap_or_default() {
            "lock" | "hold" => self.lock(command).await,
            "lock_set" => self.lock_set(command).await,
            "release" => self.release(command).await,
            "lease" => Ok(json!({"lost": self.is_lost(command)})),
            "ask" => self.ask(command),
            "show" => Ok(match self.client.show(&text(command, "name")).await? {
                Some(lock) => serde_json::to_value(lock)?,
                None => json!({"held": null}),
            }),
            "break" => self.break_lock(command).await,
            "watch" => Ok(self.watch(command)),
            "begin" => self.begin(command).await,
            "complete" => {
                let run = self.run(command)?;
                let status = u16::try_from(number(command, "status", 200))?;
                let response = Response::builder().status(status);
                run.complete(response.body(content(command))?).await?;
                Ok(json!({}))
            }
            "abandon" => Ok(json!(self.run(command)?.abandon().await?)),
            "fail" => Ok(json!(self.run(command)?.fail(&text(command, "detail")).await?)),
            "once" => self.once(command).await,
            "work" => self.work(command).await,
            "run" => self.run_in_block(command).await,
            "cancel" => Ok(json!(self.block(command).cancel.notify_one())),
            "finish" => Ok(json!(self.block(command).finish.notify_one())),
            "shared" => self.shared(command).await,
            "shared_once" => self.shared_once(command).await,
            "make_client" => make_client(command),
            other => Err(format!("there is no command {other}").into()),
        }
    }

    async fn lock(&self, command: &Value) -> Result<Value, Failure> {
        let (name, options) = (text(command, "name"), options(command)?);
        let guard = if command["do"] == "hold" {
            self.client.hold(name, &options).await
        } else {
            self.client.lock(name, &options).await
        };
        let guard = match guard {
            Err(Error::Held(held)) => {
                let owner = held.holder.and_then(|holder| holder.owner);
                return Ok(json!({"held": {"name": held.name, "owner": owner}}));
            }
            guard => guard?,
        };
        let token = guard.token().expose();
        let mut shown = json!({"fencing_token": guard.fencing_token(), "token": token});
        if let Some(slot) = guard.slot() {
            shown["slot"] = json!(slot);
        }
        tell_loss(text(command, "lease"), &guard);
        locked(&self.leases).insert(text(command, "lease"), Held::One(guard));
        Ok(shown)
    }

    async fn lock_set(&self, command: &Value) -> Result<Value, Failure> {
        let names = command["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let guard = match self.client.lock_all(names, &options(command)?).await {
            Err(Error::Held(held)) => return Ok(json!({"held": {"name": held.name}})),
            guard => guard?,
        };
        let locks = guard.locks().iter().map(|lock| (&lock.name, lock.fencing_token));
        let shown = json!({"fencing_tokens": locks.collect::<HashMap<_, _>>()});
        tell_loss(text(command, "lease"), &guard);
        locked(&self.leases).insert(text(command, "lease"), Held::Several(guard));
        Ok(shown)
    }

    async fn release(&self, command: &Value) -> Result<Value, Failure> {
        let lease = locked(&self.leases).remove(&text(command, "lease"));
        let released = match lease.ok_or("there is no such lease")? {
            Held::One(guard) => guard.close().await?,
            Held::Several(guard) => guard.close().await?,
        };
        Ok(json!({"released": released == ReleaseReply::Released}))
    }

    fn is_lost(&self, command: &Value) -> bool {
        let leases = locked(&self.leases);
        let lease = leases.get(&text(command, "lease"));
        lease.is_none_or(|lease| lease.lease().lost().is_cancelled())
    }

    fn ask(&self, command: &Value) -> Result<Value, Failure> {
        let lease = locked(&self.leases).get(&text(command, "lease")).map(Held::lease);
        let lease = lease.ok_or("there is no such lease")?;
        let (end, mut passed) = (Instant::now() + Duration::from_secs(10), 0);
        while Instant::now() < end {
            let is_over = lease.valid_for().is_zero();
            if lease.check().is_err() {
                return Ok(json!({"passed_when_over": passed}));
            }
            passed += u32::from(is_over);
        }
        Err("the check did not fail in 10 s".into())
    }

    async fn break_lock(&self, command: &Value) -> Result<Value, Failure> {
        let name = text(command, "name");
        let lock = serde_json::to_value(self.client.show(&name).await?)?;
        let order = BreakLockRequest {
            reason: Some(text(command, "reason")),
            fencing_token: Some(number(&lock, "fencing_token", 0)),
            by: command["by"].as_str().map(str::to_owned),
            ..BreakLockRequest::default()
        };
        self.client.break_lock(&name, &order).await?;
        Ok(json!({}))
    }

    fn watch(&self, command: &Value) -> Value {
        let mut watch = self.client.watch(&text(command, "name"));
        let name = text(command, "watch");
        tokio::spawn(async move {
            while let Ok(event) = watch.next().await {
                println!("{}", json!({"event": "change", "watch": name, "type": event.kind}));
            }
        });
        json!({})
    }

    async fn begin(&self, command: &Value) -> Result<Value, Failure> {
        match self.client.begin(&text(command, "key"), &once_options(command)).await? {
            BeginReply::Done(response) => {
                let (head, body) = response.into_parts();
                done(&Response::from_parts(head, body.ok_or("the answer was not kept")?))
            }
            BeginReply::Begun(run) => {
                let shown = json!({"state": "begun", "fencing_token": run.fencing_token()});
                locked(&self.runs).insert(text(command, "run"), run);
                Ok(shown)
            }
        }
    }

    async fn once(&self, command: &Value) -> Result<Value, Failure> {
        let options = OnceOptions { wait: Duration::from_secs(10), ..once_options(command) };
        let take = Duration::from_millis(number(command, "take_ms", 0));
        let work = async |_| -> Result<_, Failure> {
            tokio::time::sleep(take).await;
            Ok(Response::new(text(command, "body")))
        };
        let once = self.client.once(&text(command, "key"), &options, work).await?;
        let body = String::from_utf8_lossy(once.response.body()).into_owned();
        Ok(json!({"body": body, "replayed": once.replayed}))
    }

    /// A guard in a future, which `cancel` drops.
    async fn work(&self, command: &Value) -> Result<Value, Failure> {
        let (client, options, command) = (self.client.clone(), options(command)?, command.clone());
        let block = self.block(&command);
        let finish = Arc::clone(&block.finish);
        let work = tokio::spawn(async move {
            let guard = client.lock(text(&command, "name"), &options).await?;
            tell_loss(text(&command, "lease"), &guard);
            println!("{}", json!({"event": "working", "lease": command["lease"]}));
            finish.notified().await;
            end_of(&command)?;
            guard.check()?;
            guard.close().await?;
            Ok(json!({"ended": "returned"}))
        });
        ended(work, &block).await
    }

    /// `once` in a future, which `cancel` drops.
    async fn run_in_block(&self, command: &Value) -> Result<Value, Failure> {
        let (client, options, command) =
            (self.client.clone(), once_options(command), command.clone());
        let block = self.block(&command);
        let finish = Arc::clone(&block.finish);
        let run = tokio::spawn(async move {
            let work = async |_| {
                println!("{}", json!({"event": "working", "run": command["run"]}));
                finish.notified().await;
                end_of(&command)?;
                Ok::<_, Failure>(Response::new(text(&command, "body")))
            };
            let once = client.once(&text(&command, "key"), &options, work).await?;
            let body = String::from_utf8_lossy(once.response.body()).into_owned();
            let ended = if once.replayed { "replayed" } else { "returned" };
            Ok(json!({"ended": ended, "body": body}))
        });
        let ended = ended(run, &block).await;
        // The run of a panic is ended in the background.
        self.client.close().await;
        ended
    }

    /// One set of options for all.
    async fn shared(&self, command: &Value) -> Result<Value, Failure> {
        let (options, name) = (Arc::new(options(command)?), text(command, "name"));
        let take = Duration::from_millis(number(command, "take_ms", 0));
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let user = |_| {
            let (client, options, name) = (self.client.clone(), Arc::clone(&options), name.clone());
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            tokio::spawn(async move {
                let guard = client.lock(name, &options).await?;
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(take).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let fencing_token = guard.fencing_token();
                guard.close().await?;
                Ok::<_, Error>(fencing_token)
            })
        };
        let users: Vec<_> = (0..number(command, "users", 1)).map(user).collect();
        let mut fencing_tokens = Vec::new();
        for user in users {
            fencing_tokens.push(user.await??);
        }
        Ok(json!({"at_once": most.load(Ordering::SeqCst), "fencing_tokens": fencing_tokens}))
    }

    /// The same with a thing to be done once.
    async fn shared_once(&self, command: &Value) -> Result<Value, Failure> {
        let options = OnceOptions { wait: Duration::from_secs(20), ..once_options(command) };
        let (options, key) = (Arc::new(options), text(command, "key"));
        let take = Duration::from_millis(number(command, "take_ms", 0));
        let user = |_| {
            let (client, options, key) = (self.client.clone(), Arc::clone(&options), key.clone());
            tokio::spawn(async move {
                let work = async |_| {
                    tokio::time::sleep(take).await;
                    Ok::<_, Error>(Response::new("done"))
                };
                client.once(&key, &options, work).await
            })
        };
        let users: Vec<_> = (0..number(command, "users", 1)).map(user).collect();
        let mut ran = 0;
        for user in users {
            ran += u32::from(!user.await??.replayed);
        }
        Ok(json!({"ran": ran}))
    }

    fn run(&self, command: &Value) -> Result<Run, Failure> {
        locked(&self.runs)
            .remove(&text(command, "run"))
            .ok_or_else(|| "there is no such run".into())
    }

    fn block(&self, command: &Value) -> Block {
        let name = format!("{} {}", command["lease"], command["run"]);
        locked(&self.blocks).entry(name).or_default().clone()
    }
}

/// What the end of a block does.
fn end_of(command: &Value) -> Result<(), Failure> {
    match command["end"].as_str() {
        Some("throw") => Err(OwnError.into()),
        Some("nothing-done") => Err(NothingDone.into()),
        Some("panic") => std::panic::panic_any("on purpose"),
        _ => Ok(()),
    }
}

/// What came out of a block.
async fn ended(
    mut block: JoinHandle<Result<Value, Failure>>,
    control: &Block,
) -> Result<Value, Failure> {
    let joined = tokio::select! {
        joined = &mut block => joined,
        () = control.cancel.notified() => {
            block.abort();
            block.await
        }
    };
    let failure = match joined {
        Ok(Ok(said)) => return Ok(said),
        Ok(Err(failure)) => failure,
        Err(error) => {
            return Ok(json!({"ended": if error.is_cancelled() { "cancelled" } else { "threw" }}));
        }
    };
    let own = |error: &Failure| error.is::<OwnError>() || error.is::<NothingDone>();
    let is_own = match failure.downcast_ref::<Error>() {
        Some(Error::Work(error)) => own(error),
        Some(Error::Held(_)) => return Ok(json!({"ended": "held"})),
        _ => own(&failure),
    };
    match is_own {
        true => Ok(json!({"ended": "threw"})),
        false if failure.is::<keylatch_client::LeaseLost>() => Ok(json!({"ended": "lost"})),
        false => Err(failure),
    }
}

fn make_client(command: &Value) -> Result<Value, Failure> {
    let url = command["url"].as_str().unwrap_or("http://127.0.0.1:7070");
    let mut settings = Client::builder(url);
    if let Some(key) = command["api_key"].as_str() {
        settings = settings.api_key(key);
    }
    if let Some(ca) = command["ca"].as_str() {
        settings = settings.authorities(ca);
    }
    settings.build()?;
    Ok(json!({"made": true}))
}

fn options(command: &Value) -> Result<AcquireOptions, Failure> {
    let limit = match &command["limit"] {
        Value::String(_) => Limit::Shared,
        Value::Number(number) => Limit::Counted(number.as_u64().ok_or("the limit is negative")?),
        _ => Limit::Exclusive,
    };
    let given = |member: &str| command[member].as_str().map(str::to_owned);
    Ok(AcquireOptions {
        ttl: Duration::from_millis(number(command, "ttl_ms", 30_000)),
        wait: Duration::from_millis(number(command, "wait_ms", 0)),
        max_ahead: command["max_ahead"].as_u64(),
        owner: given("owner"),
        limit,
        token: command["token"].as_str().map(Token::parse).transpose()?,
        entry: given("entry"),
        ..AcquireOptions::default()
    })
}

fn once_options(command: &Value) -> OnceOptions {
    let of_scope = |member: &str| command["scope"][member].as_str().map(str::to_owned);
    OnceOptions {
        fingerprint: command["fingerprint"].as_str().map(str::to_owned),
        lease: Duration::from_millis(number(command, "lease_ms", 30_000)),
        wait: Duration::from_millis(number(command, "wait_ms", 0)),
        retention: command["retention_ms"].as_u64().map(Duration::from_millis),
        on_crash: if command["on_crash"] == "rerun" { OnCrash::Rerun } else { OnCrash::Unknown },
        scope: Scope {
            method: of_scope("method"),
            path: of_scope("path"),
            principal: of_scope("principal"),
            source: None,
        },
        ..OnceOptions::default()
    }
}

/// The text of a `complete`, or so many bytes.
fn content(command: &Value) -> Bytes {
    match command["bytes"].as_u64() {
        Some(count) => {
            (0..count).map(|byte| u8::try_from(byte % 251).unwrap_or_default()).collect()
        }
        None => text(command, "body").into(),
    }
}

fn done(response: &Response<Bytes>) -> Result<Value, Failure> {
    let (mut headers, bytes) = (HashMap::<_, Vec<_>>::new(), response.body());
    for (name, value) in response.headers() {
        headers.entry(name.as_str()).or_default().push(value.to_str()?);
    }
    let mut shown =
        json!({"state": "done", "status": response.status().as_u16(), "headers": headers});
    match std::str::from_utf8(bytes) {
        Ok(text) => shown["body"] = text.into(),
        Err(_) if bytes.len() <= 1000 => shown["body_base64"] = STANDARD.encode(bytes).into(),
        Err(_) => {
            let digest = Sha256::digest(bytes);
            let sha256 =
                digest.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
            shown["size"] = bytes.len().into();
            shown["sha256"] = sha256.into();
        }
    }
    Ok(shown)
}

/// Says when the lease is lost.
fn tell_loss<L>(lease: String, guard: &Guard<L>) {
    let watched = Lease::clone(guard);
    tokio::spawn(async move {
        watched.lost().cancelled().await;
        let (reason, by) = match watched.loss() {
            Some(LossReason::Ended) => return,
            Some(LossReason::Broken { by, .. }) => ("broken".to_owned(), by),
            reason => (reason.map(|it| it.to_string()).unwrap_or_default(), None),
        };
        println!("{}", json!({"event": "lost", "lease": lease, "reason": reason, "by": by}));
    });
}

fn error_of(failure: &(dyn std::error::Error + 'static)) -> Value {
    match failure.downcast_ref::<Error>() {
        Some(Error::Problem(problem)) => {
            // As the document has it, which not every client has a table beside.
            let retry = problem.retry.unwrap_or(match failure.downcast_ref().map(Error::retry) {
                Some(Retry::SameKey) => Retry::SameKey,
                _ => Retry::Never,
            });
            json!({"kind": "problem", "code": problem.code, "retry": retry})
        }
        Some(Error::Unreachable(_)) => json!({"kind": "unreachable"}),
        Some(Error::Unanswered(_)) => json!({"kind": "unknown-effect"}),
        Some(Error::Settings(_) | Error::Certificates(_) | Error::OtherStore(_)) => {
            json!({"kind": "settings", "text": failure.to_string()})
        }
        _ => json!({"kind": failure.to_string()}),
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(command: &Value, member: &str) -> String {
    command[member].as_str().unwrap_or_default().to_owned()
}

fn number(command: &Value, member: &str, default: u64) -> u64 {
    command[member].as_u64().unwrap_or(default)
}
