//! Goal: no signal that an operator sends by habit ends the service, in whatever configuration and
//! however early.
//!
//! Method: the command as a process without, with identities, with TLS, with an audit log, and
//! while its store opens; each signal is sent to each.

#[cfg(feature = "test-engines")]
use keylatch_testkit::soon;
use keylatch_testkit::{Authority, Keyring, Process};
#[cfg(feature = "test-engines")]
use tokio::net::TcpListener;

use crate::KEYLATCH;

/// The numbers of SIGHUP, SIGUSR1 and SIGUSR2.
const HARMLESS: [(&str, u32); 3] = [("-HUP", 1), ("-USR1", 10), ("-USR2", 12)];

/// It took each signal, serves, and ends by `end` as a whole.
async fn takes_all(name: &str, process: Process, end: &str) {
    for (signal, number) in HARMLESS {
        assert!(is_handled(process.id(), number), "{name}: {signal} ends it");
        process.signal(signal);
    }
    // The line of the signal comes after those of the log before.
    process.logs("SIGHUP", 1).await;
    let exit = process.ended_by(end).await;
    assert_eq!(exit.code, Some(0), "{name}: {exit:?}");
    assert!(exit.stderr.contains("shutting down"), "{name}: {exit:?}");
}

/// Whether the process catches or ignores a signal.
fn is_handled(process: u32, signal: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).expect("a mask");
        u64::from_str_radix(mask.trim(), 16).expect("a mask")
    };
    (mask("SigCgt:") | mask("SigIgn:")) & (1 << (signal - 1)) != 0
}

#[tokio::test]
async fn service_of_every_configuration_outlives_what_is_no_end() {
    let (mut keyring, authority) = (Keyring::default(), Authority::default());
    keyring.add("a", "allow = [{ locks = \"\", may = [\"read\"] }]");
    let (identities, tls) = (keyring.path().display().to_string(), authority.serve());
    let directory = tempfile::tempdir().expect("a directory");
    let audit = directory.path().join("audit.log").display().to_string();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let of_identities = ("KEYLATCH_IDENTITIES", identities.as_str());
    let of_tls = [("KEYLATCH_TLS_CERT", tls.cert.as_str()), ("KEYLATCH_TLS_KEY", tls.key.as_str())];
    let of_audit = ("KEYLATCH_LOG_AUDIT", audit.as_str());
    for (name, environment) in [
        ("no file", vec![]),
        ("identities", vec![of_identities]),
        ("TLS", of_tls.to_vec()),
        ("audit log", vec![of_audit]),
        ("embedded", vec![("KEYLATCH_STORE", store.as_str())]),
        ("all", [&[of_identities, of_audit], &of_tls[..]].concat()),
    ] {
        for end in ["-TERM", "-INT"] {
            takes_all(name, KEYLATCH.serve(&[], &environment).await, end).await;
        }
    }
}

#[tokio::test]
async fn service_that_follows_no_file_says_that_there_is_none_to_read_again() {
    let process = KEYLATCH.serve(&[], &[]).await;
    process.signal("-HUP");
    process.logs("SIGHUP: there is no file to read again", 1).await;
    process.ended_by("-TERM").await;
}

/// The store is a PostgreSQL that accepts and says nothing, so it opens for long.
#[cfg(feature = "test-engines")]
#[tokio::test]
async fn service_outlives_signals_while_its_store_opens_and_ends_at_once_when_told() {
    for end in ["-TERM", "-INT"] {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let store = format!("postgres://{}/a", silent.local_addr().expect("an address"));
        let listen = ["--listen", "127.0.0.1:0", "--store", &store];
        let command = KEYLATCH.start(&listen, &[("KEYLATCH_STORE_TIMEOUT_MS", "60000")]);
        let _asked = soon("the store", silent.accept()).await.expect("it asks");
        for (signal, _) in HARMLESS {
            command.signal(signal);
        }
        command.signal(end);
        let exit = command.ended().await;
        assert_eq!(exit.code, Some(0), "{end}: {exit:?}");
        assert!(exit.stderr.contains("shutting down"), "{end}: {exit:?}");
    }
}
