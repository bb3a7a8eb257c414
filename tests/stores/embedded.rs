//! Goal: the embedded store keeps what it has answered, and leaves a directory alone that it cannot
//! trust.
//!
//! Method: processes that are killed and started again; damaged, full and read-only files and
//! directories.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use futures_util::future::join_all;
use keylatch_testkit::{Answer, Api, Exit, Process, eventually, soon};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::KEYLATCH;

const TOKEN: &str = "a-token-of-the-clients-own";

#[tokio::test]
async fn lease_begins_again_when_the_store_is_opened() {
    let data = Data::new();
    let service = data.serve().await;
    let lease = json!({"ttl_ms": 600_000});
    assert_eq!(Api::at(service.address).create_as("held", TOKEN, &lease).await.status, 201);
    service.ended_by("-KILL").await;
    let service = data.serve().await;
    let again = Api::at(service.address).create_as("held", TOKEN, &json!({})).await;
    assert_eq!((again.status.as_u16(), &again.json["ttl_ms"]), (200, &json!(600_000)));
    // Less than a minute ago.
    assert!(again.json["valid_for_ms"].as_u64().expect("a number") > 530_000, "{again:?}");
}

#[tokio::test]
async fn restart_forgets_the_queue() {
    let data = Data::new();
    let service = data.serve().await;
    let api = Api::at(service.address);
    assert_eq!(api.create_as("held", TOKEN, &json!({"ttl_ms": 600_000})).await.status, 201);
    let request = api.request(Method::POST, "/v1/locks/held").json(&json!({"wait_ms": 60_000}));
    let waiter = tokio::spawn(request.send());
    let waiting = async |api: &Api| api.look("held").await.json["waiting"].as_u64();
    eventually(async || (waiting(&api).await == Some(1)).then_some(())).await;
    service.ended_by("-KILL").await;
    assert!(soon("the end of the connection", waiter).await.unwrap().is_err());

    let service = data.serve().await;
    let api = Api::at(service.address);
    assert_eq!(waiting(&api).await, Some(0));
    assert_eq!(api.release("held", TOKEN).await.status, 204);
    let other = api.create_as("held", "another-token-than-that", &json!({})).await;
    assert_eq!(other.status, 201, "{other:?}");
}

#[tokio::test]
async fn second_process_is_refused_and_the_first_is_named() {
    let data = Data::new();
    let service = data.serve().await;
    let second = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &data.url()]).await;
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains(&data.path()), "{}", second.stderr);
    assert!(second.stderr.contains(&format!("process {}", service.id())), "{}", second.stderr);
    assert_eq!(Api::at(service.address).get("/readyz").await.status, 200);
    service.ended_by("-TERM").await;
    data.serve().await;
}

#[tokio::test]
async fn closed_store_leaves_its_directory_at_once() {
    let data = Data::new();
    let store = keylatch_stores::embedded(Path::new(&data.path())).await.expect("a new store");
    let lock = File::open(Path::new(&data.path()).join("lock")).expect("the file of the lock");
    lock.try_lock().expect_err("the store is open");
    drop(store);
    lock.try_lock().expect("the store is closed");
}

#[tokio::test]
async fn damaged_file_is_refused_with_advice_and_untouched() {
    for damage in ["", "garbage", "long garbage"] {
        let data = Data::new();
        data.serve().await.ended_by("-TERM").await;
        let file = data.0.path().join("locks.sqlite");
        let content = if damage.starts_with("long") { "x".repeat(1 << 20) } else { damage.into() };
        std::fs::write(&file, &content).unwrap();
        let refused = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &data.url()]).await;
        assert_eq!(refused.code, Some(1), "{damage}: {}", refused.stderr);
        assert!(refused.stderr.contains("is damaged"), "{damage}: {}", refused.stderr);
        assert!(refused.stderr.contains("backup"), "{damage}: {}", refused.stderr);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), content, "{damage}");
    }
}

#[tokio::test]
async fn database_of_another_program_is_refused_with_advice_and_untouched() {
    let data = Data::new();
    let other = rusqlite::Connection::open(data.file()).unwrap();
    other.execute_batch("CREATE TABLE orders (number INTEGER)").unwrap();
    drop(other);
    let content = std::fs::read(data.file()).unwrap();
    let refused = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &data.url()]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("or move it away"), "{}", refused.stderr);
    assert!(std::fs::read(data.file()).unwrap() == content, "something was written");
}

