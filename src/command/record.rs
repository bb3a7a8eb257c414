//! `keylatch key list`, `show`, `resolve`, `erase` and `observed`: the records of idempotency keys,
//! what settles one whose outcome is unknown, and what guards that only observe would have done.
//!
//! A record is named by its key and scope, as the API names it. Nothing here decides an outcome:
//! the operator says it. Tested in `tests/cli/key_commands.rs`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use hyper::Method;
use keylatch_client::escape;
use keylatch_core::idempotency::IdempotencyKey;
use keylatch_core::lock::{Owner, Reason};
use keylatch_wire::{
    Code, CompleteRecordRequest, HeaderValues, IdempotencyRecord, ListedRecord, ObservedGuard,
    RecordPage, ResolveRecordRequest, ServiceInfo, in_words,
};
use serde_json::json;

use super::ServiceArguments;
use super::arguments::owner;
use super::service::{Ask, Reply, Service};
use super::table::{Table, print_facts, print_json};
use crate::failure::{Failure, NO_RECORD, exit_codes};
use crate::plain::say;

const PAGE: usize = 1000;

/// What to do with records.
#[derive(Debug, Subcommand)]
pub enum RecordCommand {
    /// List the records of idempotency keys
    #[command(after_help = exit_codes(&[]))]
    List(List),
    /// Show the record of an idempotency key
    #[command(after_help = exit_codes(&[NO_RECORD]))]
    Show(Show),
    /// Settle an unknown outcome, once you have found out whether the request was carried out
    #[command(after_help = exit_codes(&[NO_RECORD]))]
    Resolve(Resolve),
    /// Remove the body and the headers of a kept response, which may be personal data. The key
    /// stays used
    #[command(after_help = exit_codes(&[NO_RECORD]))]
    Erase(Erase),
    /// Show what the guards with `mode = "observe"` would have done, at the instance that responds
    #[command(after_help = exit_codes(&[]))]
    Observed(ShowObserved),
}

/// Which records to list.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    service: ServiceArguments,
    /// Only those in this state
    #[arg(long, value_parser = ["unknown", "in-flight", "done"])]
    state: Option<String>,
    /// Only those of this path
    #[arg(long)]
    path: Option<String>,
    /// Only those whose paths begin so
    #[arg(long)]
    prefix: Option<String>,
    /// Print the response as JSON, a record on each line
    #[arg(long)]
    json: bool,
}

/// The key of a record, and what it is unique within.
#[derive(Debug, Args)]
struct Scope {
    #[command(flatten)]
    service: ServiceArguments,
    /// The method of the guarded route; nothing for a key of the API's own
    #[arg(long, default_value = "", hide_default_value = true)]
    method: String,
    /// The path of the guarded route
    #[arg(long, default_value = "", hide_default_value = true)]
    path: String,
    /// Whose request it was, where the route tells people apart
    #[arg(long)]
    principal: Option<String>,
    /// Where the route has its keys from, as `derived` or `header:webhook-id`, if not from the
    /// Idempotency-Key
    #[arg(long, default_value = "", hide_default_value = true)]
    source: String,
    /// The key, as the client sent it
    #[arg(value_parser = IdempotencyKey::parse)]
    key: IdempotencyKey,
}

/// A record to look at.
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    scope: Scope,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// A response to erase.
#[derive(Debug, Args)]
pub struct Erase {
    #[command(flatten)]
    scope: Scope,
}

