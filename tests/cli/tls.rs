//! Goal: an operator replaces the certificate of a running service, and no connection ends by it.
//!
//! Method: the command as a process, its files replaced and its signals sent.

use keylatch_testkit::{Api, Authority, Process, connect_tls, eventually, handshake};

use crate::{KEYLATCH, is};

async fn serve(authority: &Authority) -> Process {
    let tls = authority.serve();
    let files = [("KEYLATCH_TLS_CERT", tls.cert.as_str()), ("KEYLATCH_TLS_KEY", tls.key.as_str())];
    KEYLATCH.serve(&[], &files).await
}

/// The certificate that a new connection is shown.
async fn certificate(process: &Process, authority: &Authority) -> Vec<u8> {
    let stream = handshake(process.address, &authority.client(&[], None)).await.expect("TLS");
    stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec()
}

#[tokio::test]
async fn sighup_and_a_change_replace_the_certificate_and_keep_connections() {
    let authority = Authority::default();
    let process = serve(&authority).await;
    let mut old = connect_tls(process.address, &authority.client(&[], None)).await;
    for by_signal in [false, true] {
        let before = certificate(&process, &authority).await;
        authority.serve();
        if by_signal {
            process.signal("-HUP");
        }
        let changed = async || certificate(&process, &authority).await != before;
        eventually(async || changed().await.then_some(())).await;
        assert_eq!(old.get("/livez").await.status, 200, "an open connection stays");
    }
    let wrong = authority.sign("b", &["localhost"]);
    let before = certificate(&process, &authority).await;
    std::fs::write(authority.file("key.pem"), &wrong.key).expect("a file");
    process.logs("the certificate is not read", 1).await;
    assert_eq!(certificate(&process, &authority).await, before);
    assert_eq!(old.get("/livez").await.status, 200);
    // The files have what they had, so nothing but the signal has them read again.
    process.signal("-HUP");
    process.logs("the certificate is not read", 2).await;
    let log = process.ended_by("-TERM").await.stderr;
    assert!(log.contains("the certificate is read again"), "{log}");
    assert!(!log.contains("BEGIN"), "{log}");
}

#[tokio::test]
async fn healthcheck_speaks_tls_where_the_service_does() {
    let authority = Authority::default();
    let process = serve(&authority).await;
    let address = process.address.to_string();
    let tls = authority.serve();
    let files = [("KEYLATCH_TLS_CERT", tls.cert.as_str()), ("KEYLATCH_TLS_KEY", tls.key.as_str())];
    let check = ["healthcheck", "--listen", &address];
    let well = KEYLATCH.run_with(&check, &files).await;
    assert_eq!((well.code, well.stderr.as_str()), (Some(0), ""), "{well:?}");
    is(&KEYLATCH.run(&check).await, 1, &[]);
}

