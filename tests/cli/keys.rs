//! Goal: an operator makes a key, and with the file of identities alone decides who may use the
//! service, also while it runs; without such a file the service listens elsewhere than on loopback
//! only when told so.
//!
//! Method: the command as a process, its files replaced and its signals sent.

use std::os::unix::fs::symlink;

use keylatch::access::{ApiKey, Identities};
use keylatch_testkit::{Answer, Api, Exit, Keyring, Process, eventually};
use reqwest::Method;
use tempfile::TempDir;

use crate::{KEYLATCH, is};

const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }]";
const IDENTITIES: &str = "KEYLATCH_IDENTITIES";

/// What a listing is answered with this key.
async fn status(process: &Process, key: &str) -> u16 {
    let request = Api::at(process.address).request(Method::GET, "/v1/locks").bearer_auth(key);
    Answer::of(request).await.status.as_u16()
}

async fn serve(path: &std::path::Path) -> Process {
    let path = path.to_str().expect("a path of text");
    KEYLATCH.serve(&[], &[(IDENTITIES, path)]).await
}

/// A key and the entry that goes with it.
async fn create(name: &str) -> (String, String) {
    let made = KEYLATCH.run(&["apikey", "create", name]).await;
    assert_eq!((made.code, made.stderr.as_str()), (Some(0), ""), "{made:?}");
    let (key, entry) = made.stdout.split_once("\n\n").expect("a key and an entry");
    (key.to_owned(), entry.to_owned())
}

#[tokio::test]
async fn created_key_opens_the_service_whose_file_has_its_entry() {
    let (key, entry) = create("ci").await;
    assert!(!entry.contains(&key), "{entry}");
    let hash = ApiKey::parse(&key).expect("a key").hash().to_string();
    assert!(entry.contains(&hash), "{entry}");
    let (other, more) = create("ben@example").await;
    assert_ne!(key, other);
    let file = entry + &more;
    assert_eq!(
        Identities::parse(file.as_bytes(), &Identities::default()).map(|all| all.count()),
        Ok(2),
        "{file}"
    );
    let keyring = Keyring::default();
    keyring.write(&file);
    let process = serve(&keyring.path()).await;
    for (key, own) in [(&key, "ci%2Fa"), (&other, "ben@example%2Fa")] {
        let path = format!("/v1/locks/{own}");
        let request = Api::at(process.address).request(Method::POST, &path).bearer_auth(key);
        let created = Answer::of(request).await;
        assert_eq!(created.status, 201, "{created:?}");
    }
    is(&KEYLATCH.run(&["apikey", "create", "a b"]).await, 64, &[]);
}

/// What a wrong file does is in `tests/api/identities.rs`, where the log can be waited for.
#[tokio::test]
async fn changed_file_is_read_again_also_on_sighup() {
    let mut keyring = Keyring::default();
    let old = keyring.add("old", ALL);
    let process = serve(&keyring.path()).await;
    assert_eq!(status(&process, &old).await, 200);
    let new = keyring.add("new", ALL);
    eventually(async || (status(&process, &new).await == 200).then_some(())).await;
    // The file has what it had, so nothing but the signal has it read again.
    process.signal("-HUP");
    process.logs("identities are read again", 2).await;
    let third = keyring.add("third", ALL);
    process.signal("-HUP");
    eventually(async || (status(&process, &third).await == 200).then_some(())).await;
    let mut without = Keyring::default();
    let other = without.add("other", ALL);
    keyring.write(without.text());
    eventually(async || (status(&process, &old).await == 401).then_some(())).await;
    assert_eq!((status(&process, &new).await, status(&process, &other).await), (401, 200));
    let Exit { stderr: log, .. } = process.ended_by("-TERM").await;
    assert!(log.contains("identities are read again"), "{log}");
    for key in [old, new, third, other] {
        assert!(!log.contains(&key), "no key is logged: {log}");
    }
}

