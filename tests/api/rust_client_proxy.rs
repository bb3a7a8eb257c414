//! Goal: the Rust client reaches its service through a proxy, which sees no more than it has to.
//!
//! Method: an upstream that stands for a proxy, and one that makes a tunnel to a service with TLS.

use keylatch::config::Config;
use keylatch_client::{AcquireOptions, Client, Error, ProblemDocument, StatusCode};
use keylatch_testkit::{Authority, Service, Upstream, config, soon};
use keylatch_wire::Code;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::KEYLATCH;

fn free() -> (StatusCode, String) {
    let problem = json!(ProblemDocument::new(Code::LockNotHeld, "It is free."));
    (StatusCode::NOT_FOUND, problem.to_string())
}

#[tokio::test]
async fn proxy_gets_the_whole_url_and_its_password() {
    let proxy = Upstream::start().await;
    proxy.answers(|_| free());
    let by = proxy.url().replace("http://", "http://ann:sesame@");
    let client = Client::builder("http://keylatch.invalid:7070/base").proxy(by).build();
    assert_eq!(client.expect("URLs").show("a").await.expect("a response"), None);
    let seen = proxy.last();
    assert_eq!(seen.uri, "http://keylatch.invalid:7070/base/v1/locks/a");
    assert_eq!(seen.headers["host"], "keylatch.invalid:7070");
    assert_eq!(seen.headers["proxy-authorization"], "Basic YW5uOnNlc2FtZQ==");
}

#[tokio::test]
async fn proxy_makes_a_tunnel_for_tls() {
    let authority = Authority::default();
    let config = Config { tls: authority.serve(), ..config("memory:") };
    let service = Service::start_with(config).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let by = format!("http://{}", proxy.local_addr().expect("an address"));
    let (address, key) = (service.address, "kl_sesame");
    let tunnel = tokio::spawn(async move {
        let (mut inside, _) = proxy.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(inside.read_u8().await.expect("a head"));
        }
        let mut outside = TcpStream::connect(address).await.expect("the service");
        inside.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("the client reads");
        let _ = copy_bidirectional(&mut inside, &mut outside).await;
        String::from_utf8(head).expect("text")
    });
    let client = Client::builder(&format!("https://localhost:{}", address.port()))
        .authorities(authority.ca_file())
        .api_key(key)
        .proxy(by);
    let client = client.build().expect("URLs");
    assert_eq!(client.show("a").await.expect("a response"), None);
    drop(client);
    let head = soon("the end", tunnel).await.expect("no panic");
    assert!(head.starts_with(&format!("CONNECT localhost:{} ", address.port())), "{head}");
    assert!(!head.contains(key), "{head}");
}

#[tokio::test]
async fn proxy_without_an_answer_is_told_as_unsent() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let by = format!("http://{}", gone.local_addr().expect("an address"));
    drop(gone);
    for url in ["http://keylatch.invalid", "https://keylatch.invalid"] {
        let authority = Authority::default();
        let client = Client::builder(url).authorities(authority.ca_file()).proxy(&by);
        let client = client.timeout(std::time::Duration::from_secs(1)).build().expect("URLs");
        let refused = client.lock("a", &AcquireOptions::default()).await;
        assert!(matches!(refused, Err(Error::Unreachable(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn environment_names_the_proxy_but_for_this_machine() {
    let [proxy, near] = [Upstream::start().await, Upstream::start().await];
    for upstream in [&proxy, &near] {
        upstream.answers(|_| free());
    }
    let show = ["lock", "show", "a"];
    for (url, no_proxy) in [
        ("http://keylatch.invalid:7070".to_owned(), "example.com"),
        ("http://keylatch.invalid:7070".to_owned(), "example.com, keylatch.invalid"),
        (near.url(), ""),
    ] {
        let variables =
            [("KEYLATCH_URL", &*url), ("HTTP_PROXY", &proxy.url()), ("NO_PROXY", no_proxy)];
        KEYLATCH.run_with(&show, &variables).await;
    }
    assert_eq!((proxy.seen().len(), near.seen().len()), (1, 1));
}

#[test]
fn invalid_proxy_is_refused() {
    for proxy in ["", "http://", "https://proxy", "socks5://proxy", "ann:sesame@"] {
        let refused = Client::builder("http://h").proxy(proxy).build().expect_err(proxy);
        assert!(matches!(refused, Error::Settings(_)), "{proxy}: {refused}");
        assert!(!refused.to_string().contains("sesame"), "{refused}");
    }
}