/// SQLite makes a log where the file says that it has one.
#[tokio::test]
async fn refused_file_gets_no_log() {
    let logged = |file: &Path| {
        let other = rusqlite::Connection::open(file).expect("a new file");
        let text = "PRAGMA journal_mode = WAL; CREATE TABLE orders (number INTEGER)";
        other.execute_batch(text).expect("a database, whose log is gone when it is closed");
    };
    let one_byte = |file: &Path| std::fs::write(file, "x").expect("a file");
    for make in [&logged as &dyn Fn(&Path), &one_byte] {
        let data = Data::new();
        make(&data.file());
        let mut before = data.content();
        let refused = data.refused().await;
        assert!(refused.contains("is damaged"), "{refused}");
        let mut after = data.content();
        for content in [&mut before, &mut after] {
            content.remove(&data.0.path().join("lock"));
        }
        assert!(before == after, "{:?} and then {:?}", before.keys(), after.keys());
    }
}

/// Who may write in the directory would have the service empty, close or read another file.
#[tokio::test]
async fn link_in_the_directory_is_refused_and_not_followed() {
    for name in ["lock", "locks.sqlite", "locks.sqlite-wal", "locks.sqlite.new"] {
        let (data, elsewhere) = (Data::new(), Data::new());
        data.serve().await.ended_by("-TERM").await;
        let (link, victim) = (data.0.path().join(name), elsewhere.0.path().join("victim"));
        if name == "locks.sqlite" {
            std::fs::copy(data.file(), &victim).expect("a copy");
        } else {
            std::fs::write(&victim, "of another program").expect("a file");
        }
        std::fs::set_permissions(&victim, Permissions::from_mode(0o644)).expect("the owner may");
        let before = elsewhere.content();
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&victim, &link).expect("a link");
        if name == "locks.sqlite.new" {
            std::fs::remove_file(data.file()).expect("a file");
            std::fs::remove_file(data.0.path().join("locks.sqlite-wal")).expect("a log");
            data.serve().await.ended_by("-TERM").await;
        } else {
            let refused = data.refused().await;
            let why = format!("`{name}` is a link");
            assert!(refused.contains(&why) && refused.contains(&data.path()), "{refused}");
        }
        assert!(elsewhere.content() == before, "{name} was followed");
        let mode = std::fs::metadata(&victim).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o644, "{name} was followed");
    }
}

#[tokio::test]
async fn file_that_others_may_write_is_refused_and_a_directory_of_a_group_is_not() {
    let data = Data::new();
    data.serve().await.ended_by("-TERM").await;
    std::fs::set_permissions(data.0.path(), Permissions::from_mode(0o2770)).expect("it may");
    data.serve().await.ended_by("-TERM").await;
    for name in ["lock", "locks.sqlite", "locks.sqlite-wal"] {
        let file = data.0.path().join(name);
        let set = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode));
        for mode in [0o620, 0o602] {
            set(mode).expect("the owner may");
            let refused = data.refused().await;
            let why = format!("`{name}` is a file that others may write");
            assert!(refused.contains(&why) && refused.contains("chmod go-w"), "{refused}");
        }
        set(0o600).expect("the owner may");
        // Only root makes a file another's.
        if std::os::unix::fs::chown(&file, Some(12345), None).is_ok() {
            let refused = data.refused().await;
            assert!(refused.contains(&format!("`{name}` is no file of the user")), "{refused}");
            std::os::unix::fs::chown(&file, Some(0), None).expect("root may");
        }
    }
    data.serve().await.ended_by("-TERM").await;
}

#[tokio::test]
async fn damaged_log_is_refused_with_advice_and_untouched() {
    let data = Data::new();
    let service = data.serve().await;
    assert_eq!(Api::at(service.address).create_as("held", TOKEN, &json!({})).await.status, 201);
    service.ended_by("-KILL").await;
    let log = data.0.path().join("locks.sqlite-wal");
    assert!(std::fs::metadata(&log).expect("a log").len() > 0);
    let garbage = "x".repeat(1 << 16);
    std::fs::write(&log, &garbage).unwrap();
    for is_alone in [false, true] {
        if is_alone {
            std::fs::remove_file(data.file()).unwrap();
        }
        let refused = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &data.url()]).await;
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains("is damaged"), "{}", refused.stderr);
        assert!(refused.stderr.contains("backup"), "{}", refused.stderr);
        assert!(std::fs::read_to_string(&log).unwrap() == garbage, "something was written");
        assert_eq!(data.file().exists(), !is_alone);
    }
}

#[tokio::test]
async fn file_of_a_stopped_service_is_a_backup() {
    let (data, other) = (Data::new(), Data::new());
    let service = data.serve().await;
    let held = json!({"ttl_ms": 600_000});
    assert_eq!(Api::at(service.address).create_as("held", TOKEN, &held).await.status, 201);
    service.ended_by("-TERM").await;
    std::fs::copy(data.file(), other.file()).unwrap();
    let service = other.serve().await;
    assert_eq!(Api::at(service.address).look("held").await.status, 200);
}

#[tokio::test]
async fn unusable_directory_is_named() {
    let data = Data::new();
    let file = data.0.path().join("file");
    std::fs::write(&file, "").unwrap();
    let store = format!("embedded:{}", file.display());
    let refused = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &store]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains(&file.display().to_string()), "{}", refused.stderr);
}

