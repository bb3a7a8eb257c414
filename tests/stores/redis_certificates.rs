//! Goal: a Redis that speaks TLS, and asks clients for certificates, keeps locks, whatever its
//! topology; and only one whose certificate the machine or the URL trusts, for the host in the URL.
//!
//! Method: real servers with certificates of the test's own, and the parameters of the URL.

use keylatch_testkit::{Api, Authority, Process, RedisServer, eventually, free_port, soon};
use serde_json::json;

use crate::KEYLATCH;

/// A Redis that speaks TLS to those with a certificate of its authority.
struct SecureRedis {
    plain: RedisServer,
    port: u16,
}

impl SecureRedis {
    /// With a certificate for the host by which it is reached.
    async fn start(authority: &Authority, options: &[&str]) -> Self {
        Self::start_as(authority, &["localhost", "127.0.0.1"], options).await
    }

    /// With a certificate for these names.
    async fn start_as(authority: &Authority, names: &[&str], options: &[&str]) -> Self {
        let (port, tls) = (free_port(), authority.serve_with(&authority.sign("-", names)));
        let (number, ca) = (port.to_string(), authority.ca_file().display().to_string());
        let secure = [
            "--tls-port",
            &number,
            "--tls-cert-file",
            &tls.cert,
            "--tls-key-file",
            &tls.key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            "yes",
            "--tls-replication",
            "yes",
        ];
        let plain = RedisServer::start_with(&[options, &secure].concat()).await;
        Self { plain, port }
    }

    fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Asserts that a waiter of one instance is served when another one's holder releases. Gives
    /// the instances.
    async fn hands_over(&self, url: &str) -> [Process; 2] {
        self.hands_over_with(url, &[]).await
    }

    /// The same by instances with more variables.
    async fn hands_over_with(&self, url: &str, more: &[(&str, &str)]) -> [Process; 2] {
        let ((first, one), (second, other)) =
            (granting(url, more).await, granting(url, more).await);
        eventually(async || {
            let ask = ["PUBSUB", "NUMSUB", "keylatch:changes"];
            let (_, listening): (String, u64) = self.plain.run(&ask).await;
            (listening == 2).then_some(())
        })
        .await;
        let lease = one.create("deploy", &json!({})).await;
        assert_eq!(lease.status, 201, "{lease:?}");
        let patient = json!({"wait_ms": 60_000});
        let waiter = soon("the waiter", other.create("deploy", &patient));
        let holder = async {
            let waits = async || (one.look("deploy").await.json["waiting"] == 1).then_some(());
            eventually(waits).await;
            assert_eq!(one.release("deploy", &lease.token()).await.status, 204);
        };
        let (waiter, ()) = tokio::join!(waiter, holder);
        assert_eq!(waiter.status, 201, "{waiter:?}");
        [first, second]
    }
}

/// The parameters of a client that the authority vouches for.
fn certificates(authority: &Authority) -> String {
    let client = authority.sign("keylatch", &["keylatch"]);
    let (cert, key) = (authority.file("client.pem"), authority.file("client-key.pem"));
    std::fs::write(&cert, client.cert).unwrap();
    std::fs::write(&key, client.key).unwrap();
    let ca = authority.ca_file();
    format!("cacert={}&cert={}&key={}", ca.display(), cert.display(), key.display())
}

/// A service on the store, which has granted a lock.
async fn granting(url: &str, more: &[(&str, &str)]) -> (Process, Api) {
    // Only what is slow is slow here, and not a node.
    let patient = ("KEYLATCH_REDLOCK_NODE_TIMEOUT_MS", "1000");
    let service = KEYLATCH.serve(&["--store", url], &[&[patient], more].concat()).await;
    let api = Api::at(service.address);
    // A server that the service has not reached yet does not count.
    let granted = async || {
        let lease = api.create("deploy", &json!({"ttl_ms": 30_000})).await;
        (lease.status == 201).then_some(lease)
    };
    let lease = eventually(granted).await;
    assert_eq!(api.release("deploy", &lease.token()).await.status, 204);
    (service, api)
}

/// Why a service on the store grants nothing.
async fn refused(url: &str) -> String {
    let service = KEYLATCH.serve(&["--store", url], &[]).await;
    let refused = Api::at(service.address).create("deploy", &json!({})).await;
    refused.is_problem(503, "store-unavailable");
    service.ended_by("-TERM").await.stderr
}

#[tokio::test]
async fn one_redis_asks_for_a_certificate_of_a_private_authority() {
    let authority = Authority::default();
    let redis = SecureRedis::start(&authority, &[]).await;
    let (host, all) = (redis.host(), certificates(&authority));
    let url = format!("rediss://{host}/2?{all}&protocol=resp3");
    redis.hands_over(&url).await;
    let (foreign, own) = (Authority::default(), authority.ca_file());
    let log = refused(&format!("rediss://{host}?{}", certificates(&foreign))).await;
    assert!(log.contains("invalid peer certificate"), "{log}");
    let log = refused(&format!("rediss://{host}?cacert={}", own.display())).await;
    assert!(log.contains("Redis cannot be reached yet"), "no certificate of a client: {log}");
}

/// Without `cacert`, what the machine trusts counts.
#[tokio::test]
async fn roots_of_the_system_are_trusted_without_others() {
    let authority = Authority::default();
    let all = certificates(&authority);
    let own = all.split_once('&').expect("its authority first").1;
    let roots = authority.ca_file().display().to_string();
    let trust = [("SSL_CERT_FILE", roots.as_str())];
    let redis = SecureRedis::start(&authority, &[]).await;
    let url = format!("rediss://{}?{own}", redis.host());
    redis.hands_over_with(&url, &trust).await;
    let log = refused(&url).await;
    assert!(log.contains("invalid peer certificate"), "{log}");
}

