//! Goal: an operator runs the service on a Unix socket, and every command reaches it there.
//!
//! Method: the command as a process with a configuration file.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::PathBuf;

use futures_util::future::join_all;
use keylatch_testkit::{Exit, Process, soon};
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixStream};

use crate::{KEYLATCH, is};

/// A directory with a configuration of a Unix socket and a port.
struct Room(TempDir);

impl Room {
    fn new() -> Self {
        let room = Self(tempfile::tempdir().expect("a directory"));
        let settings = format!(
            "[[listener]]\nunix = \"{}\"\nmode = \"0660\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\nserves = [\"metrics\"]\n",
            room.socket().display()
        );
        fs::write(room.0.path().join("keylatch.toml"), settings).expect("a file");
        room
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("keylatch.sock")
    }

    fn config(&self) -> String {
        self.0.path().join("keylatch.toml").display().to_string()
    }

    fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    async fn serve(&self) -> Process {
        KEYLATCH.serve_file(&self.config()).await
    }
}

async fn run(url: &str) -> Exit {
    let variables = [("KEYLATCH_URL", url)];
    let script = "echo $KEYLATCH_URL $KEYLATCH_FENCING_TOKEN";
    let run = ["run", "--wait", "0s", "nightly", "--", "sh", "-c", script];
    KEYLATCH.run_with(&run, &variables).await
}

#[tokio::test]
async fn commands_reach_the_service_on_its_unix_socket() {
    let room = Room::new();
    let _process = room.serve().await;
    let mode = fs::metadata(room.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    for check in [["--config", &room.config()], ["--listen", &room.url()]] {
        let well = KEYLATCH.run(&[&["healthcheck"][..], &check].concat()).await;
        assert_eq!((well.code, well.stderr.as_str()), (Some(0), ""), "{check:?}: {well:?}");
    }
    let ran = run(&room.url()).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with(&room.url()), "a run within it finds the service: {ran:?}");
}

#[tokio::test]
async fn absent_socket_exits_69_and_no_path_64() {
    let room = Room::new();
    is(&run(&room.url()).await, 69, &[&room.url()]);
    is(&run("unix:").await, 64, &[]);
    is(&KEYLATCH.run(&["healthcheck", "--listen", &room.url()]).await, 1, &["not healthy: unix:"]);
}

#[tokio::test]
async fn socket_is_removed_at_a_clean_end_and_replaced_after_a_kill() {
    let room = Room::new();
    let process = room.serve().await;
    let (config, memory) = (room.config(), [("KEYLATCH_STORE", "memory:")]);
    let second = KEYLATCH.run_with(&["--config", &config], &memory).await;
    assert_eq!(second.code, Some(1), "{second:?}");
    let said = second.stderr.lines().last().unwrap_or_default();
    assert!(said.starts_with("keylatch: cannot listen on unix:"), "{said}");
    assert!(said.ends_with("another process listens there"), "{said}");
    process.ended_by("-KILL").await;
    let left = fs::symlink_metadata(room.socket()).expect("a dead process leaves its socket");
    assert!(left.file_type().is_socket());
    let process = room.serve().await;
    assert_eq!(run(&room.url()).await.code, Some(0));
    assert_eq!(process.ended_by("-TERM").await.code, Some(0));
    assert!(!room.socket().exists());
}

#[tokio::test]
async fn burst_of_connections_waits_to_be_accepted() {
    let room = Room::new();
    let process = room.serve().await;
    process.signal("-STOP");
    // The system makes them without the service.
    let tcp = (0..200).map(|_| TcpStream::connect(process.address));
    let made = soon("connections over TCP", join_all(tcp)).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    let unix = (0..200).map(|_| UnixStream::connect(room.socket()));
    let made = soon("connections to the socket", join_all(unix)).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    process.signal("-CONT");
    is(&KEYLATCH.run(&["healthcheck", "--config", &room.config()]).await, 0, &[]);
}
