//! Goal: an operator replaces the certificate of a running service, and no connection ends by it.
//!
//! Method: the command as a process, its files replaced and its signals sent.

use keylatch_testkit::{Authority, Process, connect_tls, eventually, handshake};

use crate::KEYLATCH;

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
    process.signal("-HUP");
    assert_eq!(certificate(&process, &authority).await, before);
    assert_eq!(old.get("/livez").await.status, 200);
    let log = process.ended_by("-TERM").await.stderr;
    assert!(log.contains("the certificate is read again"), "{log}");
    assert!(!log.contains("BEGIN"), "{log}");
}
