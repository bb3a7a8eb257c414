//! Goal: the service serves on the sockets that a service manager hands over.
//!
//! Method: a socket of the test is the third descriptor of the process, as systemd does it.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{ExitStatus, Stdio};

use keylatch_testkit::{Api, soon};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::{KEYLATCH, is};

/// Starts the service with a socket as the first of so many.
fn start(socket: impl Into<OwnedFd>, sockets: usize, listen: &str) -> Child {
    let script = "exec env LISTEN_PID=$$ \"$0\" \"$@\" 3<&0 </dev/null";
    Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_keylatch"), "--listen", listen])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("KEYLATCH_STORE", "memory:")
        .env("LISTEN_FDS", sockets.to_string())
        .stdin(Stdio::from(socket.into()))
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a shell")
}

async fn ended(mut child: Child) -> (ExitStatus, String) {
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("its log");
    soon("its log", stderr.read_to_string(&mut said)).await.expect("text");
    (soon("the end", child.wait()).await.expect("an end"), said)
}

async fn terminated(child: Child) -> (ExitStatus, String) {
    let pid = child.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill runs");
    assert!(sent.success());
    ended(child).await
}

#[tokio::test]
async fn handed_socket_is_served_in_place_of_the_address() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    // Nothing listens there, since the socket takes its place.
    let service = start(socket, 1, "127.0.0.1:1");
    assert_eq!(Api::at(address).get("/livez").await.status, 200);
    let (status, log) = terminated(service).await;
    assert!(status.success(), "{log}");
    assert!(log.contains(&address.to_string()), "{log}");
}

#[tokio::test]
async fn handed_unix_socket_is_served_and_left_to_the_manager() {
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("keylatch.sock");
    let socket = UnixListener::bind(&path).expect("a socket");
    let url = format!("unix:{}", path.display());
    let service = start(socket, 1, "unix:/run/elsewhere.sock");
    let check = ["healthcheck", "--listen", &url];
    is(&KEYLATCH.run(&check).await, 0, &[]);
    let (status, log) = terminated(service).await;
    assert!(status.success() && log.contains(&url), "{log}");
    assert!(fs::symlink_metadata(&path).is_ok(), "the manager hands it over again");
}

#[tokio::test]
async fn exposed_socket_is_refused_as_an_exposed_address_is() {
    let socket = TcpListener::bind("0.0.0.0:0").expect("a port");
    let (status, said) = ended(start(socket, 1, "127.0.0.1:7070")).await;
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("will not listen on 0.0.0.0:"), "{said}");
}

#[tokio::test]
async fn sockets_that_do_not_fit_the_listeners_are_named() {
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("a port");
    for (sockets, listen, why) in [
        (2, "127.0.0.1:1", "handed over 2 socket(s) for 1 listener(s)"),
        (1, "unix:/run/a.sock", "cannot listen on unix:/run/a.sock"),
    ] {
        let (status, said) = ended(start(tcp(), sockets, listen)).await;
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

/// With `Accept=yes` a manager hands over each connection, and would start a service for each.
#[tokio::test]
async fn connected_socket_is_refused_and_the_setting_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let tcp = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (unix, _other_end) = UnixStream::pair().expect("a connection");
    for (socket, listen) in
        [(OwnedFd::from(tcp), "127.0.0.1:1"), (OwnedFd::from(unix), "unix:/run/a.sock")]
    {
        let (status, said) = ended(start(socket, 1, listen)).await;
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("does not listen") && said.contains("Accept=no"), "{said}");
    }
}
