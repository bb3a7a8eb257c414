//! Goal: every spelling of a key is one key, and keys of two principals, methods or paths are
//! separate.
//!
//! Method: requests with the key as header and form field, on each store, and a search for the key
//! in what each store has written.

use keylatch::http::MissingKey;
use keylatch_testkit::{
    Answer, RawConnection, RedisServer, Shop, TestStore, redis_test, store_test,
};
use reqwest::Method;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::json;

const FORM: &str = "application/x-www-form-urlencoded";
const PARTS: &str = "multipart/form-data; boundary=x";

#[store_test(memory)]
async fn quotes_and_parameters_of_a_key_are_ignored(shop: &Shop) {
    shop.buy("\"k-1\"").await.is_run(1);
    let display_string = "\"k-1\";a=%\"x,\\\"";
    for same in ["k-1", "\"k-1\"", "  k-1  ", "\"k-1\";a=b", "\"k-1\" ; a=\"x,y\"", display_string]
    {
        shop.buy(same).await.is_replay_of(1);
    }
    for (run, (key, text)) in (2..).zip([(r#""a\"b\\c""#, r#"a"b\c"#), (r#""a;b,c""#, "a;b,c")]) {
        shop.buy(key).await.is_run(run);
        assert_eq!(shop.upstream.last().headers["idempotency-key"], text);
        shop.buy(key).await.is_replay_of(run);
    }
    assert_eq!(shop.upstream.runs(), 3);
}

#[store_test(memory)]
async fn key_has_1_to_255_characters(shop: &Shop) {
    let longest = "k".repeat(255);
    shop.buy("k").await.is_run(1);
    shop.buy(&longest).await.is_run(2);
    shop.buy(&format!("\"{longest}\"")).await.is_replay_of(2);
    for long in ["k".repeat(256), format!("\"{longest}k\"")] {
        shop.buy(&long).await.is_refusal(400, "invalid-key", "new-key");
    }
    assert_eq!(shop.upstream.runs(), 2);
}

#[store_test(memory)]
async fn numbers_are_keys_and_case_counts(shop: &Shop) {
    let keys = ["42", "-1", "3.14", "0", "1700000000000", "?1", ":aGk=:", "order-a", "Order-A"];
    for (run, key) in (1..).zip(keys) {
        shop.buy(key).await.is_run(run);
        shop.buy(key).await.is_replay_of(run);
    }
}

#[store_test(memory)]
async fn semicolon_in_a_bare_key_is_refused(shop: &Shop) {
    shop.buy("\"tenant;1\"").await.is_run(1);
    for key in ["tenant;1", "tenant;2", "k-1;a=b", "k-1; a"] {
        shop.buy(key).await.is_refusal(400, "invalid-key", "new-key");
    }
    shop.buy("\"tenant;2\"").await.is_run(2);
    shop.buy("\"tenant;1\"").await.is_replay_of(1);
}

#[store_test(memory)]
async fn space_in_a_quoted_key_counts(shop: &Shop) {
    shop.buy("\"q w\"").await.is_run(1);
    assert_eq!(shop.upstream.last().headers["idempotency-key"], "q w");
    shop.buy("\"q w\"").await.is_replay_of(1);
    shop.buy("\"qw\"").await.is_run(2);
    for key in ["\"q w \"", "\" q w\""] {
        shop.buy(key).await.is_refusal(400, "invalid-key", "new-key");
    }
    let (kind, form) = (PARTS, part("idempotency_key", "\"q w\"") + "--x--");
    let request = shop.request(Method::PATCH, "/orders").header("Content-Type", kind);
    Answer::of(request.body(form)).await.is_run(3);
    assert_eq!(shop.upstream.last().headers["idempotency-key"], "q w", "one key, not a list");
    assert_eq!(shop.record("q%20w").await["state"], "done");
}

#[store_test(memory)]
async fn invalid_key_is_refused_and_runs_nothing(shop: &Shop) {
    let values: [(&[u8], &str); 18] = [
        (b"", "it is empty"),
        (b"\"\"", "it is empty"),
        (b"\"  \"", "it is empty"),
        (b";a=b", "it has a `;`"),
        (b"\"k", "quotes are not balanced"),
        (b"k\"", "quotes are not balanced"),
        (b"\"k\"x", "quotes are not balanced"),
        (b"\"k\\x\"", "quotes are not balanced"),
        (b"\"k\";a=\"b", "quotes are not balanced"),
        (b"a, b", "it is a list"),
        (b"\"a\", \"b\"", "it is a list"),
        (b"\"a\";p=1, \"b\"", "it is a list"),
        (b"\" 17\"", "it begins or ends with a space"),
        (b"a b", "not visible ASCII"),
        (b"a\tb", "not visible ASCII"),
        ("schl\u{fc}ssel".as_bytes(), "not visible ASCII"),
        (b"k\xff", "not visible ASCII"),
        (b"\"k\xff\"", "not visible ASCII"),
    ];
    for (value, rule) in values {
        let key = HeaderValue::from_bytes(value).expect("a value that travels");
        let request = shop.request(Method::POST, "/orders").header("Idempotency-Key", key);
        let refused = Answer::of(request.json(&json!({}))).await;
        refused.is_refusal(400, "invalid-key", "new-key");
        assert_eq!(refused.json["field"], "Idempotency-Key", "{refused:?}");
        assert!(refused.json["detail"].to_string().contains(rule), "{refused:?}");
    }
    let two_lines = shop.order("a").header("Idempotency-Key", "a");
    Answer::of(two_lines).await.is_refusal(400, "invalid-key", "new-key");
    for control in ["\u{1}", "\u{7f}", "\u{0}"] {
        let head = format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k{control}\r\n\r\n"
        );
        let mut wire = RawConnection::sending(shop.address, &head).await;
        assert_eq!(wire.answer().await.status, 400, "{control:?}");
    }
    assert_eq!(shop.upstream.runs(), 0);
}

#[store_test(memory)]
async fn form_field_is_a_valid_key(shop: &Shop) {
    let urlencoded = |key: &str| (FORM, format!("amount=1&idempotency_key={key}"));
    let parts = |key: &str| (PARTS, part("amount", "1") + &part("idempotency_key", key) + "--x--");
    for (run, (kind, form)) in (1..).zip([urlencoded("k-1"), parts("k-2")]) {
        let send = || shop.request(Method::POST, "/orders").header("Content-Type", kind);
        Answer::of(send().body(form.clone())).await.is_run(run);
        assert_eq!(shop.upstream.last().headers["idempotency-key"], format!("k-{run}"));
        assert_eq!(shop.upstream.last().body, form);
        Answer::of(send().body(form.clone())).await.is_replay_of(run);
        // The header may say the same beside it.
        let both = send().header("Idempotency-Key", format!("\"k-{run}\""));
        Answer::of(both.body(form)).await.is_replay_of(run);
    }
    let twice = |one: &str, rest| (PARTS, part("idempotency_key", one) + rest);
    for (kind, form) in [
        urlencoded("a+b"),
        urlencoded(""),
        urlencoded("a&idempotency_key=a"),
        parts("a b"),
        parts(""),
        twice("k", &parts("k").1),
    ] {
        let request = shop.request(Method::POST, "/orders").header("Content-Type", kind);
        Answer::of(request.body(form)).await.is_refusal(400, "invalid-key", "new-key");
    }
    assert_eq!(shop.upstream.runs(), 2);
}

#[store_test(memory)]
async fn contradicting_header_and_field_are_refused(shop: &Shop) {
    let field = part("idempotency_key", "k-1") + "--x--";
    for (kind, form) in [(FORM, "idempotency_key=k-1"), (PARTS, &field)] {
        let request = shop.request(Method::POST, "/orders").header("Content-Type", kind);
        let request = request.header("Idempotency-Key", "K-1").body(form.to_owned());
        Answer::of(request).await.is_refusal(400, "invalid-key", "new-key");
    }
    assert_eq!(shop.upstream.runs(), 0);
}

#[store_test(memory)]
async fn missing_key_is_refused(shop: &Shop) {
    for method in [Method::POST, Method::PATCH] {
        for kind in ["application/json", FORM, PARTS, ""] {
            let request = shop.request(method.clone(), "/orders").header("Content-Type", kind);
            let refused = Answer::of(request.body("amount=1")).await;
            refused.is_refusal(400, "key-required", "new-key");
            let detail = refused.json["detail"].as_str().unwrap_or_default();
            assert!(detail.contains("a form field `idempotency_key`"), "{refused:?}");
        }
    }
    assert_eq!(shop.upstream.runs(), 0);
}

#[store_test(memory)]
async fn missing_key_runs_unguarded_where_the_guard_allows(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| guard.missing_key = MissingKey::Pass).await;
    for (run, kind) in (1..).zip(["application/json", "application/json", FORM, FORM]) {
        let request = shop.request(Method::POST, "/orders").header("Content-Type", kind);
        let answer = Answer::of(request.body("amount=1")).await;
        answer.is_run(run);
        assert_eq!(answer.header("idempotency-key-expires"), "", "{answer:?}");
        let seen = shop.upstream.last();
        assert_eq!(seen.body, "amount=1");
        assert!(!seen.headers.contains_key("idempotency-fence"), "{seen:?}");
    }
    // A key still counts, and one that is none is still refused.
    shop.buy("k-1").await.is_run(5);
    shop.buy("k-1").await.is_replay_of(5);
    shop.buy("\"k-1").await.is_refusal(400, "invalid-key", "new-key");
    assert_eq!(shop.upstream.runs(), 5);
}

