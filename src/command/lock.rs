//! `keylatch lock …`: each operation on locks, for a person or a script.
//!
//! A subcommand sends requests of the HTTP API, so it may do what its API key may do and no more.
//! The token may come from `KEYLATCH_TOKEN`, because other users can read an argument. `hold` and
//! `watch` are streams and end with a signal. Tested in `tests/cli/lock_commands.rs`.

use std::io::Write as _;
use std::slice;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::TryStreamExt as _;
use http_body_util::BodyDataStream;
use hyper::Method;
use keylatch_client::{AcquireOptions, LockGuard, LossReason, Token, escape};
use keylatch_core::lock::{EntryName, LockName, Owner, Reason, Ttl};
use keylatch_wire::{
    BreakLockRequest, Code, HeldLock, LockBreak, LockPage, RenewLockRequest, in_words, millis,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::io::StreamReader;

use super::arguments::{duration, owner, ttl};
use super::service::{Ask, Service};
use super::table::{Table, print_facts, print_json};
use super::{LeaseArguments, ServiceArguments};
use crate::failure::{FREE, Failure, LOST, WAS_HELD, exit_codes};
use crate::plain::{plain, say};
use crate::run::narrate;

/// How long a stream is silent at most: the service sends a comment with each heartbeat.
const SILENCE: Duration = Duration::from_secs(120);
const PAGE: usize = 1000;
/// What is shown of a holder.
const COLUMNS: [&str; 7] = ["NAME", "OWNER", "LEFT", "WAITING", "FENCING TOKEN", "SLOT", "SINCE"];

/// What to do with locks.
#[derive(Debug, Subcommand)]
pub enum LockCommand {
    /// Get a lock and print its token, by which it is renewed and released; it expires unless it is
    /// renewed
    #[command(after_help = exit_codes(&[WAS_HELD]))]
    Acquire(Acquire),
    /// Let a lease last a full TTL from now
    #[command(after_help = exit_codes(&[LOST]))]
    Renew(Renew),
    /// End a lease
    #[command(after_help = exit_codes(&[FREE, LOST]))]
    Release(Release),
    /// Hold a lock until Ctrl-C or SIGTERM, renewing it meanwhile
    #[command(after_help = exit_codes(&[WAS_HELD, LOST]))]
    Hold(Hold),
    /// Print what happens to a lock, a line for each change, until Ctrl-C
    #[command(after_help = exit_codes(&[]))]
    Watch(Look),
    /// List the held locks
    #[command(after_help = exit_codes(&[]))]
    List(List),
    /// Show who holds a lock, and how many wait for it
    #[command(after_help = exit_codes(&[FREE]))]
    Show(Look),
    /// End the lease of another client, with a reason
    #[command(after_help = exit_codes(&[LOST]))]
    Break(Break),
}

/// A lock of a service.
#[derive(Debug, Args)]
struct OneLock {
    #[command(flatten)]
    service: ServiceArguments,
    /// The lock
    #[arg(value_parser = LockName::parse)]
    name: LockName,
}

impl OneLock {
    fn service(&self) -> Result<Service, Failure> {
        Service::new(&self.service)
    }

    /// A request about the lock, or about what is below it.
    fn ask(&self, method: Method, below: &str) -> Ask<'static> {
        Ask::new(method, format!("/v1/locks/{}{below}", escape(self.name.as_str())))
    }
}

/// What proves a lease.
#[derive(Debug, Args)]
struct HolderToken {
    /// The token that holds the lock
    #[arg(
        long,
        env = "KEYLATCH_TOKEN",
        hide_env_values = true,
        value_parser = Token::parse,
        allow_hyphen_values = true
    )]
    token: Token,
}

/// A lock to get.
#[derive(Debug, Args)]
pub struct Acquire {
    #[command(flatten)]
    at: OneLock,
    #[command(flatten)]
    lease: LeaseArguments,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
    /// Print the token alone
    #[arg(long, conflicts_with_all = ["json", "export"])]
    token_only: bool,
    /// Print lines for `eval` in a shell, which set KEYLATCH_NAME, KEYLATCH_TOKEN and
    /// KEYLATCH_FENCING_TOKEN
    #[arg(long, conflicts_with = "json")]
    export: bool,
    /// The token, if it is to be one that holds the lock already
    #[arg(long, value_parser = Token::parse, allow_hyphen_values = true)]
    token: Option<Token>,
    /// The name under which to enter the lock
    #[arg(long, value_parser = EntryName::parse)]
    entry: Option<EntryName>,
}

