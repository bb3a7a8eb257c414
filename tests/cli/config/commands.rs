//! Goal: an operator reads what is in force and where it comes from, and finds a mistake before a
//! start.
//!
//! Method: `keylatch config show` and `config check` run as processes, with files, variables and
//! flags of the test's own.

use keylatch_testkit::Exit;
use serde_json::Value;

use crate::KEYLATCH;

/// What `config show` says of a setting: its value and where it comes from.
fn setting(shown: &Exit, name: &str) -> (String, String) {
    let all = shown.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let one = all.into_iter().find(|one| one["name"] == name).expect("the setting");
    let text = |member: &str| one[member].as_str().expect("text").to_owned();
    (text("value"), text("from"))
}

#[tokio::test]
async fn each_setting_is_shown_with_where_it_comes_from() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keylatch.toml").display().to_string();
    let text = "sandbox = \"off\"\n[wait]\nmax_wait_ms = 1\nmax_waiters = 2\n\
                [[guard]]\npath = \"/orders\"\nupstream = \"http://127.0.0.1:9\"\n";
    std::fs::write(&file, text).expect("room");
    let environment = [
        ("KEYLATCH_WAIT_MAX_WAITERS", "3"),
        ("KEYLATCH_STORE", "redis://:hunter2@host:6379/1?x=hunter2"),
    ];
    let arguments = ["config", "show", "--config", &file, "--listen", "127.0.0.1:0", "--json"];
    let shown = KEYLATCH.run_with(&arguments, &environment).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for (name, value, origin) in [
        ("wait.max_wait_ms", "1", file.as_str()),
        ("wait.max_waiters", "3", "KEYLATCH_WAIT_MAX_WAITERS"),
        ("listen", "\"127.0.0.1:0\"", "--listen"),
        ("store", "\"redis://…@host:6379/1?…\"", "KEYLATCH_STORE"),
        ("stream.heartbeat_ms", "15000", "default"),
    ] {
        assert_eq!(setting(&shown, name), (value.into(), origin.into()), "{name}");
    }
    let guard = setting(&shown, "guard");
    assert!(guard.0.contains("http://127.0.0.1:9") && guard.1 == file, "{guard:?}");
    let table = KEYLATCH.run_with(&arguments[..arguments.len() - 1], &environment).await;
    assert!(table.stdout.starts_with("SETTING"), "{table:?}");
    assert!(!(shown.stdout + &table.stdout).contains("hunter2"));
}

#[tokio::test]
async fn password_with_a_question_mark_is_not_shown() {
    let store = "redis://:hunter2?hunter2@host:6379/1";
    let shown = KEYLATCH.run(&["config", "show", "--store", store, "--json"]).await;
    assert_eq!(setting(&shown, "store").0, "\"redis://…\"");
    assert!(!shown.stdout.contains("hunter2"), "{shown:?}");
}

#[tokio::test]
async fn mistake_is_found_without_a_start() {
    let check = ["config", "check"];
    let valid = KEYLATCH.run(&check).await;
    assert_eq!((valid.code, valid.stderr.as_str()), (Some(0), ""), "{valid:?}");
    for (variable, value, why) in [
        ("KEYLATCH_WAIT_MAX_WAITERS", "many", "KEYLATCH_WAIT_MAX_WAITERS"),
        ("KEYLATCH_WAIT_MAX_WAITERS", "0", "wait.max_waiters"),
        ("KEYLATCH_LISTEN", "0.0.0.0:7070", "KEYLATCH_OPEN"),
        ("KEYLATCH_IDENTITIES", "/no/such/file", "/no/such/file"),
        ("KEYLATCH_TLS_CERT", "/no/such/file", "tls.key"),
        ("KEYLATCH_NOTHING", "1", "KEYLATCH_NOTHING"),
        ("KEYLATCH_CONFIG", "/no/such/file", "/no/such/file"),
        ("KEYLATCH_STORE", "nonsense:", "nonsense"),
        ("KEYLATCH_STORE", "redis://:secret@host:port", "not a Redis URL"),
        ("KEYLATCH_STORE", "redis+sentinel://host", "master's name"),
        ("KEYLATCH_STORE", "redis+cluster://host/7", "no database"),
        #[cfg(feature = "full")]
        ("KEYLATCH_STORE", "redlock://a,b", "3 to 31 nodes"),
        #[cfg(feature = "full")]
        ("KEYLATCH_STORE", "postgres://host/db?sslrootcert=/no/such/file", "sslrootcert"),
        #[cfg(feature = "full")]
        ("KEYLATCH_STORE", "etcds://host?cacert=/no/such/file", "cacert"),
        #[cfg(feature = "full")]
        ("KEYLATCH_STORE", "zookeepers://host?cacert=/no/such/file", "cacert"),
        ("KEYLATCH_LOG_AUDIT", "/no/such/directory/audit.log", "/no/such/directory/audit.log"),
    ] {
        let ended = KEYLATCH.run_with(&check, &[(variable, value)]).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{variable}: {ended:?}");
        assert!(ended.stderr.contains(why), "{variable}: {ended:?}");
    }
}