#[store_test(memory)]
async fn safe_methods_are_not_guarded(shop: &Shop) {
    let mut runs = 0;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
        for _ in 0..2 {
            let request = shop.request(method.clone(), "/orders").header("Idempotency-Key", "k-1");
            let answer = Answer::of(request).await;
            runs += 1;
            assert_eq!((answer.status.as_u16(), shop.upstream.runs()), (201, runs), "{method}");
            assert_eq!(answer.header("idempotent-replayed"), "", "{answer:?}");
        }
    }
    let patch = || shop.request(Method::PATCH, "/orders/17").header("Idempotency-Key", "k-1");
    Answer::of(patch()).await.is_run(runs + 1);
    Answer::of(patch()).await.is_replay_of(runs + 1);
}

#[store_test(memory)]
async fn guard_applies_to_its_methods_only(store: &TestStore) {
    let shop = Shop::open_with(store.url(), |guard| guard.methods = vec!["PUT".to_owned()]).await;
    let put = || shop.request(Method::PUT, "/orders/17").header("Idempotency-Key", "k-2");
    Answer::of(put()).await.is_run(1);
    Answer::of(put()).await.is_replay_of(1);
    shop.buy("k-2").await.is_run(2);
    shop.buy("k-2").await.is_run(3);
}

#[store_test(memory)]
async fn keys_of_two_principals_are_separate(store: &TestStore) {
    let principal = HeaderName::from_static("x-user");
    let header = principal.as_str().to_owned();
    let shop = Shop::open_with(store.url(), |guard| guard.principal_header = header).await;
    let buy = async |user: &str, credential: &str| {
        let request =
            shop.order("k-1").header(&principal, user).header("Authorization", credential);
        Answer::of(request).await
    };
    buy("ada", "Bearer 1").await.is_run(1);
    buy("bob", "Bearer 2").await.is_run(2);
    // A credential that was refreshed is still the same person's.
    buy("ada", "Bearer 3").await.is_replay_of(1);
    buy("bob", "Bearer 1").await.is_replay_of(2);
    assert_eq!(shop.upstream.runs(), 2);
}

