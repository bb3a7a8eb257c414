//! Goal: a certificate that an authority of `tls.client_ca` signed makes the requests of its
//! connection those of the identity that the file of identities names for it; an API key in a
//! request counts before it.
//!
//! Method: certificates by an authority of the test's own, and by another one.

use keylatch::app::App;
use keylatch::config::{Config, Flags};
use keylatch::http::{Guard, GuardAccess};
use keylatch_testkit::{
    Answer, Authority, Certificate, Keyring, RawConnection, Service, Upstream, config, connect_tls,
    eventually, handshake,
};
use rustls::version::{TLS12, TLS13};
use tokio::io::AsyncReadExt as _;

const OWN: &str = "allow = [{ locks = \"own/\", may = [\"acquire\", \"read\"] }]";
const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]";

struct SecureService {
    authority: Authority,
    keyring: Keyring,
    /// The key of the identity that may do everything.
    key: String,
    service: Service,
}

impl SecureService {
    /// A service where `ci` is known by certificates, `admin` by a key, and `both` by either.
    async fn start() -> Self {
        let (authority, mut keyring) = (Authority::default(), Keyring::default());
        let key = keyring.add("admin", ALL);
        keyring.add("both", &format!("certificates = [\"both\"]\n{OWN}"));
        keyring.add_certificates("ci", &["ci", "ci.example", "10.0.0.1"], OWN);
        let service = Service::start_with(with_clients(&authority, &keyring)).await;
        Self { authority, keyring, key, service }
    }

    async fn connect(&self, certificate: Option<&Certificate>) -> RawConnection {
        connect_tls(self.service.address, &self.authority.client(&[], certificate)).await
    }
}

fn with_clients(authority: &Authority, keyring: &Keyring) -> Config {
    Config { tls: authority.serve_clients(), ..keyring.config() }
}