#[tokio::test]
async fn store_is_checked_and_not_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let (data, audit) = (directory.path().join("data"), directory.path().join("audit.log"));
    let embedded = format!("embedded:{}", data.display());
    let audit_file = audit.display().to_string();
    for store in [
        &*embedded,
        "memory:",
        #[cfg(feature = "full")]
        "postgres://127.0.0.1:1/db",
        #[cfg(feature = "full")]
        "etcd://127.0.0.1:1",
        #[cfg(feature = "full")]
        "zookeeper://127.0.0.1:1",
        "redis://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/mymaster",
        "redis+cluster://127.0.0.1:1",
        #[cfg(feature = "full")]
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    ] {
        let environment = [("KEYLATCH_STORE", store), ("KEYLATCH_LOG_AUDIT", &audit_file)];
        let ended = KEYLATCH.run_with(&["config", "check"], &environment).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{store}");
    }
    assert!(!data.exists() && !audit.exists(), "a check leaves nothing behind");
}

#[cfg(not(feature = "full"))]
#[tokio::test]
async fn store_that_was_left_out_is_refused_with_the_command_that_builds_it_in() {
    for feature in ["redlock", "postgres", "etcd", "zookeeper"] {
        let ended = KEYLATCH.run(&["config", "check", "--store", &format!("{feature}://a")]).await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let command = format!("`cargo build --release --features {feature}`");
        assert!(ended.stderr.contains(&command), "{ended:?}");
    }
}

#[tokio::test]
async fn help_and_check_say_which_stores_are_in() {
    let check = KEYLATCH.run(&["config", "check"]).await;
    let help = KEYLATCH.run(&["serve", "--help"]).await;
    assert!(check.stdout.contains("embedded, memory, redis"), "{check:?}");
    assert!(help.stdout.contains("embedded:DIRECTORY, memory:, redis://"), "{help:?}");
    let is_full = cfg!(feature = "full");
    assert_eq!(check.stdout.contains("etcd"), is_full, "{check:?}");
    assert_eq!(help.stdout.contains("etcd://"), is_full, "{help:?}");
    assert_eq!(help.stdout.contains("leaves out redlock, postgres, etcd"), !is_full, "{help:?}");
}

#[cfg(feature = "full")]
#[tokio::test]
async fn guard_without_a_store_for_its_records_is_a_mistake() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keylatch.toml").display().to_string();
    let text = "[[guard]]\npath = \"/orders\"\nupstream = \"http://127.0.0.1:9\"\n";
    std::fs::write(&file, text).expect("room");
    for (store, code) in [("redlock://a,b,c", 1), ("redis://a", 0)] {
        let ended = KEYLATCH.run(&["config", "check", "--config", &file, "--store", store]).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stderr.contains("/orders"), code == 1, "{ended:?}");
    }
}

#[tokio::test]
async fn variable_names_the_file_unless_a_flag_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (one, two) = (path("one.toml"), path("two.toml"));
    std::fs::write(&one, "[wait]\nmax_wait_ms = 1\n").expect("room");
    std::fs::write(&two, "[wait]\nmax_wait_ms = 2\n").expect("room");
    let by_variable = ["config", "show", "--json"];
    let by_flag = [&by_variable[..], &["--config", &two]].concat();
    for (arguments, file, value) in [(&by_variable[..], &one, "1"), (&by_flag, &two, "2")] {
        let shown = KEYLATCH.run_with(arguments, &[("KEYLATCH_CONFIG", &one)]).await;
        let expected = (value.to_owned(), file.clone());
        assert_eq!(setting(&shown, "wait.max_wait_ms"), expected, "{shown:?}");
    }
    let shown = KEYLATCH.run_with(&by_variable, &[("KEYLATCH_CONFIG", "")]).await;
    assert_eq!(setting(&shown, "wait.max_wait_ms").1, "default");
}