#[store_test(memory)]
async fn keys_of_two_methods_or_paths_are_separate(shop: &Shop) {
    let requests = [
        (Method::POST, "/orders"),
        (Method::PATCH, "/orders"),
        (Method::POST, "/orders/1"),
        (Method::POST, "/orders/1/2"),
        (Method::POST, "/orders/1%2F2"),
        (Method::POST, "/orders/A"),
        (Method::POST, "/orders/a"),
        (Method::POST, "/orders/a;b"),
        (Method::POST, "/orders/a%3Bb"),
        (Method::POST, "/orders/%2"),
        (Method::POST, "/orders/%252"),
        (Method::POST, "/orders/a%2F"),
        (Method::POST, "/orders/a%252F"),
    ];
    for round in 0..2 {
        for (run, (method, path)) in (1..).zip(&requests) {
            let request = shop.request(method.clone(), path).header("Idempotency-Key", "k-1");
            let answer = Answer::of(request).await;
            if round == 0 { answer.is_run(run) } else { answer.is_replay_of(run) }
        }
    }
}

#[store_test(memory)]
async fn equivalent_paths_share_a_key(shop: &Shop) {
    let spellings = ["/orders/a-b", "/orders/a%2Db", "/orders/a%2db", "/orders/%61-b/"];
    for (number, path) in spellings.iter().enumerate() {
        let request = shop.request(Method::POST, path).header("Idempotency-Key", "k-1");
        let answer = Answer::of(request).await;
        if number == 0 { answer.is_run(1) } else { answer.is_replay_of(1) }
    }
    assert_eq!(shop.upstream.runs(), 1);
}

