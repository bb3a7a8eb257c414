//! Goal: a token that the issuer signed for the service, for now, is the identity that its claim
//! names; every other token reads 401, and one that cannot be checked 503.
//!
//! Method: an issuer of the test's own, whose keys are in a file or behind a URL. The tokens are
//! put together by hand, so that each can be wrong in one place.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use keylatch::config::Config;
use keylatch_testkit::{Answer, Keyring, Service, eventually};
use reqwest::Method;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};

const ISSUER: &str = "https://id.example";
const READS: &str = "allow = [{ locks = \"\", may = [\"read\"] }]\n";

/// A key by which tokens are signed.
enum SigningKey {
    Edwards(Ed25519KeyPair),
    Curve(Box<EcdsaKeyPair>),
}

impl SigningKey {
    fn edwards() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Edwards(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn curve() -> Self {
        let (method, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(method, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(method, document.as_ref(), &random).unwrap();
        Self::Curve(Box::new(pair))
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::Edwards(pair) => pair.public_key().as_ref(),
            Self::Curve(pair) => pair.public_key().as_ref(),
        }
    }

    fn jwk(&self, id: &str) -> Value {
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let public = self.public();
        match self {
            Self::Edwards(_) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": part(public)})
            }
            Self::Curve(_) => json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig",
                "x": part(&public[1..33]), "y": part(&public[33..])}),
        }
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Edwards(_) => "EdDSA",
            Self::Curve(_) => "ES256",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Edwards(pair) => pair.sign(message).as_ref().to_vec(),
            Self::Curve(pair) => {
                pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
            }
        }
    }

    fn token(&self, id: &str, claims: &Value) -> String {
        signed(&json!({"alg": self.algorithm(), "kid": id}), claims, |text| self.sign(text))
    }
}

