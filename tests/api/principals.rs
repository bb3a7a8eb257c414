//! Goal: a key belongs to the principal that a trusted proxy names, and to no other: two names are
//! never one, and a request without a name, with two or from elsewhere is not taken for any.
//!
//! Method: requests under one key, with every kind of `X-User`.

use keylatch_testkit::{
    Answer, Keyring, RawConnection, Service, Shop, Upstream, config, guard_orders,
};
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::json;

async fn shop_of_people() -> Shop {
    Shop::open_with("memory:", |guard| guard.principal_header = "X-User".to_owned()).await
}

#[tokio::test]
async fn names_that_are_no_utf8_are_separate() {
    let shop = shop_of_people().await;
    let names: [&[u8]; 6] = [
        b"jos\xe9",
        b"jos\xe8",
        "jos\u{e9}".as_bytes(),
        "jos\u{fffd}".as_bytes(),
        b"jos%E9",
        b"jos",
    ];
    for round in 0..2 {
        for (run, name) in (1..).zip(names) {
            let name = HeaderValue::from_bytes(name).expect("a value that travels");
            let answer = Answer::of(shop.order("k-1").header("X-User", name)).await;
            if round == 0 { answer.is_run(run) } else { answer.is_replay_of(run) }
        }
    }
}

#[tokio::test]
async fn two_names_are_refused() {
    let shop = shop_of_people().await;
    for method in ["POST", "GET"] {
        let head = format!(
            "{method} /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\nX-User: eve\r\n\
             X-User: ada\r\nContent-Length: 0\r\n\r\n"
        );
        let refused = RawConnection::sending(shop.address, &head).await.answer().await;
        refused.is_refusal(400, "invalid-principal", "new-key");
        assert_eq!(refused.json["field"], "x-user", "{refused:?}");
    }
    assert_eq!(shop.upstream.runs(), 0);
}

#[tokio::test]
async fn missing_name_is_refused_where_a_header_is_set() {
    let shop = shop_of_people().await;
    for name in [None, Some("")] {
        let order = name.map_or(shop.order("k-1"), |name| shop.order("k-1").header("X-User", name));
        let refused = Answer::of(order).await;
        refused.is_refusal(401, "principal-required", "same-key");
        assert_eq!(refused.json["field"], "x-user", "{refused:?}");
    }
    assert_eq!(shop.upstream.runs(), 0);
    // What has no key of anyone's needs no name.
    let look = Answer::of(shop.request(Method::GET, "/orders")).await;
    assert_eq!((look.status.as_u16(), shop.upstream.runs()), (201, 1), "{look:?}");
}

#[tokio::test]
async fn missing_name_is_a_principal_where_the_guard_allows() {
    let upstream = Upstream::start().await;
    let shop = guard_orders("memory:", &upstream.url(), |guard| {
        guard.principal_header = "X-User".to_owned();
        guard.require_principal = false;
    })
    .await;
    shop.buy("k-1").await.is_run(1);
    shop.buy("k-1").await.is_replay_of(1);
    Answer::of(shop.order("k-1").header("X-User", "ada")).await.is_run(2);
}

#[tokio::test]
async fn name_is_believed_from_trusted_proxies_alone() {
    let upstream = Upstream::start().await;
    for (header, is_believed) in [("X-User", false), ("Authorization", true)] {
        let mut config = config("memory:");
        config.server.trusted_proxies = vec!["10.0.0.0/8".to_owned()];
        config.guard = vec![keylatch::http::Guard {
            path: "/orders".to_owned(),
            upstream: upstream.url(),
            principal_header: header.to_owned(),
            ..keylatch::http::Guard::default()
        }];
        let service = Service::start_with(config).await;
        let answer = Answer::of(service.order("k-1").header(header, "ada")).await;
        if is_believed {
            // A credential proves itself, and is the upstream's to check.
            assert_eq!(answer.status, 201, "{answer:?}");
            assert_eq!(upstream.last().headers["authorization"], "ada");
        } else {
            answer.is_refusal(401, "principal-required", "same-key");
            let look = service.request(Method::GET, "/orders").header(header, "ada");
            assert_eq!(Answer::of(look).await.status, 201);
            assert!(!upstream.last().headers.contains_key(header), "a client is whom it likes");
        }
    }
}

#[tokio::test]
async fn identity_and_user_of_one_name_are_two_principals() {
    let all = "allow = [{ keys = \"\", may = [\"use\", \"read\", \"resolve\", \"erase\"] }]";
    let mut keyring = Keyring::default();
    let [alice, ben] = ["alice", "ben"].map(|name| {
        let acts_for = if name == "ben" { "act_for = [\"alice\"]\n" } else { "" };
        keyring.add(name, &format!("{acts_for}{all}"))
    });
    let support = keyring.add("support", &format!("act_for = [\"user:alice\"]\n{all}"));
    let upstream = Upstream::start().await;
    let mut config = keyring.config();
    config.guard = vec![keylatch::http::Guard {
        principal_header: "X-User".to_owned(),
        ..Shop::guard(&upstream.url())
    }];
    let service = Service::start_with(config).await;
    let order = || Answer::of(service.order("k-1").header("X-User", "alice"));
    order().await.is_run(1);

    let record = "/v1/idempotency/k-1?method=POST&path=/orders";
    let send = |key: &str, method: Method, path: &str| {
        Answer::of(service.request(method, path).bearer_auth(key))
    };
    for (key, as_alice) in [(&alice, record), (&ben, &*format!("{record}&principal=alice"))] {
        send(key, Method::GET, as_alice).await.is_problem(404, "no-record");
        let erase = as_alice.replace('?', "/answer?");
        send(key, Method::DELETE, &erase).await.is_problem(404, "no-record");
        let resolve = service.request(Method::POST, &as_alice.replace('?', "/resolve?"));
        let resolve = resolve.bearer_auth(key).json(&json!({"outcome": "not-executed"}));
        Answer::of(resolve).await.is_problem(404, "no-record");
        let listed = send(key, Method::GET, "/v1/idempotency").await.json;
        assert_eq!((&listed["records"], &listed["hidden"]), (&json!([]), &json!(1)));
        let as_user = send(key, Method::GET, &format!("{record}&principal=user:alice")).await;
        as_user.is_problem(403, "forbidden");
    }
    assert_eq!(send(&alice, Method::POST, record).await.status, 201, "the key is free for her");
    order().await.is_replay_of(1);

    let listed = send(&support, Method::GET, "/v1/idempotency").await.json;
    let listed = (&listed["records"][0]["principal"], &listed["hidden"]);
    assert_eq!(listed, (&json!("user:alice"), &json!(1)));
    let of_user = send(&support, Method::GET, &format!("{record}&principal=user:alice")).await;
    assert_eq!((of_user.status.as_u16(), &of_user.json["state"]), (200, &json!("done")));
}
