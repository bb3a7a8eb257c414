//! Goal: each listener is where its settings say, serves what they say, and keeps the rules of its
//! own place. All of them share one service with its limits.
//!
//! Method: a service in the test's process on listeners of both kinds. What its process does with
//! them is in `tests/cli/listeners.rs`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use keylatch::app::{App, bind};
use keylatch::config::Config;
use keylatch::error::Error;
use keylatch::http::{Guard, ListenerSettings, Part, ServedParts};
use keylatch_client::AcquireOptions;
use keylatch_testkit::{
    Answer, Authority, RawConnection, Upstream, config, connect_tls, eventually, soon,
};
use reqwest::{Client, Method};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A service on its listeners.
struct Service {
    listeners: Vec<ListenerSettings>,
    closing: CancellationToken,
    serving: JoinHandle<Result<(), Error>>,
}

impl Service {
    async fn start(mut config: Config) -> Self {
        let bound = bind(&mut config).await.expect("they listen");
        let listeners = config.listener.clone();
        let app = App::new(config).await.expect("an app");
        let closing = CancellationToken::new();
        let serving = tokio::spawn(app.serve_on(bound, closing.clone().cancelled_owned()));
        Self { listeners, closing, serving }
    }

    fn address(&self, place: usize) -> SocketAddr {
        self.listeners[place].address.parse().expect("an address")
    }

    /// `GET path` from one of the listeners.
    async fn get(&self, place: usize, path: &str) -> Answer {
        let (client, url) = match self.listeners[place].path() {
            Some(socket) => (over(socket), "http://localhost".to_owned()),
            None => (client().build(), format!("http://{}", self.address(place))),
        };
        Answer::of(client.expect("a client").get(url + path)).await
    }

    async fn stop(self) {
        self.closing.cancel();
        soon("the end", self.serving).await.expect("a task").expect("it ends");
    }
}

fn client() -> reqwest::ClientBuilder {
    Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none())
}

/// A client of a Unix socket.
fn over(socket: &Path) -> reqwest::Result<Client> {
    client().unix_socket(socket).build()
}

fn at(address: &str, serves: &[Part]) -> ListenerSettings {
    let serves = ServedParts::from(serves.to_vec());
    ListenerSettings { address: address.to_owned(), serves, ..ListenerSettings::default() }
}

fn unix(path: &Path) -> ListenerSettings {
    ListenerSettings { unix: path.display().to_string(), ..ListenerSettings::default() }
}

fn with_listeners(listener: Vec<ListenerSettings>) -> Config {
    Config { listener, ..config("memory:") }
}

fn guard(upstream: String) -> Guard {
    Guard { path: "/orders".to_owned(), upstream, ..Guard::default() }
}

/// A directory with room for a socket.
struct Room(TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("keylatch.sock")
    }
}

const LOOPBACK: &str = "127.0.0.1:0";

#[tokio::test]
async fn listener_serves_its_parts_and_no_others() {
    let room = Room::new();
    let mut config = with_listeners(vec![
        unix(&room.socket()),
        at(LOOPBACK, &[Part::Api]),
        at(LOOPBACK, &[Part::Api, Part::Docs]),
        at(LOOPBACK, &[Part::Guards]),
        at(LOOPBACK, &[Part::Metrics]),
        at(LOOPBACK, &[]),
        at(LOOPBACK, &[Part::Api, Part::Console]),
    ]);
    config.guard = vec![guard("http://127.0.0.1:9".to_owned())];
    let service = Service::start(config).await;
    let everywhere = ["/livez", "/readyz", "/problems/lock-held", "/assets/page.css"];
    let console = ["/console/glance", "/assets/console/console.js"];
    let api = ["/v1/locks", "/v1/locks/a", "/v1/locks/a/history", "/v1/idempotency/k", "/v1/info"];
    let start = ["/"];
    let docs = ["/docs/", "/openapi.json"];
    let guards = ["/orders", "/demo", "/assets/keylatch.js", "/assets/keylatch.d.ts"];
    let parts: [(&[&str], &[usize]); 7] = [
        (&everywhere, &[0, 1, 2, 3, 4, 5, 6]),
        (&api, &[0, 1, 2, 6]),
        (&start, &[0, 2, 6]),
        (&docs, &[0, 2]),
        (&guards, &[0, 3]),
        (&["/metrics"], &[0, 4]),
        (&console, &[0, 6]),
    ];
    for (paths, served_by) in parts {
        for path in paths {
            for listener in 0..7 {
                let answer = service.get(listener, path).await;
                if served_by.contains(&listener) {
                    assert_ne!(answer.json["code"], "not-found", "{listener} {path}: {answer:?}");
                } else {
                    answer.is_problem(404, "not-found");
                }
            }
        }
    }
    service.get(0, "/nowhere").await.is_problem(404, "not-found");
}