/// Looks at a lock with these further lines in the head.
async fn look(wire: &mut RawConnection, name: &str, lines: &str) -> Answer {
    wire.send(&format!("GET /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).await;
    wire.answer().await
}

#[tokio::test]
async fn certificate_of_an_identity_is_its_credential() {
    let place = SecureService::start().await;
    for (common_name, names) in
        [("ci", &[][..]), ("-", &["ci.example"]), ("-", &["a.example", "10.0.0.1"]), ("both", &[])]
    {
        let certificate = place.authority.sign(common_name, names);
        let mut wire = place.connect(Some(&certificate)).await;
        look(&mut wire, "own%2Fa", "").await.is_problem(404, "lock-not-held");
        look(&mut wire, "other", "").await.is_problem(403, "forbidden");
    }
}

#[tokio::test]
async fn certificate_of_no_identity_or_of_two_reads_401() {
    let place = SecureService::start().await;
    for (common_name, names, why) in [
        ("CI", &[][..], "no identity"),
        ("ci.example.org", &["xci.example"], "no identity"),
        ("ci", &["both"], "several"),
    ] {
        let certificate = place.authority.sign(common_name, names);
        let refused = look(&mut place.connect(Some(&certificate)).await, "own%2Fa", "").await;
        refused.is_problem(401, "unauthenticated");
        assert!(refused.json["detail"].as_str().unwrap().contains(why), "{refused:?}");
    }
    let none = look(&mut place.connect(None).await, "own%2Fa", "").await;
    none.is_problem(401, "unauthenticated");
    assert_eq!(place.connect(None).await.get("/livez").await.status, 200);
}

#[tokio::test]
async fn key_in_the_request_counts_before_the_certificate() {
    let place = SecureService::start().await;
    let certificate = place.authority.sign("ci", &[]);
    let mut wire = place.connect(Some(&certificate)).await;
    let bearer = format!("Authorization: Bearer {}\r\n", place.key);
    look(&mut wire, "other", &bearer).await.is_problem(404, "lock-not-held");
    look(&mut wire, "other", "").await.is_problem(403, "forbidden");
    // A wrong key is not made good by the certificate.
    let unknown = Keyring::default().add("ci", ALL);
    for wrong in [format!("Bearer {unknown}"), "Bearer".to_owned(), format!("Token {unknown}")] {
        let line = format!("Authorization: {wrong}\r\n");
        let mut wire = place.connect(Some(&certificate)).await;
        let refused = look(&mut wire, "own%2Fa", &line).await;
        refused.is_problem(401, "unauthenticated");
    }
    look(&mut place.connect(None).await, "other", &bearer).await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn certificate_of_another_authority_is_refused_in_the_handshake() {
    let place = SecureService::start().await;
    let foreign = Authority::default().sign("ci", &["ci.example"]);
    for version in [&TLS12, &TLS13] {
        let client = place.authority.client_of(&[version], &[], Some(&foreign));
        let refused = match handshake(place.service.address, &client).await {
            // With TLS 1.3 the client's side of the handshake ends before the service's.
            Ok(mut stream) => stream.read_u8().await.expect_err("the service sent something"),
            Err(refused) => refused,
        };
        // A service that does not ask for a certificate would close the connection later, without a
        // word.
        let why = refused.get_ref().and_then(|why| why.downcast_ref::<rustls::Error>());
        assert!(matches!(why, Some(rustls::Error::AlertReceived(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn changed_authority_of_clients_is_followed() {
    let secure = SecureService::start().await;
    let (old, other) = (secure.authority.sign("ci", &[]), Authority::default());
    let new = other.sign("ci", &[]);
    let status = async |certificate: &Certificate| {
        let client = secure.authority.client_of(&[&TLS12], &[], Some(certificate));
        // With TLS 1.2 the handshake ends on both sides at once.
        let mut wire = RawConnection::over(handshake(secure.service.address, &client).await.ok()?);
        Some(look(&mut wire, "own%2Fa", "").await.status.as_u16())
    };
    assert_eq!((status(&old).await, status(&new).await), (Some(404), None));
    let mut open = secure.connect(Some(&old)).await;
    // A file that is none changes nothing.
    std::fs::write(secure.authority.ca_file(), "no certificate").expect("a file");
    assert_eq!((status(&old).await, status(&new).await), (Some(404), None));
    std::fs::copy(other.ca_file(), secure.authority.ca_file()).expect("a file");
    eventually(async || (status(&new).await == Some(404)).then_some(())).await;
    assert_eq!(status(&old).await, None);
    open.closed().await;
}

#[tokio::test]
async fn change_of_the_identities_holds_for_open_connections() {
    let secure = SecureService::start().await;
    let mut wire = secure.connect(Some(&secure.authority.sign("ci", &[]))).await;
    look(&mut wire, "own%2Fa", "").await.is_problem(404, "lock-not-held");
    let mut without = Keyring::default();
    without.add("admin", ALL);
    secure.keyring.write(without.text());
    eventually(async || (look(&mut wire, "own%2Fa", "").await.status == 401).then_some(())).await;
}

#[tokio::test]
async fn guard_for_identities_takes_the_certificate() {
    let (authority, mut keyring) = (Authority::default(), Keyring::default());
    keyring.add_certificates("ci", &["ci"], OWN);
    let upstream = Upstream::start().await;
    let (path, access) = ("/orders".to_owned(), GuardAccess::Identity);
    let guard = Guard { path, upstream: upstream.url(), access, ..Guard::default() };
    let config = Config { guard: vec![guard], ..with_clients(&authority, &keyring) };
    let service = Service::start_with(config).await;
    let request = "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\n\
                   Content-Length: 0\r\n\r\n";
    for (certificate, status) in [(Some(authority.sign("ci", &[])), 201), (None, 401)] {
        let client = authority.client(&[], certificate.as_ref());
        let mut wire = connect_tls(service.address, &client).await;
        wire.send(request).await;
        assert_eq!(wire.answer().await.status, status);
    }
}

#[tokio::test]
async fn authority_of_clients_without_identities_or_certificate_is_refused() {
    let (authority, mut keyring) = (Authority::default(), Keyring::default());
    keyring.add("admin", ALL);
    let ca = authority.ca_file().display().to_string();
    let start = async |pairs: &[(&str, &str)]| {
        let variables = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let loaded = Config::load(&Flags::default(), variables).expect("settings");
        App::new(Config { store: config("memory:").store, ..loaded })
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let tls = authority.serve();
    let pair = [("KEYLATCH_TLS_CERT", tls.cert.as_str()), ("KEYLATCH_TLS_KEY", tls.key.as_str())];
    let ca = ("KEYLATCH_TLS_CLIENT_CA", ca.as_str());
    let identities = keyring.path().display().to_string();
    let identities = ("KEYLATCH_IDENTITIES", identities.as_str());
    for (settings, why) in [
        (&[pair[0], pair[1], ca][..], "`tls.client_ca`"),
        (&[ca, identities], "`tls.cert`"),
        (&[pair[0]], "`tls.key`"),
        (&[pair[1]], "`tls.cert`"),
    ] {
        let refused = start(settings).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    start(&[pair[0], pair[1], ca, identities]).await.unwrap();

    let wrong = with_clients(&authority, &keyring);
    std::fs::write(&wrong.tls.client_ca, "no certificate").unwrap();
    let refused = App::new(wrong).await.unwrap_err().to_string();
    assert!(refused.contains("`tls.client_ca`"), "{refused}");
    App::new(config("memory:")).await.unwrap();
}