#[tokio::test]
async fn run_trusts_the_authorities_of_its_environment_and_no_others() {
    let (authority, other) = (Authority::default(), Authority::default());
    let process = serve(&authority).await;
    let url = format!("https://localhost:{}", process.address.port());
    let run = async |ca: &str| {
        let variables = [("KEYLATCH_URL", url.as_str()), ("KEYLATCH_CA", ca)];
        KEYLATCH
            .run_with(&["run", "--wait", "0s", "nightly", "--", "echo", "ran"], &variables)
            .await
    };
    let ca = |authority: &Authority| authority.ca_file().display().to_string();
    let ended = run(&ca(&authority)).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "ran\n"), "{ended:?}");
    let absent = authority.file("absent.pem").display().to_string();
    let key = authority.file("key.pem").display().to_string();
    for (ca, why) in [
        (ca(&other), "invalid peer certificate"),
        (absent, "absent.pem"),
        (key, "has no certificate"),
    ] {
        let refused = run(&ca).await;
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert_eq!(refused.stdout, "", "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

/// For a service that is started beside or under a client.
#[tokio::test]
async fn service_ignores_the_authorities_of_clients() {
    let authority = Authority::default();
    let tls = authority.serve();
    let variables = [
        ("KEYLATCH_TLS_CERT", tls.cert.as_str()),
        ("KEYLATCH_TLS_KEY", tls.key.as_str()),
        ("KEYLATCH_CA", "/absent.pem"),
    ];
    let process = KEYLATCH.serve(&[], &variables).await;
    certificate(&process, &authority).await;
}

/// A service that knows the client `ci` by its certificate.
async fn serve_clients(authority: &Authority) -> Process {
    let tls = authority.serve_clients();
    let identities = authority.file("identities.toml");
    let ci = "[[identity]]\nname = \"ci\"\ncertificates = [\"ci.example\"]\n\
              allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]\n";
    std::fs::write(&identities, ci).expect("a file");
    let identities = identities.display().to_string();
    let variables = [
        ("KEYLATCH_TLS_CERT", tls.cert.as_str()),
        ("KEYLATCH_TLS_KEY", tls.key.as_str()),
        ("KEYLATCH_TLS_CLIENT_CA", tls.client_ca.as_str()),
        ("KEYLATCH_IDENTITIES", identities.as_str()),
        // A client's variables are no settings of a service.
        ("KEYLATCH_CLIENT_CERT", "/a"),
        ("KEYLATCH_CLIENT_KEY", "/b"),
    ];
    KEYLATCH.serve(&[], &variables).await
}

#[tokio::test]
async fn run_shows_the_certificate_of_its_environment() {
    let authority = Authority::default();
    let process = serve_clients(&authority).await;
    let write = |name: &str, pem: &str| {
        std::fs::write(authority.file(name), pem).expect("a file");
        authority.file(name).display().to_string()
    };
    let client = authority.sign("ci", &["ci.example"]);
    let (cert, key) = (write("ci.pem", &client.cert), write("ci-key.pem", &client.key));
    let foreign = write("other-key.pem", &authority.sign("b", &["b"]).key);
    let url = format!("https://localhost:{}", process.address.port());
    let ca = authority.ca_file().display().to_string();
    let run = async |cert: &str, key: &str| {
        let service = [("KEYLATCH_URL", url.as_str()), ("KEYLATCH_CA", ca.as_str())];
        let own = [("KEYLATCH_CLIENT_CERT", cert), ("KEYLATCH_CLIENT_KEY", key)];
        let run = ["run", "--wait", "0s", "nightly", "--", "echo", "ran"];
        KEYLATCH.run_with(&run, &[service, own].concat()).await
    };
    let ran = run(&cert, &key).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ran\n"), "{ran:?}");
    for (cert, key, code, why) in [
        ("", "", 76, "401"),
        (cert.as_str(), "", 70, "KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY belong together"),
        ("", key.as_str(), 70, "KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY belong together"),
        (cert.as_str(), "/absent.pem", 70, "/absent.pem"),
        (key.as_str(), key.as_str(), 70, "has no certificate"),
        (cert.as_str(), foreign.as_str(), 70, "do not fit"),
    ] {
        let refused = run(cert, key).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

/// `/dev/null` has no certificate, so reading the certificates from it fails.
#[tokio::test]
async fn certificates_of_the_system_are_read_only_for_an_upstream_over_tls() {
    let none = [("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/dev/null")];
    let process = KEYLATCH.serve(&[], &none).await;
    assert_eq!(Api::at(process.address).get("/v1/locks").await.status, 200);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keylatch.toml");
    let settings = "[[guard]]\npath = \"/orders\"\nupstream = \"https://127.0.0.1:9\"\n";
    std::fs::write(&file, settings).expect("a file");
    let file = file.to_str().expect("a path");
    let arguments = ["--listen", "127.0.0.1:0", "--store", "memory:", "--config", file];
    is(&KEYLATCH.run_with(&arguments, &none).await, 1, &["certificates"]);
}