#[tokio::test]
async fn listeners_share_locks_and_limits() {
    let room = Room::new();
    let mut config = with_listeners(vec![at(LOOPBACK, &[Part::Api]), unix(&room.socket())]);
    config.server.max_connections = 1;
    let service = Service::start(config).await;
    let client = over(&room.socket()).expect("a client");
    let create = client.request(Method::POST, "http://localhost/v1/locks/a").json(&json!({}));
    assert_eq!(Answer::of(create).await.status, 201);
    service.get(0, "/v1/locks/a").await.is_problem(503, "overloaded");
    drop(client);
    let look = async || Some(service.get(0, "/v1/locks/a").await).filter(|it| it.status != 503);
    assert_eq!(eventually(look).await.status, 200);
}

#[tokio::test]
async fn unix_socket_goes_by_loopback_names_and_listed_hosts() {
    let room = Room::new();
    let mut config = with_listeners(vec![unix(&room.socket())]);
    config.server.hosts = vec!["locks.internal".to_owned()];
    let _service = Service::start(config).await;
    let client = over(&room.socket()).expect("a client");
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:7070", 200),
        ("locks.internal", 200),
        ("evil.example", 421),
    ] {
        let answer = Answer::of(client.get(format!("http://{host}/livez"))).await;
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
}

#[tokio::test]
async fn unix_socket_lets_in_whom_its_mode_says_and_is_removed() {
    for (mode, expected) in [(None, 0o600), (Some("0660"), 0o660), (Some("777"), 0o777)] {
        let room = Room::new();
        let listener = ListenerSettings { mode: mode.map(str::to_owned), ..unix(&room.socket()) };
        let service = Service::start(with_listeners(vec![listener])).await;
        let file = fs::metadata(room.socket()).expect("a file");
        assert!(file.file_type().is_socket());
        assert_eq!(file.permissions().mode() & 0o7777, expected);
        service.stop().await;
        assert!(!room.socket().exists(), "{mode:?}");
    }
}

#[tokio::test]
async fn unix_socket_belongs_to_its_owner() {
    let room = Room::new();
    let own = fs::metadata(room.socket().parent().expect("a directory")).expect("a directory");
    // Root alone may give a file to another user.
    let (user, group) = if own.uid() == 0 { (65_534, 65_533) } else { (own.uid(), own.gid()) };
    for (owner, user, group) in [
        (format!("{user}:{group}"), user, group),
        (user.to_string(), user, own.gid()),
        (format!(":{group}"), own.uid(), group),
    ] {
        let listener = ListenerSettings { owner: Some(owner.clone()), ..unix(&room.socket()) };
        let service = Service::start(with_listeners(vec![listener])).await;
        let file = fs::metadata(room.socket()).expect("a file");
        assert_eq!((file.uid(), file.gid()), (user, group), "{owner}");
        service.stop().await;
    }
}

#[tokio::test]
async fn unix_socket_of_an_unknown_owner_is_an_error() {
    for (owner, why) in [("no-such-user", "no user"), (":no-such-group", "no group")] {
        let room = Room::new();
        let settings = ListenerSettings { owner: Some(owner.to_owned()), ..unix(&room.socket()) };
        let refused = bind(&mut with_listeners(vec![settings])).await.expect_err("it is absent");
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(!room.socket().exists(), "{owner}");
    }
}

#[tokio::test]
async fn stale_socket_is_replaced_and_living_one_is_an_error() {
    let room = Room::new();
    drop(UnixListener::bind(room.socket()).expect("a socket"));
    assert!(room.socket().exists(), "a dead process leaves its file");
    let service = Service::start(with_listeners(vec![unix(&room.socket())])).await;
    let refused = bind(&mut with_listeners(vec![unix(&room.socket())])).await;
    let refused = refused.expect_err("it is in use").to_string();
    assert!(refused.contains("keylatch.sock: another process listens there"), "{refused}");
    assert_eq!(service.get(0, "/livez").await.status, 200);
}

#[tokio::test]
async fn file_that_is_no_socket_stays() {
    let room = Room::new();
    fs::write(room.socket(), "precious").expect("a file");
    let refused = bind(&mut with_listeners(vec![unix(&room.socket())])).await;
    let refused = refused.expect_err("it is a file").to_string();
    assert!(refused.contains("is no socket"), "{refused}");
    assert_eq!(fs::read_to_string(room.socket()).expect("a file"), "precious");
}

#[tokio::test]
async fn socket_of_a_successor_stays() {
    let room = Room::new();
    let service = Service::start(with_listeners(vec![unix(&room.socket())])).await;
    fs::remove_file(room.socket()).expect("a file");
    let _successor = UnixListener::bind(room.socket()).expect("a socket");
    service.stop().await;
    assert!(room.socket().exists());
}