/// Guards that only observe.
#[derive(Debug, Args)]
pub struct ShowObserved {
    #[command(flatten)]
    service: ServiceArguments,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// An unknown outcome to settle.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct Resolve {
    #[command(flatten)]
    scope: Scope,
    /// The request was carried out: retries get the response
    #[arg(long, group = "what")]
    done: bool,
    /// The request was not carried out: the key is free, and the next request with it runs
    #[arg(long, group = "what")]
    not_done: bool,
    /// The run with this fencing token was carried out, and what it did was taken back: the key is
    /// free
    #[arg(long, group = "what", value_name = "FENCING_TOKEN")]
    undone: Option<u64>,
    /// The status that retries get
    #[arg(long, conflicts_with_all = ["not_done", "undone"], value_name = "CODE", default_value = "200")]
    status: u16,
    /// A file with the body that retries get
    #[arg(long, conflicts_with_all = ["not_done", "undone"], value_name = "FILE")]
    body: Option<PathBuf>,
    /// What the body is
    #[arg(long, requires = "body", value_name = "TYPE", default_value = "application/json")]
    content_type: String,
    /// How you found out, for the record and the audit log
    #[arg(long, value_parser = Reason::parse)]
    reason: Reason,
    /// A label that says who settles it
    #[arg(long, value_parser = owner)]
    by: Option<Owner>,
    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

impl RecordCommand {
    /// Does what is asked, and gives the exit code. After a failure it was not done, or it is
    /// unknown whether it was.
    pub async fn run(self) -> Result<u8, Failure> {
        match self {
            Self::List(command) => command.run().await,
            Self::Show(command) => command.run().await,
            Self::Resolve(command) => command.run().await,
            Self::Erase(command) => command.run().await,
            Self::Observed(command) => command.run().await,
        }
    }
}

impl List {
    async fn run(self) -> Result<u8, Failure> {
        let service = Service::new(&self.service)?;
        let mut first = format!("/v1/idempotency?limit={PAGE}");
        for (name, value) in
            [("state", &self.state), ("path", &self.path), ("prefix", &self.prefix)]
        {
            if let Some(value) = value {
                first += &format!("&{name}={}", escape(value));
            }
        }
        let mut table =
            Table::new(&["STATE", "KEY", "METHOD", "PATH", "PRINCIPAL", "RUNS", "SINCE", "REASON"]);
        let (mut next, mut hidden) = (Some(first.clone()), 0);
        while let Some(path) = next {
            let page: RecordPage = service.ask(Ask::get(path)).await?.parse()?;
            for record in &page.records {
                if self.json {
                    print_json(&json!(record).to_string())?;
                } else {
                    table.add(row(record));
                }
            }
            hidden += page.hidden.unwrap_or_default();
            next = page.next_cursor.map(|cursor| format!("{first}&cursor={}", escape(&cursor)));
        }
        if !self.json {
            table.print()?;
            if hidden > 0 {
                print_facts(&[("not shown, because you may not read them:", hidden.to_string())])?;
            }
        }
        Ok(0)
    }
}

fn row(record: &ListedRecord) -> [String; 8] {
    let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    [
        record.state.to_string(),
        or_dash(&record.key),
        or_dash(&record.method),
        or_dash(&record.path),
        or_dash(&record.principal),
        record.attempts.to_string(),
        record.ended_at.as_ref().unwrap_or(&record.begun_at).clone(),
        or_dash(record.reason.as_deref().unwrap_or_default()),
    ]
}

impl Scope {
    fn service(&self) -> Result<Service, Failure> {
        Service::new(&self.service)
    }

    /// A request about the record, or about what is below it.
    fn ask(&self, method: Method, below: &str) -> Ask<'static> {
        let (key, path) = (escape(self.key.as_str()), escape(&self.path));
        let (of_method, source) = (escape(&self.method), escape(&self.source));
        let mut path =
            format!("/v1/idempotency/{key}{below}?method={of_method}&path={path}&source={source}");
        if let Some(principal) = &self.principal {
            path += &format!("&principal={}", escape(principal));
        }
        Ask::new(method, path)
    }
}

