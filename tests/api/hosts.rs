//! Goal: the service answers only at the hosts that it goes by. A web page whose name was made to
//! lead to the service (DNS rebinding) is of that name's origin, and would read what the service
//! answers.
//!
//! Method: raw requests with every kind of `Host`, to listeners on loopback and on all addresses.
//! What a browser makes of it is in `tests/browser/foreign_pages.rs`.

use keylatch::config::Config;
use keylatch_testkit::{Answer, RawConnection, Service, config};

/// The head of a request with these lines for its host.
fn create(lines: &str) -> String {
    format!("POST /v1/locks/deploy HTTP/1.1\r\n{lines}Content-Length: 0\r\n\r\n")
}

async fn send(service: &Service, head: &str) -> Answer {
    RawConnection::sending(service.address, head).await.answer().await
}

async fn send_request(service: &Service, host: &str) -> Answer {
    send(service, &format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n")).await
}

fn going_by(hosts: &[&str]) -> Config {
    let mut config = config("memory:");
    config.server.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    config
}

#[tokio::test]
async fn rebound_name_is_refused_everywhere() {
    let service = Service::start("memory:").await;
    let port = service.address.port();
    for host in
        ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example", "192.0.2.1"]
    {
        send(&service, &create(&format!("Host: {host}\r\n")))
            .await
            .is_problem(421, "misdirected-request");
        for path in ["/v1/locks", "/v1/orders", "/docs/", "/demo", "/livez", "/nowhere", "/"] {
            let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            send(&service, &head).await.is_problem(421, "misdirected-request");
        }
    }
    service.look("deploy").await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn host_of_an_absolute_target_is_checked() {
    let service = Service::start("memory:").await;
    let get = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let foreign = send(&service, &get("http://evil.example/livez", "localhost")).await;
    foreign.is_problem(421, "misdirected-request");
    assert_eq!(foreign.json["retry"], "never", "{foreign:?}");
    let own = send(&service, &get("http://localhost/livez", "evil.example")).await;
    assert_eq!(own.status, 200, "RFC 9112, section 3.2.2: {own:?}");
}

#[tokio::test]
async fn loopback_names_are_served_on_any_port() {
    let service = Service::start("memory:").await;
    for host in [
        "localhost",
        "LocalHost:7070",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.9.9.9:80",
        "[::1]",
        "[::1]:7070",
        "[::ffff:127.0.0.1]:7070",
        "localhost:",
    ] {
        assert_eq!(send_request(&service, host).await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn missing_duplicate_or_invalid_host_is_refused() {
    let service = Service::start("memory:").await;
    for lines in [
        "",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "Host:\r\n",
        "Host: local host\r\n",
        "Host: http://localhost\r\n",
        "Host: evil.example@localhost\r\n",
        "Host: localhost:http\r\n",
        "Host: localhost/\r\n",
        "Host: :7070\r\n",
        "Host: ::1\r\n",
        "Host: [::1\r\n",
        "Host: [::1]x\r\n",
        "Host: [localhost]\r\n",
    ] {
        let answer = send(&service, &create(lines)).await;
        answer.is_problem(400, "invalid-host");
        assert_eq!(answer.json["field"], "Host", "{lines}");
    }
    service.look("deploy").await.is_problem(404, "lock-not-held");
    let old = send(&service, "GET /livez HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.status, 200, "HTTP/1.0 has none: {old:?}");
}

#[tokio::test]
async fn listed_hosts_are_served_on_loopback() {
    let service =
        Service::start_with(going_by(&["locks.example", "192.0.2.7", "2001:db8::7"])).await;
    for host in
        ["locks.example", "LOCKS.example:8443", "192.0.2.7", "[2001:db8::7]:7070", "localhost"]
    {
        assert_eq!(send_request(&service, host).await.status, 200, "{host}");
    }
    for host in ["a.locks.example", "locks.example.evil.example", "192.0.2.8", "[2001:db8::8]"] {
        send_request(&service, host).await.is_problem(421, "misdirected-request");
    }
}

#[tokio::test]
async fn only_a_list_restricts_hosts_off_loopback() {
    let open = Service::start_at("0.0.0.0:0", going_by(&[])).await;
    for host in ["anything.example", "192.0.2.1", "localhost"] {
        assert_eq!(send_request(&open, host).await.status, 200, "{host}");
    }
    let listed = Service::start_at("0.0.0.0:0", going_by(&["locks.example"])).await;
    for host in ["locks.example", "localhost", "127.0.0.1", "192.0.2.1", "[2001:db8::8]:7070"] {
        assert_eq!(send_request(&listed, host).await.status, 200, "{host}");
    }
    send_request(&listed, "anything.example").await.is_problem(421, "misdirected-request");
}