/// As Kubernetes replaces a Secret: the file is a link to a link to a directory.
#[tokio::test]
async fn file_behind_links_is_read_again_when_the_link_changes() {
    let directory = TempDir::new().expect("a directory");
    let (mut one, mut two) = (Keyring::default(), Keyring::default());
    let (old, new) = (one.add("a", ALL), two.add("a", ALL));
    let (data, file) = (directory.path().join("data"), directory.path().join("identities.toml"));
    symlink(one.path().parent().expect("its directory"), &data).expect("a link");
    symlink("data/identities.toml", &file).expect("a link");
    let process = serve(&file).await;
    assert_eq!((status(&process, &old).await, status(&process, &new).await), (200, 401));
    let next = directory.path().join("next");
    symlink(two.path().parent().expect("its directory"), &next).expect("a link");
    std::fs::rename(&next, &data).expect("a replaced link");
    eventually(async || (status(&process, &new).await == 200).then_some(())).await;
    assert_eq!(status(&process, &old).await, 401);
}

#[tokio::test]
async fn file_that_is_absent_or_wrong_is_refused_at_start() {
    let keyring = Keyring::default();
    let path = keyring.path().display().to_string();
    let start = async || KEYLATCH.run_with(&["--store", "memory:"], &[(IDENTITIES, &path)]).await;
    is(&start().await, 1, &[&path]);
    for (text, why) in [("", "no `[[identity]]`"), ("[[identity]]\nname = 7", "line 2")] {
        keyring.write(text);
        let wrong = start().await;
        assert_eq!(wrong.code, Some(1), "{wrong:?}");
        assert!(wrong.stderr.contains(&path) && wrong.stderr.contains(why), "{wrong:?}");
    }
}

#[tokio::test]
async fn run_uses_the_key_of_its_environment() {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", "allow = [{ locks = \"ci/\", may = [\"acquire\"] }]");
    let process = serve(&keyring.path()).await;
    let url = format!("http://{}", process.address);
    let run = async |key: &str, name: &str| {
        let variables = [("KEYLATCH_URL", url.as_str()), ("KEYLATCH_API_KEY", key)];
        KEYLATCH.run_with(&["run", name, "--", "echo", "ran"], &variables).await
    };
    let ended = run(&format!("{key}\n"), "ci/nightly").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "ran\n"), "{ended:?}");
    for (key, name, code, why) in [
        ("", "ci/nightly", 76, "401"),
        (key.as_str(), "other", 76, "403"),
        ("kl_ä", "ci/nightly", 64, "API key"),
    ] {
        let refused = run(key, name).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
        assert!(!refused.stderr.contains("kl_"), "{refused:?}");
    }
}

#[tokio::test]
async fn healthcheck_asks_without_a_key_and_the_service_ignores_that_of_its_clients() {
    let mut keyring = Keyring::default();
    let key = keyring.add("ci", ALL);
    let path = keyring.path().display().to_string();
    let around = [(IDENTITIES, path.as_str()), ("KEYLATCH_API_KEY", key.as_str())];
    let process = KEYLATCH.serve(&[], &around).await;
    let address = process.address.to_string();
    for key in [key.as_str(), "kl_wrong", ""] {
        let variables = [("KEYLATCH_LISTEN", address.as_str()), ("KEYLATCH_API_KEY", key)];
        is(&KEYLATCH.run_with(&["healthcheck"], &variables).await, 0, &[]);
    }
}

#[tokio::test]
async fn service_starts_off_loopback_only_with_identities_or_when_told() {
    for arguments in [["--listen", "0.0.0.0:0"], ["--listen", "[::]:0"]] {
        let refused = KEYLATCH.run_with(&arguments, &[("KEYLATCH_STORE", "memory:")]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for way in ["identities", "KEYLATCH_OPEN", "loopback"] {
            assert!(refused.stderr.contains(way), "`{way}` is not in {refused:?}");
        }
        assert!(!refused.stderr.contains("\"listening\""), "{refused:?}");
    }
    let mut keyring = Keyring::default();
    keyring.add("ci", ALL);
    let path = keyring.path().display().to_string();
    for variable in [("KEYLATCH_OPEN", "true"), (IDENTITIES, path.as_str())] {
        // The last `--listen` would be refused as given twice, so the variable has the address.
        let variables = [("KEYLATCH_LISTEN", "0.0.0.0:0"), ("KEYLATCH_STORE", "memory:"), variable];
        let started = KEYLATCH.start(&[], &variables);
        started.catches(15).await;
        started.signal("-TERM");
        let ended = started.ended().await;
        assert_eq!(ended.code, Some(0), "{variable:?}: {ended:?}");
    }
}
