//! Goal: a person and a script do with `keylatch lock` what the API does, and read from its exit
//! code what came of it.
//!
//! Method: the command as a process beside a service; what it prints is compared with what the API
//! says.

use keylatch_testkit::{Answer, Exit, RunningCommand, Service, Upstream, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{KEYLATCH, ask, is};

async fn lock(service: &Service, arguments: &[&str]) -> Exit {
    ask(&service.url(), "lock", arguments).await
}

fn start(service: &Service, arguments: &[&str]) -> RunningCommand {
    KEYLATCH.start(&[&["lock"], arguments].concat(), &[("KEYLATCH_URL", &service.url())])
}

/// The value behind a name in what a command prints for people.
fn fact(exit: &Exit, name: &str) -> String {
    let line = exit.stdout.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {exit:?}")).trim().to_owned()
}

fn json_of(exit: &Exit) -> Value {
    serde_json::from_str(&exit.stdout).unwrap_or_else(|error| panic!("{error}: {exit:?}"))
}

async fn is_held(service: &Service, name: &str) -> bool {
    service.look(name).await.status == 200
}

#[tokio::test]
async fn token_that_acquire_prints_renews_and_releases_the_lock() {
    let service = Service::start("memory:").await;
    let acquired = lock(&service, &["acquire", "a/b", "--ttl", "1m", "--owner", "me"]).await;
    assert_eq!((acquired.code, acquired.stderr.as_str()), (Some(0), ""));
    let token = fact(&acquired, "token");
    assert_eq!(fact(&acquired, "ttl"), "60.0 s");
    let held = service.look("a%2Fb").await.json;
    assert_eq!(held["owner"], "me");
    assert_eq!(fact(&acquired, "fencing token"), held["fencing_token"].to_string());
    let arguments = ["lock", "renew", "a/b", "--ttl", "2m", "--json"];
    let environment = [("KEYLATCH_URL", service.url()), ("KEYLATCH_TOKEN", token.clone())];
    let renewed = KEYLATCH.run_with(&arguments, &environment).await;
    assert_eq!(json_of(&renewed)["ttl_ms"], 120_000, "{renewed:?}");
    let released = lock(&service, &["release", "a/b", "--token", &token]).await;
    assert_eq!((released.code, released.stdout.as_str()), (Some(0), ""));
    assert!(!is_held(&service, "a%2Fb").await);
    for (again, code) in [("release", 1), ("renew", 75)] {
        let ended = lock(&service, &[again, "a/b", "--token", &token]).await;
        is(&ended, code, &["No client holds the lock"]);
    }
    service.create("a%2Fb", &json!({})).await;
    is(&lock(&service, &["release", "a/b", "--token", &token]).await, 75, &[]);
}

#[tokio::test]
async fn shell_reads_the_token_of_a_grant() {
    let service = Service::start("memory:").await;
    let alone = lock(&service, &["acquire", "a", "--token-only"]).await;
    let token = alone.stdout.strip_suffix('\n').expect("a line");
    assert_eq!(service.release("a", token).await.status, 204);
    // A name that a shell would take apart.
    let program = env!("CARGO_BIN_EXE_keylatch");
    let script = format!(
        r#"eval "$({program} lock acquire "$1" --export --limit 3)"
        echo "$KEYLATCH_NAME" "$KEYLATCH_FENCING_TOKEN" "$KEYLATCH_SLOT"; {program} lock release "$1""#
    );
    let (name, url) = ("it's $(here); `now`", service.url());
    let shell = ["sh", "-c", &script, "sh", name];
    let ended = RunningCommand::of(&shell, &[("KEYLATCH_URL", &url)]).ended().await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let rest = ended.stdout.strip_prefix(name).expect("the name").trim().split_once(' ');
    let (fencing_token, slot) = rest.expect("a fencing token and a slot");
    assert!(fencing_token.parse::<u64>().is_ok_and(|token| token > 0), "{ended:?}");
    assert_eq!(slot, "0");
    is(&lock(&service, &["acquire", "a", "--export", "--json"]).await, 64, &[]);
}

#[tokio::test]
async fn long_time_is_told_in_words() {
    let service = Service::start("memory:").await;
    for (name, ttl_ms, words) in [
        ("a", 60_000, [" s  0  "].as_slice()),
        ("b", 600_000, &["9 min ", "10 min 0 s"]),
        ("c", 7_200_000, &["1 h 59 min", "1 h 58 min", "2 h 0 min"]),
        ("d", 86_400_000, &["23 h 59 min", "23 h 58 min", "1 d 0 h"]),
    ] {
        service.create(name, &json!({"ttl_ms": ttl_ms})).await;
        let shown = lock(&service, &["show", name]).await.stdout;
        assert!(words.iter().any(|words| shown.contains(words)), "{shown}");
    }
}

/// One token of 64 does, because tokens are base64url.
#[tokio::test]
async fn token_that_begins_with_a_hyphen_is_no_option() {
    let service = Service::start("memory:").await;
    let token = "--token-of-the-clients-own";
    for arguments in [
        &["acquire", "a", "--token", token][..],
        &["renew", "a", "--token", token],
        &["release", "a", "--token", token],
    ] {
        let ended = lock(&service, arguments).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn held_lock_is_not_acquired_and_its_holder_is_named() {
    let service = Service::start("memory:").await;
    service.create("a", &json!({"owner": "runner 7"})).await;
    let ended = lock(&service, &["acquire", "a", "-n"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(73), ""));
    assert!(ended.stderr.contains("runner 7"), "{ended:?}");
}

#[tokio::test]
async fn acquire_with_a_token_that_holds_the_lock_enters_it_again() {
    let service = Service::start("memory:").await;
    let held = service.create("a", &json!({})).await;
    let arguments =
        ["acquire", "a", "--token", &held.token(), "--entry", "step", "--json", "--wait", "0s"];
    let ended = lock(&service, &arguments).await;
    let entered = json_of(&ended);
    assert_eq!(entered["fencing_token"], held.json["fencing_token"], "{ended:?}");
    let left = lock(&service, &["release", "a", "--token", &held.token(), "--entry", "step"]).await;
    assert_eq!(left.code, Some(0), "{left:?}");
    assert!(is_held(&service, "a").await);
}

#[tokio::test]
async fn slot_of_a_counted_lock_is_printed() {
    let service = Service::start("memory:").await;
    for slot in 0..2 {
        let ended = lock(&service, &["acquire", "pool", "--limit", "2", "--json"]).await;
        assert_eq!(json_of(&ended)["slot"], slot, "{ended:?}");
    }
    is(&lock(&service, &["acquire", "pool", "--limit", "2", "-n"]).await, 73, &[]);
}

#[tokio::test]
async fn list_has_a_row_for_each_holder() {
    let service = Service::start("memory:").await;
    service.create("b", &json!({})).await;
    service.create("a%2F1", &json!({"owner": "one"})).await;
    for owner in ["two", "three"] {
        let body = json!({"owner": owner, "mode": "shared", "limit": 5});
        service.create("a%2F2", &body).await;
    }
    let listed = lock(&service, &["list", "a/"]).await;
    let rows: Vec<Vec<_>> =
        listed.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["NAME", "OWNER"], "{listed:?}");
    let names: Vec<_> = rows[1..].iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(names, [("a/1", "one"), ("a/2", "two"), ("a/2", "three")], "{listed:?}");
    let listed = lock(&service, &["list", "--json"]).await;
    let names = listed.stdout.lines().map(|line| {
        let lock: Value = serde_json::from_str(line).expect("JSON on each line");
        lock["name"].as_str().expect("a name").to_owned()
    });
    assert_eq!(names.collect::<Vec<_>>(), ["a/1", "a/2", "b"]);
}

/// A list of locks in a new terminal of so many columns, by util-linux's `script`.
async fn list_on_terminal(service: &Service, columns: u16, no_color: Option<&str>) -> String {
    let list = format!("{} lock list --server {}", env!("CARGO_BIN_EXE_keylatch"), service.url());
    let command = format!("stty cols {columns}; exec {list}");
    let terminal = ["script", "--quiet", "--return", "--command", &command, "/dev/null"];
    let path = ("PATH", "/usr/bin:/bin");
    let environment = no_color.map_or(vec![path], |value| vec![path, ("NO_COLOR", value)]);
    let ended = RunningCommand::of(&terminal, &environment).ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

#[tokio::test]
async fn long_name_is_cut_in_its_own_column_to_fit_the_terminal() {
    let service = Service::start("memory:").await;
    let long = "n".repeat(200);
    service.create(&long, &json!({"owner": "ci"})).await;
    let listed = list_on_terminal(&service, 100, Some("1")).await;
    let rows: Vec<_> = listed.lines().map(str::trim_end).collect();
    assert_eq!(rows.len(), 2, "{listed}");
    assert!(rows.iter().all(|row| row.chars().count() <= 100), "{listed}");
    assert!(rows[1].starts_with("nnn") && rows[1].contains("n…  ci  "), "{listed}");
    // Without a terminal nothing is cut, since a program may read it.
    let piped = lock(&service, &["list"]).await;
    assert!(piped.stdout.contains(&long), "{piped:?}");
}

#[tokio::test]
async fn head_of_a_table_is_bold_on_a_terminal_unless_no_color_is_set() {
    let service = Service::start("memory:").await;
    service.create("a", &json!({})).await;
    for (no_color, is_bold) in [(None, true), (Some(""), true), (Some("1"), false)] {
        let listed = list_on_terminal(&service, 0, no_color).await;
        let head = listed.lines().next().expect("a head");
        assert!(head.contains("NAME"), "{head:?}");
        assert_eq!(head.contains('\x1b'), is_bold, "{no_color:?}: {head:?}");
    }
    let piped = lock(&service, &["list"]).await;
    assert!(!piped.stdout.contains('\x1b'), "{piped:?}");
}

#[tokio::test]
async fn list_goes_over_all_pages() {
    let service = Service::start("memory:").await;
    for set in 0..63 {
        let names: Vec<_> = (0..16).map(|lock| format!("{set}-{lock}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let token = format!("{set:020}");
        assert_eq!(service.create_set_as(&names, &token, &json!({})).await.status, 201);
    }
    let listed = lock(&service, &["list", "--json"]).await;
    assert_eq!(listed.stdout.lines().count(), 63 * 16);
}

#[tokio::test]
async fn show_says_by_its_code_whether_the_lock_is_held() {
    let service = Service::start("memory:").await;
    let free = lock(&service, &["show", "a"]).await;
    assert_eq!((free.code, fact(&free, "held").as_str()), (Some(1), "no"), "{free:?}");
    let free = lock(&service, &["show", "a", "--json"]).await;
    assert_eq!(json_of(&free), json!({"name": "a", "held": false}));
    service.create("a", &json!({"owner": "me"})).await;
    let held = lock(&service, &["show", "a"]).await;
    assert!(held.code == Some(0) && held.stdout.contains("me"), "{held:?}");
    let held = lock(&service, &["show", "a", "--json"]).await;
    assert_eq!(json_of(&held)["owner"], "me");
}

#[tokio::test]
async fn break_ends_the_lease_of_the_one_holder() {
    let service = Service::start("memory:").await;
    let held = service.create("a", &json!({})).await;
    let arguments = ["break", "a", "--reason", "it is gone", "--by", "alice", "--grace", "0s"];
    let ended = lock(&service, &arguments).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fact(&ended, "fencing token"), held.json["fencing_token"].to_string());
    let history = service.get("/v1/locks/a/history").await.json;
    assert_eq!(history["ends"][0]["reason"], "it is gone", "{history}");
    assert_eq!(history["ends"][0]["by"], "alice", "{history}");
    is(&lock(&service, &["break", "a", "--reason", "again"]).await, 75, &[]);
}

#[tokio::test]
async fn break_of_one_of_several_needs_its_fencing_token() {
    let service = Service::start("memory:").await;
    let shared = json!({"mode": "shared", "limit": 2});
    let held = [service.create("a", &shared).await, service.create("a", &shared).await];
    is(&lock(&service, &["break", "a", "--reason", "r"]).await, 64, &["--fencing-token"]);
    let (fence, slot) =
        (held[1].json["fencing_token"].to_string(), held[1].json["slot"].to_string());
    let arguments = [
        "break",
        "a",
        "--reason",
        "r",
        "--fencing-token",
        &fence,
        "--slot",
        &slot,
        "--grace",
        "0s",
    ];
    is(&lock(&service, &arguments).await, 0, &[]);
    assert_eq!(service.look("a").await.json["holding"], 1);
}

#[tokio::test]
async fn hold_ends_with_its_signal_and_releases() {
    for signal in ["-TERM", "-INT"] {
        let service = Service::start("memory:").await;
        let holding = start(&service, &["hold", "a", "--ttl", "4s"]);
        eventually(async || is_held(&service, "a").await.then_some(())).await;
        let renewed = async || {
            let metrics = service.get("/metrics").await.text;
            metrics.contains("method=\"PUT\",route=\"/v1/locks/{name}\"").then_some(())
        };
        eventually(renewed).await;
        holding.signal(signal);
        let ended = holding.ended().await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{signal}");
        assert!(ended.stdout.starts_with("name "), "{ended:?}");
        assert!(!ended.stdout.contains("\ntoken"), "{ended:?}");
        assert!(!is_held(&service, "a").await, "{signal}");
    }
}

#[tokio::test]
async fn hold_of_a_broken_lease_ends_with_the_reason() {
    let service = Service::start("memory:").await;
    let holding = start(&service, &["hold", "a", "--ttl", "4s"]);
    let held = async || service.look("a").await.json["fencing_token"].as_u64();
    let fencing_token = eventually(held).await;
    let body = json!({"reason": "line 7 stands still", "fencing_token": fencing_token});
    let request = service.request(Method::POST, "/v1/locks/a/break").json(&body);
    assert_eq!(Answer::of(request).await.status, 200);
    is(&holding.ended().await, 75, &["line 7 stands still"]);
}

#[tokio::test]
async fn watch_prints_a_line_for_each_change() {
    let service = Service::start("memory:").await;
    let watching = [start(&service, &["watch", "a"]), start(&service, &["watch", "a", "--json"])];
    service.reaches("keylatch_http_streams{kind=\"watch\"}", 2).await;
    let held = service.create("a", &json!({"owner": "me"})).await;
    service.release("a", &held.token()).await;
    service.stop().await;
    let [people, programs] = futures_util::future::join_all(watching.map(RunningCommand::ended))
        .await
        .try_into()
        .expect("two");
    let fence = held.fencing_token();
    let lines: Vec<_> = people.stdout.lines().collect();
    let expected =
        ["free", &format!("acquired  {fence}  me"), &format!("released  {fence}  me"), "closing"];
    assert_eq!((lines.as_slice(), people.code), (&expected[..], Some(69)), "{people:?}");
    let events = programs.stdout.lines().map(|line| {
        let event: Value = serde_json::from_str(line).expect("JSON on each line");
        event["event"].as_str().expect("its name").to_owned()
    });
    assert_eq!(events.collect::<Vec<_>>(), ["snapshot", "acquired", "released", "closing"]);
}

#[tokio::test]
async fn exit_code_says_what_is_wrong_with_the_service() {
    let environment = |url: &str| [("KEYLATCH_URL", url.to_owned())];
    for (url, code) in [("http://127.0.0.1:1", 69), ("http://u:p@127.0.0.1", 64), ("ftp://a", 64)] {
        let ended = KEYLATCH.run_with(&["lock", "list"], &environment(url)).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{url}");
        assert!(!ended.stderr.contains("u:p"), "{ended:?}");
    }
    is(&KEYLATCH.run(&["lock", "acquire", "a", "--ttl", "1"]).await, 64, &[]);
}

/// A service that is not trusted says what moves a terminal: it would set its title, or write over
/// what stands there.
#[tokio::test]
async fn escape_sequences_of_a_service_do_not_reach_the_terminal() {
    const MOVES: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\u{7f}";
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let ask = async |arguments: &[&str]| {
        let ended = KEYLATCH.run_with(arguments, &[("KEYLATCH_URL", &url)]).await;
        for text in [&ended.stdout, &ended.stderr] {
            let moves = |c: char| MOVES.contains(c) && !c.is_ascii_graphic();
            assert!(!text.contains(moves), "{arguments:?}: {text:?}");
        }
        ended
    };
    upstream.answers(|_| {
        let holder = json!({"owner": MOVES, "fencing_token": 1, "expires_in_ms": 9000});
        let problem = json!({"type": "about:blank", "title": MOVES, "status": 409, "code": "lock-held",
            "detail": format!("{MOVES}held"), "holder": holder, "retry": "same-key"});
        let head = [("content-type", "application/problem+json"), ("x-request-id", "a")];
        (reqwest::StatusCode::CONFLICT, head, problem.to_string())
    });
    for arguments in [
        &["run", "--wait", "0s", "a", "--", "true"][..],
        &["lock", "acquire", "a", "-n"],
        &["lock", "release", "a", "--token", "a-token-of-the-clients-own"],
        &["key", "show", "k"],
    ] {
        let ended = ask(arguments).await;
        assert!(ended.stderr.contains('\u{fffd}') || !ended.stderr.contains("held"), "{ended:?}");
    }
    upstream.answers(|_| {
        // As a program writes it that escapes no more than JSON asks for.
        let lock =
            format!(r#"{{"name":"a","owner":"{}"}}"#, MOVES.replace(['\u{1b}', '\u{7}'], ""));
        (reqwest::StatusCode::OK, [("content-type", "application/json")], lock)
    });
    let shown = ask(&["lock", "show", "a", "--json"]).await;
    assert_eq!(json_of(&shown)["owner"], "]0;owned\u{9b}2J\u{202e}\u{7f}", "{shown:?}");
}