#[tokio::test]
async fn waiter_that_leaves_a_unix_socket_leaves_the_queue() {
    let room = Room::new();
    let service = Service::start(with_listeners(vec![unix(&room.socket())])).await;
    let client = over(&room.socket()).expect("a client");
    let create = client.request(Method::POST, "http://localhost/v1/locks/a").json(&json!({}));
    assert_eq!(Answer::of(create).await.status, 201);
    let mut waiter = UnixStream::connect(room.socket()).await.expect("a connection");
    let body = json!({"wait_ms": 60_000}).to_string();
    // Bytes behind the request keep hyper from reading on.
    let request = format!(
        "POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}GET",
        body.len()
    );
    waiter.write_all(request.as_bytes()).await.expect("written");
    let waiting = async |number: u64| {
        let lock = service.get(0, "/v1/locks/a").await;
        (lock.json["waiting"] == number).then_some(())
    };
    eventually(async || waiting(1).await).await;
    drop(waiter);
    eventually(async || waiting(0).await).await;
}

#[tokio::test]
async fn each_listener_has_tls_or_not() {
    let (room, authority) = (Room::new(), Authority::default());
    let clear = ListenerSettings { tls: Some(false), ..at(LOOPBACK, &[Part::Api]) };
    let listeners = vec![at(LOOPBACK, &[Part::Api]), clear, unix(&room.socket())];
    let config = Config { tls: authority.serve(), ..with_listeners(listeners) };
    let service = Service::start(config).await;
    let mut secure = connect_tls(service.address(0), &authority.client(&[], None)).await;
    assert_eq!(secure.get("/livez").await.status, 200);
    for clear in [1, 2] {
        assert_eq!(service.get(clear, "/livez").await.status, 200, "{clear}");
    }
    let mut mistaken =
        RawConnection::sending(service.address(0), "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(mistaken.ends_without("HTTP/").await, "no answer in clear text");
}

#[tokio::test]
async fn exposed_listener_without_identities_is_refused_whatever_the_others_are() {
    let room = Room::new();
    let anywhere = at("0.0.0.0:0", &[Part::Metrics]);
    let listeners = vec![unix(&room.socket()), at(LOOPBACK, &[Part::Api]), anywhere];
    let refused = App::new(with_listeners(listeners.clone())).await.map(|_| ());
    let refused = refused.expect_err("it is exposed").to_string();
    assert!(refused.starts_with("will not listen on 0.0.0.0:0 without identities"), "{refused}");
    let open = Config { open: true, ..with_listeners(listeners.clone()) };
    assert!(App::new(open).await.is_ok());
    assert!(App::new(with_listeners(listeners[..2].to_vec())).await.is_ok());
}

#[tokio::test]
async fn exposed_listener_turns_off_what_loopback_alone_turns_on() {
    let room = Room::new();
    let local = vec![unix(&room.socket()), at(LOOPBACK, &[])];
    let mut exposed = local.clone();
    exposed.push(at("0.0.0.0:0", &[]));
    for (listeners, expected) in [(local, true), (exposed, false)] {
        let config = with_listeners(listeners);
        let served = (config.serves_sandbox(), config.serves_breaks(), config.serves_backups());
        assert_eq!(served, (expected, expected, expected));
    }
}

#[tokio::test]
async fn request_on_a_unix_socket_is_of_loopback_for_guards() {
    let room = Room::new();
    let upstream = Upstream::start().await;
    let principal_header = "X-User".to_owned();
    let mut config = with_listeners(vec![unix(&room.socket())]);
    config.guard = vec![Guard { principal_header, ..guard(upstream.url()) }];
    let _service = Service::start(config).await;
    let order = over(&room.socket()).expect("a client").post("http://localhost/orders");
    let order = order.header("X-User", "alice").header("Idempotency-Key", "k-1").body("{}");
    let answer = Answer::of(order).await;
    assert_eq!(answer.status, 201, "a proxy before a Unix socket is trusted: {answer:?}");
}

#[tokio::test]
async fn rust_client_holds_a_lock_over_a_unix_socket() {
    let room = Room::new();
    let service = Service::start(with_listeners(vec![unix(&room.socket())])).await;
    let client = keylatch_client::Client::new(&service.listeners[0].place()).expect("a URL");
    let options = AcquireOptions::default();
    let guard = client.lock("deploy", &options).await.expect("it is free");
    let lock = service.get(0, "/v1/locks/deploy").await;
    assert_eq!(lock.fencing_token(), guard.fencing_token().get());
    guard.close().await.expect("it is released");
    service.get(0, "/v1/locks/deploy").await.is_problem(404, "lock-not-held");
}
