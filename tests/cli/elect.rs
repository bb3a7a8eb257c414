//! Goal: of several under `keylatch elect` one leads, the next one leads when it has gone, and each
//! says who.
//!
//! Method: two processes, requests to their own addresses, signals, and a service that is cut off.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use keylatch_testkit::{Answer, Exit, RunningCommand, Service, eventually, free_port};
use serde_json::json;

use crate::{KEYLATCH, ask, is, staged};

/// One that stands for election, and says who leads.
struct Candidate {
    running: RunningCommand,
    address: String,
}

impl Candidate {
    fn start(server: &str, owner: &str, more: &[&str]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let listen = ["elect", "--ttl", "3s", "--owner", owner, "--listen", &address, "jobs"];
        let running = KEYLATCH.start(&[&listen, more].concat(), &[("KEYLATCH_URL", server)]);
        Self { running, address }
    }

    async fn get(&self, path: &str) -> Option<Answer> {
        let url = format!("http://{}{path}", self.address);
        Answer::try_of(reqwest::Client::new().get(url)).await.ok()
    }

    /// Waits until it says that this one leads.
    async fn says(&self, leader: &str) {
        let name = async || {
            let answer = self.get("/").await.filter(|answer| answer.status == 200)?;
            (answer.json["name"] == leader).then_some(())
        };
        eventually(name).await;
    }

    async fn leads(&self) -> u16 {
        self.get("/leader").await.expect("an answer").status.as_u16()
    }

    async fn ended_by(self, signal: &str) -> Exit {
        self.running.signal(signal);
        self.running.ended().await
    }
}

#[tokio::test]
async fn one_leads_and_the_next_one_after_its_end() {
    let service = Service::start("memory:").await;
    let one = Candidate::start(&service.url(), "http://one:8080", &[]);
    one.says("http://one:8080").await;
    let two = Candidate::start(&service.url(), "http://two:8080", &[]);
    two.says("http://one:8080").await;
    assert_eq!((one.leads().await, two.leads().await), (200, 503));
    let fencing_token = service.look("jobs").await.fencing_token();
    let leads = one.get("/leader").await.expect("an answer");
    assert_eq!(leads.text, format!("{fencing_token}\n"));
    let other = one.get("/elsewhere").await.expect("an answer");
    assert_eq!(other.status, 404, "{other:?}");
    let post = reqwest::Client::new().post(format!("http://{}/leader", one.address));
    assert_eq!(Answer::of(post).await.status, 405);
    // At once, by its release.
    is(&one.ended_by("-TERM").await, 0, &["leading `jobs` under fencing token"]);
    two.says("http://two:8080").await;
    let three = Candidate::start(&service.url(), "http://three:8080", &[]);
    three.says("http://two:8080").await;
    // When its lease is over.
    assert_eq!(two.ended_by("-KILL").await.code, None);
    three.says("http://three:8080").await;
    assert_eq!(three.leads().await, 200);
}

#[tokio::test]
async fn leader_that_cannot_renew_says_so_and_stands_again() {
    let (service, proxy) = Service::behind_proxy().await;
    let one = Candidate::start(&proxy.http_url(), "one", &[]);
    one.says("one").await;
    proxy.refuse();
    eventually(async || (one.leads().await == 503).then_some(())).await;
    let unknown = one.get("/").await.expect("an answer");
    assert_eq!(unknown.status, 503, "{unknown:?}");
    // Another one leads after the lease, and not before.
    let two = Candidate::start(&service.url(), "two", &[]);
    two.says("two").await;
    assert_eq!(one.leads().await, 503);
    proxy.forward();
    one.says("two").await;
    assert_eq!(two.ended_by("-TERM").await.code, Some(0));
    one.says("one").await;
    let ended = one.ended_by("-TERM").await;
    assert!(ended.stderr.contains("leading `jobs` no longer"), "{ended:?}");
}

#[tokio::test]
async fn command_runs_while_its_machine_leads() {
    let (service, stage) = staged().await;
    let script = stage.script(
        "echo $KEYLATCH_NAME >>ran; trap 'echo stopped; exit 3' TERM; begun; while :; do held; done",
    );
    let command = ["--", "sh", "-c", &script];
    let one = Candidate::start(&service.url(), "one", &command);
    stage.begun().await;
    let two = Candidate::start(&service.url(), "two", &command);
    two.says("one").await;
    assert_eq!(stage.read("ran"), "jobs\n", "the one that leads");
    let ended = one.ended_by("-TERM").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), "stopped\n"), "{ended:?}");
    two.says("two").await;
    eventually(async || (stage.read("ran") == "jobs\njobs\n").then_some(())).await;
    let fencing_token = service.look("jobs").await.fencing_token();
    service.break_lease("jobs", fencing_token).await;
    // The command is stopped, and runs again when this one leads again.
    eventually(async || (stage.read("ran") == "jobs\njobs\njobs\n").then_some(())).await;
    assert_eq!(stage.read("overlaps"), "");
    is(&two.ended_by("-TERM").await, 3, &["leading `jobs` no longer; waiting to lead again"]);
}