fn signed(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// Seconds since 1970, so many from now.
fn from_now(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + seconds
}

fn claims(of: &Value) -> Value {
    json!({"iss": ISSUER, "aud": "keylatch", "exp": from_now(600), "who": of})
}

fn with(member: &str, value: Value) -> Value {
    let mut claims = claims(&json!("repo:acme"));
    claims[member] = value;
    claims
}

fn without(member: &str) -> Value {
    let mut claims = claims(&json!("repo:acme"));
    claims.as_object_mut().unwrap().remove(member);
    claims
}

fn keyring() -> Keyring {
    let mut keyring = Keyring::default();
    keyring.add("ci", &format!("claims = [\"repo:acme\", \"deployers\"]\n{READS}"));
    keyring.add("other", &format!("claims = [\"repo:other\"]\n{READS}"));
    keyring
}

fn config(keyring: &Keyring, jwks: &str) -> Config {
    let mut config = keyring.config();
    config.jwt.issuer = ISSUER.to_owned();
    config.jwt.audience = "keylatch".to_owned();
    config.jwt.jwks = jwks.to_owned();
    config.jwt.claim = "who".to_owned();
    config
}

/// A service that takes the tokens of these keys.
async fn start(keys: &[&Value]) -> (Service, Keyring) {
    let keyring = keyring();
    let file = keyring.path().with_file_name("issuer.json");
    std::fs::write(&file, json!({"keys": keys}).to_string()).unwrap();
    let service = Service::start_with(config(&keyring, &file.display().to_string())).await;
    (service, keyring)
}

async fn list(service: &Service, token: &str) -> Answer {
    Answer::of(service.request(Method::GET, "/v1/locks").bearer_auth(token)).await
}

#[tokio::test]
async fn token_of_the_issuer_is_the_identity_of_its_claim() {
    for key in [SigningKey::edwards(), SigningKey::curve()] {
        let (service, _keyring) = start(&[&key.jwk("one")]).await;
        for of in [json!("repo:acme"), json!(["nobody", "deployers", "repo:acme"])] {
            let token = key.token("one", &claims(&of));
            let listed = list(&service, &token).await;
            assert_eq!(listed.status, 200, "{of}: {listed:?}");
            let basic = format!("Basic {}", STANDARD.encode(format!("any:{token}")));
            let request = service.request(Method::GET, "/v1/locks").header("authorization", basic);
            assert_eq!(Answer::of(request).await.status, 200, "{of}");
        }
        // What the identity may do counts for its tokens too.
        let token = key.token("one", &claims(&json!("repo:acme")));
        let create = service.request(Method::POST, "/v1/locks/a").bearer_auth(&token);
        Answer::of(create).await.is_problem(403, "forbidden");
    }
}

#[tokio::test]
async fn clocks_may_differ_by_a_minute() {
    let key = SigningKey::edwards();
    let (service, _keyring) = start(&[&key.jwk("one")]).await;
    for near in [with("exp", json!(from_now(-30))), with("nbf", json!(from_now(30)))] {
        assert_eq!(list(&service, &key.token("one", &near)).await.status, 200, "{near}");
    }
    for far in [with("exp", json!(from_now(-90))), with("nbf", json!(from_now(90)))] {
        list(&service, &key.token("one", &far)).await.is_problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn token_with_a_wrong_signature_reads_401() {
    let (key, other) = (SigningKey::edwards(), SigningKey::edwards());
    let curve = SigningKey::curve();
    let (service, _keyring) = start(&[&key.jwk("one"), &curve.jwk("two")]).await;
    let good = claims(&json!("repo:acme"));
    let none = json!({"alg": "none", "kid": "one"});
    let shared = json!({"alg": "HS256", "kid": "one"});
    let hmac = |text: &[u8]| {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, key.public());
        hmac::sign(&secret, text).as_ref().to_vec()
    };
    let token = key.token("one", &good);
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = message.split_once('.').unwrap();
    let other_claims = URL_SAFE_NO_PAD.encode(with("who", json!("repo:other")).to_string());
    for (what, token) in [
        ("another key", other.token("one", &good)),
        ("another key's id", key.token("two", &good)),
        ("an unknown id", key.token("three", &good)),
        ("no signature", signed(&none, &good, |_| Vec::new())),
        ("an empty signature", format!("{message}.")),
        ("the public key as a secret", signed(&shared, &good, hmac)),
        ("other claims", format!("{header}.{other_claims}.{signature}")),
        ("no JSON", format!("e30x.e30x.{signature}")),
    ] {
        is_refused(&service, what, &token).await;
    }
    assert_eq!(list(&service, &token).await.status, 200);
}

#[tokio::test]
async fn token_with_a_wrong_claim_reads_401() {
    let key = SigningKey::edwards();
    let (service, _keyring) = start(&[&key.jwk("one")]).await;
    for (what, claims) in [
        ("another issuer", with("iss", json!("https://evil.example"))),
        ("no issuer", without("iss")),
        ("a list of issuers", with("iss", json!([ISSUER]))),
        ("issuers with another", with("iss", json!(["https://evil.example", ISSUER]))),
        ("another audience", with("aud", json!("shop"))),
        ("other audiences", with("aud", json!(["shop", "bank"]))),
        ("no audience", without("aud")),
        ("no end", without("exp")),
        ("an end that is text", with("exp", json!("never"))),
        ("an unknown claim", claims(&json!("repo:acme2"))),
        ("no claim", without("who")),
        ("a number as a claim", claims(&json!(7))),
        ("claims of two identities", claims(&json!(["repo:acme", "repo:other"]))),
    ] {
        is_refused(&service, what, &key.token("one", &claims)).await;
    }
    let audiences = with("aud", json!(["shop", "keylatch"]));
    assert_eq!(list(&service, &key.token("one", &audiences)).await.status, 200);
}

/// RFC 7515, section 4.1.11: who does not know what is critical refuses the token.
#[tokio::test]
async fn token_with_a_critical_extension_reads_401() {
    let key = SigningKey::edwards();
    let (service, _keyring) = start(&[&key.jwk("one")]).await;
    for extension in [
        json!({"crit": ["b64"], "b64": false}),
        json!({"crit": ["exp"], "exp": 1}),
        json!({"crit": []}),
        json!({"crit": "b64"}),
    ] {
        let mut header = json!({"alg": key.algorithm(), "kid": "one"});
        header.as_object_mut().unwrap().extend(extension.as_object().unwrap().clone());
        let token = signed(&header, &claims(&json!("repo:acme")), |text| key.sign(text));
        is_refused(&service, &extension.to_string(), &token).await;
    }
}

async fn is_refused(service: &Service, what: &str, token: &str) {
    let answer = list(service, token).await;
    assert_eq!(answer.status, 401, "{what}: {answer:?}");
    answer.is_problem(401, "unauthenticated");
    let (_, signature) = token.rsplit_once('.').unwrap();
    assert!(signature.is_empty() || !answer.text.contains(signature), "{what}: {answer:?}");
}

#[tokio::test]
async fn token_reads_401_where_there_is_no_issuer() {
    let (key, keyring) = (SigningKey::edwards(), keyring());
    let service = Service::start_with(keyring.config()).await;
    let token = key.token("one", &claims(&json!("repo:acme")));
    list(&service, &token).await.is_problem(401, "unauthenticated");
}

/// A server that answers with the keys that the test set last, or 500.
struct KeyServer {
    url: String,
    keys: Arc<Mutex<Option<Value>>>,
}

impl KeyServer {
    async fn start() -> Self {
        let keys = Arc::new(Mutex::new(None::<Value>));
        let given = Arc::clone(&keys);
        let answer = move || {
            let keys = given.lock().unwrap().clone();
            async move {
                keys.map(|keys| keys.to_string()).ok_or(reqwest::StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let router = Router::new().route("/keys", get(answer));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, keys }
    }

    fn give(&self, keys: Option<&[Value]>) {
        *self.keys.lock().unwrap() = keys.map(|keys| json!({"keys": keys}));
    }
}

#[tokio::test]
async fn keys_of_a_url_are_fetched_again_and_kept_while_it_is_away() {
    let (first, second) = (SigningKey::edwards(), SigningKey::curve());
    let (server, mut keyring) = (KeyServer::start().await, keyring());
    let api_key = keyring.add("by-key", READS);
    server.give(Some(&[first.jwk("one")]));
    let service = Service::start_with(config(&keyring, &server.url)).await;
    let claims = claims(&json!("repo:acme"));
    let is_taken = async |key: &SigningKey, id: &str| {
        let answer = list(&service, &key.token(id, &claims)).await;
        (answer.status == 200).then_some(())
    };
    eventually(async || is_taken(&first, "one").await).await;
    server.give(Some(&[second.jwk("two")]));
    // A key that is not known has the service ask again, before the five minutes are over.
    eventually(async || is_taken(&second, "two").await).await;
    assert_eq!(is_taken(&first, "one").await, None, "the issuer has it no more");
    server.give(None);
    list(&service, &second.token("three", &claims)).await.is_problem(401, "unauthenticated");
    assert_eq!(is_taken(&second, "two").await, Some(()));
    assert_eq!(list(&service, &api_key).await.status, 200);
}

#[tokio::test]
async fn token_reads_503_until_the_first_keys_are_there() {
    let (key, server, mut keyring) = (SigningKey::edwards(), KeyServer::start().await, keyring());
    let api_key = keyring.add("by-key", READS);
    let service = Service::start_with(config(&keyring, &server.url)).await;
    let token = key.token("one", &claims(&json!("repo:acme")));
    let answer = list(&service, &token).await;
    answer.is_problem(503, "overloaded");
    assert_eq!(answer.json["outcome"], "not-executed");
    assert_eq!(list(&service, &api_key).await.status, 200, "keys need no issuer");
    server.give(Some(&[key.jwk("one")]));
    let taken = async || (list(&service, &token).await.status == 200).then_some(());
    eventually(taken).await;
}