impl Show {
    async fn run(self) -> Result<u8, Failure> {
        let (service, key) = (self.scope.service()?, self.scope.key.as_str());
        let reply = match service.ask(self.scope.ask(Method::GET, "")).await {
            Err(failure) if failure.is(Code::NoRecord) => {
                let all = Ask::get(format!("/v1/idempotency?limit={PAGE}"));
                let all = service.ask(all).await?.parse::<RecordPage>()?.records;
                for ListedRecord { method, path, .. } in all.iter().filter(|one| one.key == key) {
                    say(&format!("this key is there with --method {method} --path {path}"));
                }
                return Err(failure);
            }
            reply => reply?,
        };
        print_record(&reply, self.json)?;
        Ok(0)
    }
}

impl Erase {
    async fn run(self) -> Result<u8, Failure> {
        let ask = self.scope.ask(Method::DELETE, "/answer");
        self.scope.service()?.ask(ask).await.map(|_| 0)
    }
}

impl ShowObserved {
    async fn run(self) -> Result<u8, Failure> {
        let reply = Service::new(&self.service)?.ask(Ask::get("/v1/info".to_owned())).await?;
        let guards = reply.parse::<ServiceInfo>()?.observed_guards;
        if self.json {
            print_json(&json!(guards).to_string())?;
            return Ok(0);
        }
        let mut table =
            Table::new(&["GUARD", "TIME", "ENFORCING WOULD HAVE CHANGED, AT THIS INSTANCE"]);
        for (guard, counts) in guards {
            for (time, counts) in [("today", counts.today), ("since start", counts.since_start)] {
                table.add([guard.clone(), time.to_owned(), ObservedGuard::sentence(&counts)]);
            }
        }
        table.print()?;
        Ok(0)
    }
}

impl Resolve {
    async fn run(self) -> Result<u8, Failure> {
        let request = ResolveRecordRequest {
            outcome: Some(self.outcome().to_owned()),
            fencing_token: self.undone,
            answer: self.answer()?,
            reason: Some(self.reason.as_str().to_owned()),
            by: self.by.as_ref().map(|by| by.as_str().to_owned()),
        };
        let ask = self.scope.ask(Method::POST, "/resolve").with_json(&request)?;
        let reply = self.scope.service()?.ask(ask).await?;
        if !reply.is_empty() {
            print_record(&reply, self.json)?;
        }
        Ok(0)
    }

    fn outcome(&self) -> &'static str {
        match (self.done, self.undone) {
            (true, _) => "completed",
            (false, Some(_)) => "undone",
            (false, None) => "not-executed",
        }
    }

    /// What retries get of a request that was carried out.
    fn answer(&self) -> Result<Option<CompleteRecordRequest>, Failure> {
        if !self.done {
            return Ok(None);
        }
        let mut answer =
            CompleteRecordRequest { status: Some(self.status), ..CompleteRecordRequest::default() };
        if let Some(file) = &self.body {
            let body = std::fs::read_to_string(file).map_err(|error| {
                Failure::Arguments(format!("{} cannot be read: {error}", file.display()))
            })?;
            let content_type = HeaderValues::One(self.content_type.clone());
            answer.headers = Some([("content-type".to_owned(), content_type)].into());
            answer.body = Some(body);
        }
        Ok(Some(answer))
    }
}

fn print_record(reply: &Reply, json: bool) -> Result<(), Failure> {
    if json {
        return Ok(print_json(&reply.text())?);
    }
    let record: IdempotencyRecord = reply.parse()?;
    let mut facts = vec![
        ("state", record.state.to_string()),
        ("runs", record.attempts.to_string()),
        ("fencing token", record.fencing_token.to_string()),
    ];
    let settled = record.settled.unwrap_or_default();
    let more = [
        ("begun", record.begun_at),
        ("ended", record.ended_at),
        ("why", record.reason.map(Into::into)),
        ("lease ends in", record.lease_expires_in_ms.map(in_words)),
        ("status", record.status.map(|status| status.to_string())),
        ("answer kept", record.answer_kept.map(|kept| if kept { "yes" } else { "no" }.into())),
        ("settled by", settled.by),
        ("settled because", settled.reason),
    ];
    facts.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
    facts.push(("kept for", in_words(record.expires_in_ms)));
    Ok(print_facts(&facts)?)
}