#[tokio::test]
async fn leader_that_was_to_end_does_not_lead_again() {
    let (service, stage) = staged().await;
    let script = "trap 'echo asked >>asked' TERM; echo ran >>ran; begun; while :; do held; done";
    let script = stage.script(script);
    let one = Candidate::start(&service.url(), "one", &["--", "sh", "-c", &script]);
    stage.begun().await;
    one.running.signal("-TERM");
    stage.has("asked").await;
    let fencing_token = service.look("jobs").await.fencing_token();
    service.break_lease("jobs", fencing_token).await;
    is(&one.running.ended().await, 0, &["stopping the command"]);
    assert_eq!(stage.read("ran"), "ran\n");
}

#[tokio::test]
async fn command_does_not_start_where_the_lease_ended_before() {
    let (service, stage) = staged().await;
    let pipe = full_pipe(&stage.path("said"));
    let exec = "exec \"$0\" elect --ttl 3s jobs -- sh -c \"$1\" 2>\"$SAID\"";
    let script = stage.script("echo ran >>ran");
    let shell = ["sh", "-c", exec, env!("CARGO_BIN_EXE_keylatch"), &script];
    let (url, said) = (service.url(), stage.path("said").display().to_string());
    let one = RunningCommand::of(&shell, &[("KEYLATCH_URL", &*url), ("SAID", &said)]);
    // It leads, and is held up when it says so.
    eventually(async || (service.look("jobs").await.status == 200).then_some(())).await;
    service.is_free("jobs").await;
    let mut said = Vec::new();
    let no_longer = async || {
        let _ = (&pipe).read_to_end(&mut said);
        String::from_utf8_lossy(&said).contains("waiting to lead again").then_some(())
    };
    eventually(no_longer).await;
    let said = String::from_utf8_lossy(&said);
    assert!(!said.contains("stopping the command"), "{}", said.trim_start());
    drop(one);
}

/// A pipe that has no room until it is read.
fn full_pipe(path: &Path) -> File {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
    let mut options = File::options();
    options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK);
    let pipe = options.open(path).expect("a pipe");
    while (&pipe).write(&[b'\n'; 4096]).is_ok() {}
    pipe
}

#[tokio::test]
async fn one_that_waits_does_not_say_that_it_leads() {
    let service = Service::start("memory:").await;
    // By an earlier process of the same machine, which was killed.
    let earlier = service.create("jobs", &json!({"ttl_ms": 60_000, "owner": "one"})).await;
    let one = Candidate::start(&service.url(), "one", &[]);
    one.says("").await;
    assert_eq!(one.leads().await, 503);
    assert_eq!(service.release("jobs", &earlier.token()).await.status, 204);
    one.says("one").await;
}

#[tokio::test]
async fn end_of_the_command_is_the_end_of_its_leader() {
    let service = Service::start("memory:").await;
    let url = service.url();
    let ended =
        KEYLATCH.run(&["elect", "jobs", "--server", &url, "--", "sh", "-c", "exit 5"]).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert_eq!(service.look("jobs").await.status, 404);
}

#[tokio::test]
async fn elections_that_cannot_be_are_refused() {
    let service = Service::start("memory:").await;
    let (url, taken) = (service.url(), service.address.to_string());
    for (arguments, code, why) in [
        (&["--listen", "4040", "jobs"][..], 64, "write it like `127.0.0.1:4040`"),
        (&["--owner", "a\nb", "jobs"], 64, "--owner"),
        (&["--ttl", "99ms", "jobs"], 64, "it must be from 100ms to 24h"),
        (&["a", "b"], 64, "Put `--` before the command: keylatch elect NAME -- COMMAND"),
        (&[], 64, "NAME"),
        (&["--listen", &taken, "jobs"], 70, "cannot be listened on"),
        (&["jobs", "--", "no-such-program"], 127, "is not found"),
    ] {
        let ended = ask(&url, "elect", arguments).await;
        is(&ended, code, &[why]);
    }
}

/// A field of the status of a process.
fn status_of(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.expect("its status");
    let value = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    value.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test]
async fn one_that_leads_takes_little_memory() {
    let service = Service::start("memory:").await;
    let one = Candidate::start(&service.url(), "one", &[]);
    one.says("one").await;
    // What the program is mapped from is shared by all that run it.
    assert!(status_of(one.running.id(), "RssAnon:") < 4 * 1024);
}

#[tokio::test]
async fn one_that_leads_wakes_for_its_renewals_alone() {
    let service = Service::start("memory:").await;
    let url = service.url();
    let one = KEYLATCH.start(&["elect", "--ttl", "12s", "jobs", "--server", &url], &[]);
    let renewed = async |times: u64| {
        let of = "keylatch_http_request_duration_seconds_count{method=\"PUT\",\
                  route=\"/v1/locks/{name}\",status=\"200\"}";
        eventually(async || (service.metric(of).await >= times).then_some(())).await;
        status_of(one.id(), "voluntary_ctxt_switches:")
    };
    let first = renewed(1).await;
    let wakes = renewed(3).await - first;
    // There are 4 s from one renewal to the next.
    assert!(wakes <= 8, "{wakes} wakes in two renewals");
}