#[tokio::test]
async fn file_size_limit_refuses_changes_and_loses_nothing() {
    let data = Data::new();
    fills_up(&data, |service| {
        limit_files(service.id(), &data.size().to_string());
        move |service: &Process| limit_files(service.id(), "unlimited")
    })
    .await;
}

#[tokio::test]
async fn full_disk_refuses_changes_and_loses_nothing() {
    let data = Data::new();
    let resize = |options: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs", &data.path()]).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success())
    };
    if resize("size=4m") {
        let _mounted = Mount(data.path());
        fills_up(&data, |_| |_: &Process| assert!(resize("remount,size=64m"))).await;
        return;
    }
    // Where tests may not mount a disk: the file may grow for a while, and then more.
    fills_up(&data, |service| {
        limit_files(service.id(), &(data.size() + (256 << 10)).to_string());
        |service: &Process| limit_files(service.id(), &(64 << 20).to_string())
    })
    .await;
}

/// Serves on a disk that `fill` makes small, until it is full, and then until what `fill` gave
/// makes room.
async fn fills_up<R: Fn(&Process)>(data: &Data, fill: impl FnOnce(&Process) -> R) {
    let service = data.serve().await;
    let api = Api::at(service.address);
    let long = json!({"ttl_ms": 600_000, "owner": "x".repeat(200)});
    assert_eq!(api.create_as("first", TOKEN, &long).await.status, 201);
    let make_room = fill(&service);
    let mut held = vec!["first".to_owned()];
    // At last one by one: of many at once one may fit when another was refused.
    let mut refused = None;
    for at_once in [64, 1] {
        refused = Some(soon("the disk to be full", fill_by(&api, at_once, &long, &mut held)).await);
    }
    let (name, refused) = refused.expect("a refused create");
    refused.is_problem(503, "store-unavailable");
    assert_eq!(refused.json["outcome"], "not-executed");
    api.look(&name).await.is_problem(404, "lock-not-held");
    api.get("/readyz").await.is_problem(503, "store-unavailable");
    assert_eq!(api.get("/livez").await.status, 200);
    make_room(&service);
    eventually(async || (api.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(api.create_as(&name, TOKEN, &long).await.status, 201);
    service.ended_by("-KILL").await;

    let service = data.serve().await;
    let api = Api::at(service.address);
    for name in held.iter().chain([&name]) {
        assert_eq!(api.look(name).await.status, 200, "{name}");
    }
    service.ended_by("-TERM").await;
}

/// Creates locks, so many at once, until one is refused, and adds those that are granted to `held`.
async fn fill_by(
    api: &Api,
    at_once: usize,
    body: &Value,
    held: &mut Vec<String>,
) -> (String, Answer) {
    loop {
        let names = (0..at_once).map(|number| format!("{at_once}-{}", held.len() + number));
        let names: Vec<_> = names.collect();
        let answers = join_all(names.iter().map(|name| api.create_as(name, TOKEN, body))).await;
        let (granted, refused): (Vec<_>, Vec<_>) = names
            .into_iter()
            .zip(answers)
            .partition(|(_, answer)| answer.status == StatusCode::CREATED);
        held.extend(granted.into_iter().map(|(name, _)| name));
        if let Some(refused) = refused.into_iter().next() {
            return refused;
        }
    }
}

/// A disk that is taken off again.
struct Mount(String);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", &self.0]).status();
    }
}