#[redis_test]
async fn keys_are_stored_in_their_records_alone() {
    const KEY: &str = "a-key-that-is-nobodys-business";
    let (redis, directory) =
        (RedisServer::start().await, tempfile::tempdir().expect("a directory"));
    for store in [redis.url(), format!("embedded:{}", directory.path().display())] {
        let shop = Shop::open(&store).await;
        shop.buy(KEY).await.is_run(1);
        shop.buy(KEY).await.is_replay_of(1);
    }
    let has =
        |stored: &Vec<u8>, text: &str| stored.windows(text.len()).any(|it| it == text.as_bytes());
    let mut files = Vec::new();
    for file in std::fs::read_dir(directory.path()).expect("a directory") {
        files.push(std::fs::read(file.expect("an entry").path()).expect("a file"));
    }
    assert!(files.iter().any(|file| has(file, KEY)), "no list could show the key");
    let names: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(!has(&names.concat().into_bytes(), KEY), "a key is in a name: {names:?}");
    let _: String = redis.run(&["CONFIG", "SET", "rdbcompression", "no"]).await;
    for name in names {
        let value: Vec<u8> = redis.run(&["DUMP", &name]).await;
        // The stored answer, whose body says more than the key does, is in the same value.
        assert_eq!(has(&value, KEY), name.contains(":record:"), "{name}");
        assert_eq!(has(&value, KEY), has(&value, "application/json"), "{name}");
    }
}

#[tokio::test]
async fn credential_that_tells_principals_apart_is_not_stored() {
    const VALUE: &str = "the-value-of-the-header";
    for (header, is_stored) in [("x-user", true), ("authorization", false), ("x-api-key", false)] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = format!("embedded:{}", directory.path().display());
        let shop =
            Shop::open_with(&store, |guard| guard.principal_header = header.to_owned()).await;
        let order = |value: &str| Answer::of(shop.order("k-1").header(header, value));
        order(VALUE).await.is_run(1);
        order(VALUE).await.is_replay_of(1);
        order("another").await.is_run(2);
        let mut files = std::fs::read_dir(directory.path()).expect("a directory");
        let has_value = files.any(|file| {
            let bytes = std::fs::read(file.expect("an entry").path()).expect("a file");
            bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes())
        });
        assert_eq!(has_value, is_stored, "{header}");
    }
}

/// One field of a form in parts.
fn part(name: &str, value: &str) -> String {
    format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}