/// A lock to hold.
#[derive(Debug, Args)]
pub struct Hold {
    #[command(flatten)]
    at: OneLock,
    #[command(flatten)]
    lease: LeaseArguments,
    /// Print the grant as JSON
    #[arg(long)]
    json: bool,
}

/// A lease to renew.
#[derive(Debug, Args)]
pub struct Renew {
    #[command(flatten)]
    at: OneLock,
    /// How long the lease lasts from now [default: as long as it did]
    #[arg(long, value_parser = ttl, value_name = "TIME")]
    ttl: Option<Ttl>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    token: HolderToken,
}

/// A lease to end.
#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    at: OneLock,
    #[command(flatten)]
    token: HolderToken,
    /// Leave this entry alone
    #[arg(long, value_parser = EntryName::parse)]
    entry: Option<EntryName>,
}

/// A lock to look at.
#[derive(Debug, Args)]
pub struct Look {
    #[command(flatten)]
    at: OneLock,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// Which locks to list.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    service: ServiceArguments,
    /// Print the response as JSON, a lock on each line
    #[arg(long)]
    json: bool,
    /// Only names that begin so
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// A lease of another client to end.
#[derive(Debug, Args)]
pub struct Break {
    #[command(flatten)]
    at: OneLock,
    /// Why, for the holder and for the history
    #[arg(long, value_parser = Reason::parse)]
    reason: Reason,
    /// The fencing token of the grant, as `show` prints it; needed where several hold the lock
    #[arg(long, value_name = "N")]
    fencing_token: Option<u64>,
    /// The slot of the holder, where several share the fencing token
    #[arg(long, value_name = "N")]
    slot: Option<u32>,
    /// Let the lease end so soon, be that before its holder's validity ends
    /// [default: when it would have ended unless renewed]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    grace: Option<Duration>,
    /// A label that says who breaks it
    #[arg(long, value_parser = owner)]
    by: Option<Owner>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

impl LockCommand {
    /// Does what is asked, and gives the exit code. After a failure it was not done, or it is
    /// unknown whether it was.
    pub async fn run(self) -> Result<u8, Failure> {
        match self {
            Self::Acquire(command) => command.run().await,
            Self::Renew(command) => command.run().await,
            Self::Release(command) => command.run().await,
            Self::Hold(command) => command.run().await,
            Self::Watch(command) => command.watch().await,
            Self::List(command) => command.run().await,
            Self::Show(command) => command.show().await,
            Self::Break(command) => command.run().await,
        }
    }
}

impl Acquire {
    async fn run(self) -> Result<u8, Failure> {
        let service = self.at.service()?;
        let random = |error: getrandom::Error| service.failure(error.into());
        let token = self.token.map_or_else(Token::generate, Ok).map_err(random)?;
        // The lock stays with the token when this process ends.
        let options = AcquireOptions {
            token: Some(token),
            entry: self.entry.map(|entry| entry.as_str().to_owned()),
            keep: true,
            ..self.lease.options()
        };
        let guard = acquire(&service, &self.at.name, &options).await?;
        if self.token_only {
            writeln!(std::io::stdout(), "{}", guard.token().expose())?;
        } else if self.export {
            std::io::stdout().write_all(exports(&guard).as_bytes())?;
        } else {
            print_grant(&guard, Some(guard.token()), options.ttl, self.json)?;
        }
        Ok(0)
    }
}

/// What a shell makes the variables of a grant of. In quotes a name is only text.
fn exports(guard: &LockGuard) -> String {
    let (name, token) = (guard.name().replace('\'', r"'\''"), guard.token().expose());
    let fencing_token = guard.fencing_token();
    let slot = guard.slot().map(|slot| format!("export KEYLATCH_SLOT={slot}\n"));
    format!(
        "export KEYLATCH_NAME='{name}'\nexport KEYLATCH_TOKEN='{token}'\n\
         export KEYLATCH_FENCING_TOKEN={fencing_token}\n{}",
        slot.unwrap_or_default()
    )
}

impl Hold {
    async fn run(self) -> Result<u8, Failure> {
        let service = self.at.service()?;
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let options = self.lease.options();
        let held = async {
            let guard = acquire(&service, &self.at.name, &options).await?;
            // The token stays here: it is of use only to end what this process holds.
            print_grant(&guard, None, options.ttl, self.json)?;
            guard.lost().cancelled().await;
            Err(Failure::Lost(guard.loss().unwrap_or(LossReason::Paused).to_string()))
        };
        let ended = tokio::select! {
            lost = held => lost,
            _ = term.recv() => Ok(0),
            _ = int.recv() => Ok(0),
        };
        // The guard, or a wait that ended, is dropped: its release is a task of the client.
        service.client().close().await;
        ended
    }
}

/// The lock, or who has it in the end.
async fn acquire(
    service: &Service,
    name: &LockName,
    options: &AcquireOptions,
) -> Result<LockGuard, Failure> {
    let acquired = tokio::select! {
        acquired = service.client().lock(name.as_str(), options) => acquired,
        never = narrate(service.client(), service.url(), slice::from_ref(name)) => match never {},
    };
    acquired.map_err(|error| service.failure(error))
}

fn print_grant(
    guard: &LockGuard,
    token: Option<&Token>,
    ttl: Duration,
    json: bool,
) -> Result<(), Failure> {
    let mut grant = json!({
        "name": guard.name(),
        "fencing_token": guard.fencing_token(),
        "ttl_ms": millis(ttl),
        "valid_for_ms": millis(guard.valid_for()),
    });
    if let Some(token) = token {
        grant["token"] = token.expose().into();
    }
    if let Some(slot) = guard.slot() {
        grant["slot"] = slot.into();
    }
    let members = ["name", "token", "fencing_token", "slot", "ttl_ms", "valid_for_ms"];
    print_members(&grant, &members, json)
}

impl Renew {
    async fn run(self) -> Result<u8, Failure> {
        let ttl_ms = self.ttl.map(|ttl| millis(ttl.get()));
        let ask = self.at.ask(Method::PUT, "").with_json(&RenewLockRequest { ttl_ms })?;
        let reply = self.at.service()?.ask(ask.with_token(&self.token.token)).await?;
        let members = ["name", "fencing_token", "slot", "ttl_ms", "valid_for_ms", "expires_at"];
        print_members(&reply.parse()?, &members, self.json)?;
        Ok(0)
    }
}

impl Release {
    async fn run(self) -> Result<u8, Failure> {
        let entry = self.entry.map(|entry| format!("?entry={}", escape(entry.as_str())));
        let ask = self.at.ask(Method::DELETE, &entry.unwrap_or_default());
        match self.at.service()?.ask(ask.with_token(&self.token.token)).await {
            // A script that cleans up tells a lease that was over from a release that failed.
            Err(failure @ Failure::Problem(_)) if failure.is(Code::LockNotHeld) => {
                say(&failure);
                Ok(1)
            }
            released => released.map(|_| 0),
        }
    }
}

impl List {
    async fn run(self) -> Result<u8, Failure> {
        let service = Service::new(&self.service)?;
        let first = format!("/v1/locks?limit={PAGE}&prefix={}", escape(&self.prefix));
        let mut table = Table::new(&COLUMNS);
        let mut next = Some(first.clone());
        while let Some(path) = next {
            let page: LockPage = service.ask(Ask::get(path)).await?.parse()?;
            for lock in &page.locks {
                if self.json {
                    print_json(&json!(lock).to_string())?;
                } else {
                    rows(lock).into_iter().for_each(|row| table.add(row));
                }
            }
            next = page.next_cursor.map(|cursor| format!("{first}&cursor={}", escape(&cursor)));
        }
        if !self.json {
            table.print()?;
        }
        Ok(0)
    }
}

/// A row for each holder.
fn rows(lock: &HeldLock) -> Vec<[String; 7]> {
    let lock = json!(lock);
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    let holders = lock["holders"].as_array().map_or(slice::from_ref(&lock), Vec::as_slice);
    let rows = holders.iter().map(|holder| {
        let of_holder = |member| text(&holder[member]);
        let left = in_words(holder["expires_in_ms"].as_u64().unwrap_or_default());
        let (waiting, since) = (text(&lock["waiting"]), of_holder("acquired_at"));
        let (owner, token, slot) =
            (of_holder("owner"), of_holder("fencing_token"), of_holder("slot"));
        [text(&lock["name"]), owner, left, waiting, token, slot, since]
    });
    rows.collect()
}

impl Look {
    async fn show(self) -> Result<u8, Failure> {
        let reply = match self.at.service()?.ask(self.at.ask(Method::GET, "")).await {
            Err(Failure::Problem(problem)) if problem.is(Code::LockNotHeld) => {
                if self.json {
                    let free = json!({"name": self.at.name.as_str(), "held": false});
                    print_json(&free.to_string())?;
                } else {
                    print_facts(&[("name", self.at.name.to_string()), ("held", "no".into())])?;
                }
                return Ok(1);
            }
            reply => reply?,
        };
        if self.json {
            print_json(&reply.text())?;
        } else {
            let mut table = Table::new(&COLUMNS);
            rows(&reply.parse()?).into_iter().for_each(|row| table.add(row));
            table.print()?;
        }
        Ok(0)
    }