/// From now on nothing can be written, and everything can be read, as after a disk's error has made
/// its file system read-only.
#[tokio::test]
async fn read_only_file_refuses_changes_until_writable() {
    let data = Data::new();
    let service = data.serve().await;
    let api = Api::at(service.address);
    assert_eq!(api.create_as("held", TOKEN, &json!({"ttl_ms": 600_000})).await.status, 201);
    limit_files(service.id(), "0");
    for lock in ["new", "newer"] {
        let refused = api.create_as(lock, TOKEN, &json!({})).await;
        refused.is_problem(503, "store-unavailable");
        assert_eq!(refused.json["outcome"], "not-executed", "{refused:?}");
        api.look(lock).await.is_problem(404, "lock-not-held");
    }
    let refused = api.release("held", TOKEN).await;
    refused.is_problem(503, "store-unavailable");
    assert_eq!(refused.json["outcome"], "not-executed", "{refused:?}");
    // The store still shows the held lock, and refuses it to others.
    assert_eq!(api.look("held").await.status, 200);
    let other = "another-token-than-that";
    api.create_as("held", other, &json!({})).await.is_problem(409, "lock-held");
    api.get("/readyz").await.is_problem(503, "store-unavailable");
    assert_eq!(api.get("/livez").await.status, 200);
    limit_files(service.id(), "unlimited");
    eventually(async || (api.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(api.create_as("new", other, &json!({"ttl_ms": 600_000})).await.status, 201);
    assert_eq!(api.release("held", TOKEN).await.status, 204);
    service.ended_by("-KILL").await;

    let service = data.serve().await;
    let api = Api::at(service.address);
    assert_eq!(api.look("new").await.status, 200);
    for lock in ["newer", "held"] {
        api.look(lock).await.is_problem(404, "lock-not-held");
    }
}

/// Another user would read what is kept, and by the lock file keep the service from starting.
#[tokio::test]
async fn files_are_open_to_their_user_alone() {
    let (parent, mode) = (Data::new(), |path: &Path| {
        std::fs::metadata(path).expect("a file").permissions().mode() & 0o777
    });
    let directory = parent.0.path().join("new").join("data");
    let files = || {
        let files = std::fs::read_dir(&directory).expect("a directory");
        files.map(|file| file.expect("a file").path())
    };
    let serve = async || {
        let url = format!("embedded:{}", directory.display());
        KEYLATCH.serve(&["--store", &url], &[]).await
    };
    let service = serve().await;
    assert_eq!(Api::at(service.address).create_as("a", TOKEN, &json!({})).await.status, 201);
    assert!(files().count() >= 3, "data, log and lock");
    assert_eq!(mode(&directory), 0o700);
    files().for_each(|file| assert_eq!(mode(&file), 0o600, "{}", file.display()));
    service.ended_by("-KILL").await;
    // Those that were copied here are closed at the next start.
    for file in files() {
        std::fs::set_permissions(file, Permissions::from_mode(0o644)).expect("the owner may");
    }
    let _service = serve().await;
    files().for_each(|file| assert_eq!(mode(&file), 0o600, "{}", file.display()));
}

#[tokio::test]
async fn read_only_directory_is_named_and_untouched() {
    for is_new in [true, false] {
        let data = Data::new();
        if !is_new {
            data.serve().await.ended_by("-TERM").await;
        }
        let before = data.content();
        let refused = {
            let _read_only = ReadOnly::new(data.0.path());
            data.serve_without_privilege().await
        };
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("cannot be used"), "{refused:?}");
        assert!(refused.stderr.contains(&data.path()), "{refused:?}");
        assert!(data.content() == before, "something was written");
        data.serve().await.ended_by("-TERM").await;
    }
}

/// A directory in which nothing can be written, until this is gone.
struct ReadOnly(Vec<PathBuf>);

impl ReadOnly {
    fn new(directory: &Path) -> Self {
        let files = std::fs::read_dir(directory).expect("a directory");
        let mut all: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        all.push(directory.to_owned());
        Self::set(&all, "a-w");
        Self(all)
    }

    fn set(all: &[PathBuf], mode: &str) {
        assert!(Command::new("chmod").arg(mode).args(all).status().expect("chmod").success());
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        Self::set(&self.0, "u+w");
    }
}

/// A data directory of one test.
struct Data(TempDir);

impl Data {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> String {
        self.0.path().display().to_string()
    }

    fn url(&self) -> String {
        format!("embedded:{}", self.path())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("locks.sqlite")
    }

    /// How large the data file and its log are, in bytes.
    fn size(&self) -> u64 {
        let log = self.0.path().join("locks.sqlite-wal");
        let length = |file: &Path| std::fs::metadata(file).expect("a file of the store").len();
        length(&self.file()) + length(&log)
    }

    /// Every file's name and content.
    fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = std::fs::read_dir(self.0.path()).expect("a directory");
        let paths = files.map(|file| file.expect("a file").path());
        paths.map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect()
    }

    /// Runs the real program to its end, without root's power to write to read-only files.
    async fn serve_without_privilege(&self) -> Exit {
        let serve = ["--listen", "127.0.0.1:0", "--store", &self.url()];
        // A user other than root has no such power, and cannot drop it.
        let is_root = std::fs::metadata("/proc/self").expect("procfs").uid() == 0;
        if !is_root {
            return KEYLATCH.run(&serve).await;
        }
        let capabilities = "--bounding-set=-dac_override,-dac_read_search";
        KEYLATCH.run_through(&["setpriv", capabilities, "--"], &serve).await
    }

    /// What the real program says when it does not start on this directory.
    async fn refused(&self) -> String {
        let refused = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &self.url()]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.stderr
    }

    /// The real program on this directory.
    async fn serve(&self) -> Process {
        KEYLATCH.serve(&["--store", &self.url()], &[]).await
    }
}

/// Sets how large a process's files may become, in bytes.
fn limit_files(process: u32, bytes: &str) {
    let limit = format!("--fsize={bytes}:unlimited");
    let set = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status();
    assert!(set.expect("prlimit of util-linux runs").success());
}