/// A name that no machine has: it is for the certificates alone.
const NAME: &str = "redis.example.org";

/// The certificates of a client, and a name for those of the servers.
fn named(authority: &Authority, name: &str) -> String {
    format!("{}&servername={name}", certificates(authority))
}

#[tokio::test]
async fn certificate_may_be_for_another_name_that_the_url_has() {
    let authority = Authority::default();
    let redis = SecureRedis::start_as(&authority, &[NAME], &[]).await;
    let url = |name: &str| format!("rediss://{}?{}", redis.address(), named(&authority, name));
    redis.hands_over(&url(NAME)).await;
    let without = format!("rediss://{}?{}", redis.address(), certificates(&authority));
    for wrong in [url("other.example.org"), url("127.0.0.1"), without] {
        let log = refused(&wrong).await;
        assert!(log.contains("invalid peer certificate"), "the name is not checked: {log}");
    }
}

/// The host of a server, the names of its certificate and the parameters of the URL: once by its
/// own name, and once with a certificate for another name, where nodes announce the addresses of
/// each other.
#[cfg(feature = "test-engines")]
type Way = (fn(&SecureRedis) -> String, &'static [&'static str], String);

#[cfg(feature = "test-engines")]
fn ways(authority: &Authority) -> [Way; 2] {
    [
        (SecureRedis::host, &["localhost", "127.0.0.1"], certificates(authority)),
        (SecureRedis::address, &[NAME], named(authority, NAME)),
    ]
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn redlock_shows_its_certificate_to_every_node() {
    let authority = Authority::default();
    for (host, names, parameters) in ways(&authority) {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let remembers = ["--appendonly", "yes", "--appendfsync", "always"];
            nodes.push(SecureRedis::start_as(&authority, names, &remembers).await);
        }
        let hosts: Vec<_> = nodes.iter().map(host).collect();
        granting(&format!("rediss+redlock://{}?{parameters}", hosts.join(",")), &[]).await;
    }
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn cluster_asks_for_a_certificate() {
    let authority = Authority::default();
    for (host, names, parameters) in ways(&authority) {
        let bus = free_port().to_string();
        let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus];
        let node = SecureRedis::start_as(&authority, names, &options).await;
        let () = node.plain.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        node.hands_over(&format!("rediss+cluster://{}?{parameters}", host(&node))).await;
    }
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn sentinel_and_its_master_ask_for_a_certificate() {
    let authority = Authority::default();
    for (host, names, parameters) in ways(&authority) {
        let master = SecureRedis::start_as(&authority, names, &[]).await;
        let file = authority.file("sentinel.conf");
        let watch = format!("sentinel monitor mymaster 127.0.0.1 {} 1\n", master.port);
        std::fs::write(&file, watch).unwrap();
        let options = [&*file.display().to_string(), "--sentinel"];
        let sentinel = SecureRedis::start_as(&authority, names, &options).await;
        let url = format!("rediss+sentinel://{}/mymaster/1?{parameters}", host(&sentinel));
        let _services = master.hands_over(&url).await;
        // The sentinel publishes failovers on a connection of the same kind.
        eventually(async || {
            let listening: String = sentinel.plain.run(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
            (!listening.is_empty()).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn wrong_certificates_are_named_at_start() {
    let authority = Authority::default();
    let good = certificates(&authority);
    let path = |name: &str| authority.file(name).display().to_string();
    authority.serve();
    let pair = format!("cert={}&key={}", path("client.pem"), path("key.pem"));
    for (scheme, query, why) in [
        ("rediss", format!("cacert={}", path("absent.pem")), "the file `cacert`: No such file"),
        ("rediss", format!("cacert={}", path("key.pem")), "`cacert` has no certificate"),
        ("rediss", format!("cert={}", path("client.pem")), "`cert` and `key` belong together"),
        ("rediss+cluster", pair, "no certificate and key that fit"),
        ("redis", good.clone(), "a scheme that begins with `rediss`"),
        ("redis+sentinel", good, "a scheme that begins with `rediss`"),
        ("rediss", "servername=a%20b".to_owned(), "`servername` is no name of a server"),
        ("redis", "servername=a".to_owned(), "a scheme that begins with `rediss`"),
    ] {
        is_named_at_start(scheme, &query, why).await;
    }
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn wrong_certificates_of_redlock_etcd_and_zookeeper_are_named_at_start() {
    let authority = Authority::default();
    let key = authority.file("key.pem").display().to_string();
    authority.serve();
    for (scheme, query, why) in [
        ("redlock", &*certificates(&authority), "a scheme that begins with `rediss`"),
        ("rediss+redlock", "cacrt=a", "its parameters are `cacert`"),
        ("etcds", "cacert=/absent.pem", "the file `cacert`"),
        ("etcds", &format!("cacert={key}"), "no certificate"),
        ("zookeepers", "cacert=/absent.pem", "`cacert` has no certificate"),
    ] {
        is_named_at_start(scheme, query, why).await;
    }
}

async fn is_named_at_start(scheme: &str, query: &str, why: &str) {
    let hosts = if scheme == "redis" || scheme == "rediss" { "a" } else { "a,b,c" };
    let store = format!("{scheme}://u:sesame@{hosts}?{query}");
    let ended = KEYLATCH.run(&["--listen", "127.0.0.1:0", "--store", &store]).await;
    assert_eq!(ended.code, Some(1), "{scheme} {query}: {ended:?}");
    assert!(ended.stderr.contains(why), "{scheme} {query}: {ended:?}");
    assert!(!ended.stderr.contains("sesame"), "{ended:?}");
}