    async fn watch(self) -> Result<u8, Failure> {
        let service = self.at.service()?;
        let stream = service.open(self.at.ask(Method::GET, "/events")).await?;
        let bytes = BodyDataStream::new(stream.into_body()).map_err(std::io::Error::other);
        let mut lines = BufReader::new(StreamReader::new(bytes)).lines();
        let mut event = String::new();
        loop {
            let cut = |why: String| service.failure(keylatch_client::Error::Unanswered(why));
            let line = timeout(SILENCE, lines.next_line()).await;
            let line = line.map_err(|_| cut("nothing came for two minutes".into()))?;
            let line = line.map_err(|error| cut(error.to_string()))?;
            let line = line.ok_or_else(|| cut("the service ended the stream".into()))?;
            if let Some(name) = line.strip_prefix("event: ") {
                name.clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data: ") {
                print_event(&event, data, self.json)?;
            }
        }
    }
}

fn print_event(event: &str, data: &str, json: bool) -> Result<(), Failure> {
    let mut data: Value = serde_json::from_str(data).unwrap_or_default();
    if json {
        data["event"] = event.into();
        return Ok(print_json(&data.to_string())?);
    }
    let mut out = std::io::stdout();
    let (event, owner) = (&*plain(event), plain(data["owner"].as_str().unwrap_or("-")));
    match (event, data["fencing_token"].as_u64(), data["held"].as_bool()) {
        ("snapshot", _, Some(false)) => writeln!(out, "free")?,
        ("snapshot", Some(token), _) => writeln!(out, "held      {token}  {owner}")?,
        (event, Some(token), _) => writeln!(out, "{event:8}  {token}  {owner}")?,
        (event, None, _) => writeln!(out, "{event}")?,
    }
    Ok(())
}

impl Break {
    async fn run(self) -> Result<u8, Failure> {
        let service = self.at.service()?;
        let fencing_token = match self.fencing_token {
            Some(token) => token,
            None => sole_grant(&service, &self.at).await?,
        };
        let request = BreakLockRequest {
            reason: Some(self.reason.as_str().to_owned()),
            fencing_token: Some(fencing_token),
            slot: self.slot,
            by: self.by.map(|by| by.as_str().to_owned()),
            grace_ms: self.grace.map(millis),
        };
        let ask = self.at.ask(Method::POST, "/break").with_json(&request)?;
        let reply = service.ask(ask).await?;
        if self.json {
            print_json(&reply.text())?;
        } else {
            let broken: LockBreak = reply.parse()?;
            let token = fencing_token.to_string();
            print_facts(&[("fencing token", token), ("ends within", in_words(broken.ends_in_ms))])?;
        }
        Ok(0)
    }
}

/// The fencing token of the one grant of a lock, so that no later grant is broken in its place.
async fn sole_grant(service: &Service, at: &OneLock) -> Result<u64, Failure> {
    match service.ask(at.ask(Method::GET, "")).await?.parse()? {
        HeldLock::Exclusive(lock) => Ok(lock.fencing_token),
        HeldLock::Shared(lock) => match lock.holders.as_slice() {
            [holder] => Ok(holder.fencing_token),
            _ => Err(Failure::Arguments(format!(
                "{} hold the lock: say which with --fencing-token and --slot, as `keylatch lock show` prints them",
                lock.holding
            ))),
        },
    }
}

/// Prints some members of an object in this order, or the whole as JSON.
fn print_members(value: &Value, members: &[&str], json: bool) -> Result<(), Failure> {
    if json {
        return Ok(print_json(&value.to_string())?);
    }
    let facts = members.iter().filter_map(|&member| {
        let (name, time) = member.strip_suffix("_ms").map_or((member, false), |name| (name, true));
        let text = match value.get(member)? {
            Value::String(text) => text.clone(),
            value if time => in_words(value.as_u64()?),
            value => value.to_string(),
        };
        Some((name.replace('_', " "), text))
    });
    Ok(print_facts(&facts.collect::<Vec<_>>())?)
}
